//! How workers without MPI find each other. Rank 0 listens; every other worker makes one connection. Both
//! sides prove that they know the same secret, which itself never travels, and rank 0 hands out what
//! their GPUs find each other by. Nothing else is sent: the connections stay open, and one that closes
//! tells who is gone.
//!
//! ```text
//! rank 0 → worker   challenge: a nonce
//! worker → rank 0   hello: a nonce, rank, size, version, host, proof
//! rank 0 → worker   welcome, once all have come: the GPUs' id, host, proof; or refused: a reason
//! ```

mod chief;
mod line;
mod message;
mod secret;
#[cfg(test)]
mod tests;
mod visitor;

use crate::error::{Error, Result};
use crate::launch::Launch;
use crate::warnings::warning;
use crate::workers::{self, lost};
use line::Line;
use phalanx_cuda::RankInfo;
use phalanx_graph::process_group::{PeerError, ProcessGroup};
use secret::Secret;
use std::sync::Arc;
use std::time::{Duration, Instant};

const OWNER: &str = "rendezvous";

/// What GPUs of several processes find each other by.
type Id = [u8; 128];

/// Meets the other workers where rank 0 listens; they then reach each other through their GPUs, this
/// one through `gpu`.
///
/// # Errors
/// No secret, workers that do not come in time, or one that is refused.
pub(crate) fn meet(
    launch: &Launch,
    (host, port): (&str, u16),
    gpu: usize,
    secret: Option<&str>,
    timeout: Duration,
) -> Result<Arc<dyn ProcessGroup>> {
    let me = Terms {
        rank: launch.rank,
        size: launch.size,
        version: env!("CARGO_PKG_VERSION").into(),
        host: workers::host().unwrap_or_else(|| "?".into()),
        secret: Secret::new(secret)?,
        limit: timeout,
        began: Instant::now(),
    };
    if let Some(weakness) = me.secret.weakness().filter(|_| me.rank == 0) {
        warning!("{weakness}");
    }
    let met = match me.rank {
        0 => {
            let id = phalanx_cuda::nccl_id()?;
            chief::receive(chief::listen(host, port)?, &me, &id)?
        }
        _ => visitor::visit(&address(host, port), &me)?,
    };
    through_gpus(gpu, me, met)
}

/// The workers that have met, by way of their GPUs.
fn through_gpus(gpu: usize, me: Terms, met: Met) -> Result<Arc<dyn ProcessGroup>> {
    let Terms { rank, size, host, limit, .. } = me;
    let (id, gone) = (met.id, Box::new(move || met.line.closed()));
    let place = RankInfo { rank, size, host, id, timeout: limit, lost_peer: gone };
    Ok(phalanx_cuda::nccl_process_group(gpu, place)?)
}

/// An address as it is written: one of IPv6 in brackets.
fn address(host: &str, port: u16) -> String {
    let host = host.trim_matches(['[', ']']);
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// What a worker brings.
#[derive(Clone)]
struct Terms {
    rank: usize,
    size: usize,
    version: String,
    host: String,
    secret: Secret,
    /// How long it waits in all.
    limit: Duration,
    began: Instant,
}

impl Terms {
    fn until(&self) -> Instant {
        self.began + self.limit
    }
}

/// What comes of a meeting.
struct Met {
    id: Id,
    /// The connections that stay.
    line: Line,
}

/// Workers that did not come.
fn missing(name: String, message: String) -> Error {
    lost(PeerError { name, message })
}

fn failed(reason: impl std::fmt::Display) -> Error {
    Error::config(OWNER, reason)
}
