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
    /// Its number, as in `gpu:0`.
    pub index: usize,
    /// What it is called.
    pub name: String,
    /// Bytes of memory.
    pub memory: usize,
}

/// The GPUs of this machine, or why there are none. No GPU is touched: only the driver is asked.
///
/// # Errors
/// There is no driver, or it does not work.
pub fn gpus() -> Result<&'static [GpuInfo], String> {
    #[cfg(feature = "emulator")]
    if let Some(gpus) = crate::emulator::installed() {
        return Ok(gpus);
    }
    static FOUND: OnceLock<Result<Vec<GpuInfo>, String>> = OnceLock::new();
    FOUND.get_or_init(look).as_deref().map_err(Clone::clone)
}

fn look() -> Result<Vec<GpuInfo>, String> {
    libs::find(Lib::Driver).map_err(|e| e.to_string())?;
    let count = driver::count().map_err(|e| e.0)?;
    let each = (0..count).map(|index| {
        let (name, memory) = driver::describe(index).map_err(|e| e.0)?;
        Ok(GpuInfo { index, name, memory })
    });
    each.collect()
}

/// The driver's own version, where the system says it, and that of its CUDA; nothing where there is no
/// driver.
pub fn driver_version() -> Option<String> {
    let cuda = libs::driver_version()?;
    let own = std::fs::read_to_string("/sys/module/nvidia/version").unwrap_or_default();
    Some(match own.trim() {
        "" => format!("CUDA {cuda}"),
        own => format!("{own} (CUDA {cuda})"),
    })
}

/// How long programs for GPUs leave the places of dead values alone (`Options::rest`).
pub const REUSE_DELAY: usize = 16;

/// A replica's place: a GPU, or a numbered part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuPlacement {
    /// The GPU.
    pub index: usize,
    /// Which of the replicas that share it, where several do.
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

/// An executor with a replica at each place, which must be in the order of the GPUs.
///
/// # Errors
/// A library that is missing, or a GPU that cannot be used.
pub fn executor(
    places: &[GpuPlacement],
    params: &[ParamSpec],
) -> Result<Box<dyn Executor>, ExecError> {
    let several = places.iter().any(|place| place.index != places[0].index);
    open(places, several, params, None)
}

/// As [`executor`], for this process' places among those of others.
///
/// # Errors
/// As above, or another process that was lost.
pub fn cluster_executor(
    places: &[GpuPlacement],
    params: &[ParamSpec],
    cluster: Cluster,
) -> Result<Box<dyn Executor>, ExecError> {
    open(places, true, params, Some(cluster))
}

/// As [`executor`], with sums over GPUs by NCCL even where there is one GPU: for tests of it.
///
/// # Errors
/// A library that is missing, or a GPU that cannot be used.
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
