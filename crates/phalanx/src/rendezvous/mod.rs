//! Rendezvous of workers without MPI. Rank 0 listens, and every other worker opens one connection to it. Both
//! sides prove that they know the same secret, which is never sent. Rank 0 then sends the NCCL id through which
//! the GPUs connect. Nothing else is sent: the connections stay open, and a closed one identifies a lost
//! worker.
//!
//! ```text
//! rank 0 → worker   challenge: a nonce
//! worker → rank 0   hello: a nonce, rank, size, version, host, proof
//! rank 0 → worker   welcome, once all have joined: the NCCL id, host, proof; or refused: a reason
//! ```

mod chief;
mod client;
mod connections;
mod message;
mod secret;
#[cfg(test)]
mod tests;

use crate::error::{Error, Result};
use crate::launch::Launch;
use crate::warnings::warning;
use crate::workers::{self, peer_lost};
use connections::Connections;
use phalanx_cuda::RankInfo;
use phalanx_graph::process_group::{PeerError, ProcessGroup};
use secret::Secret;
use std::sync::Arc;
use std::time::{Duration, Instant};

const OWNER: &str = "rendezvous";

/// The id by which the GPUs of several processes connect (`ncclUniqueId`).
type NcclId = [u8; 128];

/// Joins the other workers at the address of rank 0. They then communicate through their GPUs, this worker
/// through `gpu`.
///
/// # Errors
/// No secret, workers that do not join in time, or a worker that is refused.
pub(crate) fn join(
    launch: &Launch,
    (host, port): (&str, u16),
    gpu: usize,
    secret: Option<&str>,
    timeout: Duration,
) -> Result<Arc<dyn ProcessGroup>> {
    let me = Identity {
        rank: launch.rank,
        size: launch.size,
        version: env!("CARGO_PKG_VERSION").into(),
        host: workers::host().unwrap_or_else(|| "?".into()),
        secret: Secret::new(secret)?,
        limit: timeout,
        started: Instant::now(),
    };
    if let Some(warning) = me.secret.weakness_warning().filter(|_| me.rank == 0) {
        warning!("{warning}");
    }
    let joined = match me.rank {
        0 => {
            let id = phalanx_cuda::nccl_id()?;
            chief::accept_workers(chief::listen(host, port)?, &me, &id)?
        }
        _ => client::join(&address(host, port), &me)?,
    };
    connect_gpus(gpu, me, joined)
}

/// Connects the GPUs of the joined workers.
fn connect_gpus(gpu: usize, me: Identity, joined: Joined) -> Result<Arc<dyn ProcessGroup>> {
    let Identity { rank, size, host, limit, .. } = me;
    let (id, lost_peer) = (joined.id, Box::new(move || joined.connections.first_closed()));
    let me = RankInfo { rank, size, host, id, timeout: limit, lost_peer };
    Ok(phalanx_cuda::nccl_process_group(gpu, me)?)
}

/// Formats an address, with brackets around an IPv6 host.
fn address(host: &str, port: u16) -> String {
    let host = host.trim_matches(['[', ']']);
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// What a worker knows about itself and its job.
#[derive(Clone)]
struct Identity {
    rank: usize,
    size: usize,
    version: String,
    host: String,
    secret: Secret,
    /// The limit to the whole rendezvous.
    limit: Duration,
    started: Instant,
}

impl Identity {
    fn deadline(&self) -> Instant {
        self.started + self.limit
    }
}

/// The result of a rendezvous.
struct Joined {
    id: NcclId,
    /// The connections that stay open.
    connections: Connections,
}

/// The error for workers that did not join.
fn missing(name: String, message: String) -> Error {
    peer_lost(PeerError { name, message })
}

fn rendezvous_error(reason: impl std::fmt::Display) -> Error {
    Error::config(OWNER, reason)
}
