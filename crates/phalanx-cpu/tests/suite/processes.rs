//! Several processes, run as threads: the tests of all executors, and a comparison with the bits of a single
//! process.

use phalanx_cpu::{CpuExecutor, CpuOptions};
use phalanx_exec::{Batch, Executor, StateId};
use phalanx_graph::update::Clip;
use phalanx_graph::{Mesh, ParamId, ParamSpec, Scope, Step};
use phalanx_testing::Lab;
use phalanx_testing::harness::{compile, elements, feeds, set_params};
use phalanx_testing::networks::{cnn, mlp, momentum};
use phalanx_testing::peers::{JoinedProcesses, clusters};
use phalanx_testing::simulate::{Numbers, SEED};

struct Several;

/// An executor over several processes; `replicas` is the number of replicas of each.
pub fn start(replicas: &[usize], mesh: Mesh, params: &[ParamSpec]) -> Box<dyn Executor> {
    let executors = clusters(replicas).into_iter().zip(replicas).map(|(cluster, replicas)| {
        let (fixed, shard) = (mesh.fixed, mesh.sharding.level);
        let options = CpuOptions {
            replicas: *replicas,
            workers: mesh.workers,
            fixed,
            shard,
            ..Default::default()
        };
        let e = CpuExecutor::with_cluster(options, params, Some(cluster)).expect("starts");
        Box::new(e) as Box<dyn Executor>
    });
    Box::new(JoinedProcesses::new(executors.collect()))
}

impl Lab for Several {
    fn meshes(&self) -> Vec<Mesh> {
        vec![Mesh::new(2, 1), Mesh::new(3, 1), Mesh::new(4, 2), Mesh::new(5, 1)]
    }

    fn executor(&self, mesh: Mesh, params: &[ParamSpec]) -> Box<dyn Executor> {
        let replicas: &[usize] = match mesh.replicas {
            1 => &[1],
            2 => &[1, 1],
            3 => &[2, 1],
            4 => &[2, 2],
            _ => &[1, 3, 1],
        };
        start(replicas, mesh, params)
    }

    fn random_graphs(&self) -> u32 {
        100
    }
}

phalanx_testing::executor_tests!([], super::Several);

/// Trains a few steps with uneven batches. Returns the bits of all fetches, weights and slots.
fn train(mut e: Box<dyn Executor>, step: &Step, mesh: Mesh) -> Vec<Vec<u32>> {
    let mut numbers = Numbers::new(7);
    set_params(&mut *e, &numbers.params(step));
    let id = e.load(compile(step, mesh, 40)).expect("loads");
    let mut all = vec![];
    for (i, rows) in [40, 40, 23, 9, 1, 40].into_iter().enumerate() {
        let b = numbers.batch(step, rows, i as u64);
        let values = elements(&b.feeds);
        let (feeds, scalars) = (feeds(&values), &b.scalars[..]);
        let batch =
            Batch { rows, feeds: &feeds, seed: SEED, step: b.step, scalars, ..Batch::default() };
        let mut fetched = vec![];
        e.run(id, &batch, &mut fetched).expect("runs");
        e.check_consistency().expect("mirrored");
        all.extend(fetched);
    }
    let ids = || (0..step.graph.params().len() as u32).map(ParamId);
    all.extend(ids().map(|id| e.param(id).unwrap()));
    all.extend(
        (0..e.slots())
            .flat_map(|s| ids().map(move |id| (s, id)))
            .map(|(s, id)| e.read(StateId::Slot(s, id)).unwrap().unwrap()),
    );
    all.into_iter().map(|v| v.into_iter().map(f32::to_bits).collect()).collect()
}

#[test]
fn a_fixed_mesh_gives_the_bits_of_one_process() {
    let dense = mlp(&[37, 29, 33, 5], momentum(Some(Clip::GlobalNorm(0.1))), (1e-3, 1e-2));
    for step in [dense, cnn(Scope::All, true, momentum(None), (0.0, 0.0))] {
        let alone = |replicas: usize| {
            let mesh = Mesh::fixed(replicas).expect("divides");
            let options = CpuOptions { replicas, workers: 0, fixed: true, ..Default::default() };
            let e = CpuExecutor::new(options, step.graph.params()).expect("starts");
            train(Box::new(e), &step, mesh)
        };
        let one = alone(1);
        assert_eq!(one, alone(2));
        for replicas in [&[1, 1][..], &[2, 2], &[1; 4], &[2; 4], &[1; 8]] {
            let mesh = Mesh::fixed(replicas.iter().sum()).expect("divides");
            let several = train(start(replicas, mesh, step.graph.params()), &step, mesh);
            assert!(one == several, "{replicas:?} give different bits");
        }
    }
}
