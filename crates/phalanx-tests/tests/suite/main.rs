//! Models on GPUs: emulated ones, or the GPU of this machine.

mod docs;
mod kernels;
mod limits;
mod memory;
mod programs;
mod training;
mod workers;

use phalanx::prelude::*;
use phalanx_cuda::CudaBackend;
use phalanx_cuda::emulator::Emulator;
use std::sync::{Arc, LazyLock};

/// A machine with four emulated GPUs.
static EMULATOR: LazyLock<Emulator> = LazyLock::new(|| Emulator::new(4));

/// A strategy on CPU devices, or on emulated GPUs.
fn strategy_on<S: AsRef<str>>(devices: &[S]) -> Result<MirroredStrategy> {
    let gpus = devices.iter().any(|device| device.as_ref().starts_with("gpu"));
    match gpus {
        true => {
            let backend = Arc::new(CudaBackend::emulated(EMULATOR.clone()));
            MirroredStrategy::with_backend(backend, devices)
        }
        false => MirroredStrategy::with_devices(devices),
    }
}
