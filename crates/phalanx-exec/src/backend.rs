//! Backends: the kinds of devices.

use crate::cluster::Cluster;
use crate::error::ExecError;
use crate::executor::Executor;
use phalanx_distributed::transport::DeviceTransport;
use phalanx_graph::program::{Policy, ShardLevel};
use phalanx_graph::{Mesh, Options, ParamSpec, Program};

/// A kind of device: what there is on this machine, how programs for it are compiled, what memory they take, and
/// executors on it. A new backend answers every question; there are no defaults.
pub trait Backend: Send + Sync {
    /// The name of the kind, as in `cpu:0`.
    fn kind(&self) -> &'static str;

    /// What distinguishes devices of this kind.
    fn traits(&self) -> DeviceTraits;

    /// The devices of this machine.
    ///
    /// # Errors
    /// Why they cannot be listed, for example a missing driver.
    fn devices(&self) -> Result<Vec<DeviceInfo>, String>;

    /// The mesh of one process with this many replicas, each of `threads` worker threads; 0 for the default.
    fn mesh(&self, replicas: usize, threads: usize) -> Mesh;

    /// What programs for a mesh of such devices are compiled for.
    fn options(&self, mesh: Mesh, policy: Policy, max_batch: usize) -> Options;

    /// The memory that a program needs for each replica, in bytes by purpose. `accumulates` adds the buffer for
    /// gradient accumulation.
    fn memory_plan(&self, program: &Program, accumulates: bool) -> MemoryPlan;

    /// The memory that all replicas of this process share, if it is known before an allocation fails.
    fn memory_limit(&self) -> Option<MemoryLimit>;

    /// Names and values that all processes of a job must share, because results depend on them.
    fn fingerprint(&self) -> Vec<(&'static str, String)>;

    /// How processes communicate through such devices, if they can.
    fn device_transport(&self) -> Option<&dyn DeviceTransport>;

    /// Creates an executor.
    ///
    /// # Errors
    /// A device or library that is missing or unusable, not enough memory, or a lost process.
    fn open(&self, request: OpenRequest<'_>) -> Result<Box<dyn Executor>, ExecError>;
}

/// What to open an executor for.
pub struct OpenRequest<'a> {
    /// Where each device of this process runs; the devices of a replica follow each other.
    pub slots: &'a [DeviceSlot],
    /// Devices of each replica, which divide its work.
    pub devices_per_replica: usize,
    /// Worker threads of each replica; 0 for the default.
    pub threads: usize,
    /// Whether results must be the same on any number of replicas and threads.
    pub deterministic: bool,
    /// The parameters.
    pub params: &'a [ParamSpec],
    /// The processes of the job, if there are several.
    pub cluster: Option<Cluster>,
    /// What the memories of the devices divide among themselves.
    pub shard: ShardLevel,
}

/// Where a replica runs: a device, or a numbered part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceSlot {
    /// Index of the device.
    pub index: usize,
    /// Index of the replica among those that share the device, if several do.
    pub part: Option<usize>,
}

/// A device of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its index, as in `gpu:0`.
    pub index: usize,
    /// Its product name.
    pub name: String,
    /// Memory in bytes, if known.
    pub memory: Option<usize>,
}

/// What distinguishes devices of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceTraits {
    /// Whether devices are parts of the machine itself: they share its cores and its memory, and any number of
    /// them can be named.
    pub on_host: bool,
    /// Whether results can be made independent of the number of replicas.
    pub deterministic: bool,
    /// Whether small batches leave most of the device idle.
    pub wants_large_batches: bool,
    /// What a memory plan leaves out, if anything.
    pub unplanned_memory: Option<&'static str>,
    /// How a profile measures instructions; printed after the number of steps.
    pub profile_note: Option<&'static str>,
}

/// Memory that all replicas of a process share, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// All memory.
    pub total: usize,
    /// What is free or can be freed.
    pub available: usize,
}

/// The memory a step needs. On a GPU, `library workspaces` is the upper limit for matrix products and convolutions.
/// Memory that the driver and the vendor's libraries reserve is not included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Bytes of each replica by purpose.
    pub parts: Vec<(&'static str, usize)>,
    /// Bytes by purpose that all replicas of a process, or on a GPU, share, because the training state is sharded.
    pub shared: Vec<(&'static str, usize)>,
    /// Bytes the activations of a replica would need without buffer reuse.
    pub without_reuse: usize,
}

impl MemoryPlan {
    /// A plan for a program from parts: their purpose, the bytes of each replica, and the bytes of each copy of the
    /// training state. A replica has a copy of its own unless the state is sharded.
    pub fn new(
        program: &Program,
        parts: impl IntoIterator<Item = (&'static str, usize, usize)>,
    ) -> MemoryPlan {
        let Options { mesh, .. } = program.options();
        let without_reuse = program.memory().unplanned.saturating_mul(mesh.workers);
        let mut plan = MemoryPlan { parts: vec![], shared: vec![], without_reuse };
        for (purpose, replica, state) in parts {
            let (own, shared) = match mesh.sharding.is_on() {
                true => (replica, state),
                false => (replica.saturating_add(state), 0),
            };
            plan.parts.extend(Some((purpose, own)).filter(|_| own > 0));
            plan.shared.extend(Some((purpose, shared)).filter(|_| shared > 0));
        }
        plan
    }

    /// The bytes of `replicas` replicas that share a memory.
    pub fn total(&self, replicas: usize) -> usize {
        let sum = |parts: &[(&str, usize)]| {
            parts.iter().fold(0, |sum: usize, (_, bytes)| sum.saturating_add(*bytes))
        };
        sum(&self.parts).saturating_mul(replicas).saturating_add(sum(&self.shared))
    }
}
