//! Several GPUs that the host plays, each with a thread, against the reference evaluator and against
//! replicas that share one GPU. `PHALANX_EMULATOR_SEED` picks another order of works, blocks and threads.

use phalanx_graph::exec::Executor;
use phalanx_graph::update::Clip;
use phalanx_graph::{Mesh, ParamSpec, Scope, Step};
use phalanx_testing::Lab;
use phalanx_testing::networks::{adam, cnn, mlp, momentum};
use phalanx_testing::train::bits;

struct Joined;

/// Nothing where kernels cannot be compiled.
fn lab() -> Option<Joined> {
    let missing = phalanx_cuda::emulator::missing();
    missing.iter().for_each(|reason| eprintln!("{reason}"));
    missing.is_none().then_some(Joined)
}

fn seed() -> Option<u64> {
    let seed = std::env::var("PHALANX_EMULATOR_SEED").ok()?;
    Some(seed.parse().expect("PHALANX_EMULATOR_SEED is a number"))
}

/// Replicas of each GPU.
fn layout(devices: usize) -> Vec<usize> {
    match devices {
        4 => vec![2, 2],
        5 => vec![2, 1, 2],
        n => vec![1; n],
    }
}

impl Lab for Joined {
    fn meshes(&self) -> Vec<Mesh> {
        [1, 2, 3, 4, 5].map(|devices| Mesh::new(devices, 1)).into()
    }

    fn executor(&self, mesh: Mesh, params: &[ParamSpec]) -> Box<dyn Executor> {
        phalanx_cuda::emulator::joined_executor(&layout(mesh.devices), seed(), params)
            .expect("starts")
    }

    fn random_graphs(&self) -> u32 {
        10
    }
}

phalanx_testing::executor_tests!(crate::lab());

/// Up to three GPUs add in the same order as three replicas on one.
fn same_bits(step: &Step) {
    if lab().is_none() {
        return;
    }
    for devices in [1, 2, 3] {
        let params = step.graph.params();
        let shared = phalanx_cuda::emulator::executor(devices, seed(), params).expect("starts");
        let joined = phalanx_cuda::emulator::joined_executor(&vec![1; devices], seed(), params);
        let same = bits(shared, step) == bits(joined.expect("starts"), step);
        assert!(same, "{} on {devices} GPUs", step.name);
    }
}

#[test]
fn gpus_give_the_bits_of_replicas_on_one() {
    same_bits(&mlp(&[37, 29, 33, 5], adam(Some(Clip::GlobalNorm(0.1))), (1e-3, 1e-2)));
    same_bits(&cnn(Scope::All, true, momentum(None), (0.0, 1e-3)));
    same_bits(&cnn(Scope::Device, false, momentum(None), (0.0, 0.0)));
}
