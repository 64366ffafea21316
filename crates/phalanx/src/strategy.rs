//! Which devices train, and how many replicas that makes.
//!
//! There is no scope to open: the strategy is an argument of `compile`, and one device is merely a
//! strategy with one replica.

use crate::error::{Error, Result};
use std::fmt;
use std::str::FromStr;
use std::sync::RwLock;

/// What a device is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DeviceKind {
    /// Cores of this machine's processors.
    Cpu,
    /// An NVIDIA GPU.
    Gpu,
}

/// A device, as `cpu:0` or `gpu:1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Device {
    /// What it is.
    pub kind: DeviceKind,
    /// Its number among its kind.
    pub index: usize,
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            DeviceKind::Cpu => "cpu",
            DeviceKind::Gpu => "gpu",
        };
        write!(f, "{kind}:{}", self.index)
    }
}

impl FromStr for Device {
    type Err = Error;

    fn from_str(text: &str) -> Result<Device> {
        let fail = || Error::argument("device", "name", "cpu:N or gpu:N", format!("'{text}'"));
        let lower = text.trim().to_lowercase();
        let (kind, index) = lower.split_once(':').ok_or_else(fail)?;
        let kind = match kind {
            "cpu" => DeviceKind::Cpu,
            "gpu" => DeviceKind::Gpu,
            _ => return Err(fail()),
        };
        Ok(Device { kind, index: index.parse().map_err(|_| fail())? })
    }
}

static VISIBLE: RwLock<Option<Vec<Device>>> = RwLock::new(None);

/// The devices of a kind that this machine has. The processor counts as one; naming more
/// (`cpu:1`, …) makes logical devices that share out its cores.
pub fn list_physical_devices(kind: DeviceKind) -> Vec<Device> {
    match kind {
        DeviceKind::Cpu => vec![Device { kind, index: 0 }],
        // No GPU executor is part of this build.
        DeviceKind::Gpu => vec![],
    }
}

/// Limits what strategies use by default, for the rest of the process.
pub fn set_visible_devices(devices: &[Device]) {
    *VISIBLE.write().unwrap_or_else(|e| e.into_inner()) = Some(devices.to_vec());
}

/// What strategies use by default: every accelerator, else the CPU, within what is visible.
pub fn visible_devices() -> Vec<Device> {
    if let Some(devices) = &*VISIBLE.read().unwrap_or_else(|e| e.into_inner()) {
        return devices.clone();
    }
    let gpus = list_physical_devices(DeviceKind::Gpu);
    if gpus.is_empty() { list_physical_devices(DeviceKind::Cpu) } else { gpus }
}

/// Synchronous training on several devices of one machine: every replica holds the same weights
/// and computes its share of each global batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirroredStrategy {
    devices: Vec<Device>,
    threads: usize,
}

impl MirroredStrategy {
    /// Every visible device.
    pub fn new() -> MirroredStrategy {
        MirroredStrategy { devices: visible_devices(), threads: 0 }
    }

    /// The devices named, such as `["cpu:0", "cpu:1"]`.
    pub fn with_devices<S: AsRef<str>>(
        names: impl IntoIterator<Item = S>,
    ) -> Result<MirroredStrategy> {
        let devices: Vec<Device> =
            names.into_iter().map(|n| n.as_ref().parse()).collect::<Result<_>>()?;
        MirroredStrategy::over(devices)
    }

    /// `n` logical CPU devices.
    pub fn cpus(n: usize) -> Result<MirroredStrategy> {
        MirroredStrategy::over(
            (0..n).map(|index| Device { kind: DeviceKind::Cpu, index }).collect(),
        )
    }

    fn over(devices: Vec<Device>) -> Result<MirroredStrategy> {
        let fail = |expected: &str, received: String| {
            Err(Error::argument("MirroredStrategy", "devices", expected, received))
        };
        if devices.is_empty() {
            return fail("at least one device", "none".into());
        }
        for (i, d) in devices.iter().enumerate() {
            if devices[..i].contains(d) {
                return fail("each device once", d.to_string());
            }
            if d.kind == DeviceKind::Gpu && !list_physical_devices(d.kind).contains(d) {
                let found = list_physical_devices(d.kind).len();
                return fail("a device of this machine", format!("{d} ({found} GPUs found)"));
            }
        }
        Ok(MirroredStrategy { devices, threads: 0 })
    }

    /// Worker threads of each CPU device; 0, the default, shares out the cores.
    pub fn threads(mut self, threads: usize) -> MirroredStrategy {
        self.threads = threads;
        self
    }

    /// Number of replicas: the factor between a per-replica and the global batch.
    pub fn num_replicas_in_sync(&self) -> usize {
        self.devices.len()
    }

    /// The devices.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    pub(crate) fn worker_threads(&self) -> usize {
        self.threads
    }
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
        for bad in [&["cpu"][..], &["tpu:0"], &["cpu:x"], &["cpu:0", "cpu:0"], &["gpu:7"], &[]] {
            let error = MirroredStrategy::with_devices(bad).unwrap_err().to_string();
            assert!(error.contains("expected"), "{error}");
        }
    }
}
