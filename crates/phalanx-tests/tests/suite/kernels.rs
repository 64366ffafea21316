//! Every kernel compiles with NVIDIA's runtime compiler, which needs no GPU: those of the files in every variant
//! that the ops' cases, the optimizers and the applications launch, and those generated for these programs.

use crate::programs;
use phalanx_cuda::emulator::KernelInventory;

/// H100 and H200: every variant of every kernel.
const ALL_FOR: i32 = 90;

/// A100: a variant of every kernel for each type of numbers.
const SOME_FOR: i32 = 80;

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
    launched.compile_some(SOME_FOR).unwrap();
    launched.compile_all(ALL_FOR).unwrap();
}
