//! Every kernel compiles with NVIDIA's runtime compiler, which needs no GPU. This covers all variants of the
//! kernel files that the op cases, the optimizers and the applications launch, and the kernels generated for
//! these programs.

use crate::programs;
use phalanx_cuda::emulator::KernelInventory;

/// Compute capability of H100 and H200, for which every variant of every kernel is compiled.
const ALL_VARIANTS_ARCH: i32 = 90;

/// Compute capability of A100, for which one variant of every kernel per number type is compiled.
const SOME_VARIANTS_ARCH: i32 = 80;

fn launched() -> KernelInventory {
    let mut launched = KernelInventory::default();
    for program in programs::ops() {
        launched.add(&program);
    }
    for program in programs::training().iter().chain(&programs::networks()) {
        launched.add_every_way(program);
    }
    launched
}

#[test]
fn every_kernel_is_launched() {
    let missing = launched().missing();
    assert!(missing.is_empty(), "no case launches {missing:#?}");
}

#[ignore = "needs NVRTC: tests/python/run_kernel_check.sh runs it"]
#[test]
fn every_kernel_compiles() {
    let launched = launched();
    launched.compile_some(SOME_VARIANTS_ARCH).unwrap();
    launched.compile_all(ALL_VARIANTS_ARCH).unwrap();
}
