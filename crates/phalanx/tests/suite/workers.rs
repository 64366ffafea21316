//! Several workers, simulated by threads, behave like one.

use phalanx::data::{Images, Pipeline};
use phalanx::model::Interrupt;
use phalanx::prelude::*;
use phalanx_distributed::ProcessGroup;
use phalanx_testing::peers::thread_peers;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Runs `work` as each of several workers with one replica each. Returns the results by rank.
fn job<T: Send>(
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

fn samples(n: usize) -> (Tensor, Tensor) {
    let x: Vec<f32> = (0..n * 6).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect();
    let y: Vec<i32> = (0..n).map(|i| (i * 7 % 3) as i32).collect();
    (Tensor::new([n, 6], x).unwrap(), Tensor::new([n], y).unwrap())
}

fn compiled(strategy: impl Into<MultiWorkerMirroredStrategy>) -> Result<Model> {
    let mut model = Sequential::new()
        .add(Input::new([6]))
        .add(Dense::new(16).activation("relu"))
        .add(BatchNormalization::new())
        .add(Dropout::new(0.2))
        .add(Dense::new(3).activation("softmax"))
        .build()?;
    let compile = Compile::new(Adam::new(0.01)).loss("sparse_categorical_crossentropy");
    model.compile(compile.metrics(["accuracy"]).strategy(strategy).seed(3))?;
    Ok(model)
}

/// The results of a run: history, evaluation, predictions and weights.
type Outcome = (Vec<f64>, Vec<f64>, Vec<f32>, String);

fn train(
    strategy: impl Into<MultiWorkerMirroredStrategy>,
    n: usize,
    batch: usize,
) -> Result<Outcome> {
    let mut model = compiled(strategy)?;
    let (x, y) = samples(n);
    let weights: Vec<f32> = (0..n).map(|i| 0.5 + (i % 4) as f32).collect();
    let fit = Fit::new().epochs(2).batch_size(batch).verbose(0).sample_weight(weights);
    let history = model.fit((&x, &y), fit.validation_data((&x, &y)))?;
    let arguments = || Inference::new().batch_size(batch);
    let logs = model.evaluate_with((&x, &y), arguments())?;
    let outputs = model.predict_with(&x, arguments())?;
    model.check_mirrored()?;
    let losses = ["loss", "val_loss", "accuracy"]
        .iter()
        .flat_map(|name| history.get(name).unwrap().to_vec());
    Ok((
        losses.collect(),
        logs.iter().map(|(_, v)| *v).collect(),
        outputs[0].f32().unwrap().to_vec(),
        model.weights_sha256()?,
    ))
}

#[test]
fn several_workers_give_the_bits_of_one_in_deterministic_mode() {
    for (n, batch) in [(64, 16), (61, 16), (7, 5), (1, 4), (33, 33)] {
        let one = train(MirroredStrategy::cpus(1).unwrap().deterministic(true), n, batch).unwrap();
        for workers in [2, 4] {
            for (rank, got) in
                job(workers, |_, s| train(s.deterministic(true), n, batch)).into_iter().enumerate()
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

#[test]
fn any_number_of_workers_and_samples_gives_the_results_of_as_many_replicas() {
    for (workers, n, batch) in [(2, 64, 16), (3, 61, 16), (3, 2, 8), (5, 23, 7)] {
        let local = MirroredStrategy::cpus(workers).unwrap().threads(1);
        let one = train(local, n, batch).unwrap();
        let close = |a: &[f64], b: &[f64]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5);
        let all: Vec<Outcome> =
            job(workers, |_, s| train(s, n, batch)).into_iter().map(Result::unwrap).collect();
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
    model.check_mirrored()?;
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

/// Images that count their reads.
struct Counted(Vec<AtomicUsize>);

impl Images for Counted {
    fn dims(&self) -> Vec<usize> {
        vec![self.0.len(), 2, 3, 1]
    }

    fn read(&self, row: usize, to: &mut [f32]) -> Result<()> {
        self.0[row].fetch_add(1, Ordering::Relaxed);
        to.iter_mut().enumerate().for_each(|(i, v)| *v = (row * 6 + i) as f32 / 100.0);
        Ok(())
    }
}

#[test]
fn every_worker_reads_its_own_images_only() {
    let images = Arc::new(Counted((0..37).map(|_| AtomicUsize::new(0)).collect()));
    let labels = Tensor::new([37], (0..37).map(|i| i % 3).collect::<Vec<i32>>()).unwrap();
    let run = |strategy: MultiWorkerMirroredStrategy| {
        let mut model = Sequential::new()
            .add(Input::new([2, 3, 1]))
            .add(Flatten::new())
            .add(Dense::new(3))
            .build()?;
        let loss = SparseCategoricalCrossentropy::default().from_logits(true);
        model.compile(Compile::new("sgd").loss(loss).strategy(strategy.deterministic(true)))?;
        let aug = ImageDataGenerator::new().horizontal_flip(true);
        let flow = aug.flow_images(images.clone(), labels.clone(), 10)?;
        model.fit(flow, Fit::new().epochs(3).verbose(0))?;
        model.weights_sha256()
    };
    let counts = || images.0.iter().map(|c| c.swap(0, Ordering::Relaxed)).collect::<Vec<_>>();
    let one = run(MirroredStrategy::cpus(1).unwrap().into()).unwrap();
    assert_eq!(counts(), [3; 37]);
    for got in job(2, |_, strategy| run(strategy)) {
        assert_eq!(got.unwrap(), one);
    }
    assert_eq!(counts(), [3; 37], "each image once per epoch, over both workers");
}

#[test]
fn pipelines_and_weighted_means_work_too() {
    let run = |strategy: MultiWorkerMirroredStrategy| {
        let mut model = Sequential::new().add(Input::new([6])).add(Dense::new(1)).build()?;
        let loss = MeanSquaredError::default().with_reduction(Reduction::MeanWithSampleWeight);
        model.compile(Compile::new("sgd").loss(loss).strategy(strategy.deterministic(true)))?;
        let (x, _) = samples(41);
        let y = Tensor::new([41, 1], (0..41).map(|i| i as f32 / 41.0).collect::<Vec<_>>())?;
        let weights = Tensor::new([41], (0..41).map(|i| (i % 5) as f32 + 0.1).collect::<Vec<_>>())?;
        let data = Pipeline::from_tensor_slices((x.clone(), y.clone(), weights.clone()))?;
        model.fit(data.shuffle(10)?.batch(8, false)?, Fit::new().epochs(2).verbose(0))?;
        let own = weights.f32().unwrap_or_default();
        model.fit((x, y), Fit::new().batch_size(9).verbose(0).sample_weight(own))?;
        model.weights_sha256()
    };
    let one = run(MirroredStrategy::cpus(1).unwrap().into()).unwrap();
    for got in job(4, |_, strategy| run(strategy)) {
        assert_eq!(got.unwrap(), one);
    }
}

#[test]
fn every_worker_maps_its_own_samples_only() {
    let calls: Arc<Vec<AtomicUsize>> = Arc::new((0..41).map(|_| AtomicUsize::new(0)).collect());
    let counts = || calls.iter().map(|c| c.swap(0, Ordering::Relaxed)).collect::<Vec<_>>();
    let run = |strategy: MultiWorkerMirroredStrategy, cached: bool| {
        let mut model = Sequential::new().add(Input::new([6])).add(Dense::new(1)).build()?;
        let compile = Compile::new("sgd").loss("mse").strategy(strategy.deterministic(true));
        model.compile(compile)?;
        let (x, _) = samples(41);
        let y = Tensor::new([41, 1], (0..41).map(|i| i as f32).collect::<Vec<_>>())?;
        let calls = calls.clone();
        let mapped = Pipeline::from_tensor_slices((x, y))?.map(move |mut sample| {
            let label = &mut sample[1].f32_mut().unwrap_or_default()[0];
            calls[*label as usize].fetch_add(1, Ordering::Relaxed);
            *label /= 41.0;
            Ok(sample)
        });
        let data = if cached { mapped.cache() } else { mapped.shuffle(10)? };
        model.fit(data.batch(8, false)?.prefetch(2), Fit::new().epochs(3).verbose(0))?;
        model.weights_sha256()
    };
    for (cached, each) in [(false, 3), (true, 1)] {
        let one = run(MirroredStrategy::cpus(1).unwrap().into(), cached).unwrap();
        assert_eq!(counts(), [each; 41]);
        for workers in [2, 4] {
            for got in job(workers, |_, strategy| run(strategy, cached)) {
                assert_eq!(got.unwrap(), one);
            }
            // The last batch has one sample: workers without a row read it for its shape.
            let counts = counts();
            assert!(counts.iter().all(|count| *count >= each), "{counts:?}");
            assert_eq!(counts.iter().sum::<usize>(), (41 + workers - 1) * each);
        }
    }
}

/// Every worker opens the generator. If the number of samples is known, it maps only those of its own rows.
#[test]
fn a_generator_gives_every_worker_its_own_rows() {
    let mapped = Arc::new(AtomicUsize::new(0));
    let run = |strategy: MultiWorkerMirroredStrategy, known: bool| {
        let mut model = Sequential::new().add(Input::new([6])).add(Dense::new(1)).build()?;
        let compile = Compile::new("sgd").loss("mse").strategy(strategy.deterministic(true));
        model.compile(compile)?;
        let data = Pipeline::from_generator(|| {
            let (x, _) = samples(41);
            Ok((0..41).map(move |i| {
                let row = x.slice_rows(i..i + 1).reshape([6])?;
                Ok(vec![row, Tensor::new([1], vec![i as f32 / 41.0])?])
            }))
        });
        let data = if known { data.assert_cardinality(41) } else { data };
        let mapped = mapped.clone();
        let data = data.map(move |sample| {
            mapped.fetch_add(1, Ordering::Relaxed);
            Ok(sample)
        });
        let data = data.shuffle(10)?.batch(8, false)?.prefetch(2);
        model.fit(data, Fit::new().epochs(2).verbose(0))?;
        model.weights_sha256()
    };
    for known in [true, false] {
        let one = run(MirroredStrategy::cpus(1).unwrap().into(), known).unwrap();
        assert_eq!(mapped.swap(0, Ordering::Relaxed), 2 * 41);
        for got in job(2, |_, strategy| run(strategy, known)) {
            assert_eq!(got.unwrap(), one);
        }
        // The last batch has one sample: the worker without a row reads it for its shape.
        let each = if known { 42 } else { 2 * 41 };
        assert_eq!(mapped.swap(0, Ordering::Relaxed), 2 * each);
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
                mine.raise();
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
fn workers_that_differ_are_named() {
    let (x, y) = samples(20);
    let messages = |change: &(dyn Fn(usize) -> (u64, f64, usize, f32) + Sync)| {
        let errors = job(3, |rank, strategy| {
            let (seed, rate, batch, first) = change(rank);
            let mut model = Sequential::new().add(Input::new([6])).add(Dense::new(3)).build()?;
            let loss = SparseCategoricalCrossentropy::default().from_logits(true);
            let compile = Compile::new(SGD::new(rate)).loss(loss).strategy(strategy).seed(seed);
            model.compile(compile)?;
            let mut x = x.clone();
            x.f32_mut().unwrap()[0] = first;
            let fit = Fit::new().batch_size(batch).verbose(0);
            Ok(model.fit((&x, &y), fit).map(|_| ()).unwrap_err().to_string())
        });
        let errors: Vec<String> = errors.into_iter().map(Result::unwrap).collect();
        assert!(errors.iter().all(|e| *e == errors[0]), "{errors:?}");
        errors[0].clone()
    };
    let odd = |rank: usize, usual: f64, other: f64| if rank == 2 { other } else { usual };
    for (message, expected) in [
        (
            messages(&|r| (odd(r, 0.0, 7.0) as u64, 0.1, 5, 0.0)),
            "workers: seed: expected 0 on rank 0 (a thread), received 7 on rank 2 (a thread)",
        ),
        (
            messages(&|r| (0, odd(r, 0.1, 0.2), 5, 0.0)),
            "workers: optimizer's learning_rate: expected 0.1 on rank 0 (a thread), received 0.2 on",
        ),
        (
            messages(&|r| (0, 0.1, odd(r, 5.0, 6.0) as usize, 0.0)),
            "workers: global batch size: expected 5 on",
        ),
        (messages(&|r| (0, 0.1, 5, odd(r, 0.0, 1.0) as f32)), "workers: data: expected "),
    ] {
        assert!(message.starts_with(expected), "{message}");
    }
}

/// Data affect the model: notes about them, and statistics that a layer was adapted to.
#[test]
fn workers_with_other_data_differ_in_data_not_in_the_model() {
    let (x, y) = samples(20);
    let message = message_of(|odd, model| {
        let mut x = x.clone();
        x.f32_mut().unwrap()[0] += f32::from(u8::from(odd));
        model.set_metadata("origin", format!("mean {}", x.f32().unwrap()[0]));
        let mut weights = model.get_weights()?;
        weights[1].f32_mut().unwrap()[0] = x.f32().unwrap()[0];
        model.set_weights(&weights)?;
        model.fit((&x, &y), Fit::new().batch_size(5).verbose(0)).map(|_| ())
    });
    assert!(message.starts_with("workers: data: expected 1-"), "{message}");
    let message = message_of(|odd, model| {
        let (x, mut labels) = samples(20);
        labels.i32_mut().unwrap()[7] = if odd { 0 } else { 1 };
        let held = (&x, &labels);
        let fit = Fit::new().batch_size(5).verbose(0).validation_data(held);
        model.fit((&x, &y), fit).map(|_| ())
    });
    assert!(message.starts_with("workers: validation data: expected 1-"), "{message}");
    // Other differences are reported as before.
    let message = message_of(|odd, model| {
        model.set_metadata("who", if odd { "another" } else { "one" });
        model.fit((&x, &y), Fit::new().batch_size(5).verbose(0)).map(|_| ())
    });
    assert!(message.starts_with("workers: notes of the model: expected "), "{message}");
}

/// The error of three workers of which the last differs; all get the same error.
fn message_of(work: impl Fn(bool, &mut Model) -> Result<()> + Sync) -> String {
    let errors = job(3, |rank, strategy| {
        let mut model = compiled(strategy)?;
        Ok(work(rank == 2, &mut model).unwrap_err().to_string())
    });
    let errors: Vec<String> = errors.into_iter().map(Result::unwrap).collect();
    assert!(errors.iter().all(|e| *e == errors[0]), "{errors:?}");
    errors[0].clone()
}

#[test]
fn callbacks_that_differ_are_named() {
    let (x, y) = samples(20);
    let fit = || Fit::new().epochs(2).batch_size(5).verbose(0);
    let message = message_of(|odd, model| {
        let stop = EarlyStopping::new("loss").patience(if odd { 3 } else { 2 });
        model.fit((&x, &y), fit().callback(stop)).map(|_| ())
    });
    assert!(message.starts_with("workers: callbacks: expected EarlyStopping"), "{message}");
    assert!(message.contains("patience: 2") && message.contains("patience: 3"), "{message}");
    // Functions cannot be compared, but their results can.
    let message = message_of(|odd, model| {
        let rate = move |epoch| if odd && epoch == 1 { 0.02 } else { 0.01 };
        model.fit((&x, &y), fit().callback(LearningRateScheduler::new(rate))).map(|_| ())
    });
    let expected =
        "workers: learning rate of epoch 2: expected 0.01 on rank 0 (a thread), received 0.02 on";
    assert!(message.starts_with(expected), "{message}");
}

#[test]
fn epochs_over_other_data_are_refused() {
    let (x, y) = samples(20);
    let (fewer, labels) = samples(19);
    let message = message_of(|odd, model| {
        let data = if odd { (&fewer, &labels) } else { (&x, &y) };
        model.evaluate_with(data, Inference::new().batch_size(8)).map(|_| ())
    });
    assert!(message.starts_with("workers: samples: expected 20 on rank 0"), "{message}");
    let message = message_of(|odd, model| {
        let arguments = Inference::new().batch_size(if odd { 4 } else { 8 });
        model.predict_with(&x, arguments).map(|_| ())
    });
    assert!(message.starts_with("workers: global batch size: expected 8 on rank 0"), "{message}");
    let message = message_of(|odd, model| {
        let mut x = x.clone();
        x.f32_mut().unwrap()[3] += f32::from(u8::from(odd));
        model.predict_with(&x, Inference::new()).map(|_| ())
    });
    assert!(message.starts_with("workers: data: expected "), "{message}");
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
    // Arrays that are not divided among workers are split by the engine itself.
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
        model.check_mirrored()?;
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
