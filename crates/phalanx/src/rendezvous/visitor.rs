//! The side of every worker but rank 0.

use super::message::{self, CHALLENGE, Fault, HELLO, Hello, REFUSED, Reason, WELCOME, Wire};
use super::secret::nonce;
use super::{Id, Line, Met, Terms, failed, missing};
use crate::error::{Error, Result};
use std::net::{TcpStream, ToSocketAddrs};
use std::thread;
use std::time::{Duration, Instant};

/// How long an address may take to answer, and how long to wait until it is tried again.
const CONNECTING: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(200);

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

fn connect(address: &str, me: &Terms) -> std::result::Result<TcpStream, String> {
    let mut why = "no address".to_string();
    for at in address.to_socket_addrs().map_err(|e| e.to_string())? {
        let left = me.until().saturating_duration_since(Instant::now()).min(CONNECTING);
        match TcpStream::connect_timeout(&at, left.max(Duration::from_millis(1))) {
            Ok(stream) => return Ok(stream),
            Err(e) => why = e.to_string(),
        }
    }
    Err(why)
}

fn attempt(address: &str, me: &Terms) -> std::result::Result<Met, Tried> {
    let stream = connect(address, me).map_err(Tried::Later)?;
    let mut wire = Wire { stream, until: me.until() };
    let name = || format!("rank 0 ({address})");
    let other = |fault: &Fault| Tried::Never(failed(format!("{address}: {fault}")));
    let (kind, body) = wire.receive().map_err(|fault| match fault {
        Fault::Closed | Fault::Slow | Fault::Io(_) => Tried::Later(fault.to_string()),
        fault => other(&fault),
    })?;
    let theirs = match (kind, body.try_into()) {
        (CHALLENGE, Ok(theirs)) => theirs,
        (CHALLENGE, Err(_)) => return Err(other(&Fault::Content)),
        (kind, _) => return Err(other(&Fault::Kind(kind))),
    };
    let mine = nonce().map_err(Tried::Never)?;
    let (version, host) = (me.version.clone(), me.host.clone());
    let fields = Hello { rank: me.rank as u32, size: me.size as u32, version, host }.fields();
    let proof = me.secret.proof(b"worker", [&theirs, &mine], &fields);
    let hello = [&mine[..], &fields, &proof].concat();
    let never = |message: String| Tried::Never(missing(name(), message));
    let lost = |fault: Fault| match fault {
        // It had to make room for others.
        Fault::Closed if connect(address, me).is_ok() => Tried::Later(fault.to_string()),
        Fault::Closed => never("it left before all workers had come".into()),
        fault => never(fault.to_string()),
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
        kind => return Err(other(&Fault::Kind(kind))),
    }
    let (fields, proof) = body.split_last_chunk().ok_or_else(|| other(&Fault::Content))?;
    if !me.secret.proves(b"chief ", [&mine, &theirs], fields, proof) {
        let words = format!("{address}: whoever listens there does not know PHALANX_SECRET");
        return Err(Tried::Never(failed(words)));
    }
    let id: Option<(&Id, &[u8])> = fields.split_first_chunk();
    let (id, host) = id.ok_or_else(|| other(&Fault::Content))?;
    let (host, _) = message::text(host).ok_or_else(|| other(&Fault::Content))?;
    tracing::debug!("met by rank 0 on {host}");
    Ok(Met { id: *id, line: Line::new([(0, wire.stream)].into_iter()) })
}
