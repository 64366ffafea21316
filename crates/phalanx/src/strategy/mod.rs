//! Devices and the single-machine distribution strategy.
//!
//! There is no scope to open: the strategy is an argument of `compile`, and a single device is a strategy with
//! one replica.

mod device;
mod layout;
mod model_parallel;
mod visible;

pub use device::{Device, DeviceKind};
pub use layout::{DeviceMesh, LayoutMap};
pub use model_parallel::ModelParallel;
pub use phalanx_exec::{Backend, DeviceInfo, DeviceTraits};
pub use phalanx_graph::program::{Policy, ShardLevel as Shard};
pub(crate) use visible::{MAX_THREADS, check_compatible};
pub use visible::{list_physical_devices, set_visible_devices, visible_devices};

use crate::error::{Error, Result};
use phalanx_exec::{Cluster, DeviceSlot, Executor, OpenRequest};
use phalanx_graph::program::split_range;
use phalanx_graph::{Mesh, ParamSpec};
use std::fmt;
use std::sync::Arc;
use visible::{check_count, check_devices};

const OWNER: &str = "MirroredStrategy";

/// The GPUs of one of several workers on a machine: its even share of the visible ones, or the first
/// `requested` of its share.
fn worker_gpus(
    visible: &[Device],
    worker: usize,
    workers: usize,
    requested: Option<usize>,
) -> Result<Vec<Device>> {
    let fail = |expected: String, received: String| {
        Err(Error::argument("MultiWorkerMirroredStrategy", "devices", expected, received))
    };
    let (found, own) = (visible.len(), split_range(0..visible.len(), workers, worker));
    if found < workers {
        let expected = format!("a GPU for each of the {workers} workers on this machine");
        let hint = "use --devices if each worker sees only its own";
        return fail(expected, format!("{found} ({hint})"));
    }
    let wanted = requested.unwrap_or(own.len());
    if !(1..=own.len()).contains(&wanted) {
        let expected = format!("1 to {} of the {found} GPUs that {workers} workers", own.len());
        return fail(format!("{expected} share on this machine"), wanted.to_string());
    }
    Ok(visible[own][..wanted].to_vec())
}

/// How the devices were selected. This decides how workers on the same machine divide them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Selection {
    /// All visible devices: each worker takes its share.
    Visible,
    /// This number of GPUs: each worker takes them from its share.
    Gpus(usize),
    /// An explicit list, which is used as it is.
    Named,
}

/// Synchronous training on several devices of one machine. Every replica holds the same weights and computes
/// its share of each global batch.
#[derive(Clone)]
pub struct MirroredStrategy {
    backend: Arc<dyn Backend>,
    devices: Vec<Device>,
    selection: Selection,
    threads: usize,
    deterministic: bool,
    policy: Option<Policy>,
    shard: Shard,
    /// Devices of each replica.
    devices_per_replica: usize,
    layout: Option<Arc<LayoutMap>>,
    recompute: Recompute,
}

/// Whether the backward pass computes activations again instead of keeping them. The results have the same bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recompute {
    /// If a training step does not fit in memory otherwise. A notice says so.
    #[default]
    Auto,
    /// Never.
    Never,
    /// The forward pass is split into this many segments; only what crosses from one to the next is kept.
    Segments(usize),
}

/// [`MirroredStrategy`] by its newer name in Keras.
pub type DataParallel = MirroredStrategy;

impl MirroredStrategy {
    /// Every visible device.
    pub fn new() -> MirroredStrategy {
        let devices = visible_devices();
        // Only kinds of this build are visible. Without any device, `compile` fails.
        let kind = devices.first().map_or(DeviceKind::Cpu, |d| d.kind);
        let backend = kind.backend().unwrap_or_else(|_| Arc::new(phalanx_cpu::CpuBackend));
        MirroredStrategy::with_selection(backend, devices, Selection::Visible)
    }

    fn with_selection(
        backend: Arc<dyn Backend>,
        devices: Vec<Device>,
        selection: Selection,
    ) -> MirroredStrategy {
        MirroredStrategy {
            backend,
            devices,
            selection,
            threads: 0,
            deterministic: false,
            policy: None,
            shard: Shard::None,
            devices_per_replica: 1,
            layout: None,
            recompute: Recompute::Auto,
        }
    }

    /// The named devices, such as `["cpu:0", "cpu:1"]`.
    pub fn with_devices<S: AsRef<str>>(
        names: impl IntoIterator<Item = S>,
    ) -> Result<MirroredStrategy> {
        MirroredStrategy::from_devices(parse_devices(names)?)
    }

    /// The named devices of a backend other than this machine's own, such as emulated GPUs.
    ///
    /// # Errors
    /// A name that is not a device of this backend.
    pub fn with_backend<S: AsRef<str>>(
        backend: Arc<dyn Backend>,
        names: impl IntoIterator<Item = S>,
    ) -> Result<MirroredStrategy> {
        let devices = parse_devices(names)?;
        if let Some(other) = devices.iter().find(|d| d.kind.to_string() != backend.kind()) {
            let expected = format!("devices of kind {}", backend.kind());
            return Err(Error::argument(OWNER, "devices", expected, other));
        }
        MirroredStrategy::on(backend, devices)
    }

    /// `n` logical CPU devices.
    pub fn cpus(n: usize) -> Result<MirroredStrategy> {
        check_count(OWNER, n)?;
        let devices = (0..n).map(|index| Device::new(DeviceKind::Cpu, index)).collect();
        MirroredStrategy::from_devices(devices)
    }

    /// The first `n` visible GPUs. If several workers share a machine, the first `n` of this worker's share.
    pub fn gpus(n: usize) -> Result<MirroredStrategy> {
        let backend = DeviceKind::Gpu.backend()?;
        let visible: Vec<Device> =
            visible_devices().into_iter().filter(|d| d.kind == DeviceKind::Gpu).collect();
        let devices = worker_gpus(&visible, 0, 1, Some(n))?;
        Ok(MirroredStrategy::with_selection(backend, devices, Selection::Gpus(n)))
    }

    /// The part of this strategy that belongs to one of several workers on this machine.
    pub(crate) fn for_worker(self, worker: usize, workers: usize) -> Result<MirroredStrategy> {
        let requested = match self.selection {
            Selection::Visible if !self.backend.traits().on_host => None,
            Selection::Gpus(n) => Some(n),
            Selection::Visible | Selection::Named => return Ok(self),
        };
        let devices = worker_gpus(&visible_devices(), worker, workers, requested)?;
        Ok(MirroredStrategy { devices, ..self })
    }

    fn from_devices(devices: Vec<Device>) -> Result<MirroredStrategy> {
        let Some(first) = devices.first() else {
            return Err(Error::argument(OWNER, "devices", "at least one device", "none"));
        };
        check_compatible(OWNER, &devices)?;
        MirroredStrategy::on(first.kind.backend()?, devices)
    }

    fn on(backend: Arc<dyn Backend>, devices: Vec<Device>) -> Result<MirroredStrategy> {
        if devices.is_empty() {
            return Err(Error::argument(OWNER, "devices", "at least one device", "none"));
        }
        check_devices(OWNER, &devices, &*backend)?;
        Ok(MirroredStrategy::with_selection(backend, devices, Selection::Named))
    }

    /// Sets the number of worker threads of each CPU device. The default, 0, divides the cores among the
    /// devices.
    pub fn threads(mut self, threads: usize) -> MirroredStrategy {
        self.threads = threads;
        self
    }

    /// Whether the resulting weights are bit-identical on 1, 2, 4 or 8 replicas and any number of threads.
    /// Every global batch is then split into eight shards that are computed separately and reduced in a fixed
    /// tree, and batch statistics are those of the whole batch. This costs some speed.
    pub fn deterministic(mut self, deterministic: bool) -> MirroredStrategy {
        self.deterministic = deterministic;
        self
    }

    /// Sets the dtype policy; defaults to that of the model's layers. [`Policy::MixedBfloat16`], Keras' `mixed_bfloat16`, halves the memory of
    /// activations and the time to move them. Weights and arithmetic stay 32-bit floats, and so does everything
    /// on CPU devices.
    ///
    /// [`Policy::MixedFloat16`] has more precision and less range. As in Keras, `compile` then wraps the
    /// optimizer in a [`LossScaleOptimizer`](crate::optimizers::LossScaleOptimizer), on every kind of device.
    pub fn policy(mut self, policy: Policy) -> MirroredStrategy {
        self.policy = Some(policy);
        self
    }

    /// Divides the training state among processes instead of copying it to every replica: what [`Shard`] says, and
    /// everything before it. The CPU devices of a process share one copy. The weights that result have the bits of
    /// mirrored training. On GPUs `compile` fails.
    ///
    /// ```
    /// use phalanx::prelude::*;
    ///
    /// let strategy = DataParallel::cpus(2)?.shard(Shard::Weights);
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    pub fn shard(mut self, shard: Shard) -> MirroredStrategy {
        self.shard = shard;
        self
    }

    /// Divides the devices into replicas, and the weights among the devices of each.
    fn with_layout(mut self, layout: LayoutMap) -> Result<MirroredStrategy> {
        (_, self.devices_per_replica, _) = layout.device_mesh().split(None)?;
        self.layout = Some(Arc::new(layout));
        Ok(self)
    }

    /// Which weights the devices of a replica divide.
    pub(crate) fn layout(&self) -> Option<&Arc<LayoutMap>> {
        self.layout.as_ref()
    }

    /// Sets whether the backward pass computes activations again, which takes less memory and up to a third more time.
    pub fn recompute(mut self, recompute: Recompute) -> MirroredStrategy {
        self.recompute = recompute;
        self
    }

    /// Whether activations are computed again.
    pub(crate) fn requested_recompute(&self) -> Recompute {
        self.recompute
    }

    /// What is divided among memories.
    pub(crate) fn requested_shard(&self) -> Shard {
        self.shard
    }

    /// The requested policy, if any.
    pub(crate) fn requested_policy(&self) -> Option<Policy> {
        self.policy
    }

    pub(crate) fn is_deterministic(&self) -> bool {
        self.deterministic
    }

    /// Number of replicas: the factor between a per-replica and the global batch.
    pub fn num_replicas_in_sync(&self) -> usize {
        self.devices.len() / self.devices_per_replica
    }

    /// The devices.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// The requested number of worker threads per CPU device.
    ///
    /// # Errors
    /// No visible device, or more threads than a machine can use.
    pub(crate) fn worker_threads(&self) -> Result<usize> {
        let fail = |argument: &str, expected: &str, received: usize| {
            Err(Error::argument(OWNER, argument, expected, received))
        };
        if self.devices.is_empty() {
            return fail("devices", "at least one visible device", 0);
        }
        let replicas = self.num_replicas_in_sync();
        if self.deterministic && Mesh::fixed(replicas).is_none() {
            return fail("deterministic", "1, 2, 4 or 8 replicas", replicas);
        }
        if self.deterministic && self.devices_per_replica > 1 {
            return fail("deterministic", "replicas of one device", self.devices_per_replica);
        }
        let all = self.threads.saturating_mul(self.devices.len());
        if all > MAX_THREADS {
            return fail("threads", &format!("{MAX_THREADS} or fewer over all devices"), all);
        }
        Ok(self.threads)
    }
}

impl MirroredStrategy {
    /// The backend of the devices.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// Creates an executor on these devices, as part of `cluster`, if any.
    pub(crate) fn executor(
        &self,
        params: &[ParamSpec],
        cluster: Option<Cluster>,
    ) -> Result<Box<dyn Executor>> {
        let (threads, deterministic) = (self.worker_threads()?, self.deterministic);
        if deterministic && !self.backend.traits().deterministic {
            return Err(Error::argument(OWNER, "deterministic", "CPU devices", self.devices[0]));
        }
        let slots: Vec<DeviceSlot> = self.devices.iter().map(Device::slot).collect();
        let request = OpenRequest {
            slots: &slots,
            devices_per_replica: self.devices_per_replica,
            threads,
            deterministic,
            params,
            cluster,
            shard: self.shard,
        };
        Ok(self.backend.open(request)?)
    }
}

impl PartialEq for MirroredStrategy {
    fn eq(&self, other: &MirroredStrategy) -> bool {
        let parts = |s: &MirroredStrategy| {
            (s.selection, s.threads, s.deterministic, s.policy, s.shard, s.recompute)
        };
        self.devices == other.devices && parts(self) == parts(other) && self.layout == other.layout
    }
}

impl Eq for MirroredStrategy {}

impl fmt::Debug for MirroredStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(OWNER)
            .field("devices", &self.devices)
            .field("selection", &self.selection)
            .field("threads", &self.threads)
            .field("deterministic", &self.deterministic)
            .field("policy", &self.policy)
            .field("shard", &self.shard)
            .field("layout", &self.layout)
            .field("recompute", &self.recompute)
            .finish_non_exhaustive()
    }
}

fn parse_devices<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> Result<Vec<Device>> {
    names.into_iter().map(|name| name.as_ref().parse()).collect()
}

impl Default for MirroredStrategy {
    fn default() -> MirroredStrategy {
        MirroredStrategy::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_named_and_checked() {
        let two = MirroredStrategy::with_devices(["cpu:0", "CPU:1"]).unwrap();
        assert_eq!(two.num_replicas_in_sync(), 2);
        for bad in [
            &["cpu"][..],
            &["tpu:0"],
            &["cpu:x"],
            &["cpu:0", "cpu:0"],
            &["gpu:7"],
            &["gpu:0", "cpu:0"],
            &["gpu:1", "gpu:0"],
            &["cpu:0/1"],
            &[],
        ] {
            let error = MirroredStrategy::with_devices(bad).unwrap_err().to_string();
            assert!(error.contains("expected"), "{error}");
        }
        assert!(MirroredStrategy::cpus(usize::MAX).is_err());
        assert!(two.clone().threads(usize::MAX).worker_threads().is_err());
        assert_eq!(two.threads(3).worker_threads().unwrap(), 3);
    }

    #[test]
    fn workers_of_one_machine_share_out_its_gpus() {
        let gpus: Vec<Device> = (0..8).map(|i| Device::new(DeviceKind::Gpu, i)).collect();
        let own = |count: usize, worker, workers, requested| -> Result<Vec<usize>> {
            let own = worker_gpus(&gpus[..count], worker, workers, requested)?;
            Ok(own.iter().map(|d| d.index).collect())
        };
        assert_eq!(own(8, 0, 1, None).unwrap(), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(own(8, 3, 4, None).unwrap(), [6, 7]);
        assert_eq!(own(8, 3, 4, Some(1)).unwrap(), [6]);
        for (count, workers) in [(8, 3), (5, 5), (7, 2), (1, 1)] {
            let all: Vec<usize> =
                (0..workers).flat_map(|w| own(count, w, workers, None).unwrap()).collect();
            assert!(all.into_iter().eq(0..count), "{count} GPUs, each once");
        }
        for (error, message) in [
            (
                own(2, 0, 3, None),
                "expected a GPU for each of the 3 workers on this machine, received 2",
            ),
            (
                own(0, 0, 1, None),
                "expected a GPU for each of the 1 workers on this machine, received 0",
            ),
            (
                own(8, 1, 4, Some(3)),
                "expected 1 to 2 of the 8 GPUs that 4 workers share on this machine, received 3",
            ),
            (own(8, 1, 4, Some(0)), "received 0"),
        ] {
            let error = error.unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
    }

    #[test]
    fn devices_that_were_named_are_taken_as_they_are() {
        let named = MirroredStrategy::cpus(2).unwrap();
        assert_eq!(named.clone().for_worker(1, 2).unwrap(), named);
        let backend = DeviceKind::Cpu.backend().unwrap();
        let devices = vec![Device::new(DeviceKind::Cpu, 0)];
        let cpu = MirroredStrategy::with_selection(backend, devices, Selection::Visible);
        assert_eq!(cpu.clone().for_worker(1, 2).unwrap(), cpu);
        assert!(MirroredStrategy::gpus(usize::MAX).is_err());
    }

    #[test]
    fn only_devices_of_the_kind_and_machine_can_be_made_visible() {
        for (device, kind) in [("cpu:0", DeviceKind::Gpu), ("gpu:7", DeviceKind::Gpu)] {
            let device: Device = device.parse().unwrap();
            let error = set_visible_devices(&[device], kind).unwrap_err().to_string();
            assert!(error.starts_with("set_visible_devices: devices: expected"), "{error}");
        }
    }
}
