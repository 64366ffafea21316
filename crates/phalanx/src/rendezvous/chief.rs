//! Rank 0's side: strangers are turned away one by one, and do no harm to the others.

use super::line::{self, Line};
use super::message::{self, CHALLENGE, Fault, HELLO, Hello, REFUSED, Reason, WELCOME, Wire};
use super::secret::{Nonce, nonce};
use super::{Id, Met, Terms, failed, missing};
use crate::error::Result;
use crate::warnings::warning;
use std::collections::VecDeque;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Most connections whose other end has not proved anything yet; one more closes the oldest of them.
const MOST_OPEN: usize = 32;
/// How long such a one may take.
const GREETING: Duration = Duration::from_secs(5);
/// How long it has in any case: a worker has answered by then.
const BREATH: Duration = Duration::from_millis(200);
/// Most lines about strangers.
const MOST_LINES: usize = 20;
const PAUSE: Duration = Duration::from_millis(10);

/// A worker that has proved who it is.
struct Guest {
    rank: usize,
    stream: TcpStream,
    nonces: [Nonce; 2],
}

/// Why somebody is turned away.
enum Turned {
    Fault(Fault),
    Reason(Reason, String),
}

impl From<Fault> for Turned {
    fn from(fault: Fault) -> Turned {
        Turned::Fault(fault)
    }
}

impl fmt::Display for Turned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Turned::Fault(fault) => write!(f, "{fault}"),
            Turned::Reason(_, words) => write!(f, "{words}"),
        }
    }
}

/// Listens at a port: on this machine alone where the address is its own in any case, else everywhere.
pub(super) fn listen(host: &str, port: u16) -> Result<TcpListener> {
    let own = match host.trim_matches(['[', ']']).parse::<IpAddr>() {
        Ok(ip) => ip.is_loopback(),
        Err(_) => host == "localhost",
    };
    let listener = match own {
        true => TcpListener::bind((host.trim_matches(['[', ']']), port)),
        false => TcpListener::bind(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port))
            .or_else(|_| TcpListener::bind(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port))),
    };
    listener.map_err(|e| failed(format!("rank 0 cannot listen at port {port}: {e}")))
}

/// What a connection comes to. Whoever settles that first, by a proof here or by closing it, has its way.
fn greet(
    stream: TcpStream,
    me: &Terms,
    settled: &AtomicBool,
) -> std::result::Result<Guest, Turned> {
    let until = me.until().min(Instant::now() + GREETING);
    stream.set_nonblocking(false).map_err(|e| Fault::Io(e.to_string()))?;
    let mut wire = Wire { stream, until };
    let mine = nonce().map_err(|e| Fault::Io(e.to_string()))?;
    wire.send(CHALLENGE, &mine)?;
    let (kind, body) = wire.receive()?;
    if kind != HELLO {
        return Err(Fault::Kind(kind).into());
    }
    let turned = check(&body, &mine, me);
    if let Err(Turned::Reason(reason, _)) = &turned {
        // It may have gone.
        let _ = wire.send(REFUSED, &[*reason as u8]);
    }
    let (hello, theirs) = turned?;
    if settled.swap(true, Ordering::SeqCst) {
        return Err(Fault::Closed.into());
    }
    Ok(Guest { rank: hello.rank as usize, stream: wire.stream, nonces: [theirs, mine] })
}

/// Whether what a worker says is proved, and right.
fn check(body: &[u8], mine: &Nonce, me: &Terms) -> std::result::Result<(Hello, Nonce), Turned> {
    let (theirs, fields, proof) = message::parts(body).ok_or(Fault::Content)?;
    let turn = |reason: Reason, words: String| Err(Turned::Reason(reason, words));
    if !me.secret.proves(b"worker", [mine, theirs], fields, proof) {
        return turn(Reason::Secret, "it does not know PHALANX_SECRET".into());
    }
    let hello = Hello::read(fields).ok_or(Fault::Content)?;
    let Hello { rank, size, version, host } = &hello;
    if *version != me.version {
        let words = format!("rank {rank} ({host}): expected version {}, received", me.version);
        return turn(Reason::Version, format!("{words} {version}"));
    }
    if *size as usize != me.size {
        let words = format!("rank {rank} ({host}): expected {} workers, received {size}", me.size);
        return turn(Reason::Size, words);
    }
    if !(1..me.size).contains(&(*rank as usize)) {
        let words = format!("expected ranks from 1 to {}, received {rank} ({host})", me.size - 1);
        return turn(Reason::Rank, words);
    }
    Ok((hello, *theirs))
}

/// A connection that has proved nothing yet.
struct Unproven {
    number: usize,
    from: SocketAddr,
    since: Instant,
    stream: TcpStream,
    settled: Arc<AtomicBool>,
}

/// What a connection has come to, with its number.
type Report = (usize, std::result::Result<Guest, Turned>);

/// Connections on their way in.
struct Door {
    listener: TcpListener,
    /// The oldest first.
    open: VecDeque<Unproven>,
    /// Connections so far.
    count: usize,
    lines: usize,
    report: Sender<Report>,
    reports: Receiver<Report>,
}

impl Door {
    fn new(listener: TcpListener) -> std::io::Result<Door> {
        listener.set_nonblocking(true)?;
        let (report, reports) = channel();
        Ok(Door { listener, open: VecDeque::new(), count: 0, lines: 0, report, reports })
    }

    /// Lets those in that wait; and hands over one that has proved who it is.
    fn next(&mut self, me: &Terms) -> Option<Guest> {
        while self.has_room()
            && let Ok((stream, from)) = self.listener.accept()
        {
            if self.open.len() == MOST_OPEN {
                self.close_oldest();
            }
            if let Err(e) = self.let_in(stream, from, me) {
                self.say(from, &e);
            }
        }
        let (number, turned) = self.reports.recv_timeout(PAUSE).ok()?;
        let at = self.open.iter().position(|unproven| unproven.number == number);
        let unproven = at.and_then(|at| self.open.remove(at));
        match (turned, unproven) {
            (Ok(guest), _) => Some(guest),
            (Err(turned), Some(unproven)) => {
                self.say(unproven.from, &turned);
                None
            }
            // It was closed to make room.
            (Err(_), None) => None,
        }
    }

    fn has_room(&self) -> bool {
        let patient = |oldest: &Unproven| oldest.since.elapsed() > BREATH;
        self.open.len() < MOST_OPEN || self.open.front().is_some_and(patient)
    }

    fn close_oldest(&mut self) {
        let Some(Unproven { from, stream, settled, .. }) = self.open.pop_front() else { return };
        if !settled.swap(true, Ordering::SeqCst) {
            // It may have gone.
            let _ = stream.shutdown(Shutdown::Both);
            self.say(from, &"it said nothing while others wait");
        }
    }

    /// Gives a connection a thread.
    fn let_in(&mut self, stream: TcpStream, from: SocketAddr, me: &Terms) -> std::io::Result<()> {
        self.count += 1;
        let settled = Arc::new(AtomicBool::new(false));
        let (number, kept, mine) = (self.count, stream.try_clone()?, settled.clone());
        let (report, terms) = (self.report.clone(), me.clone());
        let greet = move || drop(report.send((number, greet(stream, &terms, &mine))));
        thread::Builder::new().name("greeting".into()).spawn(greet)?;
        let since = Instant::now();
        self.open.push_back(Unproven { number, from, since, stream: kept, settled });
        Ok(())
    }

    fn say(&mut self, from: SocketAddr, words: &dyn fmt::Display) {
        self.lines += 1;
        if self.lines <= MOST_LINES {
            warning!("rendezvous: {from} is turned away: {words}");
        }
    }
}

/// Waits until all workers have come, and gives them what their GPUs find each other by.
pub(super) fn receive(listener: TcpListener, me: &Terms, id: &Id) -> Result<Met> {
    let mut guests: Vec<Option<Guest>> = (1..me.size).map(|_| None).collect();
    let mut door = Door::new(listener).map_err(failed)?;
    while guests.iter().any(Option::is_none) {
        if Instant::now() > me.until() {
            let names = (1..).zip(&guests).filter(|(_, guest)| guest.is_none());
            let names: Vec<String> = names.map(|(rank, _)| format!("rank {rank}")).collect();
            let seconds = me.limit.as_secs_f64();
            return Err(missing(names.join(", "), format!("did not come within {seconds} s")));
        }
        let Some(guest) = door.next(me) else { continue };
        let place = &mut guests[guest.rank - 1];
        match place {
            // One that was started again may come in its place.
            Some(there) if !line::closed(&there.stream) => {
                let Ok(from) = guest.stream.peer_addr() else { continue };
                let words = format!("rank {} has come before", guest.rank);
                door.say(from, &words);
                let mut wire = Wire { stream: guest.stream, until: Instant::now() + GREETING };
                let _ = wire.send(REFUSED, &[Reason::Taken as u8]);
            }
            _ => *place = Some(guest),
        }
    }
    // Whoever is left alone from here on finds nobody.
    drop(door);
    let mut connections = vec![];
    for Guest { rank, stream, nonces: [theirs, mine] } in guests.into_iter().flatten() {
        let mut fields = id.to_vec();
        message::text_into(&mut fields, &me.host);
        let proof = me.secret.proof(b"chief ", [&theirs, &mine], &fields);
        fields.extend(proof);
        let mut wire = Wire { stream, until: Instant::now() + GREETING };
        let told = wire.stream.set_nonblocking(false).map_err(|e| Fault::Io(e.to_string()));
        told.and_then(|()| wire.send(WELCOME, &fields))
            .map_err(|fault| missing(format!("rank {rank}"), fault.to_string()))?;
        connections.push((rank, wire.stream));
    }
    Ok(Met { id: *id, line: Line::new(connections.into_iter()) })
}
