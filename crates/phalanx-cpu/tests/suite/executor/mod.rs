//! Comparison of the executor with the reference evaluator: the tests of all executors, on every mesh and
//! instruction set, and tests of the CPU executor alone.

mod profile;
mod refused;
mod spatial_split;

use phalanx_cpu::simd::Isa;
use phalanx_cpu::{CpuExecutor, CpuOptions};
use phalanx_exec::Executor;
use phalanx_graph::{Mesh, ParamSpec};
use phalanx_testing::Lab;

const MESHES: [Mesh; 6] = [
    Mesh::new(1, 1),
    Mesh::new(1, 2),
    Mesh::new(2, 1),
    Mesh::new(3, 1),
    Mesh::new(2, 2),
    Mesh::new(3, 2),
];

struct Cpu;

fn start(mesh: Mesh, isa: Option<Isa>, params: &[ParamSpec]) -> Box<dyn Executor> {
    let options =
        CpuOptions { replicas: mesh.replicas, workers: mesh.workers, isa, ..CpuOptions::default() };
    Box::new(CpuExecutor::new(options, params).expect("starts"))
}

impl Lab for Cpu {
    fn meshes(&self) -> Vec<Mesh> {
        MESHES.to_vec()
    }

    fn executor(&self, mesh: Mesh, params: &[ParamSpec]) -> Box<dyn Executor> {
        start(mesh, None, params)
    }

    fn executors(&self, mesh: Mesh, params: &[ParamSpec]) -> Vec<(String, Box<dyn Executor>)> {
        let one = |isa: Isa| (isa.to_string(), start(mesh, Some(isa), params));
        Isa::available().into_iter().map(one).collect()
    }
}

phalanx_testing::executor_tests!([], super::Cpu);
