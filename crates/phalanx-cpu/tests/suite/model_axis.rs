//! Replicas of several devices that divide the work: the results of the f64 simulation of whole values, whichever
//! parameters are partitioned.

use phalanx_cpu::{CpuExecutor, CpuOptions};
use phalanx_exec::Executor;
use phalanx_graph::update::Clip;
use phalanx_graph::{Mesh, ParamId, ParamSpec, Scope, Step};
use phalanx_testing::networks::{adam, even_cnn, momentum, scaled_mlp, transformer};
use phalanx_testing::{Lab, train};

/// Replicas, devices of each and workers of each device.
const MESHES: [[usize; 3]; 4] = [[1, 2, 1], [2, 2, 1], [1, 4, 2], [3, 2, 2]];

struct Divided(Vec<Mesh>);

impl Lab for Divided {
    fn meshes(&self) -> Vec<Mesh> {
        self.0.clone()
    }

    fn executor(&self, mesh: Mesh, params: &[ParamSpec]) -> Box<dyn Executor> {
        let Mesh { replicas, workers, devices_per_replica, .. } = mesh;
        let shard = mesh.sharding.level;
        let options =
            CpuOptions { replicas, workers, devices_per_replica, shard, ..CpuOptions::default() };
        Box::new(CpuExecutor::new(options, params).expect("starts"))
    }
}

fn lab() -> Divided {
    Divided(MESHES.map(|[d, m, w]| Mesh::new(d, w).with_devices_per_replica(m)).to_vec())
}

/// The step with these parameters partitioned along these axes.
fn partitioned(mut step: Step, axes: &[(&str, usize)]) -> Step {
    for (name, axis) in axes {
        let at = step.graph.params().iter().position(|p| p.name == *name);
        step.graph.partition(ParamId(at.unwrap_or_else(|| panic!("{name}")) as u32), *axis);
    }
    step
}

/// Trains two batches on every mesh.
fn check(step: &Step) {
    train::check_batches(&lab(), step, Scope::All, 7, &[7, 4]);
}

const TRANSFORMER: [(&str, usize); 12] = [
    ("embedding/table", 0),
    ("attention/query/kernel", 1),
    ("attention/key/kernel", 1),
    ("attention/value/kernel", 1),
    ("attention/query/bias", 0),
    ("attention/value/bias", 0),
    ("attention/output/kernel", 0),
    ("up/kernel", 1),
    ("up/bias", 0),
    ("down/kernel", 0),
    ("logits/kernel", 1),
    ("logits/bias", 0),
];

#[test]
fn a_transformer_divided_as_a_whole() {
    for clip in [None, Some(Clip::GlobalNorm(0.1)), Some(Clip::Norm(0.02))] {
        check(&partitioned(transformer(adam(clip), (1e-3, 1e-2)), &TRANSFORMER));
    }
}

#[test]
fn every_axis_of_every_parameter_alone() {
    for step in [transformer(momentum(None), (0.0, 1e-3)), even_cnn(Scope::All, momentum(None))] {
        for param in step.graph.params().to_vec() {
            let divisible = (0..param.dims.len()).filter(|a| param.dims[*a].is_multiple_of(4));
            for axis in divisible.collect::<Vec<_>>() {
                check(&partitioned(step.clone(), &[(&param.name, axis)]));
            }
        }
    }
}

#[test]
fn convolutions_by_filters_and_by_channels() {
    let axes = [
        ("first/kernel", 3),
        ("norm/gamma", 0),
        ("second/kernel", 2),
        ("hidden/kernel", 1),
        ("logits/kernel", 0),
    ];
    for scope in [Scope::All, Scope::Device] {
        let step = partitioned(even_cnn(scope, adam(Some(Clip::GlobalNorm(0.1)))), &axes);
        train::check_batches(&lab(), &step, scope, 7, &[7, 4]);
    }
}

#[test]
fn a_scaled_loss() {
    let step = scaled_mlp(&[8, 12, 16, 8], adam(Some(Clip::Norm(0.05))), (1e-3, 1e-2), 2);
    check(&partitioned(
        step,
        &[("dense_0/kernel", 1), ("dense_1/kernel", 0), ("dense_2/kernel", 1)],
    ));
}
