//! Training on several machines, with one worker process on each, started by `mpirun`, Slurm, torchrun or a
//! similar launcher.

use crate::error::{Error, Result};
use crate::model::Interrupt;
use crate::strategy::{MirroredStrategy, Shard};
use phalanx_distributed::launch::{self, Launch};
use phalanx_distributed::rendezvous;
#[cfg(feature = "mpi")]
use phalanx_distributed::warnings::warning;
use phalanx_distributed::{PeerError, ProcessGroup, all_gather};
use phalanx_exec::Cluster;
use phalanx_graph::{Mesh, ParamSpec};
use std::sync::Arc;
use std::time::Duration;

const OWNER: &str = "MultiWorkerMirroredStrategy";

/// Exit code of a worker that lost a peer. The job can be restarted.
pub const EXIT_PEER_LOST: u8 = 76;

/// The default timeout of a wait for other workers.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

/// Synchronous training on the devices of several workers: a [`MirroredStrategy`] across machines. Every worker
/// runs the same program. A global batch is split over all devices in the order of the workers' ranks, and each
/// worker reads only its own rows. The chief (rank 0) writes files and prints.
///
/// ```no_run
/// # use phalanx::prelude::*;
/// # fn main() -> Result<()> {
/// # let compile = Compile::new("adam");
/// // The workers are those that the launcher (mpirun, srun, …) started; without one, this process alone.
/// let strategy = MultiWorkerMirroredStrategy::new()?;
/// let global_batch = 64 * strategy.num_replicas_in_sync();
/// let compile = compile.strategy(strategy);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct MultiWorkerMirroredStrategy {
    local: MirroredStrategy,
    cluster: Option<Cluster>,
}

impl MultiWorkerMirroredStrategy {
    /// Every visible device of every worker.
    ///
    /// # Errors
    /// A launcher whose variables contradict each other, a build without MPI, or workers that cannot connect.
    pub fn new() -> Result<MultiWorkerMirroredStrategy> {
        MultiWorkerMirroredStrategy::with_local(MirroredStrategy::new())
    }

    /// The given devices of this worker, and the devices of all other workers.
    pub fn with_local(local: MirroredStrategy) -> Result<MultiWorkerMirroredStrategy> {
        MultiWorkerMirroredStrategy::with_timeout(local, DEFAULT_TIMEOUT)
    }

    /// As [`with_local`](Self::with_local), with a limit to every wait for other workers.
    pub fn with_timeout(
        local: MirroredStrategy,
        timeout: Duration,
    ) -> Result<MultiWorkerMirroredStrategy> {
        match connect(local, timeout)? {
            (local, None) => Ok(local.into()),
            (local, Some(peers)) => MultiWorkerMirroredStrategy::with_peers(local, peers),
        }
    }

    /// The given devices of this worker, with a custom connection to the other workers.
    pub fn with_peers(
        mut local: MirroredStrategy,
        peers: Arc<dyn ProcessGroup>,
    ) -> Result<MultiWorkerMirroredStrategy> {
        let (devices, kind) = (local.num_replicas_in_sync(), local.backend().kind());
        let threads = local.backend().mesh(devices, local.worker_threads()?).workers;
        let mut mine = [devices, threads].map(|n| (n as u64).to_le_bytes()).concat();
        mine.extend(kind.as_bytes());
        let all = all_gather(&*peers, &mine).map_err(peer_lost)?;
        let number = |bytes: &[u8], at: usize| -> usize {
            let word = bytes.get(8 * at..8 * at + 8).and_then(|b| b.try_into().ok());
            word.map_or(0, |word| u64::from_le_bytes(word) as usize)
        };
        let kind = |rank: usize| all[rank].get(16..).unwrap_or_default();
        if let Some(rank) = (0..all.len()).find(|rank| kind(*rank) != kind(0)) {
            let on = |rank: usize| {
                format!("{} on {}", String::from_utf8_lossy(kind(rank)), peers.name(rank))
            };
            return Err(Error::argument(OWNER, "devices", on(0), on(rank)));
        }
        let counts: Vec<usize> = all.iter().map(|bytes| number(bytes, 0)).collect();
        // All workers split programs in the same way, so the one with the fewest threads decides.
        local = local.threads(all.iter().map(|bytes| number(bytes, 1)).min().unwrap_or(threads));
        Ok(MultiWorkerMirroredStrategy {
            local,
            cluster: Some(Cluster { peers, replicas: counts }),
        })
    }

    /// Whether the resulting weights are bit-identical to those of one worker: see
    /// [`MirroredStrategy::deterministic`].
    pub fn deterministic(mut self, deterministic: bool) -> MultiWorkerMirroredStrategy {
        self.local = self.local.deterministic(deterministic);
        self
    }

    /// Divides the training state among the workers: see [`MirroredStrategy::shard`].
    pub fn shard(mut self, shard: Shard) -> MultiWorkerMirroredStrategy {
        self.local = self.local.shard(shard);
        self
    }

    /// Number of replicas over all workers: the factor between a per-replica and the global batch.
    pub fn num_replicas_in_sync(&self) -> usize {
        let alone = self.local.num_replicas_in_sync();
        self.cluster.as_ref().map_or(alone, Cluster::all_replicas)
    }

    /// The number of workers.
    pub fn num_workers(&self) -> usize {
        self.cluster.as_ref().map_or(1, |c| c.peers.size())
    }

    /// The rank of this worker.
    pub fn rank(&self) -> usize {
        self.cluster.as_ref().map_or(0, |c| c.peers.rank())
    }

    /// Whether this worker is the chief, which writes files and prints.
    pub fn is_chief(&self) -> bool {
        self.rank() == 0
    }

    /// Sums each value over all workers, in the order of their ranks. All workers must call it, and all receive
    /// the sums.
    pub fn sum(&self, values: &mut [f64]) -> Result<()> {
        let Some(cluster) = &self.cluster else { return Ok(()) };
        let mine: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let all = all_gather(&*cluster.peers, &mine).map_err(peer_lost)?;
        if let Some(rank) = all.iter().position(|bytes| bytes.len() != mine.len()) {
            let received = format!("{} on {}", all[rank].len() / 8, cluster.peers.name(rank));
            return Err(Error::argument(
                OWNER,
                "sum",
                format!("{} numbers", values.len()),
                received,
            ));
        }
        values.fill(0.0);
        for bytes in &all {
            for (value, part) in values.iter_mut().zip(bytes.as_chunks().0) {
                *value += f64::from_le_bytes(*part);
            }
        }
        Ok(())
    }

    /// Lets a worker that is interrupted while waiting report which worker it waits for.
    pub fn watch(&self, interrupt: &Interrupt) {
        if let Some(cluster) = &self.cluster {
            cluster.peers.watch(interrupt.flag());
        }
    }

    /// Ends the job for a worker that cannot continue. MPI terminates all workers at once; over NCCL the others
    /// notice that the connection is closed. Does nothing if there are no other workers.
    pub fn abort(&self, code: u8) {
        if let Some(cluster) = &self.cluster {
            cluster.peers.abort(code);
        }
    }

    /// Disconnects from the other workers once all are ready; the last call of a worker. Under MPI this also
    /// happens when a process exits.
    ///
    /// # Errors
    /// A worker that is not ready in time. Under MPI this ends the job instead.
    pub fn shutdown(&self) -> Result<()> {
        let Some(cluster) = &self.cluster else { return Ok(()) };
        cluster.peers.shutdown().map_err(peer_lost)
    }

    /// This worker's devices.
    pub fn local(&self) -> &MirroredStrategy {
        &self.local
    }

    pub(crate) fn cluster(&self) -> Option<&Cluster> {
        self.cluster.as_ref()
    }

    /// Creates an executor on this worker's devices.
    pub(crate) fn executor(&self, params: &[ParamSpec]) -> Result<Box<dyn phalanx_exec::Executor>> {
        let (all, even) = match &self.cluster {
            None => return self.local.executor(params, None),
            Some(c) => (c.all_replicas(), c.replicas.iter().all(|n| *n == c.replicas[0])),
        };
        self.check_shard()?;
        if self.local.is_deterministic() && !(even && Mesh::fixed(all).is_some()) {
            let expected = "1, 2, 4 or 8 replicas, the same number on every worker";
            return Err(Error::argument(OWNER, "deterministic", expected, all));
        }
        self.local.executor(params, self.cluster.clone())
    }
}

impl MultiWorkerMirroredStrategy {
    /// Fails unless all workers divide the same parts of the training state: reading them takes all workers.
    fn check_shard(&self) -> Result<()> {
        let Some(cluster) = &self.cluster else { return Ok(()) };
        let mine = self.local.requested_shard().name();
        let all = all_gather(&*cluster.peers, mine.as_bytes()).map_err(peer_lost)?;
        let Some(rank) = all.iter().position(|other| *other != all[0]) else { return Ok(()) };
        let on = |rank: usize| {
            format!("{} on {}", String::from_utf8_lossy(&all[rank]), cluster.peers.name(rank))
        };
        Err(Error::argument(OWNER, "shard", on(0), on(rank)))
    }
}

impl From<MirroredStrategy> for MultiWorkerMirroredStrategy {
    fn from(local: MirroredStrategy) -> MultiWorkerMirroredStrategy {
        MultiWorkerMirroredStrategy { local, cluster: None }
    }
}

impl std::fmt::Debug for MultiWorkerMirroredStrategy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct(OWNER)
            .field("local", &self.local)
            .field("rank", &self.rank())
            .field("workers", &self.num_workers())
            .finish()
    }
}

/// The error for a worker that was lost outside a step.
pub(crate) fn peer_lost(peer: PeerError) -> Error {
    Error::Exec(peer.into())
}

/// The devices of this worker, and the other workers if a launcher started several: the two parts of
/// [`MultiWorkerMirroredStrategy::with_peers`], for programs that must end the job if it fails.
///
/// # Errors
/// As for [`MultiWorkerMirroredStrategy::new`].
pub fn connect(
    local: MirroredStrategy,
    timeout: Duration,
) -> Result<(MirroredStrategy, Option<Arc<dyn ProcessGroup>>)> {
    let Some(launch) = launch::detect()?.filter(|launch| launch.size > 1) else {
        return Ok((local, None));
    };
    let local = local.for_worker(launch.local_rank, launch.local_size)?;
    let peers = connect_peers(&launch, &local, timeout)?;
    Ok((local, Some(peers)))
}

/// Connects to the other workers: through MPI if it started them and is built in, otherwise through their devices.
fn connect_peers(
    launch: &Launch,
    local: &MirroredStrategy,
    timeout: Duration,
) -> Result<Arc<dyn ProcessGroup>> {
    let through_devices =
        !launch.is_mpi() || (launch.chief_addr.is_some() && !cfg!(feature = "mpi"));
    let transport = local.backend().device_transport().filter(|_| through_devices);
    match (transport, local.devices().first()) {
        (Some(transport), Some(device)) => {
            let secret = std::env::var(rendezvous::SECRET).ok();
            let through = (transport, device.index);
            Ok(rendezvous::join(launch, through, secret.as_deref(), timeout)?)
        }
        _ => join_mpi(launch, timeout),
    }
}

#[cfg(feature = "mpi")]
fn join_mpi(launch: &Launch, timeout: Duration) -> Result<Arc<dyn ProcessGroup>> {
    phalanx_cpu::share_cores(launch.local_rank, launch.local_size);
    if let Some((mine, all)) = phalanx_cpu::restricted_cores(launch.local_size) {
        warning!(
            "bound to {mine} of {all} cores, though it is alone on its machine; \
             mpirun --bind-to none leaves it all of them"
        );
    }
    let peers =
        phalanx_distributed::transport::mpi::join(&launch.display_name(), timeout, EXIT_PEER_LOST)
            .map_err(|reason| Error::config(OWNER, reason))?;
    if (peers.rank(), peers.size()) != (launch.rank, launch.size) {
        let expected =
            format!("rank {} of {} as {} says", launch.rank, launch.size, launch.launcher);
        let received = format!("rank {} of {} from MPI", peers.rank(), peers.size());
        return Err(Error::argument(OWNER, "launcher", expected, received));
    }
    Ok(peers)
}

#[cfg(not(feature = "mpi"))]
fn join_mpi(launch: &Launch, _timeout: Duration) -> Result<Arc<dyn ProcessGroup>> {
    let message = format!(
        "this is worker {} of {} ({}), but MPI was left out of this build: \
         cargo build --release -p phalanx-cli --features mpi",
        launch.rank, launch.size, launch.launcher
    );
    Err(Error::config(OWNER, message))
}
