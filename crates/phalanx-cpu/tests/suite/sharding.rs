//! A sharded training state: the results of the f64 simulation and the bits of mirrored training, on the devices of one
//! process and of several.

use super::processes::start;
use phalanx_cpu::{CpuExecutor, CpuOptions};
use phalanx_distributed::{PeerError, ProcessGroup};
use phalanx_exec::{Batch, Cluster, Executor};
use phalanx_graph::program::{ShardLevel, Sharding, Transfer};
use phalanx_graph::update::Clip;
use phalanx_graph::{Mesh, ParamSpec, Scope, Step};
use phalanx_testing::harness::{compile, elements, feeds};
use phalanx_testing::networks::{
    adam, attention, cnn, mlp, momentum, odd, scaled_cnn, scaled_mlp, wide,
};
use phalanx_testing::peers::{JoinedProcesses, clusters};
use phalanx_testing::simulate::{Numbers, SEED};
use phalanx_testing::{Lab, train};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

const LEVELS: [ShardLevel; 3] = [ShardLevel::Optimizer, ShardLevel::Gradients, ShardLevel::Weights];

/// The replicas of each process.
const PROCESSES: [&[usize]; 7] = [&[1], &[2], &[3], &[1, 1], &[2, 1], &[1, 1, 1], &[2, 2]];

/// The mesh of these processes, with a state that is sharded up to a level.
fn mesh(processes: &[usize], workers: usize, level: ShardLevel) -> Mesh {
    let sharding = Sharding::new(level, processes.len());
    Mesh::new(processes.iter().sum(), workers).sharded(sharding)
}

fn executor(processes: &[usize], mesh: Mesh, params: &[ParamSpec]) -> Box<dyn Executor> {
    match processes {
        [replicas] => {
            let (fixed, shard) = (mesh.fixed, mesh.sharding.level);
            let workers = mesh.workers;
            let options =
                CpuOptions { replicas: *replicas, workers, fixed, shard, ..Default::default() };
            Box::new(CpuExecutor::new(options, params).expect("starts"))
        }
        several => start(several, mesh, params),
    }
}

struct Sharded(ShardLevel);

impl Lab for Sharded {
    fn meshes(&self) -> Vec<Mesh> {
        PROCESSES.iter().map(|p| mesh(p, 2, self.0)).collect()
    }

    fn executor(&self, wanted: Mesh, params: &[ParamSpec]) -> Box<dyn Executor> {
        let processes = PROCESSES.iter().find(|p| mesh(p, 2, self.0) == wanted);
        executor(processes.expect("a mesh of this lab"), wanted, params)
    }
}

#[test]
fn training_agrees_with_the_simulation() {
    for lab in LEVELS.map(Sharded) {
        train::mlp_with_adam(&lab);
        train::gradients_are_clipped(&lab);
        train::gradients_are_accumulated(&lab);
        train::a_scaled_loss(&lab);
        train::an_overflow_keeps_accumulated_gradients(&lab);
        train::unusual_gradients(&lab);
        train::a_step_without_rows_moves_by_the_penalty_alone(&lab);
        train::a_weight_may_move_by_its_penalty_alone(&lab);
    }
}

/// Steps whose gradients are partial sums, rows of dense kernels, strided, penalties; and parameters of many blocks and
/// buckets.
fn steps() -> Vec<Step> {
    let clip = |limit| Some(Clip::GlobalNorm(limit));
    vec![
        mlp(&[37, 29, 33, 5], momentum(clip(0.1)), (1e-3, 1e-2)),
        mlp(&[300, 4100, 300, 5], adam(clip(0.1)), (0.0, 1e-3)),
        mlp(&[120, 400, 120, 5], adam(Some(Clip::Norm(0.05))), (0.0, 0.0)),
        scaled_mlp(&[37, 129, 133, 5], adam(clip(0.1)), (1e-3, 1e-2), 2),
        wide(momentum(Some(Clip::Value(0.01))), (1e-3, 1e-2)),
        attention(adam(None), (0.0, 1e-3)),
        cnn(Scope::Device, true, momentum(None), (0.0, 1e-3)),
        scaled_cnn(Scope::All, momentum(clip(0.1)), (0.0, 1e-3), 2),
        odd(adam(Some(Clip::Norm(0.05)))),
    ]
}

#[test]
fn every_level_has_the_bits_of_mirrored_training() {
    for step in steps() {
        for processes in PROCESSES {
            for workers in [1, 2] {
                let bits = |level| {
                    let mesh = mesh(processes, workers, level);
                    train::bits(executor(processes, mesh, step.graph.params()), &step)
                };
                let mirrored = bits(ShardLevel::None);
                for level in LEVELS {
                    let same = bits(level) == mirrored;
                    assert!(same, "{}: {processes:?} of {workers}, {level:?}", step.name);
                }
            }
        }
    }
}

#[test]
fn deterministic_training_has_the_bits_of_one_device() {
    for step in &steps()[..4] {
        let bits = |processes: &[usize], level| {
            let replicas = processes.iter().sum();
            let sharding = Sharding::new(level, processes.len());
            let mesh = Mesh::fixed(replicas).expect("divides").sharded(sharding);
            train::bits(executor(processes, mesh, step.graph.params()), step)
        };
        let one = bits(&[1], ShardLevel::None);
        for level in LEVELS {
            for processes in [&[2][..], &[8], &[1, 1], &[2, 2], &[1; 4], &[4, 4], &[1; 8]] {
                assert!(bits(processes, level) == one, "{}: {processes:?}, {level:?}", step.name);
            }
        }
    }
}

/// A process group that counts the bytes that it sends to others.
struct Counting {
    inner: Arc<dyn ProcessGroup>,
    sent: Arc<AtomicUsize>,
}

impl ProcessGroup for Counting {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn size(&self) -> usize {
        self.inner.size()
    }

    fn name(&self, rank: usize) -> String {
        self.inner.name(rank)
    }

    fn timeout(&self) -> Option<Duration> {
        self.inner.timeout()
    }

    fn set_step(&self, step: u64) {
        self.inner.set_step(step);
    }

    fn lost_peer(&self) -> Option<PeerError> {
        self.inner.lost_peer()
    }

    fn watch(&self, stop_requested: Arc<AtomicBool>) {
        self.inner.watch(stop_requested);
    }

    fn shutdown(&self) -> Result<(), PeerError> {
        self.inner.shutdown()
    }

    fn abort(&self, code: u8) {
        self.inner.abort(code);
    }

    fn exchange(&self, outgoing: &[&[u8]], incoming: &mut [&mut [u8]]) -> Result<(), PeerError> {
        let others = outgoing.iter().enumerate().filter(|(rank, _)| *rank != self.rank());
        self.sent.fetch_add(others.map(|(_, bytes)| bytes.len()).sum(), Ordering::Relaxed);
        self.inner.exchange(outgoing, incoming)
    }
}

/// The bytes that `size` processes send each other in a step.
fn sent_in_a_step(step: &Step, size: usize, level: ShardLevel) -> (usize, Vec<Transfer>) {
    let sent = Arc::new(AtomicUsize::new(0));
    let mesh = mesh(&vec![1; size], 1, level);
    let executors = clusters(&vec![1; size]).into_iter().map(|cluster| {
        let peers = Arc::new(Counting { inner: cluster.peers.clone(), sent: sent.clone() });
        let options = CpuOptions { replicas: 1, workers: 1, shard: level, ..Default::default() };
        let cluster = Cluster { peers, ..cluster };
        let e = CpuExecutor::with_cluster(options, step.graph.params(), Some(cluster));
        Box::new(e.expect("starts")) as Box<dyn Executor>
    });
    let mut job = JoinedProcesses::new(executors.collect());
    let program = compile(step, mesh, 6);
    let id = job.load(program.clone()).expect("loads");
    let batch = Numbers::new(1).batch(step, 6, 0);
    let values = elements(&batch.feeds);
    let (feeds, scalars) = (feeds(&values), &batch.scalars[..]);
    let batch = Batch { rows: 6, feeds: &feeds, seed: SEED, scalars, ..Batch::default() };
    job.run(id, &batch, &mut vec![]).expect("runs");
    (sent.load(Ordering::Relaxed), program.transfers(2))
}

#[test]
fn processes_send_each_other_what_the_program_says() {
    let step = mlp(&[300, 4100, 300, 5], adam(None), (0.0, 0.0));
    for size in [2, 3, 4] {
        // Sums of losses and flags travel in the same messages on every level.
        let gradients = |transfers: &[Transfer]| -> f64 {
            let large = transfers.iter().filter(|t| t.bytes > 64);
            large.map(|t| t.sent(size) * size as f64).sum()
        };
        let (mirrored, transfers) = sent_in_a_step(&step, size, ShardLevel::None);
        let others = mirrored as f64 - gradients(&transfers);
        assert!((0.0..1000.0).contains(&others), "{size}: {others} bytes of other messages");
        for level in LEVELS {
            let (sent, transfers) = sent_in_a_step(&step, size, level);
            let expected = gradients(&transfers) + others;
            assert!(
                (sent as f64 - expected).abs() < 0.5,
                "{level:?} of {size}: {sent}, {expected}"
            );
        }
    }
}
