//! Models on GPUs: emulated ones, or the GPU of this machine.

mod docs;
mod kernels;
mod limits;
mod memory;
mod programs;
mod training;
mod workers;

/// Installs emulated GPUs for the models of this process.
fn emulate() {
    phalanx_cuda::emulator::install(4);
}
