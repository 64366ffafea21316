use super::chief::{listen, receive};
use super::message::{CHALLENGE, HELLO, Hello, MOST, Wire};
use super::secret::Secret;
use super::visitor::{NOBODY, connect, visit};
use super::*;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

const ID: Id = [7; 128];

fn terms(rank: usize, size: usize, limit: Duration) -> Terms {
    let secret = Secret::new(Some("a secret of the tests")).unwrap();
    let (version, host) = ("0.1".into(), format!("host-{rank}"));
    Terms { rank, size, version, host, secret, limit, began: Instant::now() }
}

const LONG: Duration = Duration::from_secs(20);

/// Rank 0 on a thread of its own while `others` go on.
fn with_chief<T>(
    size: usize,
    limit: Duration,
    others: impl FnOnce(SocketAddr) -> T,
) -> (Result<Met>, T) {
    let listener = listen("localhost", 0).unwrap();
    let address = listener.local_addr().unwrap();
    thread::scope(|scope| {
        let chief = scope.spawn(move || receive(listener, &terms(0, size, limit), &ID));
        let done = others(address);
        (chief.join().expect("no panic"), done)
    })
}

fn go(address: SocketAddr, me: &Terms) -> Result<Met> {
    visit(&address.to_string(), me)
}

fn error(met: Result<Met>) -> String {
    met.err().expect("it is refused").to_string()
}

/// Workers of a job of three, one after another, and nobody else.
fn complete(address: SocketAddr) -> [Result<Met>; 2] {
    thread::scope(|scope| {
        let both = [2, 1].map(|rank| scope.spawn(move || go(address, &terms(rank, 3, LONG))));
        both.map(|worker| worker.join().expect("no panic"))
    })
}

#[test]
fn all_get_what_the_first_has_and_a_closed_connection_tells_who_is_gone() {
    let (chief, others) = with_chief(3, LONG, complete);
    let chief = chief.unwrap();
    let [two, one] = others.map(Result::unwrap);
    assert!(two.id == ID && one.id == ID && chief.id == ID);
    assert_eq!((chief.line.closed(), one.line.closed(), two.line.closed()), (None, None, None));
    drop(two);
    let began = Instant::now();
    while chief.line.closed().is_none() && began.elapsed() < LONG {
        thread::yield_now();
    }
    assert_eq!((chief.line.closed(), one.line.closed()), (Some(2), None));
}

#[test]
fn workers_may_come_before_the_first() {
    let port = listen("localhost", 0).unwrap().local_addr().unwrap().port();
    thread::scope(|scope| {
        let early = scope.spawn(move || visit(&format!("localhost:{port}"), &terms(1, 2, LONG)));
        thread::sleep(Duration::from_millis(300));
        let chief = receive(listen("localhost", port).unwrap(), &terms(0, 2, LONG), &ID);
        assert!(chief.is_ok() && early.join().unwrap().is_ok());
    });
}

#[test]
fn strangers_are_turned_away_and_do_no_harm() {
    let head =
        |kind: u8, len: usize| [&b"PHLX\x01"[..], &[kind], &(len as u16).to_le_bytes()].concat();
    let strange: Vec<Vec<u8>> = vec![
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        head(HELLO, MOST + 1),
        head(HELLO, 0),
        [head(HELLO, 300), vec![0; 300]].concat(),
        head(9, 0),
        b"PHLX\x02\x02\x00\x00".to_vec(),
        vec![],
    ];
    let (chief, others) = with_chief(3, LONG, |address| {
        // Those that say nothing stay for as long as they like.
        let silent: Vec<TcpStream> = (0..9).map(|_| TcpStream::connect(address).unwrap()).collect();
        for bytes in &strange {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(bytes).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            let mut answer = vec![];
            // A challenge, at most a reason, and the end.
            let _ = stream.read_to_end(&mut answer);
            assert!(answer.len() <= 8 + 32 + 8 + 1, "{bytes:?}: {answer:?}");
        }
        let done = complete(address);
        drop(silent);
        done
    });
    assert!(chief.is_ok() && others.iter().all(Result::is_ok));
}

/// More of them than are let in at once, in front of the workers.
#[test]
fn a_hundred_silent_connections_do_not_keep_workers_out() {
    let began = Instant::now();
    let (chief, others) = with_chief(3, LONG, |address| {
        let silent: Vec<TcpStream> =
            (0..100).map(|_| TcpStream::connect(address).unwrap()).collect();
        let done = complete(address);
        drop(silent);
        done
    });
    assert!(chief.is_ok() && others.iter().all(Result::is_ok));
    // Each would have had five seconds, 32 at a time.
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

/// More workers than are let in at once, all at once: none is closed for another's sake.
#[test]
fn more_workers_than_may_be_unproven_at_once_all_come() {
    let (chief, others) = with_chief(65, LONG, |address| {
        thread::scope(|scope| {
            let workers: Vec<_> = (1..65)
                .map(|rank| scope.spawn(move || go(address, &terms(rank, 65, LONG))))
                .collect();
            workers.into_iter().map(|worker| worker.join().expect("no panic").is_ok()).collect()
        })
    });
    let others: Vec<bool> = others;
    assert!(chief.is_ok() && others.iter().all(|came| *came));
}

/// A worker that is closed after its hello while rank 0 still listens.
#[test]
fn a_worker_that_had_to_make_room_comes_again() {
    let listener = listen("localhost", 0).unwrap();
    let address = listener.local_addr().unwrap();
    thread::scope(|scope| {
        let worker = scope.spawn(move || go(address, &terms(1, 2, LONG)));
        let (stream, _) = listener.accept().unwrap();
        let mut wire = Wire { stream, until: Instant::now() + LONG };
        wire.send(CHALLENGE, &[1; 32]).unwrap();
        assert_eq!(wire.receive().unwrap().0, HELLO);
        drop(wire);
        assert!(receive(listener, &terms(0, 2, LONG), &ID).is_ok());
        assert!(worker.join().expect("no panic").is_ok());
    });
}

#[test]
fn whoever_knows_another_secret_or_is_another_worker_is_told_why() {
    let (chief, others) = with_chief(3, LONG, |address| {
        let secret = Secret::new(Some("another secret of the tests")).unwrap();
        let wrong = Terms { secret, ..terms(1, 3, LONG) };
        let words = error(go(address, &wrong));
        assert!(words.contains("turned rank 1 away: PHALANX_SECRET is another"), "{words}");
        let wrong = Terms { version: "0.2".into(), ..terms(1, 3, LONG) };
        assert!(error(go(address, &wrong)).contains("its version is another one"));
        assert!(error(go(address, &terms(1, 4, LONG))).contains("it counts other workers"));
        for rank in [0, 3, 1 << 40] {
            assert!(error(go(address, &terms(rank, 3, LONG))).contains("there is no such rank"));
        }
        complete(address)
    });
    assert!(chief.is_ok() && others.iter().all(Result::is_ok));
}

#[test]
fn a_rank_comes_once_unless_it_was_started_again() {
    let (chief, ()) = with_chief(3, LONG, |address| {
        thread::scope(|scope| {
            // One that says who it is, and leaves before all have come.
            let me = terms(1, 3, LONG);
            let mut wire = Wire { stream: TcpStream::connect(address).unwrap(), until: me.until() };
            let (_, theirs) = wire.receive().unwrap();
            let fields =
                Hello { rank: 1, size: 3, version: "0.1".into(), host: String::new() }.fields();
            let (mine, theirs) = ([3; 32], theirs.try_into().unwrap());
            let proof = me.secret.proof(b"worker", [&theirs, &mine], &fields);
            wire.send(HELLO, &[&mine[..], &fields, &proof].concat()).unwrap();
            thread::sleep(Duration::from_millis(100));
            drop(wire);
            let first = scope.spawn(move || go(address, &terms(1, 3, LONG)));
            thread::sleep(Duration::from_millis(300));
            let again = error(go(address, &terms(1, 3, LONG)));
            assert!(again.contains("another worker has come with the same rank"), "{again}");
            assert!(go(address, &terms(2, 3, LONG)).is_ok());
            assert!(first.join().unwrap().is_ok());
        });
    });
    assert!(chief.is_ok());
}

#[test]
fn who_is_missing_is_named() {
    let limit = Duration::from_millis(700);
    let (chief, worker) = with_chief(4, limit, |address| go(address, &terms(2, 4, LONG)));
    assert_eq!(error(chief), "step 0: rank 1, rank 3: did not come within 0.7 s");
    let words = error(worker);
    assert!(words.ends_with("it left before all workers had come"), "{words}");
    let nobody = listen("localhost", 0).unwrap().local_addr().unwrap();
    let words = error(go(nobody, &terms(1, 2, limit)));
    assert!(words.contains("not reached within 0.7 s: Connection refused"), "{words}");
    let silent = TcpListener::bind("localhost:0").unwrap();
    let words = error(go(silent.local_addr().unwrap(), &terms(1, 2, limit)));
    assert!(words.contains("not reached within 0.7 s: no message came in time"), "{words}");
}

/// What a worker says where something else answers, every time it comes.
fn answered(bytes: &[u8]) -> String {
    let listener = TcpListener::bind("localhost:0").unwrap();
    let address = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    thread::scope(|scope| {
        let worker =
            scope.spawn(move || error(go(address, &terms(1, 2, Duration::from_millis(900)))));
        while !worker.is_finished() {
            let Ok((mut stream, _)) = listener.accept() else {
                thread::sleep(Duration::from_millis(10));
                continue;
            };
            stream.set_nonblocking(false).unwrap();
            stream.set_read_timeout(Some(LONG)).unwrap();
            stream.write_all(bytes).unwrap();
            // Whatever it answers.
            let _ = stream.read(&mut [0; 512]);
        }
        worker.join().expect("no panic")
    })
}

#[test]
fn whoever_listens_must_know_the_secret_too() {
    let challenge = [&b"PHLX\x01\x01\x20\x00"[..], &[1; 32]].concat();
    let welcome = [&b"PHLX\x01\x03\xa1\x00"[..], &ID, &[0], &[5; 32]].concat();
    let words = answered(&[challenge, welcome].concat());
    assert!(words.contains("does not know PHALANX_SECRET"), "{words}");
}

#[test]
fn what_is_no_rank_0_is_named_once_the_time_is_over() {
    for (bytes, why) in [
        (&b"SSH-2.0-OpenSSH_9.2\r\n"[..], "what came is no message of a worker"),
        (b"PHLX\x01\x01\x05\x00abcde", "a message with something missing"),
        (b"PHLX\x01\x01\xff\xff", "expected a message of 1024 bytes or fewer, received 65535"),
        (b"PHLX\x02\x01\x00\x00", "expected messages of version 1, received 2"),
        (b"PHLX\x01\x09\x00\x00", "an unexpected message of kind 9"),
    ] {
        let words = answered(bytes);
        assert!(words.contains(&format!("not reached within 0.9 s: {why}")), "{words}");
    }
}

/// Something else has rank 0's port first, and gives it up.
#[test]
fn a_foreign_greeting_does_not_end_a_worker() {
    let foreign = TcpListener::bind("localhost:0").unwrap();
    let address = foreign.local_addr().unwrap();
    thread::scope(|scope| {
        let worker = scope.spawn(move || go(address, &terms(1, 2, LONG)));
        for greeting in [&b"220 mail.example.org ESMTP\r\n"[..], b"PHLX\x02\x01\x00\x00", b""] {
            let (mut stream, _) = foreign.accept().unwrap();
            stream.write_all(greeting).unwrap();
        }
        drop(foreign);
        let chief = receive(listen("localhost", address.port()).unwrap(), &terms(0, 2, LONG), &ID);
        assert!(chief.is_ok() && worker.join().expect("no panic").is_ok());
    });
}

/// The system tries one port after the other for those who call; on loopback it comes to the one that
/// is called.
#[test]
fn a_worker_does_not_take_itself_for_rank_0() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let me = terms(1, 2, LONG);
    // Those who call get even ports on Linux, those who listen odd ones.
    let nobody = SocketAddr::from(([127, 0, 0, 1], port & !1));
    // The system connects a port to itself in about one of 28,000 attempts.
    for _ in 0..60_000 {
        let error = connect(&nobody, &me).expect_err("a connection to itself");
        if error == NOBODY || Instant::now() > me.until() {
            break;
        }
    }
}

#[test]
fn addresses_are_written_as_they_must_be() {
    assert_eq!(address("node-0", 29500), "node-0:29500");
    assert_eq!(address("10.0.0.1", 1), "10.0.0.1:1");
    assert_eq!((address("::1", 1), address("[::1]", 1)), ("[::1]:1".into(), "[::1]:1".into()));
    for own in ["localhost", "127.0.0.1"] {
        assert!(listen(own, 0).unwrap().local_addr().unwrap().ip().is_loopback());
    }
    assert!(!listen("a-host-elsewhere", 0).unwrap().local_addr().unwrap().ip().is_loopback());
}

#[test]
fn a_short_secret_is_refused_and_none_is_shown() {
    for (text, received) in [(None, "nothing"), (Some("fifteen letters"), "15 characters")] {
        let error = Secret::new(text).err().expect("refused").to_string();
        let words = "PHALANX_SECRET: expected 128 random bits, the same on every worker (made by \
                     `openssl rand -hex 16`)";
        assert_eq!(error, format!("launcher: {words}, received {received}"));
    }
}

#[test]
fn a_secret_of_fewer_than_128_bits_is_warned_of() {
    let weakness = |text: &str| Secret::new(Some(text)).unwrap().weakness();
    let words = "PHALANX_SECRET has 21 characters, fewer than hold 128 random bits; make it by \
                 `openssl rand -hex 16`";
    assert_eq!(weakness("a secret of the tests").as_deref(), Some(words));
    assert_eq!(weakness("RHj3NbcZ0X+q8S0Q0cL2bw"), None, "128 bits in base64");
    assert_eq!(weakness("5f3c1e0a9b7d48622c4e6a8b0d1f3e5c"), None, "and in hexadecimal");
}

#[test]
fn messages_of_any_bytes_are_read_or_refused() {
    let hello = Hello { rank: 1, size: 2, version: "0.1".into(), host: "a\u{1b}[2J".into() };
    let fields = hello.fields();
    assert_eq!(Hello::read(&fields).unwrap().host, "a[2J", "nothing that upsets a terminal");
    for cut in 0..fields.len() {
        assert_eq!(Hello::read(&fields[..cut]), None);
    }
    let long = Hello { host: "é".repeat(500), ..hello };
    assert!(long.fields().len() < MOST && Hello::read(&long.fields()).is_some());
    for case in 0..50_000u32 {
        let mut random = phalanx_graph::rng::Stream::new(1, 0, 7, case);
        let mut bytes: Vec<u8> = (0..random.below(60)).map(|_| random.below(256) as u8).collect();
        if case % 2 == 0 {
            bytes = fields.clone();
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] ^= 1 << random.below(8);
        }
        if let Some(hello) = Hello::read(&bytes) {
            assert!(hello.version.len() + hello.host.len() <= bytes.len() * 3);
        }
        let _ = message::parts(&bytes);
    }
}

#[test]
fn random_bytes_never_stop_the_first() {
    let (chief, others) = with_chief(3, LONG, |address| {
        for case in 0..200u32 {
            let mut random = phalanx_graph::rng::Stream::new(2, 0, 7, case);
            let mut bytes: Vec<u8> =
                (0..random.below(90)).map(|_| random.below(256) as u8).collect();
            if case % 2 == 0 {
                bytes.splice(0..0, *b"PHLX\x01\x02");
            }
            let mut stream = TcpStream::connect(address).unwrap();
            // It may have been turned away by then.
            let _ = stream.write_all(&bytes);
        }
        complete(address)
    });
    assert!(chief.is_ok() && others.iter().all(Result::is_ok));
}
