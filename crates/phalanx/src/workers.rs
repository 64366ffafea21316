//! Training on several machines: one worker process on each, started by `mpirun`, Slurm, torchrun or
//! their like.

use crate::error::{Error, Result};
use crate::launch::{self, Launch, Launcher};
use crate::model::Interrupt;
use crate::rendezvous;
use crate::strategy::{DeviceKind, MirroredStrategy};
use crate::warnings::warning;
use phalanx_graph::process_group::{Cluster, PeerError, ProcessGroup, all_gather};
use phalanx_graph::{Mesh, ParamSpec};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

const OWNER: &str = "MultiWorkerMirroredStrategy";

/// Exit code of a worker that lost others: the job can be started again.
pub const LOST: u8 = 76;

/// The variable with the secret that workers without MPI know each other by: 128 random bits, the same on
/// every worker, as `openssl rand -hex 16` makes them.
pub const SECRET: &str = "PHALANX_SECRET";

/// How long a worker waits for the others before it gives them up, unless said otherwise.
pub const COLLECTIVE_TIMEOUT: Duration = Duration::from_secs(60);

/// Synchronous training on the devices of several workers: [`MirroredStrategy`], one level up. Every
/// worker runs the same program; a global batch is cut over the devices of all, in the order of the
/// workers' ranks, and each worker reads its own rows only. The first, the chief, writes files and
/// prints.
///
/// ```no_run
/// # use phalanx::prelude::*;
/// # fn main() -> Result<()> {
/// # let compile = Compile::new("adam");
/// // The workers are those that mpirun, srun or another launcher started; without one, this process alone.
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
    /// A launcher whose variables contradict one another, a build without MPI, or workers that do not
    /// find each other.
    pub fn new() -> Result<MultiWorkerMirroredStrategy> {
        MultiWorkerMirroredStrategy::over(MirroredStrategy::new())
    }

    /// These devices of this worker, and whatever the others bring.
    pub fn over(local: MirroredStrategy) -> Result<MultiWorkerMirroredStrategy> {
        MultiWorkerMirroredStrategy::within(local, COLLECTIVE_TIMEOUT)
    }

    /// As [`over`](Self::over), where no worker waits longer than this for the others.
    pub fn within(
        local: MirroredStrategy,
        timeout: Duration,
    ) -> Result<MultiWorkerMirroredStrategy> {
        let Some(launch) = launch::detect()?.filter(|launch| launch.size > 1) else {
            return Ok(local.into());
        };
        let local = local.of_worker(launch.local_rank, launch.local_size)?;
        let peers = join(&launch, &local, timeout)?;
        MultiWorkerMirroredStrategy::among(local, peers)
    }

    /// These devices of this worker among others that are reached in some way of one's own.
    pub fn among(
        mut local: MirroredStrategy,
        peers: Arc<dyn ProcessGroup>,
    ) -> Result<MultiWorkerMirroredStrategy> {
        let devices = local.num_replicas_in_sync();
        let threads = match local.worker_threads()? {
            0 => (phalanx_cpu::usable_cores() / devices.max(1)).max(1),
            threads => threads,
        };
        let kind = local.devices().first().map_or(DeviceKind::Cpu, |d| d.kind);
        let mine = [devices, threads, kind as usize].map(|n| (n as u64).to_le_bytes()).concat();
        let all = all_gather(&*peers, &mine).map_err(lost)?;
        let number = |bytes: &[u8], at: usize| -> usize {
            let word = bytes.get(8 * at..8 * at + 8).and_then(|b| b.try_into().ok());
            word.map_or(0, |word| u64::from_le_bytes(word) as usize)
        };
        if let Some(rank) = (0..all.len()).find(|rank| number(&all[*rank], 2) != number(&all[0], 2))
        {
            let kind = |rank: usize| match number(&all[rank], 2) == DeviceKind::Cpu as usize {
                true => format!("{} on {}", DeviceKind::Cpu, peers.name(rank)),
                false => format!("{} on {}", DeviceKind::Gpu, peers.name(rank)),
            };
            return Err(Error::argument(OWNER, "devices", kind(0), kind(rank)));
        }
        let counts: Vec<usize> = all.iter().map(|bytes| number(bytes, 0)).collect();
        // Programs are cut the same way everywhere: the worker with the fewest threads sets the pace.
        local = local.threads(all.iter().map(|bytes| number(bytes, 1)).min().unwrap_or(threads));
        Ok(MultiWorkerMirroredStrategy { local, cluster: Some(Cluster { peers, devices: counts }) })
    }

    /// Whether weights come out the same, bit for bit, as on one worker: see
    /// [`MirroredStrategy::deterministic`].
    pub fn deterministic(mut self, deterministic: bool) -> MultiWorkerMirroredStrategy {
        self.local = self.local.deterministic(deterministic);
        self
    }

    /// Number of replicas over all workers: the factor between a per-replica and the global batch.
    pub fn num_replicas_in_sync(&self) -> usize {
        let alone = self.local.num_replicas_in_sync();
        self.cluster.as_ref().map_or(alone, Cluster::all_devices)
    }

    /// Workers in all.
    pub fn num_workers(&self) -> usize {
        self.cluster.as_ref().map_or(1, |c| c.peers.size())
    }

    /// This worker's number.
    pub fn rank(&self) -> usize {
        self.cluster.as_ref().map_or(0, |c| c.peers.rank())
    }

    /// Whether this worker is the first, which writes files and prints.
    pub fn is_chief(&self) -> bool {
        self.rank() == 0
    }

    /// Adds up numbers over all workers, which all must call it, in the order of their ranks; each gets
    /// the sums.
    pub fn sum(&self, values: &mut [f64]) -> Result<()> {
        let Some(cluster) = &self.cluster else { return Ok(()) };
        let mine: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let all = all_gather(&*cluster.peers, &mine).map_err(lost)?;
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

    /// This worker's devices.
    pub fn local(&self) -> &MirroredStrategy {
        &self.local
    }

    pub(crate) fn cluster(&self) -> Option<&Cluster> {
        self.cluster.as_ref()
    }

    /// An executor on this worker's devices.
    pub(crate) fn executor(
        &self,
        params: &[ParamSpec],
    ) -> Result<Box<dyn phalanx_graph::exec::Executor>> {
        let (all, even) = match &self.cluster {
            None => return self.local.executor(params, None),
            Some(c) => (c.all_devices(), c.devices.iter().all(|d| *d == c.devices[0])),
        };
        if self.local.is_deterministic() && !(even && Mesh::fixed(all).is_some()) {
            let expected = "1, 2, 4 or 8 replicas, as many on every worker";
            return Err(Error::argument(OWNER, "deterministic", expected, all));
        }
        self.local.executor(params, self.cluster.clone())
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

/// Another worker that was lost outside a step.
pub(crate) fn lost(peer: PeerError) -> Error {
    Error::Exec(phalanx_graph::exec::ExecError::Peer { step: 0, peer })
}

/// The workers that found each other without MPI.
static MET: OnceLock<Arc<dyn ProcessGroup>> = OnceLock::new();
/// Whether they are left.
static LEFT: AtomicBool = AtomicBool::new(false);

/// The other workers: through MPI where it started them and is built in; else, on GPUs, through those.
fn join(
    launch: &Launch,
    local: &MirroredStrategy,
    timeout: Duration,
) -> Result<Arc<dyn ProcessGroup>> {
    let mpi = matches!(launch.by, Launcher::OpenMpi | Launcher::Pmi | Launcher::Slurm);
    let gpu = local.devices().iter().find(|d| d.kind == DeviceKind::Gpu);
    let by_gpu = !mpi || (launch.meeting.is_some() && !cfg!(feature = "mpi"));
    let Some(gpu) = gpu.filter(|_| by_gpu) else { return join_mpi(launch, timeout) };
    if let Some(met) = MET.get() {
        return Ok(met.clone());
    }
    let met = meet(launch, gpu.index, std::env::var(SECRET).ok().as_deref(), timeout)?;
    Ok(MET.get_or_init(|| met).clone())
}

/// Meets the other workers of a launch without MPI, and reaches them through their GPUs, of which this
/// worker's is `gpu`: rank 0 listens where the launch says, the others go there. All must know the same
/// secret of at least 16 characters.
///
/// # Errors
/// No address or secret, workers that do not come in time, one that is turned away, or GPUs that cannot
/// be used.
pub fn meet(
    launch: &Launch,
    gpu: usize,
    secret: Option<&str>,
    timeout: Duration,
) -> Result<Arc<dyn ProcessGroup>> {
    let Some((host, port)) = &launch.meeting else {
        let expected = format!("it and MASTER_PORT beside {}", launch.by);
        return Err(Error::argument("launcher", "MASTER_ADDR", expected, "nothing"));
    };
    rendezvous::meet(launch, (host, *port), gpu, secret, timeout)
}

#[cfg(feature = "mpi")]
fn join_mpi(launch: &Launch, timeout: Duration) -> Result<Arc<dyn Peers>> {
    phalanx_cpu::share_cores(launch.local_rank, launch.local_size);
    if let Some((mine, all)) = phalanx_cpu::restricted_cores(launch.local_size) {
        warning!(
            "bound to {mine} of {all} cores, though it is alone on its machine; \
             mpirun --bind-to none leaves it all of them"
        );
    }
    let peers = phalanx_mpi::join(&named(launch), timeout, LOST)
        .map_err(|reason| Error::config(OWNER, reason))?;
    if (peers.rank(), peers.size()) != (launch.rank, launch.size) {
        let expected = format!("rank {} of {} as {} says", launch.rank, launch.size, launch.by);
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
        launch.rank, launch.size, launch.by
    );
    Err(Error::config(OWNER, message))
}

/// This worker's rank, and in words its rank and host, before it has joined the others too; nothing where it
/// is alone.
pub fn name() -> Option<(usize, String)> {
    if let Some(peers) = MET.get() {
        return Some((peers.rank(), peers.name(peers.rank())));
    }
    #[cfg(feature = "mpi")]
    if let Some(name) = phalanx_mpi::name() {
        return Some(name);
    }
    let launch = launch::detect().ok()??;
    (launch.size > 1).then(|| (launch.rank, named(&launch)))
}

/// A worker in words, by what its launcher says.
fn named(launch: &Launch) -> String {
    let host = host();
    format!("rank {} ({})", launch.rank, host.as_deref().unwrap_or("a host without a name"))
}

/// This machine's name, where it has one.
pub(crate) fn host() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .or_else(|_| std::env::var("HOSTNAME"))
        .or_else(|_| std::env::var("COMPUTERNAME"))
        .ok()?;
    Some(name.trim().to_string()).filter(|name| !name.is_empty())
}

/// Lets a worker that this asks to end say whom it is waiting for, where it is.
pub fn watch(interrupt: &Interrupt) {
    #[cfg(feature = "mpi")]
    phalanx_mpi::watch(interrupt.flag());
    #[cfg(not(feature = "mpi"))]
    let _ = interrupt;
}

/// Ends the processes of all workers at once, where there are others: what a worker does that cannot go
/// on. Returns where there are none.
pub fn abort(code: u8) {
    // Others see that this process' connection is closed.
    LEFT.store(true, Ordering::SeqCst);
    #[cfg(feature = "mpi")]
    phalanx_mpi::abort(code.into());
    #[cfg(not(feature = "mpi"))]
    let _ = code;
}

/// Leaves the other workers once all are ready to: the last thing a worker does. Under MPI a process that
/// just ends does it too.
pub fn leave() {
    if let Some(peers) = MET.get().filter(|_| !LEFT.swap(true, Ordering::SeqCst)) {
        let mut nothing: Vec<&mut [u8]> = (0..peers.size()).map(|_| &mut [][..]).collect();
        if let Err(error) = peers.exchange(&vec![&[][..]; peers.size()], &mut nothing) {
            warning!("{}: at the end: {error}", peers.name(peers.rank()));
        }
    }
    #[cfg(feature = "mpi")]
    phalanx_mpi::leave();
}
