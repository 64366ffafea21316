//! Devices and the single-machine distribution strategy.
//!
//! There is no scope to open: the strategy is an argument of `compile`, and a single device is a strategy with
//! one replica.

use crate::error::{Error, Result};
use crate::warnings::warn_if_slow;
use phalanx_cpu::{CpuExecutor, CpuOptions};
use phalanx_cuda::GpuPlacement;
use phalanx_graph::exec::Executor;
use phalanx_graph::process_group::Cluster;
pub use phalanx_graph::program::Policy;
use phalanx_graph::program::split_range;
use phalanx_graph::{Mesh, ParamSpec};
use std::fmt;
use std::str::FromStr;
use std::sync::RwLock;

/// The kind of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DeviceKind {
    /// CPU cores of this machine.
    Cpu,
    /// An NVIDIA GPU.
    Gpu,
}

/// A device such as `cpu:0` or `gpu:1`, or a part of one such as `gpu:0/1`, because several replicas can share
/// a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Device {
    /// The kind.
    pub kind: DeviceKind,
    /// Its index among the devices of its kind.
    pub index: usize,
    /// The part of the GPU, if several replicas share it.
    pub part: Option<usize>,
}

impl Device {
    /// A whole device.
    pub fn new(kind: DeviceKind, index: usize) -> Device {
        Device { kind, index, part: None }
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DeviceKind::Cpu => "cpu",
            DeviceKind::Gpu => "gpu",
        })
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind, self.index)?;
        self.part.map_or(Ok(()), |part| write!(f, "/{part}"))
    }
}

impl FromStr for Device {
    type Err = Error;

    fn from_str(text: &str) -> Result<Device> {
        let fail =
            || Error::argument("device", "name", "cpu:N, gpu:N or gpu:N/PART", format!("'{text}'"));
        let lower = text.trim().to_lowercase();
        let (kind, index) = lower.split_once(':').ok_or_else(fail)?;
        let (index, part) = match index.split_once('/') {
            Some((index, part)) => (index, Some(part)),
            None => (index, None),
        };
        let kind = match (kind, part) {
            ("cpu", None) => DeviceKind::Cpu,
            ("gpu", _) => DeviceKind::Gpu,
            _ => return Err(fail()),
        };
        let number = |text: &str| text.parse().map_err(|_| fail());
        Ok(Device { kind, index: number(index)?, part: part.map(number).transpose()? })
    }
}

/// The visible devices by kind; `None` if not set.
static VISIBLE: RwLock<[Option<Vec<Device>>; 2]> = RwLock::new([None, None]);

/// The maximum number of replicas and of worker threads: more than any machine has cores, few enough to be
/// started.
pub(crate) const MAX_THREADS: usize = 1024;

/// The devices of a kind on this machine. The CPU counts as one device. Further ones (`cpu:1`, …) are logical
/// devices that share its cores.
pub fn list_physical_devices(kind: DeviceKind) -> Vec<Device> {
    match kind {
        DeviceKind::Cpu => vec![Device::new(kind, 0)],
        DeviceKind::Gpu => {
            let found = phalanx_cuda::gpus().unwrap_or_default();
            found.iter().map(|gpu| Device::new(kind, gpu.index)).collect()
        }
    }
}

/// Sets which devices of a kind strategies use by default, for the rest of the process. An empty list hides the
/// kind.
///
/// ```
/// use phalanx::prelude::*;
///
/// // Up to two GPUs, else the CPU.
/// let gpus: Vec<_> = list_physical_devices(DeviceKind::Gpu).into_iter().take(2).collect();
/// set_visible_devices(&gpus, DeviceKind::Gpu)?;
/// assert_eq!(MirroredStrategy::new().num_replicas_in_sync(), gpus.len().max(1));
/// # Ok::<(), phalanx::Error>(())
/// ```
///
/// # Errors
/// A device of another kind, a duplicate, or a device that this machine does not have.
pub fn set_visible_devices(devices: &[Device], kind: DeviceKind) -> Result<()> {
    if let Some(other) = devices.iter().find(|d| d.kind != kind) {
        let expected = format!("devices of kind {kind}");
        return Err(Error::argument("set_visible_devices", "devices", expected, other));
    }
    check_devices("set_visible_devices", devices)?;
    VISIBLE.write().unwrap_or_else(|e| e.into_inner())[kind as usize] = Some(devices.to_vec());
    Ok(())
}

/// The devices that strategies use by default: all visible GPUs, else the visible CPU devices.
pub fn visible_devices() -> Vec<Device> {
    let configured = VISIBLE.read().unwrap_or_else(|e| e.into_inner());
    let visible =
        |kind| configured[kind as usize].clone().unwrap_or_else(|| list_physical_devices(kind));
    let gpus = visible(DeviceKind::Gpu);
    if gpus.is_empty() { visible(DeviceKind::Cpu) } else { gpus }
}

/// Fails if there are more devices than can be started.
fn check_count(owner: &str, devices: usize) -> Result<()> {
    if devices <= MAX_THREADS {
        return Ok(());
    }
    Err(Error::argument(owner, "devices", format!("{MAX_THREADS} or fewer"), devices))
}

/// Fails if devices cannot be combined, regardless of the machine.
pub(crate) fn check_compatible(owner: &str, devices: &[Device]) -> Result<()> {
    let fail = |expected: &str, received: String| {
        Err(Error::argument(owner, "devices", expected, received))
    };
    check_count(owner, devices.len())?;
    for (i, d) in devices.iter().enumerate() {
        if devices[..i].contains(d) {
            return fail("each device once", d.to_string());
        }
        let shared = |o: &Device| (o.kind, o.index) == (d.kind, d.index) && o.part.is_none();
        if d.part.is_some() && devices.iter().any(shared) {
            return fail("a GPU as a whole or in parts, not both", d.to_string());
        }
    }
    let names = || devices.iter().map(Device::to_string).collect::<Vec<_>>().join(", ");
    if devices.iter().any(|d| d.kind != devices[0].kind) {
        return fail("either CPU devices or GPUs", names());
    }
    let gpus = devices.iter().filter(|d| d.kind == DeviceKind::Gpu);
    if !gpus.is_sorted_by_key(|d| (d.index, d.part)) {
        return fail("GPUs in ascending order", names());
    }
    Ok(())
}

/// As [`check_compatible`], and fails if a device is not on this machine.
fn check_devices(owner: &str, devices: &[Device]) -> Result<()> {
    check_compatible(owner, devices)?;
    let found = list_physical_devices(DeviceKind::Gpu);
    let here =
        |d: &&Device| d.kind == DeviceKind::Cpu || found.contains(&Device::new(d.kind, d.index));
    match devices.iter().find(|d| !here(d)) {
        None => Ok(()),
        Some(d) => {
            let received = format!("{d} ({} GPUs found)", found.len());
            Err(Error::argument(owner, "devices", "a device of this machine", received))
        }
    }
}

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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirroredStrategy {
    devices: Vec<Device>,
    selection: Selection,
    threads: usize,
    deterministic: bool,
    policy: Policy,
}

impl MirroredStrategy {
    /// Every visible device.
    pub fn new() -> MirroredStrategy {
        MirroredStrategy::with_selection(visible_devices(), Selection::Visible)
    }

    fn with_selection(devices: Vec<Device>, selection: Selection) -> MirroredStrategy {
        let (threads, deterministic, policy) = (0, false, Policy::Float32);
        MirroredStrategy { devices, selection, threads, deterministic, policy }
    }

    /// The named devices, such as `["cpu:0", "cpu:1"]`.
    pub fn with_devices<S: AsRef<str>>(
        names: impl IntoIterator<Item = S>,
    ) -> Result<MirroredStrategy> {
        let devices: Vec<Device> =
            names.into_iter().map(|n| n.as_ref().parse()).collect::<Result<_>>()?;
        MirroredStrategy::from_devices(devices)
    }

    /// `n` logical CPU devices.
    pub fn cpus(n: usize) -> Result<MirroredStrategy> {
        check_count("MirroredStrategy", n)?;
        let devices = (0..n).map(|index| Device::new(DeviceKind::Cpu, index)).collect();
        MirroredStrategy::from_devices(devices)
    }

    /// The first `n` visible GPUs. If several workers share a machine, the first `n` of this worker's share.
    pub fn gpus(n: usize) -> Result<MirroredStrategy> {
        let visible: Vec<Device> =
            visible_devices().into_iter().filter(|d| d.kind == DeviceKind::Gpu).collect();
        let devices = worker_gpus(&visible, 0, 1, Some(n))?;
        Ok(MirroredStrategy::with_selection(devices, Selection::Gpus(n)))
    }

    /// The part of this strategy that belongs to one of several workers on this machine.
    pub(crate) fn for_worker(self, worker: usize, workers: usize) -> Result<MirroredStrategy> {
        let on_gpu = self.devices.iter().any(|d| d.kind == DeviceKind::Gpu);
        let requested = match self.selection {
            Selection::Visible if on_gpu => None,
            Selection::Gpus(n) => Some(n),
            Selection::Visible | Selection::Named => return Ok(self),
        };
        let devices = worker_gpus(&visible_devices(), worker, workers, requested)?;
        Ok(MirroredStrategy { devices, ..self })
    }

    fn from_devices(devices: Vec<Device>) -> Result<MirroredStrategy> {
        if devices.is_empty() {
            let expected = "at least one device";
            return Err(Error::argument("MirroredStrategy", "devices", expected, "none"));
        }
        check_devices("MirroredStrategy", &devices)?;
        Ok(MirroredStrategy::with_selection(devices, Selection::Named))
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

    /// Sets the dtype policy. [`Policy::MixedBfloat16`], Keras' `mixed_bfloat16`, halves the memory of
    /// activations and the time to move them. Weights and arithmetic stay 32-bit floats, and so does everything
    /// on CPU devices.
    ///
    /// [`Policy::MixedFloat16`] has more precision and less range. As in Keras, `compile` then wraps the
    /// optimizer in a [`LossScaleOptimizer`](crate::optimizers::LossScaleOptimizer), on every kind of device.
    pub fn policy(mut self, policy: Policy) -> MirroredStrategy {
        self.policy = policy;
        self
    }

    /// The requested policy.
    pub(crate) fn requested_policy(&self) -> Policy {
        self.policy
    }

    pub(crate) fn is_deterministic(&self) -> bool {
        self.deterministic
    }

    /// Number of replicas: the factor between a per-replica and the global batch.
    pub fn num_replicas_in_sync(&self) -> usize {
        self.devices.len()
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
            Err(Error::argument("MirroredStrategy", argument, expected, received))
        };
        if self.devices.is_empty() {
            return fail("devices", "at least one visible device", 0);
        }
        if self.deterministic && Mesh::fixed(self.devices.len()).is_none() {
            return fail("deterministic", "1, 2, 4 or 8 replicas", self.devices.len());
        }
        let all = self.threads.saturating_mul(self.devices.len());
        if all > MAX_THREADS {
            return fail("threads", &format!("{MAX_THREADS} or fewer over all devices"), all);
        }
        Ok(self.threads)
    }
}

impl MirroredStrategy {
    /// Creates an executor on these devices, as part of `cluster`, if any.
    pub(crate) fn executor(
        &self,
        params: &[ParamSpec],
        cluster: Option<Cluster>,
    ) -> Result<Box<dyn Executor>> {
        let workers = self.worker_threads()?;
        let on_gpu = |d: &&Device| d.kind == DeviceKind::Gpu;
        let gpus: Vec<GpuPlacement> = self.devices.iter().filter(on_gpu).map(gpu_place).collect();
        if gpus.is_empty() {
            warn_if_slow(phalanx_cpu::OPTIMIZED);
            let (devices, fixed) = (self.devices.len(), self.deterministic);
            let options = CpuOptions { devices, workers, fixed, isa: None };
            return Ok(Box::new(CpuExecutor::with_cluster(options, params, cluster)?));
        }
        if self.deterministic {
            let (owner, expected) = ("MirroredStrategy", "CPU devices");
            return Err(Error::argument(owner, "deterministic", expected, gpus[0]));
        }
        Ok(match cluster {
            Some(cluster) => phalanx_cuda::cluster_executor(&gpus, params, cluster)?,
            None => phalanx_cuda::executor(&gpus, params)?,
        })
    }
}

fn gpu_place(device: &Device) -> GpuPlacement {
    GpuPlacement { index: device.index, part: device.part }
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
        let cpu = MirroredStrategy::with_selection(
            vec![Device::new(DeviceKind::Cpu, 0)],
            Selection::Visible,
        );
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
