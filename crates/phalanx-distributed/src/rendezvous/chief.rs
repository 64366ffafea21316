//! Rank 0's side of the rendezvous. Invalid connections are refused one by one and do not affect the others.

use super::connections::{Connections, is_closed};
use super::message::{self, CHALLENGE, Fault, HELLO, Hello, REFUSED, Reason, WELCOME, Wire};
use super::secret::{Nonce, nonce};
use super::{Identity, Joined, NcclId, missing, rendezvous_error};
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

/// The maximum number of unauthenticated connections. A further one closes the oldest of them.
const MAX_UNAUTHENTICATED: usize = 32;
/// The time limit of a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// The minimum time before an unauthenticated connection may be closed; a worker has answered by then.
const GRACE: Duration = Duration::from_millis(200);
/// The maximum number of log lines about refused connections.
const MAX_LOG_LINES: usize = 20;
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// An authenticated worker.
struct Member {
    rank: usize,
    stream: TcpStream,
    nonces: [Nonce; 2],
}

/// Why a connection is refused.
enum Rejection {
    Fault(Fault),
    Reason(Reason, String),
}

impl From<Fault> for Rejection {
    fn from(fault: Fault) -> Rejection {
        Rejection::Fault(fault)
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rejection::Fault(fault) => write!(f, "{fault}"),
            Rejection::Reason(_, text) => write!(f, "{text}"),
        }
    }
}

/// Listens at a port: on the loopback interface if `host` is a loopback address, else on all interfaces.
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
    listener.map_err(|e| rendezvous_error(format!("rank 0 cannot listen at port {port}: {e}")))
}

/// Performs the handshake of one connection. `settled` is set either here, by a valid proof, or by the thread
/// that closes the connection; the first one wins.
fn handshake(
    stream: TcpStream,
    me: &Identity,
    settled: &AtomicBool,
) -> std::result::Result<Member, Rejection> {
    let deadline = me.deadline().min(Instant::now() + HANDSHAKE_TIMEOUT);
    stream.set_nonblocking(false).map_err(|e| Fault::Io(e.to_string()))?;
    let mut wire = Wire { stream, deadline };
    let mine = nonce().map_err(|e| Fault::Io(e.to_string()))?;
    wire.send(CHALLENGE, &mine)?;
    let (kind, body) = wire.receive()?;
    if kind != HELLO {
        return Err(Fault::Kind(kind).into());
    }
    let checked = check(&body, &mine, me);
    if let Err(Rejection::Reason(reason, _)) = &checked {
        // The peer may be gone already.
        let _ = wire.send(REFUSED, &[*reason as u8]);
    }
    let (hello, theirs) = checked?;
    if settled.swap(true, Ordering::SeqCst) {
        return Err(Fault::Closed.into());
    }
    Ok(Member { rank: hello.rank as usize, stream: wire.stream, nonces: [theirs, mine] })
}

/// Verifies the proof and the fields of a hello.
fn check(
    body: &[u8],
    mine: &Nonce,
    me: &Identity,
) -> std::result::Result<(Hello, Nonce), Rejection> {
    let (theirs, fields, proof) = message::split_message(body).ok_or(Fault::Content)?;
    let reject = |reason: Reason, text: String| Err(Rejection::Reason(reason, text));
    if !me.secret.verify(b"worker", [mine, theirs], fields, proof) {
        return reject(Reason::Secret, "it does not know PHALANX_SECRET".into());
    }
    let hello = Hello::read(fields).ok_or(Fault::Content)?;
    let Hello { rank, size, version, host } = &hello;
    if *version != me.version {
        let text = format!("rank {rank} ({host}): expected version {}, received", me.version);
        return reject(Reason::Version, format!("{text} {version}"));
    }
    if *size as usize != me.size {
        let text = format!("rank {rank} ({host}): expected {} workers, received {size}", me.size);
        return reject(Reason::Size, text);
    }
    if !(1..me.size).contains(&(*rank as usize)) {
        let text = format!("expected ranks from 1 to {}, received {rank} ({host})", me.size - 1);
        return reject(Reason::Rank, text);
    }
    Ok((hello, *theirs))
}

/// An unauthenticated connection.
struct Unauthenticated {
    number: usize,
    from: SocketAddr,
    since: Instant,
    stream: TcpStream,
    settled: Arc<AtomicBool>,
}

/// The number of a connection and the result of its handshake.
type Report = (usize, std::result::Result<Member, Rejection>);

/// The listening socket and its unauthenticated connections.
struct Listener {
    listener: TcpListener,
    /// Oldest first.
    open: VecDeque<Unauthenticated>,
    /// The number of connections so far.
    count: usize,
    log_lines: usize,
    report: Sender<Report>,
    reports: Receiver<Report>,
}

impl Listener {
    fn new(listener: TcpListener) -> std::io::Result<Listener> {
        listener.set_nonblocking(true)?;
        let (report, reports) = channel();
        Ok(Listener { listener, open: VecDeque::new(), count: 0, log_lines: 0, report, reports })
    }

    /// Accepts pending connections and returns an authenticated worker, if any.
    fn next(&mut self, me: &Identity) -> Option<Member> {
        while self.can_accept()
            && let Ok((stream, from)) = self.listener.accept()
        {
            if self.open.len() == MAX_UNAUTHENTICATED {
                self.close_oldest();
            }
            if let Err(e) = self.start_handshake(stream, from, me) {
                self.log_refusal(from, &e);
            }
        }
        let (number, result) = self.reports.recv_timeout(POLL_INTERVAL).ok()?;
        let at = self.open.iter().position(|pending| pending.number == number);
        let pending = at.and_then(|at| self.open.remove(at));
        match (result, pending) {
            (Ok(member), _) => Some(member),
            (Err(rejection), Some(pending)) => {
                self.log_refusal(pending.from, &rejection);
                None
            }
            // It was closed in favour of a newer connection.
            (Err(_), None) => None,
        }
    }

    fn can_accept(&self) -> bool {
        let past_grace = |oldest: &Unauthenticated| oldest.since.elapsed() > GRACE;
        self.open.len() < MAX_UNAUTHENTICATED || self.open.front().is_some_and(past_grace)
    }

    fn close_oldest(&mut self) {
        let Some(Unauthenticated { from, stream, settled, .. }) = self.open.pop_front() else {
            return;
        };
        if !settled.swap(true, Ordering::SeqCst) {
            // The peer may be gone already.
            let _ = stream.shutdown(Shutdown::Both);
            self.log_refusal(from, &"it sent nothing while others were waiting");
        }
    }

    /// Starts the handshake of a connection on its own thread.
    fn start_handshake(
        &mut self,
        stream: TcpStream,
        from: SocketAddr,
        me: &Identity,
    ) -> std::io::Result<()> {
        self.count += 1;
        let settled = Arc::new(AtomicBool::new(false));
        let (number, clone, settled_flag) = (self.count, stream.try_clone()?, settled.clone());
        let (report, me) = (self.report.clone(), me.clone());
        let handshake = move || drop(report.send((number, handshake(stream, &me, &settled_flag))));
        thread::Builder::new().name("handshake".into()).spawn(handshake)?;
        let since = Instant::now();
        self.open.push_back(Unauthenticated { number, from, since, stream: clone, settled });
        Ok(())
    }

    fn log_refusal(&mut self, from: SocketAddr, reason: &dyn fmt::Display) {
        self.log_lines += 1;
        if self.log_lines <= MAX_LOG_LINES {
            warning!("rendezvous: refused {from}: {reason}");
        }
    }
}

/// Waits until all workers have joined, and sends them the NCCL id.
pub(super) fn accept_workers(listener: TcpListener, me: &Identity, id: &NcclId) -> Result<Joined> {
    let mut members: Vec<Option<Member>> = (1..me.size).map(|_| None).collect();
    let mut incoming = Listener::new(listener).map_err(rendezvous_error)?;
    while members.iter().any(Option::is_none) {
        if Instant::now() > me.deadline() {
            let names = (1..).zip(&members).filter(|(_, member)| member.is_none());
            let names: Vec<String> = names.map(|(rank, _)| format!("rank {rank}")).collect();
            let seconds = me.limit.as_secs_f64();
            return Err(missing(names.join(", "), format!("did not join within {seconds} s")));
        }
        let Some(member) = incoming.next(me) else { continue };
        let slot = &mut members[member.rank - 1];
        match slot {
            // A restarted worker may replace a closed connection.
            Some(present) if !is_closed(&present.stream) => {
                let Ok(from) = member.stream.peer_addr() else { continue };
                let text = format!("rank {} has already joined", member.rank);
                incoming.log_refusal(from, &text);
                let mut wire =
                    Wire { stream: member.stream, deadline: Instant::now() + HANDSHAKE_TIMEOUT };
                let _ = wire.send(REFUSED, &[Reason::Taken as u8]);
            }
            _ => *slot = Some(member),
        }
    }
    // Workers that connect from here on are refused by the system.
    drop(incoming);
    let mut connections = vec![];
    for Member { rank, stream, nonces: [theirs, mine] } in members.into_iter().flatten() {
        let mut fields = id.to_vec();
        message::push_text(&mut fields, &me.host);
        let proof = me.secret.proof(b"chief ", [&theirs, &mine], &fields);
        fields.extend(proof);
        let mut wire = Wire { stream, deadline: Instant::now() + HANDSHAKE_TIMEOUT };
        let sent = wire.stream.set_nonblocking(false).map_err(|e| Fault::Io(e.to_string()));
        sent.and_then(|()| wire.send(WELCOME, &fields))
            .map_err(|fault| missing(format!("rank {rank}"), fault.to_string()))?;
        connections.push((rank, wire.stream));
    }
    Ok(Joined { id: *id, connections: Connections::new(connections.into_iter()) })
}
