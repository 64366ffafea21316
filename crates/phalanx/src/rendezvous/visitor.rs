//! The side of every worker but rank 0.

use super::message::{self, CHALLENGE, Fault, HELLO, Hello, REFUSED, Reason, WELCOME, Wire};
use super::secret::nonce;
use super::{Id, Line, Met, Terms, failed, missing};
use crate::error::{Error, Result};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::thread;
use std::time::{Duration, Instant};

/// How long an address may take to answer, whoever listens there to say the first word, and how long to
/// wait until it is tried again.
const CONNECTING: Duration = Duration::from_secs(5);
const GREETING: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(200);
/// Why a connection that leads back to itself is none.
pub(super) const NOBODY: &str = "nobody listens there yet";

/// What becomes of one try.
enum Tried {
    /// Rank 0 may not be there yet.
    Later(String),
    Never(Error),
}

/// Goes to rank 0, which may start later than this worker, and waits until all have come.
pub(super) fn visit(address: &str, me: &Terms) -> Result<Met> {
    loop {
        match attempt(address, me) {
            Ok(met) => return Ok(met),
            Err(Tried::Never(error)) => return Err(error),
            Err(Tried::Later(_)) if Instant::now() + PAUSE < me.until() => thread::sleep(PAUSE),
            Err(Tried::Later(why)) => {
                let message = format!("not reached within {} s: {why}", me.limit.as_secs_f64());
                return Err(missing(format!("rank 0 ({address})"), message));
            }
        }
    }
}

/// Connects to an address; the limit to every wait is that of all waits together.
pub(super) fn connect(at: &SocketAddr, me: &Terms) -> std::result::Result<TcpStream, String> {
    let left = me.until().saturating_duration_since(Instant::now()).min(CONNECTING);
    let stream = TcpStream::connect_timeout(at, left.max(Duration::from_millis(1)));
    match stream {
        Ok(stream) if is_own(&stream) => Err(NOBODY.into()),
        Ok(stream) => Ok(stream),
        Err(e) => Err(e.to_string()),
    }
}

/// Whether a connection leads back to itself: on loopback the system may pick the very port that is called
/// as the caller's own, and TCP connects the two where nobody listens.
fn is_own(stream: &TcpStream) -> bool {
    matches!((stream.local_addr(), stream.peer_addr()), (Ok(here), Ok(there)) if here == there)
}

/// Tries every address of rank 0: something else may answer at one of them.
fn attempt(address: &str, me: &Terms) -> std::result::Result<Met, Tried> {
    let mut reasons: Vec<String> = vec![];
    for at in address.to_socket_addrs().map_err(|e| Tried::Later(e.to_string()))? {
        match attempt_at(&at, address, me) {
            Err(Tried::Later(reason)) if reasons.contains(&reason) => {}
            Err(Tried::Later(reason)) => reasons.push(reason),
            done => return done,
        }
    }
    let why = if reasons.is_empty() { "no address".into() } else { reasons.join("; ") };
    Err(Tried::Later(why))
}

fn attempt_at(at: &SocketAddr, address: &str, me: &Terms) -> std::result::Result<Met, Tried> {
    let stream = connect(at, me).map_err(Tried::Later)?;
    let mut wire = Wire { stream, until: me.until().min(Instant::now() + GREETING) };
    // Whoever has not proved to be rank 0 may be something else that will be gone.
    let other = |fault: Fault| Tried::Later(fault.to_string());
    let (kind, body) = wire.receive().map_err(other)?;
    wire.until = me.until();
    let theirs = match (kind, body.try_into()) {
        (CHALLENGE, Ok(theirs)) => theirs,
        (CHALLENGE, Err(_)) => return Err(other(Fault::Content)),
        (kind, _) => return Err(other(Fault::Kind(kind))),
    };
    let mine = nonce().map_err(Tried::Never)?;
    let (version, host) = (me.version.clone(), me.host.clone());
    let fields = Hello { rank: me.rank as u32, size: me.size as u32, version, host }.fields();
    let proof = me.secret.proof(b"worker", [&theirs, &mine], &fields);
    let hello = [&mine[..], &fields, &proof].concat();
    let never = |message: String| Tried::Never(missing(format!("rank 0 ({address})"), message));
    let lost = |fault: Fault| match fault {
        // It had to make room for others.
        Fault::Closed if connect(at, me).is_ok() => other(fault),
        Fault::Closed => never("it left before all workers had come".into()),
        Fault::Slow | Fault::Io(_) => never(fault.to_string()),
        fault => other(fault),
    };
    wire.send(HELLO, &hello).map_err(lost)?;
    let (kind, body) = wire.receive().map_err(lost)?;
    match kind {
        WELCOME => {}
        REFUSED => {
            let reason = Reason::read(&body).map_or("for no reason".into(), |r| r.to_string());
            let words = format!("rank 0 ({address}) turned rank {} away: {reason}", me.rank);
            return Err(Tried::Never(failed(words)));
        }
        kind => return Err(other(Fault::Kind(kind))),
    }
    let (fields, proof) = body.split_last_chunk().ok_or_else(|| other(Fault::Content))?;
    if !me.secret.proves(b"chief ", [&mine, &theirs], fields, proof) {
        let words = format!("{address}: whoever listens there does not know PHALANX_SECRET");
        return Err(Tried::Never(failed(words)));
    }
    let id: Option<(&Id, &[u8])> = fields.split_first_chunk();
    let (id, host) = id.ok_or_else(|| other(Fault::Content))?;
    let (host, _) = message::text(host).ok_or_else(|| other(Fault::Content))?;
    tracing::debug!("met by rank 0 on {host}");
    Ok(Met { id: *id, line: Line::new([(0, wire.stream)].into_iter()) })
}
