//! The GPU executor against the reference evaluator, on the GPU of this machine, if it has one:
//! several replicas share it. `PHALANX_TF32=0` keeps all 24 bits of every product's operands, and
//! the results are then held to what 32-bit floats allow.

use phalanx_cuda::GpuPlace;
use phalanx_graph::exec::Executor;
use phalanx_graph::{Mesh, ParamSpec};
use phalanx_testing::{Lab, Tolerances};

struct Gpu;

/// Nothing where there is no GPU.
fn lab() -> Option<Gpu> {
    match phalanx_cuda::gpus() {
        Ok([]) => eprintln!("skipped: no GPU"),
        Ok(_) => return Some(Gpu),
        Err(reason) => eprintln!("skipped: {reason}"),
    }
    None
}

impl Lab for Gpu {
    fn meshes(&self) -> Vec<Mesh> {
        vec![Mesh::new(1, 1), Mesh::new(2, 1), Mesh::new(3, 1)]
    }

    fn executor(&self, mesh: Mesh, params: &[ParamSpec]) -> Box<dyn Executor> {
        let part = |part| GpuPlace { index: 0, part: Some(part) };
        let places: Vec<GpuPlace> = (0..mesh.devices).map(part).collect();
        phalanx_cuda::executor(&places, params).expect("starts")
    }

    fn tolerances(&self) -> Tolerances {
        match std::env::var("PHALANX_TF32").as_deref() {
            Ok("0") => Tolerances::default(),
            // Ten bits of mantissa.
            _ => Tolerances { op: 3e-3, training: 5e-2, graph: 1e-2 },
        }
    }

    fn random_graphs(&self) -> u32 {
        20
    }
}

phalanx_testing::executor_tests!(crate::lab());
