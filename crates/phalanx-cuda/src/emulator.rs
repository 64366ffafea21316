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
mod narrow;
mod order;
mod products;
mod registry;
#[cfg(test)]
mod tests;

use crate::devices::GpuInfo;
use crate::executor::GpuExecutor;
use crate::process_group::RankAssignment;
use all_reduce::{AllReduceGroup, Link};
use phalanx_graph::ParamSpec;
use phalanx_graph::exec::{ExecError, Executor};
use phalanx_graph::process_group::Cluster;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

pub use crate::inputs::INPUT_BYTES;
pub(crate) use device::EmulatedGpu;
pub use inventory::KernelInventory;
pub(crate) use mailbox::transport;
pub(crate) use registry::make_id;

/// Creates an executor with replicas on one emulated GPU.
///
/// # Errors
/// There is not enough memory.
pub fn executor(
    replicas: usize,
    seed: Option<u64>,
    params: &[ParamSpec],
) -> Result<Box<dyn Executor>, ExecError> {
    let names = (0..replicas).map(|part| format!("emulated:0/{part}")).collect();
    Ok(Box::new(GpuExecutor::new(vec![(EmulatedGpu::new(seed), names)], params, None)?))
}

/// Creates an executor with several emulated GPUs; `replicas` is the number of replicas on each. A
/// single GPU reduces with itself, on the same code path as several.
///
/// # Errors
/// There is not enough memory.
pub fn joined_executor(
    replicas: &[usize],
    seed: Option<u64>,
    params: &[ParamSpec],
) -> Result<Box<dyn Executor>, ExecError> {
    open(names(replicas), true, seed, params, None)
}

/// Like [`joined_executor`], for the GPUs of one process of a cluster.
///
/// # Errors
/// There is not enough memory, or another process was lost.
pub fn cluster_executor(
    replicas: &[usize],
    seed: Option<u64>,
    params: &[ParamSpec],
    cluster: Cluster,
) -> Result<Box<dyn Executor>, ExecError> {
    open(names(replicas), true, seed, params, Some(cluster))
}

fn names(replicas: &[usize]) -> Vec<Vec<String>> {
    let each = replicas.iter().enumerate();
    each.map(|(gpu, n)| (0..*n).map(|part| format!("emulated:{gpu}/{part}")).collect()).collect()
}

/// Creates an executor with an emulated GPU for each list of replicas. If `joined`, they reduce
/// with each other, and with those of other processes.
pub(crate) fn open(
    replicas: Vec<Vec<String>>,
    joined: bool,
    seed: Option<u64>,
    params: &[ParamSpec],
    cluster: Option<Cluster>,
) -> Result<Box<dyn Executor>, ExecError> {
    let gpus = replicas.len();
    let assignment =
        cluster.as_ref().map(|c| RankAssignment::exchange(&c.peers, gpus, || Ok(make_id())));
    let assignment = assignment.transpose()?;
    let first = assignment.as_ref().map_or(0, |assignment| assignment.first);
    let group = match &assignment {
        Some(assignment) => AllReduceGroup::of(assignment),
        None => Arc::new(AllReduceGroup::new(gpus, Duration::MAX)),
    };
    let device = |(at, names): (usize, Vec<String>)| {
        let link = Link { group: group.clone(), rank: first + at, remote: assignment.is_some() };
        let mut gpu = EmulatedGpu::new(seed.map(|seed| seed + at as u64));
        gpu.link = joined.then_some(link);
        (gpu, names)
    };
    let devices = replicas.into_iter().enumerate().map(device).collect();
    Ok(Box::new(GpuExecutor::new(devices, params, cluster)?))
}

/// Creates an executor with replicas on one emulated GPU with `memory` bytes of memory.
///
/// # Errors
/// There is not enough memory.
pub fn small_executor(
    replicas: usize,
    memory: usize,
    params: &[ParamSpec],
) -> Result<Box<dyn Executor>, ExecError> {
    let names = (0..replicas).map(|part| format!("emulated:0/{part}")).collect();
    let mut gpu = EmulatedGpu::new(None);
    gpu.capacity = memory;
    Ok(Box::new(GpuExecutor::new(vec![(gpu, names)], params, None)?))
}

static INSTALLED: OnceLock<Vec<GpuInfo>> = OnceLock::new();

/// Installs `gpus` emulated GPUs in place of the real ones of this process.
pub fn install(gpus: usize) {
    let gpu = |index| GpuInfo { index, name: "emulated GPU".into(), memory: 1 << 30 };
    INSTALLED.get_or_init(|| (0..gpus).map(gpu).collect());
}

/// The emulated GPUs that replace the real ones, if installed.
pub(crate) fn installed() -> Option<&'static [GpuInfo]> {
    INSTALLED.get().map(Vec::as_slice)
}
