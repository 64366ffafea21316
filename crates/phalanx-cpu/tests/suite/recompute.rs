//! Steps that compute activations again have the bits of those that keep them, and need less memory.

use phalanx_cpu::{CpuBackend, CpuExecutor, CpuOptions};
use phalanx_exec::{Backend, Executor};
use phalanx_graph::program::Policy;
use phalanx_graph::{Mesh, Options, Program, Scope, Step};
use phalanx_testing::networks::{
    adam, attention, cnn, even_cnn, mlp, momentum, odd, recurrent, scaled_mlp, transformer, wide,
};
use phalanx_testing::train::bits_of;
use std::sync::Arc;

fn compile(step: &Step, mesh: Mesh, segments: usize) -> Arc<Program> {
    let options = CpuBackend.options(mesh, Policy::Float32, 9);
    let options = Options { recompute: segments, ..options };
    Program::compile(step.clone(), options).expect("compiles").into()
}

fn bits(step: &Step, mesh: Mesh, segments: usize) -> Vec<Vec<u32>> {
    let options =
        CpuOptions { replicas: mesh.replicas, workers: mesh.workers, ..CpuOptions::default() };
    let executor = CpuExecutor::new(options, step.graph.params()).expect("starts");
    bits_of(Box::new(executor) as Box<dyn Executor>, step, compile(step, mesh, segments))
}

#[test]
fn activations_that_are_computed_again_have_the_same_bits() {
    let steps = [
        mlp(&[37, 29, 33, 5], momentum(None), (1e-3, 1e-2)),
        scaled_mlp(&[37, 29, 33, 5], adam(None), (0.0, 1e-2), 2),
        wide(momentum(None), (0.0, 0.0)),
        attention(adam(None), (0.0, 1e-3)),
        transformer(adam(None), (0.0, 1e-3)),
        recurrent(momentum(None), (0.0, 1e-3)),
        cnn(Scope::Device, true, momentum(None), (0.0, 1e-3)),
        even_cnn(Scope::All, momentum(None)),
        odd(adam(None)),
    ];
    for step in steps {
        for mesh in [Mesh::new(1, 1), Mesh::new(2, 2)] {
            let kept = bits(&step, mesh, 0);
            for segments in [2, 3, 7] {
                assert!(bits(&step, mesh, segments) == kept, "{}: {segments} segments", step.name);
            }
        }
    }
}

#[test]
fn deep_networks_need_less_memory() {
    let sizes: Vec<usize> = [vec![64], vec![256; 32], vec![5]].concat();
    let step = mlp(&sizes, momentum(None), (0.0, 0.0));
    let arena = |segments| compile(&step, Mesh::new(1, 1), segments).memory().arena;
    let found = [0, 2, 4, 6].map(arena);
    assert!(found.is_sorted_by(|a, b| a > b), "{found:?}");
    assert!(found[3] * 2 < found[0], "{found:?}");
}

#[test]
fn a_step_without_a_backward_pass_stays_as_it_is() {
    let mut step = mlp(&[6, 8, 5], momentum(None), (0.0, 0.0));
    step.gradients.clear();
    step.update = None;
    let text = |segments| compile(&step, Mesh::new(1, 1), segments).to_string();
    assert_eq!(text(4), text(0));
}
