//! The GPUs of this machine, and executors on them.

use crate::driver;
use crate::executor::GpuExecutor;
use crate::gpu::Gpu;
use crate::libs::{self, Lib};
use phalanx_graph::ParamSpec;
use phalanx_graph::exec::{ExecError, Executor};
use phalanx_graph::process_group::Cluster;
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// A GPU of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuInfo {
    /// Its index, as in `gpu:0`.
    pub index: usize,
    /// Its product name.
    pub name: String,
    /// Memory in bytes.
    pub memory: usize,
}

/// The GPUs of this machine. Only queries the driver: no GPU is initialised.
///
/// # Errors
/// There is no driver, or it does not work.
pub fn gpus() -> Result<&'static [GpuInfo], String> {
    #[cfg(feature = "emulator")]
    if let Some(gpus) = crate::emulator::installed() {
        return Ok(gpus);
    }
    static FOUND: OnceLock<Result<Vec<GpuInfo>, String>> = OnceLock::new();
    FOUND.get_or_init(enumerate_gpus).as_deref().map_err(Clone::clone)
}

fn enumerate_gpus() -> Result<Vec<GpuInfo>, String> {
    libs::find(Lib::Driver).map_err(|e| e.to_string())?;
    let count = driver::count().map_err(|e| e.0)?;
    let each = (0..count).map(|index| {
        let (name, memory) = driver::describe(index).map_err(|e| e.0)?;
        Ok(GpuInfo { index, name, memory })
    });
    each.collect()
}

/// The version of the driver, if the system reports it, and its CUDA version. `None` if there is no
/// driver.
pub fn driver_version() -> Option<String> {
    let cuda = libs::driver_version()?;
    let own = std::fs::read_to_string("/sys/module/nvidia/version").unwrap_or_default();
    Some(match own.trim() {
        "" => format!("CUDA {cuda}"),
        own => format!("{own} (CUDA {cuda})"),
    })
}

/// How many instructions the buffers of dead values stay unused in programs for GPUs
/// (`Options::reuse_delay`).
pub const REUSE_DELAY: usize = 16;

/// Where a replica runs: a GPU, or a numbered part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuPlacement {
    /// Index of the GPU.
    pub index: usize,
    /// Index of the replica among those that share the GPU, if several do.
    pub part: Option<usize>,
}

impl std::fmt::Display for GpuPlacement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.part {
            Some(part) => write!(f, "gpu:{}/{part}", self.index),
            None => write!(f, "gpu:{}", self.index),
        }
    }
}

/// Creates an executor with a replica at each placement. Placements must be in the order of the
/// GPUs.
///
/// # Errors
/// A library is missing, or a GPU is unusable.
pub fn executor(
    places: &[GpuPlacement],
    params: &[ParamSpec],
) -> Result<Box<dyn Executor>, ExecError> {
    let several = places.iter().any(|place| place.index != places[0].index);
    open(places, several, params, None)
}

/// Like [`executor`], for the local replicas of a cluster of processes.
///
/// # Errors
/// Like [`executor`], or another process was lost.
pub fn cluster_executor(
    places: &[GpuPlacement],
    params: &[ParamSpec],
    cluster: Cluster,
) -> Result<Box<dyn Executor>, ExecError> {
    open(places, true, params, Some(cluster))
}

/// Like [`executor`], but reduces through NCCL even on a single GPU. For tests.
///
/// # Errors
/// A library is missing, or a GPU is unusable.
pub fn joined_executor(
    places: &[GpuPlacement],
    params: &[ParamSpec],
) -> Result<Box<dyn Executor>, ExecError> {
    open(places, true, params, None)
}

fn open(
    places: &[GpuPlacement],
    joined: bool,
    params: &[ParamSpec],
    cluster: Option<Cluster>,
) -> Result<Box<dyn Executor>, ExecError> {
    let mut by_gpu: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for place in places {
        by_gpu.entry(place.index).or_default().push(place.to_string());
    }
    #[cfg(feature = "emulator")]
    if crate::emulator::installed().is_some() {
        let replicas = by_gpu.into_values().collect();
        return crate::emulator::open(replicas, joined, None, params, cluster);
    }
    let mut gpus = by_gpu.keys().map(|index| Gpu::open(*index)).collect::<Result<Vec<_>, _>>()?;
    if joined {
        Gpu::join(&mut gpus, cluster.as_ref().map(|c| &c.peers))?;
    }
    let devices = gpus.into_iter().zip(by_gpu.into_values()).collect();
    Ok(Box::new(GpuExecutor::new(devices, params, cluster)?))
}
