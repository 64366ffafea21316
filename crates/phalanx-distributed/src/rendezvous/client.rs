//! The side of every worker other than rank 0.

use super::message::{self, CHALLENGE, Fault, HELLO, Hello, REFUSED, Reason, WELCOME, Wire};
use super::secret::nonce;
use super::{Connections, Identity, Joined, NcclId, missing, rendezvous_error};
use crate::error::{Error, Result};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::thread;
use std::time::{Duration, Instant};

/// Time limits for connecting to an address and for the first message, and the pause between attempts.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const FIRST_MESSAGE_TIMEOUT: Duration = Duration::from_secs(5);
const RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// The reason for discarding a connection of a socket to itself.
pub(super) const NOT_LISTENING: &str = "nothing listens there yet";

/// Why an attempt failed.
enum AttemptError {
    /// Retry: rank 0 may not be listening yet.
    Retry(String),
    Fatal(Error),
}

/// Connects to rank 0, which may start later than this worker, and waits until all workers have joined.
pub(super) fn join(address: &str, me: &Identity) -> Result<Joined> {
    loop {
        match attempt(address, me) {
            Ok(joined) => return Ok(joined),
            Err(AttemptError::Fatal(error)) => return Err(error),
            Err(AttemptError::Retry(_)) if Instant::now() + RETRY_INTERVAL < me.deadline() => {
                thread::sleep(RETRY_INTERVAL)
            }
            Err(AttemptError::Retry(reason)) => {
                let message = format!("not reached within {} s: {reason}", me.limit.as_secs_f64());
                return Err(missing(format!("rank 0 ({address})"), message));
            }
        }
    }
}

/// Connects to an address within the deadline of the whole rendezvous.
pub(super) fn connect(at: &SocketAddr, me: &Identity) -> std::result::Result<TcpStream, String> {
    let remaining = me.deadline().saturating_duration_since(Instant::now()).min(CONNECT_TIMEOUT);
    let stream = TcpStream::connect_timeout(at, remaining.max(Duration::from_millis(1)));
    match stream {
        Ok(stream) if is_self_connection(&stream) => Err(NOT_LISTENING.into()),
        Ok(stream) => Ok(stream),
        Err(e) => Err(e.to_string()),
    }
}

/// Whether a socket is connected to itself. On loopback the system may pick the target port as the source port,
/// and TCP then connects the two although nothing listens there.
fn is_self_connection(stream: &TcpStream) -> bool {
    matches!((stream.local_addr(), stream.peer_addr()), (Ok(here), Ok(there)) if here == there)
}

/// Tries every address of rank 0, because something else may answer at one of them.
fn attempt(address: &str, me: &Identity) -> std::result::Result<Joined, AttemptError> {
    let mut reasons: Vec<String> = vec![];
    for at in address.to_socket_addrs().map_err(|e| AttemptError::Retry(e.to_string()))? {
        match attempt_at(&at, address, me) {
            Err(AttemptError::Retry(reason)) if reasons.contains(&reason) => {}
            Err(AttemptError::Retry(reason)) => reasons.push(reason),
            done => return done,
        }
    }
    let reason = if reasons.is_empty() { "no address".into() } else { reasons.join("; ") };
    Err(AttemptError::Retry(reason))
}

fn attempt_at(
    at: &SocketAddr,
    address: &str,
    me: &Identity,
) -> std::result::Result<Joined, AttemptError> {
    let stream = connect(at, me).map_err(AttemptError::Retry)?;
    let mut wire =
        Wire { stream, deadline: me.deadline().min(Instant::now() + FIRST_MESSAGE_TIMEOUT) };
    // An unauthenticated listener may be another program that will be gone at the next attempt.
    let retry = |fault: Fault| AttemptError::Retry(fault.to_string());
    let (kind, body) = wire.receive().map_err(retry)?;
    wire.deadline = me.deadline();
    let theirs = match (kind, body.try_into()) {
        (CHALLENGE, Ok(theirs)) => theirs,
        (CHALLENGE, Err(_)) => return Err(retry(Fault::Content)),
        (kind, _) => return Err(retry(Fault::Kind(kind))),
    };
    let mine = nonce().map_err(AttemptError::Fatal)?;
    let (version, host) = (me.version.clone(), me.host.clone());
    let fields = Hello { rank: me.rank as u32, size: me.size as u32, version, host }.fields();
    let proof = me.secret.proof(b"worker", [&theirs, &mine], &fields);
    let hello = [&mine[..], &fields, &proof].concat();
    let fatal =
        |message: String| AttemptError::Fatal(missing(format!("rank 0 ({address})"), message));
    let lost = |fault: Fault| match fault {
        // Rank 0 closed the connection in favour of a newer one.
        Fault::Closed if connect(at, me).is_ok() => retry(fault),
        Fault::Closed => fatal("it closed the connection before all workers had joined".into()),
        Fault::Slow | Fault::Io(_) => fatal(fault.to_string()),
        fault => retry(fault),
    };
    wire.send(HELLO, &hello).map_err(lost)?;
    let (kind, body) = wire.receive().map_err(lost)?;
    match kind {
        WELCOME => {}
        REFUSED => {
            let reason = Reason::read(&body).map_or("no reason given".into(), |r| r.to_string());
            let message = format!("rank 0 ({address}) refused rank {}: {reason}", me.rank);
            return Err(AttemptError::Fatal(rendezvous_error(message)));
        }
        kind => return Err(retry(Fault::Kind(kind))),
    }
    let (fields, proof) = body.split_last_chunk().ok_or_else(|| retry(Fault::Content))?;
    if !me.secret.verify(b"chief ", [&mine, &theirs], fields, proof) {
        let message = format!("{address}: the listener does not know PHALANX_SECRET");
        return Err(AttemptError::Fatal(rendezvous_error(message)));
    }
    let id: Option<(&NcclId, &[u8])> = fields.split_first_chunk();
    let (id, host) = id.ok_or_else(|| retry(Fault::Content))?;
    let (host, _) = message::read_text(host).ok_or_else(|| retry(Fault::Content))?;
    tracing::debug!("joined rank 0 on {host}");
    Ok(Joined { id: *id, connections: Connections::new([(0, wire.stream)].into_iter()) })
}
