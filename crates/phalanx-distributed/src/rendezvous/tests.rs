use super::chief::{accept_workers, listen};
use super::client::{NOT_LISTENING, connect, join};
use super::message::{CHALLENGE, HELLO, Hello, MAX_BODY_BYTES, Wire};
use super::secret::Secret;
use super::*;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

const ID: NcclId = [7; 128];

fn identity(rank: usize, size: usize, limit: Duration) -> Identity {
    let secret = Secret::new(Some("a secret of the tests")).unwrap();
    let (version, host) = ("0.1".into(), format!("host-{rank}"));
    Identity { rank, size, version, host, secret, limit, started: Instant::now() }
}

const LONG_TIMEOUT: Duration = Duration::from_secs(20);

/// Runs rank 0 on its own thread while `others` runs.
fn with_chief<T>(
    size: usize,
    limit: Duration,
    others: impl FnOnce(SocketAddr) -> T,
) -> (Result<Joined>, T) {
    let listener = listen("localhost", 0).unwrap();
    let address = listener.local_addr().unwrap();
    thread::scope(|scope| {
        let chief = scope.spawn(move || accept_workers(listener, &identity(0, size, limit), &ID));
        let done = others(address);
        (chief.join().expect("no panic"), done)
    })
}

fn join_at(address: SocketAddr, me: &Identity) -> Result<Joined> {
    join(&address.to_string(), me)
}

fn error_text(result: Result<Joined>) -> String {
    result.err().expect("it is refused").to_string()
}

/// Joins the two other workers of a job of three.
fn join_others(address: SocketAddr) -> [Result<Joined>; 2] {
    thread::scope(|scope| {
        let both = [2, 1]
            .map(|rank| scope.spawn(move || join_at(address, &identity(rank, 3, LONG_TIMEOUT))));
        both.map(|worker| worker.join().expect("no panic"))
    })
}

#[test]
fn all_receive_the_id_of_rank_0_and_a_closed_connection_identifies_the_lost_worker() {
    let (chief, others) = with_chief(3, LONG_TIMEOUT, join_others);
    let chief = chief.unwrap();
    let [two, one] = others.map(Result::unwrap);
    assert!(two.id == ID && one.id == ID && chief.id == ID);
    assert_eq!(
        (
            chief.connections.first_closed(),
            one.connections.first_closed(),
            two.connections.first_closed()
        ),
        (None, None, None)
    );
    drop(two);
    let started = Instant::now();
    while chief.connections.first_closed().is_none() && started.elapsed() < LONG_TIMEOUT {
        thread::yield_now();
    }
    assert_eq!((chief.connections.first_closed(), one.connections.first_closed()), (Some(2), None));
}

#[test]
fn workers_may_connect_before_rank_0_listens() {
    let port = listen("localhost", 0).unwrap().local_addr().unwrap().port();
    thread::scope(|scope| {
        let early =
            scope.spawn(move || join(&format!("localhost:{port}"), &identity(1, 2, LONG_TIMEOUT)));
        thread::sleep(Duration::from_millis(300));
        let chief =
            accept_workers(listen("localhost", port).unwrap(), &identity(0, 2, LONG_TIMEOUT), &ID);
        assert!(chief.is_ok() && early.join().unwrap().is_ok());
    });
}

#[test]
fn invalid_connections_are_refused_and_do_no_harm() {
    let head =
        |kind: u8, len: usize| [&b"PHLX\x01"[..], &[kind], &(len as u16).to_le_bytes()].concat();
    let strange: Vec<Vec<u8>> = vec![
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        head(HELLO, MAX_BODY_BYTES + 1),
        head(HELLO, 0),
        [head(HELLO, 300), vec![0; 300]].concat(),
        head(9, 0),
        b"PHLX\x02\x02\x00\x00".to_vec(),
        vec![],
    ];
    let (chief, others) = with_chief(3, LONG_TIMEOUT, |address| {
        // Silent connections stay open.
        let silent: Vec<TcpStream> = (0..9).map(|_| TcpStream::connect(address).unwrap()).collect();
        for bytes in &strange {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(bytes).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            let mut answer = vec![];
            // The reply is a challenge and at most a reason.
            let _ = stream.read_to_end(&mut answer);
            assert!(answer.len() <= 8 + 32 + 8 + 1, "{bytes:?}: {answer:?}");
        }
        let done = join_others(address);
        drop(silent);
        done
    });
    assert!(chief.is_ok() && others.iter().all(Result::is_ok));
}

/// More silent connections than are accepted at once, before the workers.
#[test]
fn a_hundred_silent_connections_do_not_keep_workers_out() {
    let started = Instant::now();
    let (chief, others) = with_chief(3, LONG_TIMEOUT, |address| {
        let silent: Vec<TcpStream> =
            (0..100).map(|_| TcpStream::connect(address).unwrap()).collect();
        let done = join_others(address);
        drop(silent);
        done
    });
    assert!(chief.is_ok() && others.iter().all(Result::is_ok));
    // Otherwise each could take five seconds, 32 at a time.
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
}

/// More workers than unauthenticated connections are allowed. None may be closed in favour of another.
#[test]
fn more_workers_than_unauthenticated_connections_all_join() {
    let (chief, others) = with_chief(65, LONG_TIMEOUT, |address| {
        thread::scope(|scope| {
            let workers: Vec<_> = (1..65)
                .map(|rank| {
                    scope.spawn(move || join_at(address, &identity(rank, 65, LONG_TIMEOUT)))
                })
                .collect();
            workers.into_iter().map(|worker| worker.join().expect("no panic").is_ok()).collect()
        })
    });
    let others: Vec<bool> = others;
    assert!(chief.is_ok() && others.iter().all(|joined| *joined));
}

/// The connection of a worker is closed after its hello while rank 0 still listens.
#[test]
fn a_worker_whose_connection_was_closed_connects_again() {
    let listener = listen("localhost", 0).unwrap();
    let address = listener.local_addr().unwrap();
    thread::scope(|scope| {
        let worker = scope.spawn(move || join_at(address, &identity(1, 2, LONG_TIMEOUT)));
        let (stream, _) = listener.accept().unwrap();
        let mut wire = Wire { stream, deadline: Instant::now() + LONG_TIMEOUT };
        wire.send(CHALLENGE, &[1; 32]).unwrap();
        assert_eq!(wire.receive().unwrap().0, HELLO);
        drop(wire);
        assert!(accept_workers(listener, &identity(0, 2, LONG_TIMEOUT), &ID).is_ok());
        assert!(worker.join().expect("no panic").is_ok());
    });
}

#[test]
fn a_worker_with_another_secret_or_job_is_told_why_it_is_refused() {
    let (chief, others) = with_chief(3, LONG_TIMEOUT, |address| {
        let secret = Secret::new(Some("another secret of the tests")).unwrap();
        let wrong = Identity { secret, ..identity(1, 3, LONG_TIMEOUT) };
        let message = error_text(join_at(address, &wrong));
        assert!(message.contains("refused rank 1: PHALANX_SECRET differs"), "{message}");
        let wrong = Identity { version: "0.2".into(), ..identity(1, 3, LONG_TIMEOUT) };
        assert!(error_text(join_at(address, &wrong)).contains("its version differs"));
        assert!(
            error_text(join_at(address, &identity(1, 4, LONG_TIMEOUT)))
                .contains("its number of workers differs")
        );
        for rank in [0, 3, 1 << 40] {
            assert!(
                error_text(join_at(address, &identity(rank, 3, LONG_TIMEOUT)))
                    .contains("there is no such rank")
            );
        }
        join_others(address)
    });
    assert!(chief.is_ok() && others.iter().all(Result::is_ok));
}

#[test]
fn a_rank_joins_once_unless_it_was_restarted() {
    let (chief, ()) = with_chief(3, LONG_TIMEOUT, |address| {
        thread::scope(|scope| {
            // A worker that authenticates and leaves before all have joined.
            let me = identity(1, 3, LONG_TIMEOUT);
            let mut wire =
                Wire { stream: TcpStream::connect(address).unwrap(), deadline: me.deadline() };
            let (_, theirs) = wire.receive().unwrap();
            let fields =
                Hello { rank: 1, size: 3, version: "0.1".into(), host: String::new() }.fields();
            let (mine, theirs) = ([3; 32], theirs.try_into().unwrap());
            let proof = me.secret.proof(b"worker", [&theirs, &mine], &fields);
            wire.send(HELLO, &[&mine[..], &fields, &proof].concat()).unwrap();
            thread::sleep(Duration::from_millis(100));
            drop(wire);
            let first = scope.spawn(move || join_at(address, &identity(1, 3, LONG_TIMEOUT)));
            thread::sleep(Duration::from_millis(300));
            let again = error_text(join_at(address, &identity(1, 3, LONG_TIMEOUT)));
            assert!(
                again.contains("another worker has already joined with the same rank"),
                "{again}"
            );
            assert!(join_at(address, &identity(2, 3, LONG_TIMEOUT)).is_ok());
            assert!(first.join().unwrap().is_ok());
        });
    });
    assert!(chief.is_ok());
}

#[test]
fn missing_workers_are_named() {
    let limit = Duration::from_millis(700);
    let (chief, worker) =
        with_chief(4, limit, |address| join_at(address, &identity(2, 4, LONG_TIMEOUT)));
    assert_eq!(error_text(chief), "rank 1, rank 3: did not join within 0.7 s");
    let message = error_text(worker);
    assert!(
        message.ends_with("it closed the connection before all workers had joined"),
        "{message}"
    );
    let closed_port = listen("localhost", 0).unwrap().local_addr().unwrap();
    let message = error_text(join_at(closed_port, &identity(1, 2, limit)));
    assert!(message.contains("not reached within 0.7 s: Connection refused"), "{message}");
    let silent = TcpListener::bind("localhost:0").unwrap();
    let message = error_text(join_at(silent.local_addr().unwrap(), &identity(1, 2, limit)));
    assert!(message.contains("not reached within 0.7 s: no message arrived in time"), "{message}");
}

/// The error of a worker if something else answers at every attempt.
fn answered(bytes: &[u8]) -> String {
    let listener = TcpListener::bind("localhost:0").unwrap();
    let address = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    thread::scope(|scope| {
        let worker = scope.spawn(move || {
            error_text(join_at(address, &identity(1, 2, Duration::from_millis(900))))
        });
        while !worker.is_finished() {
            let Ok((mut stream, _)) = listener.accept() else {
                thread::sleep(Duration::from_millis(10));
                continue;
            };
            stream.set_nonblocking(false).unwrap();
            stream.set_read_timeout(Some(LONG_TIMEOUT)).unwrap();
            stream.write_all(bytes).unwrap();
            // The answer does not matter.
            let _ = stream.read(&mut [0; 512]);
        }
        worker.join().expect("no panic")
    })
}

#[test]
fn the_listener_must_know_the_secret_too() {
    let challenge = [&b"PHLX\x01\x01\x20\x00"[..], &[1; 32]].concat();
    let welcome = [&b"PHLX\x01\x03\xa1\x00"[..], &ID, &[0], &[5; 32]].concat();
    let message = answered(&[challenge, welcome].concat());
    assert!(message.contains("does not know PHALANX_SECRET"), "{message}");
}

#[test]
fn a_listener_that_is_not_rank_0_is_reported_after_the_timeout() {
    for (bytes, why) in [
        (&b"SSH-2.0-OpenSSH_9.2\r\n"[..], "received something other than a message of a worker"),
        (b"PHLX\x01\x01\x05\x00abcde", "an incomplete message"),
        (b"PHLX\x01\x01\xff\xff", "expected a message of 1024 bytes or fewer, received 65535"),
        (b"PHLX\x02\x01\x00\x00", "expected messages of version 1, received 2"),
        (b"PHLX\x01\x09\x00\x00", "an unexpected message of kind 9"),
    ] {
        let message = answered(bytes);
        assert!(message.contains(&format!("not reached within 0.9 s: {why}")), "{message}");
    }
}

/// Another program listens at rank 0's port first and then releases it.
#[test]
fn a_foreign_greeting_does_not_end_a_worker() {
    let foreign = TcpListener::bind("localhost:0").unwrap();
    let address = foreign.local_addr().unwrap();
    thread::scope(|scope| {
        let worker = scope.spawn(move || join_at(address, &identity(1, 2, LONG_TIMEOUT)));
        for greeting in [&b"220 mail.example.org ESMTP\r\n"[..], b"PHLX\x02\x01\x00\x00", b""] {
            let (mut stream, _) = foreign.accept().unwrap();
            stream.write_all(greeting).unwrap();
        }
        drop(foreign);
        let chief = accept_workers(
            listen("localhost", address.port()).unwrap(),
            &identity(0, 2, LONG_TIMEOUT),
            &ID,
        );
        assert!(chief.is_ok() && worker.join().expect("no panic").is_ok());
    });
}

/// The system assigns source ports in sequence, and on loopback it may reach the target port.
#[test]
fn a_worker_does_not_take_itself_for_rank_0() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let me = identity(1, 2, LONG_TIMEOUT);
    // Linux assigns even ports to outgoing connections and odd ones to listeners.
    let closed_port = SocketAddr::from(([127, 0, 0, 1], port & !1));
    // A socket connects to itself in about one of 28,000 attempts.
    for _ in 0..60_000 {
        let error = connect(&closed_port, &me).expect_err("a connection to itself");
        if error == NOT_LISTENING || Instant::now() > me.deadline() {
            break;
        }
    }
}

#[test]
fn ipv6_addresses_are_bracketed() {
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
        let message = "PHALANX_SECRET: expected 128 random bits, the same on every worker (generated by \
                     `openssl rand -hex 16`)";
        assert_eq!(error, format!("launcher: {message}, received {received}"));
    }
}

#[test]
fn a_secret_of_fewer_than_128_bits_is_warned_of() {
    let weakness = |text: &str| Secret::new(Some(text)).unwrap().weakness_warning();
    let message = "PHALANX_SECRET has 21 characters, too few for 128 random bits; generate one with \
                 `openssl rand -hex 16`";
    assert_eq!(weakness("a secret of the tests").as_deref(), Some(message));
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
    assert!(long.fields().len() < MAX_BODY_BYTES && Hello::read(&long.fields()).is_some());
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
        let _ = message::split_message(&bytes);
    }
}

#[test]
fn random_bytes_never_stop_rank_0() {
    let (chief, others) = with_chief(3, LONG_TIMEOUT, |address| {
        for case in 0..200u32 {
            let mut random = phalanx_graph::rng::Stream::new(2, 0, 7, case);
            let mut bytes: Vec<u8> =
                (0..random.below(90)).map(|_| random.below(256) as u8).collect();
            if case % 2 == 0 {
                bytes.splice(0..0, *b"PHLX\x01\x02");
            }
            let mut stream = TcpStream::connect(address).unwrap();
            // The connection may have been refused by then.
            let _ = stream.write_all(&bytes);
        }
        join_others(address)
    });
    assert!(chief.is_ok() && others.iter().all(Result::is_ok));
}
