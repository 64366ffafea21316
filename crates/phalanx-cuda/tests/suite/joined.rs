//! Tests of several emulated GPUs, each with its own thread, against the reference evaluator and
//! against replicas that share one GPU. `PHALANX_EMULATOR_SEED` selects another order of work
//! items, blocks and threads.

use crate::seed;
use phalanx_cuda::emulator::Emulator;
use phalanx_exec::Executor;
use phalanx_graph::update::Clip;
use phalanx_graph::{Mesh, ParamSpec, Scope, Step};
use phalanx_testing::networks::{adam, cnn, mlp, momentum};
use phalanx_testing::train::bits;
use phalanx_testing::{Lab, needs};

struct Joined;

impl Lab for Joined {
    fn meshes(&self) -> Vec<Mesh> {
        vec![Mesh::new(2, 1), Mesh::new(3, 1), Mesh::new(4, 1)]
    }

    fn executor(&self, mesh: Mesh, params: &[ParamSpec]) -> Box<dyn Executor> {
        let replicas = if mesh.replicas == 4 { vec![2, 2] } else { vec![1; mesh.replicas] };
        Emulator::new(replicas.len())
            .seed(seed())
            .joined_executor(&replicas, params)
            .expect("starts")
    }

    fn random_graphs(&self) -> u32 {
        5
    }
}

// Tests of a single replica are omitted: nothing differs here.
phalanx_testing::executor_tests! { [gxx], super::Joined;
    ops: batch_norm_ops threshold_counts replica_means_are_weighted_by_rows;
    random: random_graphs;
    steps:
        a_step_may_do_nothing_but_assign programs_share_parameters
        weights_are_fetched_before_the_update slots_start_as_the_rule_says;
    train:
        mlp_with_partial_gradients mlp_with_sharded_gradients mlp_with_adam sharded_kernels
        gradients_are_clipped gradients_are_accumulated cnn_with_shared_statistics
        cnn_with_statistics_of_each_replica fewer_rows_than_workers unusual_gradients
        a_step_without_rows_moves_by_the_penalty_alone a_weight_may_move_by_its_penalty_alone;
}

/// If only the first GPU has several replicas, the order of additions is that of replicas on one
/// GPU.
fn same_bits(step: &Step) {
    let params = step.graph.params();
    for layout in [&[1][..], &[1, 1], &[1, 1, 1], &[2, 1]] {
        let devices = layout.iter().sum();
        let emulator = Emulator::new(layout.len()).seed(seed());
        let shared = emulator.executor(devices, params).expect("starts");
        let joined = emulator.joined_executor(layout, params);
        let same = bits(shared, step) == bits(joined.expect("starts"), step);
        assert!(same, "{} on GPUs with {layout:?} replicas", step.name);
    }
}

#[needs(gxx)]
#[test]
fn gpus_give_the_same_bits_as_replicas_on_one() {
    same_bits(&mlp(&[37, 29, 33, 5], adam(Some(Clip::GlobalNorm(0.1))), (1e-3, 1e-2)));
    same_bits(&cnn(Scope::All, true, momentum(None), (0.0, 1e-3)));
    same_bits(&cnn(Scope::Device, false, momentum(None), (0.0, 0.0)));
}
