//! Models and GPUs together, on emulated GPUs or on the GPU of this machine.

mod kernels;
mod memory;
mod programs;
mod training;
mod workers;

/// From now on the models of this process find emulated GPUs.
fn emulate() {
    phalanx_cuda::emulator::install(4);
}
