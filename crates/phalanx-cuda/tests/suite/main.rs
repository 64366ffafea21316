//! The executor tests, in one binary to link only once. `cargo test --test suite gpu::` runs one
//! module.

mod emulated;
mod gpu;
mod joined;
mod narrow;
mod processes;

use phalanx_cuda::CudaBackend;
use phalanx_exec::{Backend, DeviceSlot, Executor, OpenRequest};
use phalanx_graph::ParamSpec;
use phalanx_graph::program::ShardLevel;

/// The seed of `PHALANX_EMULATOR_SEED`, which selects another order of work items, blocks and
/// threads.
fn seed() -> Option<u64> {
    let seed = std::env::var("PHALANX_EMULATOR_SEED").ok()?;
    Some(seed.parse().expect("PHALANX_EMULATOR_SEED is a number"))
}

/// The number of GPUs of this machine.
fn gpus() -> usize {
    CudaBackend::new().devices().map_or(0, |gpus| gpus.len())
}

/// An executor with replicas at these slots of this machine's GPUs.
fn on_gpus(slots: &[DeviceSlot], params: &[ParamSpec]) -> Box<dyn Executor> {
    let (threads, deterministic, cluster) = (0, false, None);
    let request = OpenRequest {
        slots,
        devices_per_replica: 1,
        threads,
        deterministic,
        params,
        cluster,
        shard: ShardLevel::None,
    };
    CudaBackend::new().open(request).expect("starts")
}
