//! Tests of the GPU executor against the reference evaluator, on an emulated GPU.
//! `PHALANX_EMULATOR_SEED` selects another order of work items, blocks and threads.

use crate::seed;
use phalanx_cuda::emulator::Emulator;
use phalanx_exec::Executor;
use phalanx_graph::{Mesh, ParamSpec};
use phalanx_testing::Lab;

struct Emulated;

impl Lab for Emulated {
    fn meshes(&self) -> Vec<Mesh> {
        vec![Mesh::new(1, 1), Mesh::new(2, 1), Mesh::new(3, 1)]
    }

    fn executor(&self, mesh: Mesh, params: &[ParamSpec]) -> Box<dyn Executor> {
        Emulator::new(1).seed(seed()).executor(mesh.devices, params).expect("starts")
    }

    fn random_graphs(&self) -> u32 {
        20
    }
}

phalanx_testing::executor_tests!([gxx], super::Emulated);
