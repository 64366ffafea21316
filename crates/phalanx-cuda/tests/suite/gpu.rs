//! Tests of the GPU executor against the reference evaluator, on the GPU of this machine, shared by
//! several replicas. `PHALANX_TF32=0` keeps all 24 bits of every product's operands; the tolerances
//! are then those of 32-bit floats.

use crate::on_gpus;
use phalanx_exec::{DeviceSlot, Executor};
use phalanx_graph::{Mesh, ParamSpec, Scope, Step};
use phalanx_testing::networks::{adam, cnn, mlp, momentum};
use phalanx_testing::train::bits;
use phalanx_testing::{Lab, Tolerances, needs};

struct Gpu;

fn tolerances() -> Tolerances {
    match std::env::var("PHALANX_TF32").as_deref() {
        Ok("0") => Tolerances::default(),
        // Ten bits of mantissa.
        _ => Tolerances { op: 3e-3, training: 5e-2, graph: 1e-2 },
    }
}

impl Lab for Gpu {
    fn meshes(&self) -> Vec<Mesh> {
        vec![Mesh::new(1, 1), Mesh::new(2, 1), Mesh::new(3, 1)]
    }

    fn executor(&self, mesh: Mesh, params: &[ParamSpec]) -> Box<dyn Executor> {
        let part = |part| DeviceSlot { index: 0, part: Some(part) };
        let slots: Vec<DeviceSlot> = (0..mesh.replicas).map(part).collect();
        on_gpus(&slots, params)
    }

    fn tolerances(&self) -> Tolerances {
        tolerances()
    }

    fn random_graphs(&self) -> u32 {
        20
    }
}

phalanx_testing::executor_tests!([gpu], super::Gpu);

fn networks() -> [Step; 3] {
    [
        mlp(&[37, 29, 33, 5], adam(None), (1e-3, 1e-2)),
        cnn(Scope::All, true, momentum(None), (0.0, 1e-3)),
        cnn(Scope::Device, false, momentum(None), (0.0, 0.0)),
    ]
}

fn slot(index: usize) -> DeviceSlot {
    DeviceSlot { index, part: None }
}

#[needs(gpu, nccl)]
#[test]
fn nccl_with_one_rank_does_not_change_a_bit() {
    for step in networks() {
        let params = step.graph.params();
        let plain = on_gpus(&[slot(0)], params);
        let joined = phalanx_cuda::joined_executor(&[slot(0)], params).expect("starts");
        assert!(bits(plain, &step) == bits(joined, &step), "{}", step.name);
    }
}

#[needs(gpu, nccl)]
#[test]
fn replicas_on_a_gpu_are_reduced_before_nccl() {
    let parts = [0, 1].map(|part| DeviceSlot { index: 0, part: Some(part) });
    for step in networks() {
        let params = step.graph.params();
        let plain = on_gpus(&parts, params);
        let joined = phalanx_cuda::joined_executor(&parts, params).expect("starts");
        assert!(bits(plain, &step) == bits(joined, &step), "{}", step.name);
    }
}

/// All GPUs of a machine that has several.
mod several {
    use super::*;

    struct Gpus(usize);

    fn lab() -> Gpus {
        Gpus(crate::gpus())
    }

    impl Lab for Gpus {
        /// All GPUs with one replica each, and two GPUs with two replicas each.
        fn meshes(&self) -> Vec<Mesh> {
            let mut devices = vec![2, 4, self.0];
            devices.sort_unstable();
            devices.dedup();
            devices.into_iter().map(|devices| Mesh::new(devices, 1)).collect()
        }

        fn executor(&self, mesh: Mesh, params: &[ParamSpec]) -> Box<dyn Executor> {
            let slot = |i: usize| match mesh.replicas <= self.0 {
                true => slot(i),
                false => DeviceSlot { index: i / 2, part: Some(i % 2) },
            };
            let slots: Vec<DeviceSlot> = (0..mesh.replicas).map(slot).collect();
            on_gpus(&slots, params)
        }

        fn tolerances(&self) -> Tolerances {
            super::tolerances()
        }

        fn random_graphs(&self) -> u32 {
            20
        }
    }

    phalanx_testing::executor_tests!([gpus, nccl], super::lab());
}
