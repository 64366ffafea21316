//! The backend of NVIDIA GPUs.

use crate::algorithms;
#[cfg(feature = "emulator")]
use crate::emulator::Emulator;
use crate::executor::GpuExecutor;
use crate::gpu::Gpu;
use crate::plan::memory_plan;
use phalanx_cuda_driver::driver;
use phalanx_cuda_driver::libs::{self, Lib};
use phalanx_distributed::transport::DeviceTransport;
use phalanx_distributed::transport::nccl::Nccl;
use phalanx_exec::{
    Backend, Cluster, DeviceInfo, DeviceSlot, DeviceTraits, ExecError, Executor, MemoryLimit,
    MemoryPlan, OpenRequest,
};
use phalanx_graph::program::{Policy, ShardLevel, SplitRules};
use phalanx_graph::{Mesh, Options, ParamSpec, Program};
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// How many instructions the buffers of dead values stay unused in programs for GPUs
/// (`Options::reuse_delay`).
const REUSE_DELAY: usize = 16;

/// cuBLASLt's fastest algorithms need axes and rows of whole 16 bytes (`Options::product_alignment`).
const PRODUCT_ALIGNMENT: usize = 8;

/// The NVIDIA GPUs of this machine, or emulated ones.
#[derive(Clone, Default)]
pub struct CudaBackend {
    #[cfg(feature = "emulator")]
    emulator: Option<Emulator>,
}

impl CudaBackend {
    /// The GPUs of this machine.
    pub fn new() -> CudaBackend {
        CudaBackend::default()
    }

    /// Emulated GPUs.
    #[cfg(feature = "emulator")]
    pub fn emulated(emulator: Emulator) -> CudaBackend {
        CudaBackend { emulator: Some(emulator) }
    }
}

impl Backend for CudaBackend {
    fn kind(&self) -> &'static str {
        "gpu"
    }

    fn traits(&self) -> DeviceTraits {
        DeviceTraits {
            on_host: false,
            deterministic: false,
            wants_large_batches: true,
            unplanned_memory: Some("the driver and NVIDIA's libraries"),
            profile_note: Some("each launch measured by itself"),
        }
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>, String> {
        #[cfg(feature = "emulator")]
        if let Some(emulator) = &self.emulator {
            return Ok(emulator.devices());
        }
        static FOUND: OnceLock<Result<Vec<DeviceInfo>, String>> = OnceLock::new();
        FOUND.get_or_init(enumerate_gpus).clone()
    }

    fn mesh(&self, replicas: usize, _threads: usize) -> Mesh {
        Mesh::new(replicas, 1)
    }

    fn options(&self, mesh: Mesh, policy: Policy, max_batch: usize) -> Options {
        let split_rules = SplitRules::NONE;
        Options {
            policy,
            reuse_delay: REUSE_DELAY,
            split_rules,
            product_alignment: PRODUCT_ALIGNMENT,
            ..Options::new(mesh, max_batch)
        }
    }

    fn memory_plan(&self, program: &Program, accumulates: bool) -> MemoryPlan {
        let parts = memory_plan(program, accumulates);
        MemoryPlan::new(program, parts.into_iter().map(|(purpose, bytes)| (purpose, bytes, 0)))
    }

    fn memory_limit(&self) -> Option<MemoryLimit> {
        None
    }

    fn fingerprint(&self) -> Vec<(&'static str, String)> {
        vec![("PHALANX_ALGORITHMS", algorithms::further_choices())]
    }

    fn device_transport(&self) -> Option<&dyn DeviceTransport> {
        #[cfg(feature = "emulator")]
        if let Some(emulator) = &self.emulator {
            return Some(emulator);
        }
        Some(&Nccl)
    }

    fn open(&self, request: OpenRequest<'_>) -> Result<Box<dyn Executor>, ExecError> {
        let OpenRequest { slots, params, cluster, shard, devices_per_replica, .. } = request;
        if devices_per_replica > 1 {
            let reason = "GPUs do not divide weights yet: expected replicas of one device".into();
            return Err(ExecError::Program { name: "any".into(), reason });
        }
        if shard != ShardLevel::None {
            let reason = "GPUs hold the whole training state: expected CPU devices".into();
            return Err(ExecError::Program { name: "any".into(), reason });
        }
        #[cfg(feature = "emulator")]
        if let Some(emulator) = &self.emulator {
            return emulator.open(slots, params, cluster);
        }
        open(slots, joins(slots, cluster.as_ref()), params, cluster)
    }
}

/// The GPUs of this machine. Only queries the driver: no GPU is initialised.
fn enumerate_gpus() -> Result<Vec<DeviceInfo>, String> {
    libs::find(Lib::Driver).map_err(|e| e.to_string())?;
    let count = driver::count().map_err(|e| e.0)?;
    let each = (0..count).map(|index| {
        let (name, memory) = driver::describe(index).map_err(|e| e.0)?;
        Ok(DeviceInfo { index, name, memory: Some(memory) })
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

/// Whether replicas have to reduce across GPUs.
pub(crate) fn joins(slots: &[DeviceSlot], cluster: Option<&Cluster>) -> bool {
    cluster.is_some() || slots.iter().any(|slot| slot.index != slots[0].index)
}

/// The names of the replicas on each GPU.
pub(crate) fn replicas_by_gpu(slots: &[DeviceSlot]) -> BTreeMap<usize, Vec<String>> {
    let mut by_gpu: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for DeviceSlot { index, part } in slots {
        let name = match part {
            Some(part) => format!("gpu:{index}/{part}"),
            None => format!("gpu:{index}"),
        };
        by_gpu.entry(*index).or_default().push(name);
    }
    by_gpu
}

/// Creates an executor that reduces through NCCL even on a single GPU. For tests.
///
/// # Errors
/// A library is missing, or a GPU is unusable.
pub fn joined_executor(
    slots: &[DeviceSlot],
    params: &[ParamSpec],
) -> Result<Box<dyn Executor>, ExecError> {
    open(slots, true, params, None)
}

fn open(
    slots: &[DeviceSlot],
    joined: bool,
    params: &[ParamSpec],
    cluster: Option<Cluster>,
) -> Result<Box<dyn Executor>, ExecError> {
    let by_gpu = replicas_by_gpu(slots);
    let mut gpus = by_gpu.keys().map(|index| Gpu::open(*index)).collect::<Result<Vec<_>, _>>()?;
    if joined {
        Gpu::join(&mut gpus, cluster.as_ref().map(|c| &c.peers))?;
    }
    let devices = gpus.into_iter().zip(by_gpu.into_values()).collect();
    Ok(Box::new(GpuExecutor::new(devices, params, cluster)?))
}
