//! Devices and their names.

use crate::error::{Error, Result};
use phalanx_exec::{Backend, DeviceSlot};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

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

    pub(crate) fn slot(&self) -> DeviceSlot {
        DeviceSlot { index: self.index, part: self.part }
    }
}

impl DeviceKind {
    /// All kinds, in the order in which strategies prefer them.
    pub(crate) const ALL: [DeviceKind; 2] = [DeviceKind::Gpu, DeviceKind::Cpu];

    /// The backend of this kind.
    ///
    /// # Errors
    /// The kind was left out of this build.
    pub fn backend(self) -> Result<Arc<dyn Backend>> {
        match self {
            DeviceKind::Cpu => Ok(Arc::new(phalanx_cpu::CpuBackend)),
            #[cfg(feature = "cuda")]
            DeviceKind::Gpu => Ok(Arc::new(phalanx_cuda::CudaBackend::new())),
            #[cfg(not(feature = "cuda"))]
            DeviceKind::Gpu => Err(Error::MissingFeature { what: "GPUs", feature: "cuda" }),
        }
    }

    fn name(self) -> &'static str {
        match self {
            DeviceKind::Cpu => "cpu",
            DeviceKind::Gpu => "gpu",
        }
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DeviceKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<DeviceKind> {
        let kind = DeviceKind::ALL.into_iter().find(|kind| kind.name() == text);
        kind.ok_or_else(|| Error::argument("device", "kind", "cpu or gpu", format!("'{text}'")))
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
        let kind: DeviceKind = kind.parse().map_err(|_| fail())?;
        if part.is_some() && kind == DeviceKind::Cpu {
            return Err(fail());
        }
        let number = |text: &str| text.parse().map_err(|_| fail());
        Ok(Device { kind, index: number(index)?, part: part.map(number).transpose()? })
    }
}
