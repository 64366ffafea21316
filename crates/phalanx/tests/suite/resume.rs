//! A run that was interrupted and resumed is bit-identical to an uninterrupted one: weights, history and logs.

mod directories;
mod nan;
mod refused;
mod states;

use phalanx::callbacks::{BackupAndRestore, LambdaCallback};
use phalanx::model::Interrupt;
use phalanx::prelude::*;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

/// Samples, batches per epoch and epochs of the runs here.
const SAMPLES: usize = 90;
const BATCHES: u64 = 6;
const EPOCHS: usize = 5;

fn images() -> (Tensor, Tensor) {
    let mut rng = phalanx::Stream::new(3, 0, 0, 0);
    let x: Vec<f32> = (0..SAMPLES * 64).map(|_| rng.unit() as f32).collect();
    let y: Vec<i32> = (0..SAMPLES).map(|i| (i % 3) as i32).collect();
    (Tensor::new([SAMPLES, 8, 8, 1], x).unwrap(), Tensor::new([SAMPLES], y).unwrap())
}

/// The configuration of a run.
#[derive(Clone, Copy)]
struct RunConfig {
    optimizer: &'static str,
    accumulate: Option<u64>,
    steps_per_epoch: Option<usize>,
    replicas: usize,
    deterministic: bool,
    /// Whether the loss is scaled, so much that some steps overflow.
    scaled: bool,
    save_freq: u64,
}

impl Default for RunConfig {
    fn default() -> RunConfig {
        let optimizer = "adam";
        RunConfig {
            optimizer,
            accumulate: None,
            steps_per_epoch: None,
            replicas: 1,
            deterministic: false,
            scaled: false,
            save_freq: 2,
        }
    }
}

fn compiled(config: RunConfig) -> Model {
    let mut model = Sequential::new()
        .add(Input::new([8, 8, 1]))
        .add(Conv2D::new(4, 3).activation("relu"))
        .add(BatchNormalization::new())
        .add(Flatten::new())
        .add(Dropout::new(0.5))
        .add(Dense::new(3).activation("softmax"))
        .build()
        .unwrap();
    let devices: Vec<String> = (0..config.replicas).map(|i| format!("cpu:{i}")).collect();
    let strategy = MirroredStrategy::with_devices(&devices).unwrap().threads(1);
    let strategy = strategy.deterministic(config.deterministic);
    let high = LossScaleOptimizer::new(Adam::default()).initial_scale(2f64.powi(127));
    let compile = match config.scaled {
        true => Compile::new(high.dynamic_growth_steps(4)),
        false => Compile::new(config.optimizer),
    };
    let compile = compile
        .loss_weights([if config.scaled { 4096.0 } else { 1.0 }])
        .loss("sparse_categorical_crossentropy")
        .metrics(["accuracy"])
        .strategy(strategy)
        .seed(5);
    model.compile(compile).unwrap();
    model
}

/// The results of a run.
#[derive(Debug, PartialEq)]
struct Outcome {
    weights: String,
    history: String,
    csv: String,
    json: String,
    events: u64,
}

/// Removes the times, which differ between runs.
fn without_times(text: &str) -> String {
    let cut = |line: &str| line.split(", \"seconds\"").next().unwrap_or_default().to_string();
    text.lines().map(cut).collect::<Vec<_>>().join("\n")
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// The scalars of an event file, without their times.
fn events(directory: &Path) -> Vec<u8> {
    let Ok(entries) = std::fs::read_dir(directory) else { return vec![] };
    let mut paths: Vec<PathBuf> = entries.map(|e| e.unwrap().path()).collect();
    paths.sort();
    assert_eq!(paths.len(), 1, "one event file is continued");
    let bytes = std::fs::read(&paths[0]).unwrap();
    let mut at = 0;
    let mut kept = vec![];
    while at < bytes.len() {
        let length = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
        let event = &bytes[at + 12..at + 12 + length];
        // After the first field, the eight bytes of the wall clock.
        let speed = event.windows(10).position(|w| w == b"per_second");
        kept.extend(&event[9..speed.unwrap_or(event.len())]);
        at += 12 + length + 4;
    }
    kept
}

/// Trains until the end or until a step; all relevant state is on disk.
fn train(directory: &Path, config: RunConfig, until: Option<u64>) -> Result<Outcome> {
    let (x, y) = images();
    let at = |name: &str| directory.join(name);
    let interrupt = Interrupt::new();
    let requester = interrupt.clone();
    let flow = ImageDataGenerator::new().width_shift_range(0.2).horizontal_flip(true).flow(
        x.clone(),
        y.clone(),
        15,
    )?;
    let mut fit = Fit::new()
        .epochs(EPOCHS)
        .verbose(0)
        .validation_data(Arrays::new(x, y)?.batch(15)?)
        .callback(
            BackupAndRestore::new(at("backup"))
                .save_freq(config.save_freq)
                .delete_checkpoint(false),
        )
        .callback(EarlyStopping::new("loss").patience(2).restore_best_weights(true))
        .callback(ReduceLROnPlateau::new("val_loss").factor(0.5).patience(1))
        .callback(LearningRateScheduler::with_current(|epoch, rate| rate / (1.0 + epoch as f64)))
        .callback(CSVLogger::new(at("log.csv")))
        .callback(JsonLines::new(at("log.jsonl")))
        .callback(TensorBoard::new(at("logs")).update_freq(1).histogram_freq(2))
        .callback(ModelCheckpoint::new(at("best.safetensors")).monitor("loss").save_best_only(true))
        .callback(LambdaCallback::new().batch_end(move |view| {
            if until == Some(view.step) {
                requester.request();
            }
            Ok(Action::Continue)
        }))
        .interrupt(&interrupt);
    if let Some(steps) = config.steps_per_epoch {
        fit = fit.steps_per_epoch(steps);
    }
    if let Some(batches) = config.accumulate {
        fit = fit.accumulate(batches);
    }
    let mut model = compiled(config);
    let history = model.fit(flow, fit)?;
    Ok(Outcome {
        weights: model.weights_sha256()?,
        history: format!("{:?} {:?}", history.epochs, history.values),
        csv: std::fs::read_to_string(at("log.csv")).unwrap(),
        json: without_times(&std::fs::read_to_string(at("log.jsonl")).unwrap()),
        events: hash(&[events(&at("logs/train")), events(&at("logs/validation"))]),
    })
}

/// Interrupts a run at each of these steps and compares its results with those of an uninterrupted run.
fn check(config: RunConfig, steps: &[u64]) -> Outcome {
    let alone = tempfile::tempdir().unwrap();
    let expected = train(alone.path(), config, None).unwrap();
    let directory = tempfile::tempdir().unwrap();
    for step in steps {
        let error = train(directory.path(), config, Some(*step)).unwrap_err();
        let Error::Interrupted { step: at, saved, .. } = error else { panic!("{error}") };
        assert_eq!(at, *step);
        assert!(saved.unwrap().exists());
    }
    assert_eq!(train(directory.path(), config, None).unwrap(), expected);
    // Resuming a finished run changes nothing.
    assert_eq!(train(directory.path(), config, None).unwrap(), expected);
    expected
}

#[test]
fn a_run_interrupted_anywhere_ends_as_an_uninterrupted_one() {
    check(RunConfig::default(), &[1, 2, 4, BATCHES, BATCHES + 1, 2 * BATCHES, 3 * BATCHES - 1]);
}

#[test]
fn data_that_continues_across_epochs_continues_across_interruptions() {
    let config = RunConfig { steps_per_epoch: Some(4), optimizer: "sgd", ..RunConfig::default() };
    check(config, &[3, 4, 7, 9]);
}

#[test]
fn accumulated_gradients_are_saved() {
    let config = RunConfig { accumulate: Some(4), optimizer: "rmsprop", ..RunConfig::default() };
    check(config, &[1, 3, 5, 9, 10]);
}

#[test]
fn the_loss_scale_and_the_steps_it_skipped_are_kept() {
    let config = RunConfig { scaled: true, ..RunConfig::default() };
    let outcome = check(config, &[1, 2, 3, 7, 8, 14]);
    let scale = outcome.json.split("\"loss_scale\": ").nth(1).unwrap_or_default();
    let scale = scale.split(',').next().unwrap_or_default().parse::<f64>().unwrap();
    assert!(scale < 2f64.powi(127), "some steps were skipped, {scale}");
    check(RunConfig { accumulate: Some(3), ..config }, &[2, 3, 10]);
}

#[test]
fn a_run_resumes_on_another_number_of_replicas() {
    let config = RunConfig::default();
    let directory = tempfile::tempdir().unwrap();
    train(directory.path(), config, Some(3)).unwrap_err();
    let two = RunConfig { replicas: 2, ..config };
    train(directory.path(), two, Some(8)).unwrap_err();
    let outcome = train(directory.path(), RunConfig { replicas: 3, ..config }, None).unwrap();
    // Batch statistics depend on the replica: the numbers differ, but the run is complete.
    assert_eq!(outcome.csv.lines().count(), 1 + outcome.json.lines().count());
}

#[test]
fn a_deterministic_run_resumes_bit_identically_on_another_number_of_replicas() {
    let one = RunConfig { deterministic: true, ..RunConfig::default() };
    let alone = tempfile::tempdir().unwrap();
    let expected = train(alone.path(), one, None).unwrap();
    let directory = tempfile::tempdir().unwrap();
    for (replicas, step) in [(1, 4), (2, 9), (8, 14)] {
        train(directory.path(), RunConfig { replicas, ..one }, Some(step)).unwrap_err();
    }
    assert_eq!(train(directory.path(), RunConfig { replicas: 4, ..one }, None).unwrap(), expected);
}

fn states(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory.join("backup")).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|e| e.unwrap().path()).collect();
    paths.retain(|p| p.extension().is_some_and(|e| e == "safetensors"));
    paths.sort();
    paths
}

#[test]
fn an_epoch_that_was_stopped_and_interrupted_is_brought_to_its_end() {
    let directory = tempfile::tempdir().unwrap();
    let train = |interrupted: bool| {
        let interrupt = Interrupt::new();
        let requester = interrupt.clone();
        let stop = LambdaCallback::new().batch_end(move |view| {
            if view.step != BATCHES + 2 {
                return Ok(Action::Continue);
            }
            if interrupted {
                requester.request();
            }
            Ok(Action::Stop)
        });
        let fit = Fit::new().epochs(3).batch_size(15).verbose(0).validation_split(0.0);
        let backup = BackupAndRestore::new(directory.path()).delete_checkpoint(false);
        let fit = fit.callback(backup).callback(stop).interrupt(&interrupt);
        compiled(RunConfig::default()).fit(images(), fit)
    };
    assert!(matches!(train(true), Err(Error::Interrupted { .. })));
    assert_eq!(train(false).unwrap().epochs, [0, 1]);
}

#[test]
fn the_cache_of_a_pipeline_does_not_depend_on_where_a_run_resumes() {
    let train = |directory: &Path, until: Option<u64>| {
        let (x, y) = images();
        let interrupt = Interrupt::new();
        let requester = interrupt.clone();
        let watch = LambdaCallback::new().batch_end(move |view| {
            if until == Some(view.step) {
                requester.request();
            }
            Ok(Action::Continue)
        });
        let data = Pipeline::from_tensor_slices((x, y))?.shuffle(90)?.cache().batch(15, false)?;
        let backup = BackupAndRestore::new(directory).delete_checkpoint(false);
        let fit = Fit::new().epochs(3).verbose(0).callback(backup).callback(watch);
        let mut model = compiled(RunConfig::default());
        model.fit(data, fit.interrupt(&interrupt))?;
        model.weights_sha256()
    };
    let (alone, twice) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    train(twice.path(), Some(BATCHES + 2)).unwrap_err();
    assert_eq!(train(twice.path(), None).unwrap(), train(alone.path(), None).unwrap());
}
