//! The backend of CPU devices.

use crate::collectives::exchange_layout::overlap_enabled;
use crate::executor::{CpuExecutor, CpuOptions, memory_plan, workers_per_device};
use crate::memory::{available_memory, physical_memory};
use crate::optimized::{OPTIMIZED, warn_if_slow};
use crate::simd::Isa;
use crate::split_rules::SPLIT_RULES;
use phalanx_distributed::transport::DeviceTransport;
use phalanx_exec::{
    Backend, DeviceInfo, DeviceTraits, ExecError, Executor, MemoryLimit, MemoryPlan, OpenRequest,
};
use phalanx_graph::program::Policy;
use phalanx_graph::{Mesh, Options, Program};

/// The cores of this machine. They count as one device; further ones (`cpu:1`, …) are logical devices that share
/// them.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuBackend;

impl Backend for CpuBackend {
    fn kind(&self) -> &'static str {
        "cpu"
    }

    fn traits(&self) -> DeviceTraits {
        DeviceTraits {
            on_host: true,
            deterministic: true,
            wants_large_batches: false,
            unplanned_memory: None,
            profile_note: None,
        }
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>, String> {
        let memory = Some(physical_memory()).filter(|bytes| *bytes < usize::MAX);
        let name = Isa::detect().map_or_else(|e| e.to_string(), |isa| isa.to_string());
        Ok(vec![DeviceInfo { index: 0, name, memory }])
    }

    fn mesh(&self, replicas: usize, threads: usize) -> Mesh {
        Mesh::new(replicas, workers_per_device(replicas, threads))
    }

    /// CPU devices store 32-bit floats, whatever the policy.
    fn options(&self, mesh: Mesh, _policy: Policy, max_batch: usize) -> Options {
        let policy = Policy::Float32;
        Options { split_rules: SPLIT_RULES, policy, ..Options::new(mesh, max_batch) }
    }

    fn memory_plan(&self, program: &Program, accumulates: bool) -> MemoryPlan {
        memory_plan(program, accumulates)
    }

    fn memory_limit(&self) -> Option<MemoryLimit> {
        Some(MemoryLimit { total: physical_memory(), available: available_memory() })
    }

    fn fingerprint(&self) -> Vec<(&'static str, String)> {
        let isa = Isa::detect().map_or_else(|e| e.to_string(), |isa| isa.to_string());
        let overlap = overlap_enabled().to_string();
        vec![("instruction set", isa), ("gradients during backward (PHALANX_OVERLAP)", overlap)]
    }

    fn device_transport(&self) -> Option<&dyn DeviceTransport> {
        None
    }

    fn open(&self, request: OpenRequest<'_>) -> Result<Box<dyn Executor>, ExecError> {
        warn_if_slow(OPTIMIZED);
        let options = CpuOptions {
            replicas: request.slots.len() / request.devices_per_replica.max(1),
            devices_per_replica: request.devices_per_replica,
            workers: request.threads,
            fixed: request.deterministic,
            isa: None,
            shard: request.shard,
        };
        Ok(Box::new(CpuExecutor::with_cluster(options, request.params, request.cluster)?))
    }
}
