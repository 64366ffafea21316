//! Tests of emulated GPUs in several processes, which are threads: the tests of all executors,
//! equality with one process that has as many GPUs, and lost processes.

use crate::seed;
use phalanx_cuda::emulator::Emulator;
use phalanx_exec::{Batch, Cluster, ExecError, Executor};
use phalanx_graph::update::Clip;
use phalanx_graph::{Mesh, ParamSpec, Scope, Step};
use phalanx_testing::harness::{compile, elements, feeds, set_params};
use phalanx_testing::networks::{adam, cnn, mlp, momentum};
use phalanx_testing::peers::{JoinedProcesses, clusters, clusters_with_timeout};
use phalanx_testing::simulate::{Numbers, SEED};
use phalanx_testing::train::bits;
use phalanx_testing::{Lab, needs};
use std::time::{Duration, Instant};

struct Several;

/// Runs `work` for all processes in parallel.
fn at_once<T: Send, R: Send>(all: Vec<T>, work: impl Fn(usize, T) -> R + Sync) -> Vec<R> {
    let work = &work;
    std::thread::scope(|scope| {
        let each = all.into_iter().enumerate();
        let threads: Vec<_> =
            each.map(|(rank, one)| scope.spawn(move || work(rank, one))).collect();
        threads.into_iter().map(|t| t.join().expect("no panic")).collect()
    })
}

/// Processes with emulated GPUs; `gpus` are the replicas of each GPU by process.
fn start(gpus: &[&[usize]], params: &[ParamSpec]) -> Box<dyn Executor> {
    let devices: Vec<usize> = gpus.iter().map(|g| g.iter().sum()).collect();
    let emulator = Emulator::new(gpus.concat().len()).seed(seed());
    let executors = at_once(clusters(&devices), |rank, cluster| {
        emulator.cluster_executor(gpus[rank], params, cluster).expect("starts")
    });
    Box::new(JoinedProcesses::new(executors))
}

impl Lab for Several {
    fn meshes(&self) -> Vec<Mesh> {
        vec![Mesh::new(2, 1), Mesh::new(3, 1), Mesh::new(4, 1)]
    }

    fn executor(&self, mesh: Mesh, params: &[ParamSpec]) -> Box<dyn Executor> {
        let gpus: &[&[usize]] = match mesh.replicas {
            1 => &[&[1]],
            2 => &[&[1], &[1]],
            3 => &[&[1, 1], &[1]],
            _ => &[&[2], &[1, 1]],
        };
        start(gpus, params)
    }

    fn random_graphs(&self) -> u32 {
        3
    }
}

// Tests of a single replica are omitted: nothing differs here.
phalanx_testing::executor_tests! { [gxx], super::Several;
    ops: batch_norm_ops threshold_counts replica_means_are_weighted_by_rows;
    random: random_graphs;
    steps:
        a_step_may_do_nothing_but_assign programs_share_parameters
        weights_are_fetched_before_the_update slots_start_as_the_rule_says;
    train:
        mlp_with_adam gradients_are_clipped gradients_are_accumulated cnn_with_shared_statistics
        cnn_with_statistics_of_each_replica fewer_rows_than_workers
        a_step_without_rows_moves_by_the_penalty_alone;
}

#[needs(gxx)]
#[test]
fn processes_give_the_same_bits_as_one_with_as_many_gpus() {
    let dense = mlp(&[37, 29, 33, 5], adam(Some(Clip::GlobalNorm(0.1))), (1e-3, 1e-2));
    for step in [dense, cnn(Scope::Device, true, momentum(None), (0.0, 1e-3))] {
        let params = step.graph.params();
        for gpus in [&[&[1][..], &[1]][..], &[&[1], &[1], &[1]], &[&[1, 1], &[1, 1]], &[&[2], &[1]]]
        {
            let alone = Emulator::new(4).seed(seed()).joined_executor(&gpus.concat(), params);
            let several = start(gpus, params);
            assert!(
                bits(alone.expect("starts"), &step) == bits(several, &step),
                "{} on {gpus:?}",
                step.name
            );
        }
    }
}

#[needs(gxx)]
#[test]
fn all_processes_see_the_flags_of_each_other() {
    let step = mlp(&[7, 6, 5], momentum(None), (0.0, 0.0));
    let emulator = Emulator::new(3).seed(seed());
    let seen = at_once(clusters(&[1, 1, 1]), |rank, cluster| {
        let mut e = executor(&emulator, &step, cluster).expect("starts");
        assert_eq!(e.process_flags().unwrap().flags(), 0);
        let mut seen = vec![];
        for round in 0..3 {
            e.process_flags().unwrap().set_flags(if round == 1 { 1 << rank } else { 0 });
            run(&mut *e, &step).expect("runs");
            seen.push(e.process_flags().unwrap().flags());
        }
        seen
    });
    assert_eq!(seen, vec![vec![0, 0b111, 0]; 3]);
}

/// A process with one GPU.
fn executor(
    emulator: &Emulator,
    step: &Step,
    cluster: Cluster,
) -> Result<Box<dyn Executor>, ExecError> {
    let mut e = emulator.cluster_executor(&[1], step.graph.params(), cluster)?;
    set_params(&mut *e, &Numbers::new(7).params(step));
    e.load(compile(step, e.mesh(), 40))?;
    Ok(e)
}

/// A step on nine rows.
fn run(e: &mut dyn Executor, step: &Step) -> Result<(), ExecError> {
    run_on(e, step, 9)
}

fn run_on(e: &mut dyn Executor, step: &Step, rows: usize) -> Result<(), ExecError> {
    let b = Numbers::new(3).batch(step, rows, 0);
    let own = e.shard().rows(rows);
    let values: Vec<_> = elements(&b.feeds);
    let all = feeds(&values);
    let own = phalanx_testing::peers::local_feeds(step.graph.feeds(), &all, own);
    let (feeds, scalars) = (&own[..], &b.scalars[..]);
    let batch = Batch { rows, feeds, seed: SEED, step: 4, scalars, ..Batch::default() };
    e.run(phalanx_exec::ProgramId(0), &batch, &mut vec![])
}

#[needs(gxx)]
#[test]
fn all_processes_capture_again_when_the_memory_of_one_moves() {
    for step in [
        mlp(&[37, 29, 33, 5], momentum(None), (0.0, 0.0)),
        cnn(Scope::Device, true, momentum(None), (0.0, 0.0)),
    ] {
        let emulator = Emulator::new(2).seed(seed());
        at_once(clusters_with_timeout(&[1, 1], Duration::from_secs(10)), |_, cluster| {
            let mut e = executor(&emulator, &step, cluster).expect("starts");
            // With a single row, the second process has none and needs less memory.
            for rows in [1, 2, 1, 9, 1, 2] {
                run_on(&mut *e, &step, rows)
                    .unwrap_or_else(|e| panic!("{} {rows}: {e}", step.name));
            }
        });
    }
}

#[needs(gxx)]
#[test]
fn a_lost_process_ends_the_step_of_the_others() {
    let step = mlp(&[7, 6, 5], momentum(None), (0.0, 0.0));
    let began = Instant::now();
    let emulator = Emulator::new(3).seed(seed());
    let errors = at_once(clusters(&[1, 1, 1]), |rank, cluster| {
        let mut e = executor(&emulator, &step, cluster).expect("starts");
        run(&mut *e, &step).expect("all are there");
        (rank != 1).then(|| [(); 2].map(|()| run(&mut *e, &step).unwrap_err()))
    });
    for error in errors.into_iter().flatten().flatten() {
        let text = error.to_string();
        assert!(matches!(error, ExecError::Peer { step: 4, .. }), "{text}");
        assert!(text.starts_with("step 4: "), "{text}");
    }
    assert!(began.elapsed() < Duration::from_secs(15), "no process waits for long");
}

#[needs(gxx)]
#[test]
fn waiting_for_a_hanging_process_times_out() {
    let step = mlp(&[7, 6, 5], momentum(None), (0.0, 0.0));
    let (stop, hung) = std::sync::mpsc::channel::<()>();
    let hung = std::sync::Mutex::new(Some(hung));
    let limit = Duration::from_secs(3);
    let emulator = Emulator::new(2).seed(seed());
    // Compile the kernels before timeouts matter.
    at_once(clusters(&[1, 1]), |_, cluster| {
        let mut e = executor(&emulator, &step, cluster).expect("starts");
        run(&mut *e, &step).expect("runs");
    });
    at_once(clusters_with_timeout(&[1, 1], limit).into_iter().zip([Some(stop), None]).collect(), {
        |rank, (cluster, stop)| {
            let mut e = executor(&emulator, &step, cluster).expect("starts");
            run(&mut *e, &step).expect("all are there");
            if rank == 1 {
                let hung = hung.lock().unwrap().take().expect("one");
                let _ = hung.recv_timeout(Duration::from_secs(30));
                return;
            }
            let began = Instant::now();
            let error = run(&mut *e, &step).unwrap_err();
            assert!(matches!(error, ExecError::Peer { step: 4, .. }), "{error}");
            assert!(began.elapsed() < 3 * limit, "{:?}", began.elapsed());
            drop(stop);
        }
    });
}
