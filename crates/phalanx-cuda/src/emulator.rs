//! A GPU emulated on the host, to test kernels and plans without a GPU. Kernels run thread by
//! thread, products as plain loops. The emulator detects errors that a GPU would not report:
//! barriers that not all threads reach, writes outside of blocks, work items that access undeclared
//! memory, and arguments whose types differ from the kernel's. With a seed, work items, blocks and
//! threads run in a random valid order.

mod all_reduce;
mod device;
mod inventory;
mod launch;
mod library;
mod mailbox;
mod memory;
pub(crate) mod narrow;
mod order;
mod products;
mod registry;
#[cfg(test)]
mod tests;

use crate::backend::{joins, replicas_by_gpu};
use crate::executor::GpuExecutor;
use all_reduce::{AllReduceGroup, Membership};
use mailbox::Mailbox;
use phalanx_distributed::transport::{DeviceTransport, Transport};
use phalanx_distributed::{NcclId, RankAssignment};
use phalanx_exec::{Cluster, DeviceInfo, DeviceSlot, ExecError, Executor};
use phalanx_graph::ParamSpec;
use registry::Registry;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub use crate::inputs::INPUT_BYTES;
pub(crate) use device::EmulatedGpu;
pub use inventory::KernelInventory;

/// Emulated GPUs. Processes are threads here: those that share a clone of an emulator can communicate.
#[derive(Clone, Default)]
pub struct Emulator {
    gpus: usize,
    /// Without a seed, everything runs in program order; with one, in a random valid order.
    seed: Option<u64>,
    /// Bytes of each GPU, if limited.
    memory: Option<usize>,
    shared: Arc<Shared>,
}

/// What the GPUs of several processes share.
#[derive(Default)]
struct Shared {
    next_id: AtomicU64,
    mailboxes: Registry<Mailbox>,
    groups: Registry<AllReduceGroup>,
}

impl Emulator {
    /// A machine with this many GPUs.
    pub fn new(gpus: usize) -> Emulator {
        Emulator { gpus, ..Emulator::default() }
    }

    /// Runs work items, blocks and threads in a random valid order instead of the program's.
    pub fn seed(mut self, seed: Option<u64>) -> Emulator {
        self.seed = seed;
        self
    }

    /// Limits the memory of each GPU, in bytes.
    pub fn memory(mut self, bytes: usize) -> Emulator {
        self.memory = Some(bytes);
        self
    }

    pub(crate) fn devices(&self) -> Vec<DeviceInfo> {
        let memory = Some(self.memory.unwrap_or(1 << 30));
        let gpu = |index| DeviceInfo { index, name: "emulated GPU".into(), memory };
        (0..self.gpus).map(gpu).collect()
    }

    /// Creates an executor with replicas at these slots.
    pub(crate) fn open(
        &self,
        slots: &[DeviceSlot],
        params: &[ParamSpec],
        cluster: Option<Cluster>,
    ) -> Result<Box<dyn Executor>, ExecError> {
        let joined = joins(slots, cluster.as_ref());
        self.start(replicas_by_gpu(slots).into_values().collect(), joined, params, cluster)
    }

    /// Creates an executor with replicas on one GPU.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn executor(
        &self,
        replicas: usize,
        params: &[ParamSpec],
    ) -> Result<Box<dyn Executor>, ExecError> {
        self.start(names(&[replicas]), false, params, None)
    }

    /// Creates an executor with several GPUs; `replicas` is the number of replicas on each. A single
    /// GPU reduces with itself, on the same code path as several.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn joined_executor(
        &self,
        replicas: &[usize],
        params: &[ParamSpec],
    ) -> Result<Box<dyn Executor>, ExecError> {
        self.start(names(replicas), true, params, None)
    }

    /// Like [`joined_executor`](Emulator::joined_executor), for the GPUs of one process of a cluster.
    ///
    /// # Errors
    /// There is not enough memory, or another process was lost.
    pub fn cluster_executor(
        &self,
        replicas: &[usize],
        params: &[ParamSpec],
        cluster: Cluster,
    ) -> Result<Box<dyn Executor>, ExecError> {
        self.start(names(replicas), true, params, Some(cluster))
    }

    /// Creates an executor with an emulated GPU for each list of replicas. If `joined`, they reduce
    /// with each other, and with those of other processes.
    fn start(
        &self,
        replicas: Vec<Vec<String>>,
        joined: bool,
        params: &[ParamSpec],
        cluster: Option<Cluster>,
    ) -> Result<Box<dyn Executor>, ExecError> {
        let gpus = replicas.len();
        let assign = |c: &Cluster| RankAssignment::exchange(&c.peers, gpus, || self.create_id());
        let assignment = cluster.as_ref().map(assign).transpose()?;
        let first = assignment.as_ref().map_or(0, |assignment| assignment.first);
        let group = match &assignment {
            Some(RankAssignment { id, total, timeout, .. }) => {
                self.shared.groups.find(*id, || AllReduceGroup::new(*total, *timeout))
            }
            None => Arc::new(AllReduceGroup::new(gpus, Duration::MAX)),
        };
        let device = |(at, names): (usize, Vec<String>)| {
            let link =
                Membership { group: group.clone(), rank: first + at, remote: assignment.is_some() };
            let mut gpu = EmulatedGpu::new(self.seed.map(|seed| seed + at as u64));
            gpu.link = joined.then_some(link);
            gpu.capacity = self.memory.unwrap_or(usize::MAX);
            (gpu, names)
        };
        let devices = replicas.into_iter().enumerate().map(device).collect();
        Ok(Box::new(GpuExecutor::new(devices, params, cluster)?))
    }
}

impl DeviceTransport for Emulator {
    fn create_id(&self) -> phalanx_distributed::Result<NcclId> {
        let mut id = [0; 128];
        let number = self.shared.next_id.fetch_add(1, Ordering::Relaxed);
        id[..8].copy_from_slice(&number.to_le_bytes());
        Ok(id)
    }

    fn connect(
        &self,
        _device: usize,
        assignment: RankAssignment,
    ) -> phalanx_distributed::Result<Box<dyn Transport>> {
        let mailbox = self.shared.mailboxes.find(assignment.id, Mailbox::default);
        Ok(Box::new(mailbox::MailboxTransport::new(mailbox, &assignment)))
    }
}

fn names(replicas: &[usize]) -> Vec<Vec<String>> {
    let each = replicas.iter().enumerate();
    each.map(|(gpu, n)| (0..*n).map(|part| format!("emulated:{gpu}/{part}")).collect()).collect()
}
