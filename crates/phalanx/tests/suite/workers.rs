//! Several workers, simulated by threads, behave like one.

mod data;
mod differences;
mod train_steps;

use crate::common::worker_runs::{Outcome, compiled, samples, train};
use phalanx::model::Interrupt;
use phalanx::prelude::*;
use phalanx_distributed::ProcessGroup;
use phalanx_testing::peers::thread_peers;
use std::sync::{Arc, Mutex};

/// Runs `work` as each of several workers with one replica each. Returns the results by rank.
pub(crate) fn job<T: Send>(
    workers: usize,
    work: impl Fn(usize, MultiWorkerMirroredStrategy) -> Result<T> + Sync,
) -> Vec<Result<T>> {
    let work = &work;
    std::thread::scope(|scope| {
        let mut threads = vec![];
        for (rank, peer) in thread_peers(workers).into_iter().enumerate() {
            let peer: Arc<dyn ProcessGroup> = Arc::new(peer);
            threads.push(scope.spawn(move || {
                let local = MirroredStrategy::cpus(1)?.threads(1);
                work(rank, MultiWorkerMirroredStrategy::with_peers(local, peer)?)
            }));
        }
        threads.into_iter().map(|t| t.join().expect("no panic")).collect()
    })
}

#[test]
fn several_workers_give_the_bits_of_one_in_deterministic_mode() {
    for (n, batch) in [(64, 16), (61, 16), (7, 5), (1, 4), (33, 33)] {
        let one =
            train(MirroredStrategy::cpus(1).unwrap().deterministic(true), n, batch, Fit::new())
                .unwrap();
        for workers in [2, 4] {
            for (rank, got) in
                job(workers, |_, s| train(s.deterministic(true), n, batch, Fit::new()))
                    .into_iter()
                    .enumerate()
            {
                assert_eq!(
                    got.unwrap(),
                    one,
                    "{n} samples, batch {batch}, rank {rank} of {workers}"
                );
            }
        }
    }
}

/// A loss of all pairs of the batch after images that are mixed, in the model and in the data.
fn train_pairs(strategy: impl Into<MultiWorkerMirroredStrategy>, n: usize) -> Result<String> {
    let x: Vec<f32> = (0..n * 18).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect();
    let hot = |i: usize| f32::from(u8::from(i / 3 % 3 == i % 3));
    let y: Vec<f32> = (0..n * 3).map(hot).collect();
    let mut model = Sequential::new()
        .add(Input::new([3, 3, 2]))
        .add(MixUp::new(0.4))
        .add(Flatten::new())
        .add(Dense::new(3))
        .build()?;
    let strategy = strategy.into();
    let compile = || Compile::new(Adam::new(0.01)).strategy(strategy.clone()).seed(3);
    let labels: Vec<i32> = (0..n).map(|i| (i * 7 % 3) as i32).collect();
    let x = Tensor::new([n, 3, 3, 2], x)?;
    let circle = phalanx::losses::Circle::default().gamma(6.0);
    model.compile(compile().loss(circle))?;
    let fit = || Fit::new().epochs(2).verbose(0);
    let labels = Tensor::new([n], labels)?;
    let history = model.fit((&x, &labels), fit().batch_size(7))?;
    model.compile(compile().loss("mse"))?;
    let data = Pipeline::from_tensor_slices((x, Tensor::new([n, 3], y)?))?;
    let data = data.shuffle(n)?.batch(7, false)?.cut_mix(1.0)?.mix_up(0.3)?.prefetch(2);
    let mixed = model.fit(data, fit())?;
    model.check_consistency()?;
    Ok(format!("{} {:?} {:?}", model.weights_sha256()?, history.values, mixed.values))
}

#[test]
fn samples_of_several_workers_are_compared_and_mixed() {
    for n in [23, 2] {
        let one = train_pairs(MirroredStrategy::cpus(1).unwrap().deterministic(true), n).unwrap();
        for workers in [2, 4] {
            for got in job(workers, |_, s| train_pairs(s.deterministic(true), n)) {
                assert_eq!(got.unwrap(), one, "{n} samples, {workers} workers");
            }
        }
    }
}

#[test]
fn any_number_of_workers_and_samples_gives_the_results_of_as_many_replicas() {
    for (workers, n, batch) in [(2, 64, 16), (3, 61, 16), (3, 2, 8), (5, 23, 7)] {
        let local = MirroredStrategy::cpus(workers).unwrap().threads(1);
        let one = train(local, n, batch, Fit::new()).unwrap();
        let close = |a: &[f64], b: &[f64]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5);
        let all: Vec<Outcome> = job(workers, |_, s| train(s, n, batch, Fit::new()))
            .into_iter()
            .map(Result::unwrap)
            .collect();
        for got in &all {
            assert_eq!(got, &all[0], "workers agree to the bit");
            assert!(close(&got.0, &one.0) && close(&got.1, &one.1), "{:?} {:?}", got.0, one.0);
            assert_eq!(got.2.len(), n * 3);
            assert!(got.2.iter().zip(&one.2).all(|(a, b)| (a - b).abs() < 1e-4));
        }
    }
}

/// The results of a run with a scaled loss in which a single sample overflows. As in Keras, steps with that
/// sample are skipped until the scale is low enough.
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
    let fit = Fit::new().epochs(6).batch_size(16).verbose(0).sample_weight(weights);
    let history = model.fit((&x, &y), fit)?;
    model.check_consistency()?;
    let logs = [history.get("loss").unwrap(), history.get("loss_scale").unwrap()].concat();
    Ok((logs, model.weights_sha256()?))
}

#[test]
fn an_overflow_on_one_worker_skips_the_step_on_all() {
    let one = train_scaled(MirroredStrategy::cpus(1).unwrap().deterministic(true)).unwrap();
    let scales: Vec<f64> = (1..=6).map(|n| 2f64.powi(100 - n)).collect();
    assert_eq!(one.0[6..], scales, "one step of every epoch is skipped");
    for workers in [2, 4] {
        for got in job(workers, |_, s| train_scaled(s.deterministic(true))) {
            assert_eq!(got.unwrap(), one, "{workers} workers");
        }
    }
    let replicas = train_scaled(MirroredStrategy::cpus(3).unwrap().threads(1)).unwrap();
    let all: Vec<_> = job(3, |_, s| train_scaled(s)).into_iter().map(Result::unwrap).collect();
    for got in &all {
        assert_eq!(got, &all[0], "workers agree to the bit");
        let close = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-4 * b.abs();
        assert!(got.0.iter().zip(&replicas.0).all(close), "{:?} {:?}", got.0, replicas.0);
    }
}

#[test]
fn a_run_resumes_with_another_number_of_workers() {
    let directory = tempfile::tempdir().unwrap();
    let (x, y) = samples(50);
    let fit = |strategy: MultiWorkerMirroredStrategy, epochs: usize| {
        let mut model = compiled(strategy.deterministic(true))?;
        let backup = BackupAndRestore::new(directory.path()).delete_checkpoint(false).save_freq(2);
        let fit = Fit::new().epochs(epochs).batch_size(15).verbose(0).callback(backup);
        let history = model.fit((&x, &y), fit)?;
        Ok((history.get("loss").unwrap().to_vec(), model.weights_sha256()?))
    };
    let alone = || MultiWorkerMirroredStrategy::from(MirroredStrategy::cpus(1).unwrap());
    fit(alone(), 1).unwrap();
    job(2, |_, s| fit(s, 2)).into_iter().for_each(|r| drop(r.unwrap()));
    job(4, |_, s| fit(s, 3)).into_iter().for_each(|r| drop(r.unwrap()));
    let resumed = fit(alone(), 4).unwrap();
    std::fs::remove_dir_all(directory.path()).unwrap();
    assert_eq!(resumed, fit(alone(), 4).unwrap());
}

#[test]
fn an_interrupted_worker_stops_all_at_the_same_step() {
    let directory = tempfile::tempdir().unwrap();
    let (x, y) = samples(64);
    let errors = job(3, |rank, strategy| {
        let mut model = compiled(strategy)?;
        let interrupt = Interrupt::new();
        let mine = interrupt.clone();
        let stop = LambdaCallback::new().batch_end(move |view| {
            if rank == 2 && view.step == 5 {
                mine.request();
            }
            Ok(Action::Continue)
        });
        let fit =
            Fit::new().epochs(9).batch_size(8).verbose(0).interrupt(&interrupt).callback(stop);
        let fit = fit.callback(BackupAndRestore::new(directory.path()));
        Ok(model.fit((&x, &y), fit).map(|_| ()).unwrap_err().to_string())
    });
    let file = directory.path().join("step-0000000006.safetensors");
    for error in errors {
        let error = error.unwrap();
        assert!(error.starts_with("interrupted after step 6 (epoch 1); saved "), "{error}");
        assert!(error.ends_with(&*file.to_string_lossy()), "{error}");
    }
    assert!(file.exists());
}

#[test]
fn only_the_chief_calls_callbacks_that_write() {
    let directory = tempfile::tempdir().unwrap();
    let (x, y) = samples(20);
    let called = Mutex::new(vec![]);
    let done = job(2, |rank, strategy| {
        assert_eq!((strategy.rank(), strategy.is_chief()), (rank, rank == 0));
        assert_eq!((strategy.num_workers(), strategy.num_replicas_in_sync()), (2, 2));
        let mut model = compiled(strategy)?;
        let csv = directory.path().join(format!("{rank}.csv"));
        let log = LambdaCallback::new().epoch_end(|_| Ok(Action::Continue));
        model.fit((&x, &y), Fit::new().verbose(0).callback(CSVLogger::new(&csv)).callback(log))?;
        called.lock().unwrap().push((rank, csv.exists()));
        Ok(())
    });
    done.into_iter().for_each(|r| r.unwrap());
    let mut called = called.into_inner().unwrap();
    called.sort_unstable();
    assert_eq!(called, [(0, true), (1, false)]);
}

#[test]
fn impossible_configurations_are_refused() {
    for error in job(3, |_, s| compiled(s.deterministic(true)).map(|_| ())) {
        let error = error.unwrap_err().to_string();
        let words = "MultiWorkerMirroredStrategy: deterministic: expected 1, 2, 4 or 8 replicas, the same \
                     number on every worker, received 3";
        assert_eq!(error, words);
    }
    // Arrays that are not divided among workers are split by the session itself.
    let (x, y) = samples(9);
    let losses = job(2, |_, s| Ok(compiled(s)?.train_on_batch(&x, &y)?.get("loss")));
    let losses: Vec<_> = losses.into_iter().map(Result::unwrap).collect();
    assert_eq!(losses[0], losses[1]);
}

#[test]
fn gradients_reduced_during_backward_are_bit_identical() {
    let run = |strategy: MultiWorkerMirroredStrategy| {
        let mut model = Sequential::new()
            .add(Input::new([6]))
            .add(Dense::new(1100).activation("relu"))
            .add(Dense::new(1000).activation("relu"))
            .add(Dense::new(1100).activation("relu"))
            .add(Dense::new(3))
            .build()?;
        let loss = SparseCategoricalCrossentropy::default().from_logits(true);
        model.compile(Compile::new("sgd").loss(loss).strategy(strategy))?;
        let program = model.program(StepKind::Train, 16)?;
        let buckets = program.update().map_or(0, |update| update.buckets.len());
        assert!(buckets > 2, "{buckets} buckets");
        let (x, y) = samples(37);
        model.fit((&x, &y), Fit::new().batch_size(16).epochs(2).verbose(0))?;
        model.check_consistency()?;
        model.weights_sha256()
    };
    let alone = MultiWorkerMirroredStrategy::from(MirroredStrategy::cpus(1).unwrap());
    let one = run(alone.deterministic(true)).unwrap();
    for got in job(2, |_, strategy| run(strategy.deterministic(true))) {
        assert_eq!(got.unwrap(), one);
    }
    let all: Vec<String> = job(3, |_, s| run(s)).into_iter().map(Result::unwrap).collect();
    assert!(all.iter().all(|sha| *sha == all[0]), "{all:?}");
}
