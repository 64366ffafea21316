//! Complete runs of `fit` on emulated GPUs of several workers, which are threads, against one worker with as
//! many GPUs: with an arbitrary process group, and with workers that connect without MPI.

use crate::{EMULATOR, strategy_on};
use phalanx::launch::{Launch, Launcher};
use phalanx::model::Interrupt;
use phalanx::prelude::*;
use phalanx_distributed::rendezvous::join;
use phalanx_distributed::{PeerError, ProcessGroup, all_gather};
use phalanx_testing::needs;
use phalanx_testing::peers::thread_peers;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[path = "../../../phalanx/tests/suite/common/worker_runs.rs"]
mod worker_runs;

use worker_runs::{Outcome, compiled, samples};

const SECRET: Option<&str> = Some("what all workers know");
const TIMEOUT: Duration = Duration::from_secs(20);

/// Runs `work` concurrently for each of `workers` ranks.
fn at_once<T: Send>(workers: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let work = &work;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..workers).map(|rank| scope.spawn(move || work(rank))).collect();
        threads.into_iter().map(|t| t.join().expect("no panic")).collect()
    })
}

/// The launch descriptions of workers that connect without MPI.
fn launched(size: usize) -> Vec<Launch> {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let launch = |rank| Launch {
        rank,
        size,
        local_rank: rank,
        local_size: size,
        launcher: Launcher::Torch,
        chief_addr: Some(("127.0.0.1".into(), free)),
    };
    (0..size).map(launch).collect()
}

/// A strategy in which this worker has `devices`.
fn strategy(devices: &[&str], peers: Arc<dyn ProcessGroup>) -> Result<MultiWorkerMirroredStrategy> {
    MultiWorkerMirroredStrategy::with_peers(strategy_on(devices)?, peers)
}

/// A run whose batches a callback sees.
fn train(
    strategy: impl Into<MultiWorkerMirroredStrategy>,
    n: usize,
    batch: usize,
) -> Result<Outcome> {
    let observer = LambdaCallback::new().batch_end(|_| Ok(Action::Continue));
    worker_runs::train(strategy, n, batch, Fit::new().callback(observer))
}

#[needs(gxx)]
#[test]
fn workers_train_as_one_with_as_many_gpus() {
    for (n, batch) in [(37, 8), (3, 8)] {
        let one = strategy_on(&["gpu:0", "gpu:1", "gpu:2"]).unwrap();
        let one = train(one, n, batch).unwrap();
        let peers: Vec<Arc<dyn ProcessGroup>> = thread_peers(2)
            .into_iter()
            .map(|peer| Arc::new(peer) as Arc<dyn ProcessGroup>)
            .collect();
        let devices: [&[&str]; 2] = [&["gpu:0", "gpu:1"], &["gpu:2"]];
        let run = |rank: usize| train(strategy(devices[rank], peers[rank].clone())?, n, batch);
        for got in at_once(2, run) {
            assert_eq!(got.unwrap(), one, "{n} samples, batch {batch}");
        }
    }
}

#[needs(gxx)]
#[test]
fn workers_that_connect_without_mpi_train_too() {
    let one = strategy_on(&["gpu:0", "gpu:1"]).unwrap();
    let one = train(one, 29, 8).unwrap();
    let all = launched(2);
    let got = at_once(2, |rank| {
        let peers = join(&all[rank], (&*EMULATOR, rank), SECRET, TIMEOUT)?;
        assert!(peers.name(1 - rank).starts_with(&format!("rank {} (", 1 - rank)));
        train(strategy(&[&format!("gpu:{rank}")], peers)?, 29, 8)
    });
    for got in got {
        assert_eq!(got.unwrap(), one);
    }
}

#[needs(gxx)]
#[test]
fn connected_workers_exchange_bytes_of_any_size() {
    let all = launched(3);
    let bytes = |rank: usize| vec![rank as u8; [0, 5_000_001, 1][rank]];
    let got = at_once(3, |rank| {
        let peers = join(&all[rank], (&*EMULATOR, rank), SECRET, TIMEOUT).unwrap();
        let first = all_gather(&*peers, &bytes(rank)).unwrap();
        (first, all_gather(&*peers, &[]).unwrap())
    });
    for (first, none) in got {
        assert!(first == [bytes(0), bytes(1), bytes(2)] && none.concat().is_empty(), "in order");
    }
}

#[needs(gxx)]
#[test]
fn a_worker_that_ends_is_named_by_the_first() {
    let all = launched(3);
    let start = Instant::now();
    let got = at_once(3, |rank| -> Option<PeerError> {
        let peers = join(&all[rank], (&*EMULATOR, rank), SECRET, TIMEOUT).unwrap();
        all_gather(&*peers, &[1]).unwrap();
        if rank == 2 {
            return None;
        }
        let error = all_gather(&*peers, &[2]).unwrap_err();
        assert_eq!(
            all_gather(&*peers, &[3]).unwrap_err(),
            error,
            "no further exchange is possible"
        );
        Some(error)
    });
    let [Some(first), Some(second), None] = &got[..] else { panic!("{got:?}") };
    assert!(first.name.starts_with("rank 2 (") && first.message.contains("closed"), "{first}");
    assert!(second.name.starts_with("rank 0 (") && second.message.contains("lost"), "{second}");
    assert!(start.elapsed() < TIMEOUT);
}

#[needs(gxx)]
#[test]
fn an_interrupt_of_one_worker_stops_all_at_the_same_step() {
    let directory = tempfile::tempdir().unwrap();
    let (x, y) = samples(64);
    let all = launched(2);
    let errors = at_once(2, |rank| -> Result<String> {
        let peers = join(&all[rank], (&*EMULATOR, rank), SECRET, TIMEOUT)?;
        let mut model = compiled(strategy(&[&format!("gpu:{rank}")], peers)?)?;
        let interrupt = Interrupt::new();
        let mine = interrupt.clone();
        let stop = LambdaCallback::new().batch_end(move |view| {
            if rank == 1 && view.step == 5 {
                mine.request();
            }
            Ok(Action::Continue)
        });
        let fit = Fit::new().epochs(9).batch_size(8).verbose(0).interrupt(&interrupt);
        let fit = fit.callback(stop).callback(BackupAndRestore::new(directory.path()));
        Ok(model.fit((&x, &y), fit).map(|_| ()).unwrap_err().to_string())
    });
    for error in errors {
        let error = error.unwrap();
        assert!(error.starts_with("interrupted after step 6 (epoch 1); saved "), "{error}");
    }
    assert!(directory.path().join("step-0000000006.safetensors").exists());
}

#[needs(gxx)]
#[test]
fn a_worker_that_hangs_is_reported_after_the_timeout() {
    let all = launched(2);
    let (stop, hung) = std::sync::mpsc::channel::<()>();
    let (stop, hung) = (std::sync::Mutex::new(Some(stop)), std::sync::Mutex::new(hung));
    let got = at_once(2, |rank| {
        let peers = join(&all[rank], (&*EMULATOR, rank), SECRET, Duration::from_secs(2)).unwrap();
        if rank == 1 {
            let _ = hung.lock().unwrap().recv_timeout(TIMEOUT);
            return None;
        }
        let error = all_gather(&*peers, &[1]).unwrap_err();
        drop(stop.lock().unwrap().take());
        Some(error.to_string())
    });
    let error = got[0].as_ref().unwrap();
    assert!(error.starts_with("another worker: no answer for 2."), "{error}");
}

#[needs(gxx)]
#[test]
fn a_run_resumes_with_other_workers() {
    let directory = tempfile::tempdir().unwrap();
    let (x, y) = samples(50);
    let fit = |strategy: MultiWorkerMirroredStrategy, epochs: usize| {
        let mut model = compiled(strategy)?;
        let backup = BackupAndRestore::new(directory.path()).delete_checkpoint(false).save_freq(2);
        let fit = Fit::new().epochs(epochs).batch_size(15).verbose(0).callback(backup);
        let history = model.fit((&x, &y), fit)?;
        Ok::<_, Error>((history.get("loss").unwrap().to_vec(), model.weights_sha256()?))
    };
    let two = || strategy_on(&["gpu:0", "gpu:1"]).unwrap().into();
    let by_workers = |epochs: usize| {
        let all = launched(2);
        let run = |rank: usize| {
            let peers = join(&all[rank], (&*EMULATOR, rank), SECRET, TIMEOUT)?;
            fit(strategy(&[&format!("gpu:{rank}")], peers)?, epochs)
        };
        at_once(2, run).into_iter().map(Result::unwrap).collect::<Vec<_>>()
    };
    fit(two(), 1).unwrap();
    by_workers(2);
    let resumed = by_workers(3);
    std::fs::remove_dir_all(directory.path()).unwrap();
    let uninterrupted = fit(two(), 3).unwrap();
    assert_eq!(resumed, [uninterrupted.clone(), uninterrupted]);
}

/// A run with loss scaling in which one sample overflows: the steps that contain it are skipped.
fn train_scaled(strategy: impl Into<MultiWorkerMirroredStrategy>) -> Result<(Vec<f64>, String)> {
    let mut model = Sequential::new()
        .add(Input::new([6]))
        .add(Dense::new(16).activation("relu").kernel_regularizer(Regularizer::l2(1e-3)))
        .add(Dense::new(3).activation("softmax"))
        .build()?;
    let inner = Adam::new(0.01).global_clipnorm(0.5);
    let scaled = LossScaleOptimizer::new(inner).initial_scale(2f64.powi(100));
    let compile = Compile::new(scaled).loss("sparse_categorical_crossentropy");
    model.compile(compile.strategy(strategy).seed(3))?;
    let (x, y) = samples(60);
    let mut weights = vec![1.0; 60];
    weights[41] = 1e12;
    let fit = Fit::new().epochs(3).batch_size(16).verbose(0).sample_weight(weights);
    let history = model.fit((&x, &y), fit)?;
    let logs = [history.get("loss").unwrap(), history.get("loss_scale").unwrap()].concat();
    Ok((logs, model.weights_sha256()?))
}

#[needs(gxx)]
#[test]
fn an_overflow_on_one_worker_skips_the_step_on_all() {
    let two = strategy_on(&["gpu:0", "gpu:1"]).unwrap();
    let one = train_scaled(two).unwrap();
    assert_eq!(one.0[3..], [99, 98, 97].map(|n| 2f64.powi(n)), "a step of every epoch is skipped");
    let peers: Vec<Arc<dyn ProcessGroup>> =
        thread_peers(2).into_iter().map(|peer| Arc::new(peer) as Arc<dyn ProcessGroup>).collect();
    let run = |rank: usize| train_scaled(strategy(&[&format!("gpu:{rank}")], peers[rank].clone())?);
    for got in at_once(2, run) {
        assert_eq!(got.unwrap(), one);
    }
}

#[needs(gxx)]
#[test]
fn workers_on_other_kinds_of_devices_are_named() {
    let peers: Vec<Arc<dyn ProcessGroup>> =
        thread_peers(2).into_iter().map(|peer| Arc::new(peer) as Arc<dyn ProcessGroup>).collect();
    for error in at_once(2, |rank| strategy(&[["gpu:0", "cpu:0"][rank]], peers[rank].clone())) {
        let expected = "MultiWorkerMirroredStrategy: devices: expected gpu on rank 0 (a thread), received cpu \
                     on rank 1 (a thread)";
        assert_eq!(error.map(|_| ()).unwrap_err().to_string(), expected);
    }
}
