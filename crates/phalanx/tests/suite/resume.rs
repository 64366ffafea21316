//! A run that was interrupted and resumed is bit-identical to an uninterrupted one: weights, history and logs.

use phalanx::callbacks::{BackupAndRestore, LambdaCallback};
use phalanx::model::{Interrupt, IntoDataset};
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
    let raised = interrupt.clone();
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
                raised.raise();
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

/// Flips a bit in the middle of a file.
fn damage(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    std::fs::write(path, bytes).unwrap();
}

fn states(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory.join("backup")).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|e| e.unwrap().path()).collect();
    paths.retain(|p| p.extension().is_some_and(|e| e == "safetensors"));
    paths.sort();
    paths
}

#[test]
fn a_damaged_state_is_set_aside_and_the_one_before_is_used() {
    let alone = tempfile::tempdir().unwrap();
    let expected = train(alone.path(), RunConfig::default(), None).unwrap();
    let directory = tempfile::tempdir().unwrap();
    train(directory.path(), RunConfig::default(), Some(9)).unwrap_err();
    let before = states(directory.path());
    assert_eq!(before.len(), 3);
    damage(&before[2]);
    std::fs::write(&before[1], b"short").unwrap();
    assert_eq!(train(directory.path(), RunConfig::default(), None).unwrap(), expected);
    assert!(before[2].with_extension("safetensors.damaged").exists());
}

/// The names in a run's directory, except its lock.
fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory.join("backup")).unwrap();
    let mut names: Vec<String> =
        entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| name != ".lock");
    names.sort();
    names
}

#[test]
fn a_run_with_only_damaged_states_is_not_restarted_at_the_second_start() {
    let directory = tempfile::tempdir().unwrap();
    train(directory.path(), RunConfig::default(), Some(9)).unwrap_err();
    states(directory.path()).iter().for_each(|path| damage(path));
    let refuse = || {
        let before = names(directory.path());
        let error = train(directory.path(), RunConfig::default(), None).unwrap_err().to_string();
        let expected = "backup: expected an intact run state, received 3 damaged (to \
                        begin anew, move or remove step-*.safetensors and step-*.damaged)";
        assert!(error.ends_with(expected), "{error}");
        let backup = BackupAndRestore::new(directory.path().join("backup")).restore(false);
        let fit = Fit::new().verbose(0).callback(backup);
        let error = compiled(RunConfig::default()).fit(images(), fit).unwrap_err().to_string();
        assert!(error.contains("expected no earlier run"), "{error}");
        assert_eq!(names(directory.path()), before, "nothing is renamed");
    };
    refuse();
    refuse();
    // The same applies to those that were renamed.
    for path in states(directory.path()) {
        std::fs::rename(&path, path.with_extension("safetensors.damaged")).unwrap();
    }
    refuse();
    refuse();
    std::fs::remove_dir_all(directory.path().join("backup")).unwrap();
    train(directory.path(), RunConfig::default(), Some(1)).unwrap_err();
}

#[cfg(unix)]
#[test]
fn a_state_that_cannot_be_read_is_an_error_and_no_damage() {
    let alone = tempfile::tempdir().unwrap();
    let expected = train(alone.path(), RunConfig::default(), None).unwrap();
    let directory = tempfile::tempdir().unwrap();
    train(directory.path(), RunConfig::default(), Some(9)).unwrap_err();
    let all = states(directory.path());
    let kept = directory.path().join("kept");
    // A damaged state is not renamed either while an earlier one cannot be read.
    for (unreadable, damaged) in [(2, None), (1, Some(2))] {
        std::fs::rename(&all[unreadable], &kept).unwrap();
        std::os::unix::fs::symlink(&all[unreadable], &all[unreadable]).unwrap();
        damaged.iter().for_each(|at: &usize| damage(&all[*at]));
        let before = names(directory.path());
        for _ in 0..2 {
            let error = train(directory.path(), RunConfig::default(), None).unwrap_err();
            let Error::Io { path, .. } = error else { panic!("{error}") };
            assert_eq!(path, all[unreadable]);
            assert_eq!(names(directory.path()), before, "nothing is renamed");
            let latest = phalanx::saving::latest_intact_checkpoint(directory.path().join("backup"));
            assert!(matches!(latest, Err(Error::Io { .. })), "{latest:?}");
        }
        std::fs::rename(&kept, &all[unreadable]).unwrap();
    }
    assert_eq!(train(directory.path(), RunConfig::default(), None).unwrap(), expected);
}

#[test]
fn a_state_serves_as_a_file_of_weights() {
    let directory = tempfile::tempdir().unwrap();
    let backup = BackupAndRestore::new(directory.path().join("backup")).delete_checkpoint(false);
    let mut trained = compiled(RunConfig::default());
    trained.fit(images(), Fit::new().verbose(0).callback(backup)).unwrap();
    let mut model = compiled(RunConfig::default());
    model.load_weights(states(directory.path()).last().unwrap()).unwrap();
    assert_eq!(model.weights_sha256().unwrap(), trained.weights_sha256().unwrap());
}

#[test]
fn a_run_that_does_not_fit_is_refused_with_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    train(directory.path(), RunConfig::default(), Some(3)).unwrap_err();
    let other = RunConfig { optimizer: "sgd", ..RunConfig::default() };
    let error = train(directory.path(), other, None).unwrap_err().to_string();
    assert!(error.contains("expected optimizer Adam, received SGD"), "{error}");
    let mut model = compiled(RunConfig::default());
    let (x, y) = images();
    let again = || BackupAndRestore::new(directory.path().join("backup"));
    let fit = Fit::new().batch_size(10).verbose(0).callback(again());
    let error = model.fit((x.clone(), y.clone()), fit).unwrap_err().to_string();
    assert!(error.contains("global batch size: expected 15 as in the saved run"), "{error}");
    let fit = Fit::new().batch_size(15).verbose(0).callback(again().restore(false));
    let error = model.fit((x, y), fit).unwrap_err().to_string();
    assert!(error.contains("expected no earlier run"), "{error}");
}

#[test]
fn data_in_another_order_is_refused_and_another_learning_rate_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let train = |epochs: usize, rate: f64, shuffle: bool, flow: bool| {
        let mut model = compiled(RunConfig::default());
        model.compile(Compile::new(Adam::new(rate)).loss("sparse_categorical_crossentropy"))?;
        let (x, y) = images();
        let name = if flow { "flow" } else { "arrays" };
        let backup = BackupAndRestore::new(directory.path().join(name)).delete_checkpoint(false);
        let fit = Fit::new().epochs(epochs).verbose(0).callback(backup);
        match flow {
            true => model.fit(ImageDataGenerator::new().flow(x, y, 15)?.shuffle(shuffle), fit),
            false => model.fit((x, y), fit.batch_size(15).shuffle(shuffle)),
        }
    };
    for flow in [false, true] {
        train(1, 0.001, true, flow).unwrap();
        let error = train(2, 0.001, false, flow).unwrap_err().to_string();
        assert_eq!(error, "resume: shuffle: expected true as in the saved run, received false");
        let history = train(2, 0.01, true, flow).unwrap();
        assert_eq!(history.get("lr").unwrap(), [0.001, 0.01]);
    }
}

#[test]
fn two_runs_do_not_share_a_directory() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_path_buf();
    let inner = LambdaCallback::new().epoch_end(move |_| {
        let (x, y) = images();
        let fit = Fit::new().verbose(0).callback(BackupAndRestore::new(&path));
        let error = compiled(RunConfig::default()).fit((x, y), fit).unwrap_err().to_string();
        let process = std::process::id();
        assert!(error.contains(&format!("one in use by process {process}")), "{error}");
        Ok(Action::Continue)
    });
    let backup = BackupAndRestore::new(directory.path());
    let fit = Fit::new().verbose(0).callback(backup).callback(inner);
    compiled(RunConfig::default()).fit(images(), fit).unwrap();
    assert!(states_in(directory.path()).is_empty(), "a finished run leaves no backup");
}

fn states_in(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let names = entries.map(|e| e.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("step-")).collect()
}

#[test]
fn a_directory_that_vanishes_ends_the_run_with_its_name() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("backup");
    let (gone, elsewhere) = (path.clone(), directory.path().join("elsewhere"));
    let remove = LambdaCallback::new().epoch_begin(move |view| {
        if view.epoch == 1 {
            std::fs::rename(&gone, &elsewhere).unwrap();
        }
        Ok(Action::Continue)
    });
    let fit = Fit::new().epochs(2).verbose(0).callback(BackupAndRestore::new(&path));
    let error = compiled(RunConfig::default()).fit(images(), fit.callback(remove)).unwrap_err();
    assert!(error.to_string().ends_with("its .lock, received none: moved or removed"), "{error}");
}

#[test]
fn a_directory_that_replaced_the_runs_own_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let other = BackupAndRestore::new(at("other")).delete_checkpoint(false).keep_last(9);
    let fit = Fit::new().epochs(2).verbose(0).callback(other);
    compiled(RunConfig::default()).fit(images(), fit).unwrap();
    let content = |path: PathBuf| {
        let mut files: Vec<(String, Vec<u8>)> = states_in(&path)
            .into_iter()
            .map(|name| (name.clone(), std::fs::read(path.join(name)).unwrap()))
            .collect();
        files.sort();
        files
    };
    let before = content(at("other"));
    assert_eq!(before.len(), 3);
    let [path, moved, taken] = ["backup", "moved", "other"].map(at);
    let swap = LambdaCallback::new().epoch_begin(move |view| {
        if view.epoch == 1 {
            std::fs::rename(&path, &moved).unwrap();
            std::fs::rename(&taken, &path).unwrap();
        }
        Ok(Action::Continue)
    });
    // It would have removed all but one state.
    let backup = BackupAndRestore::new(at("backup")).keep_last(1);
    let fit = Fit::new().epochs(3).verbose(0).callback(backup).callback(swap);
    let error = compiled(RunConfig::default()).fit(images(), fit).unwrap_err().to_string();
    let expected = "backup: expected the directory that this run began with, and its .lock, \
                    received another in its place";
    assert!(error.ends_with(expected), "{error}");
    assert_eq!(content(at("backup")), before);
}

#[cfg(unix)]
#[test]
fn a_lock_that_is_a_link_is_not_followed() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    std::fs::create_dir(at("backup")).unwrap();
    std::fs::write(at("precious"), "content").unwrap();
    std::os::unix::fs::symlink(at("precious"), at("backup/.lock")).unwrap();
    let error = train(directory.path(), RunConfig::default(), None).unwrap_err().to_string();
    assert!(error.ends_with(".lock: expected a file, received a link"), "{error}");
    assert_eq!(std::fs::read_to_string(at("precious")).unwrap(), "content");
}

#[test]
fn a_run_that_ends_before_its_first_save_leaves_no_event_files() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let fit = || {
        let backup = BackupAndRestore::new(at("backup")).delete_checkpoint(false);
        Fit::new().epochs(1).verbose(0).callback(backup).callback(TensorBoard::new(at("logs")))
    };
    let files = || std::fs::read_dir(at("logs/train")).unwrap().count();
    let fails = LambdaCallback::new().train_begin(|_| Err(Error::config("callback", "fails")));
    compiled(RunConfig::default()).fit(images(), fit().callback(fails)).unwrap_err();
    assert_eq!(files(), 0);
    compiled(RunConfig::default()).fit(images(), fit()).unwrap();
    assert_eq!(files(), 1);
    let whole = events(&at("logs/train"));
    // Resumed after a kill right after the first save, the run creates the file it announced.
    let entry = std::fs::read_dir(at("logs/train")).unwrap().next().unwrap().unwrap();
    for path in states(directory.path()).iter().skip(1) {
        std::fs::remove_file(path).unwrap();
    }
    std::fs::write(entry.path(), "a killed run's").unwrap();
    compiled(RunConfig::default()).fit(images(), fit()).unwrap();
    assert_eq!((files(), events(&at("logs/train"))), (1, whole));
}

#[test]
fn nan_weights_never_replace_good_ones() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("backup");
    let set_nan = LambdaCallback::new().batch_end(|view| {
        let name = view.weights.names().remove(0);
        let bad = view.weights.get(&name).map(|values| vec![f32::NAN; values.len()]);
        Ok(match bad {
            Ok(values) if view.step == 4 => Action::RestoreWeights(vec![(name, values)]),
            _ => Action::Continue,
        })
    });
    let backup = BackupAndRestore::new(&path).save_freq(1);
    let fit = Fit::new().batch_size(15).epochs(2).verbose(0).callback(set_nan).callback(backup);
    let error = compiled(RunConfig::default()).fit(images(), fit).unwrap_err();
    assert!(matches!(error, Error::NotFinite { step: 5, .. }), "{error}");
    let newest = states(directory.path()).pop().unwrap();
    assert!(newest.ends_with("step-0000000003.safetensors"), "{}", newest.display());
}

#[test]
fn a_run_that_ended_in_nan_keeps_its_good_states() {
    let directory = tempfile::tempdir().unwrap();
    let (x, y) = images();
    let mut values = x.f32().unwrap().to_vec();
    values[20 * 64] = f32::NAN;
    let bad = Tensor::new(x.dims(), values).unwrap();
    let backup = BackupAndRestore::new(directory.path().join("backup")).save_freq(1);
    let fit = Fit::new().batch_size(15).shuffle(false).verbose(0);
    let fit = fit.callback(backup).callback(TerminateOnNaN);
    compiled(RunConfig::default()).fit((bad, y), fit).unwrap();
    let newest = states(directory.path()).pop().expect("the states before the NaN");
    assert!(newest.ends_with("step-0000000001.safetensors"), "{}", newest.display());
}

#[test]
fn weights_broken_by_the_last_step_are_an_error() {
    let set_nan = LambdaCallback::new().batch_end(|view| {
        let name = view.weights.names().remove(0);
        let bad = view.weights.get(&name).map(|values| vec![f32::NAN; values.len()]);
        Ok(match bad {
            Ok(values) if view.step == BATCHES => Action::RestoreWeights(vec![(name, values)]),
            _ => Action::Continue,
        })
    });
    let fit = Fit::new().batch_size(15).verbose(0).callback(set_nan);
    let error = compiled(RunConfig::default()).fit(images(), fit).unwrap_err();
    assert!(matches!(error, Error::NotFinite { .. }), "{error}");
}

#[test]
fn an_epoch_that_was_stopped_and_interrupted_is_brought_to_its_end() {
    let directory = tempfile::tempdir().unwrap();
    let train = |interrupted: bool| {
        let interrupt = Interrupt::new();
        let raised = interrupt.clone();
        let stop = LambdaCallback::new().batch_end(move |view| {
            if view.step != BATCHES + 2 {
                return Ok(Action::Continue);
            }
            if interrupted {
                raised.raise();
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
        let raised = interrupt.clone();
        let watch = LambdaCallback::new().batch_end(move |view| {
            if until == Some(view.step) {
                raised.raise();
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

/// Trains two weights on four samples, with their state in a directory. Written by version 1, it is the run in
/// `tests/fixtures/runs/version_1.safetensors`.
fn two_weights(directory: &Path, epochs: usize) -> History {
    let mut model =
        Sequential::new().named("net").add(Input::new([2])).add(Dense::new(1)).build().unwrap();
    model.compile(Compile::new("adam").loss("mse").seed(5)).unwrap();
    model.set_metadata("origin", "an earlier version");
    let x = Tensor::new([4, 2], (0..8).map(|v| v as f32).collect::<Vec<_>>()).unwrap();
    let y = Tensor::new([4, 1], (0..4).map(|v| v as f32).collect::<Vec<_>>()).unwrap();
    let backup = BackupAndRestore::new(directory).delete_checkpoint(false).keep_last(1);
    let fit = Fit::new().epochs(epochs).batch_size(2).verbose(0).callback(backup);
    model.fit((x, y), fit).unwrap()
}

#[test]
fn notes_are_stored_once_and_a_state_that_repeats_them_is_taken_up() {
    let old =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/runs/version_1.safetensors");
    let count = |path: &Path| {
        let bytes = std::fs::read(path).unwrap();
        String::from_utf8_lossy(&bytes).matches("an earlier version").count()
    };
    assert_eq!(count(old.as_ref()), 2);
    let directory = tempfile::tempdir().unwrap();
    std::fs::copy(old, directory.path().join("step-0000000002.safetensors")).unwrap();
    let history = two_weights(directory.path(), 2);
    assert_eq!(history.epochs, [0, 1]);
    assert_eq!(history.get("loss").unwrap()[0], 0.584489643573761);
    let newest = directory.path().join("step-0000000004.safetensors");
    assert_eq!(count(&newest), 1);
    assert_eq!(phalanx::saving::read_metadata(&newest).unwrap()["origin"], "an earlier version");
    assert_eq!(two_weights(directory.path(), 3).epochs, [0, 1, 2]);
}

#[test]
fn times_are_those_of_the_current_run() {
    let directory = tempfile::tempdir().unwrap();
    let first = two_weights(directory.path(), 2);
    assert_eq!(first.run_seconds(), first.seconds.iter().sum::<f64>());
    let nothing = two_weights(directory.path(), 2);
    assert_eq!(nothing.seconds, first.seconds);
    assert_eq!((nothing.run_seconds(), nothing.input_wait_seconds()), (0.0, 0.0));
    let more = two_weights(directory.path(), 3);
    // The time of the third epoch, minus the moment between its start and the save before it.
    let ran = more.run_seconds();
    assert!(ran > more.input_wait_seconds() && ran <= more.seconds[2], "{more:?}");
}

/// A run on any samples of one shape, with its state in a directory.
fn on_data(
    directory: &Path,
    epochs: usize,
    source: impl IntoDataset,
    fit: fn(Fit) -> Fit,
) -> Result<Vec<f64>> {
    let backup = BackupAndRestore::new(directory).delete_checkpoint(false);
    let fit = fit(Fit::new().epochs(epochs).verbose(0)).callback(backup);
    let history = compiled(RunConfig::default()).fit(source, fit)?;
    Ok(history.get("loss").unwrap().to_vec())
}

fn plainly(fit: Fit) -> Fit {
    fit.batch_size(15)
}

fn reversed(tensor: &Tensor) -> Tensor {
    let labels: Vec<i32> = tensor.i32().unwrap().iter().rev().copied().collect();
    Tensor::new(tensor.dims(), labels).unwrap()
}

#[test]
fn other_data_of_the_same_size_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (x, y) = images();
    on_data(directory.path(), 1, (&x, &y), plainly).unwrap();
    let mut other = x.clone();
    other.f32_mut().unwrap()[64 * 70] += 1.0;
    let mut swapped = x.clone();
    swapped.f32_mut().unwrap().rotate_left(64);
    let weighted: fn(Fit) -> Fit = |fit| plainly(fit).sample_weight(vec![2.0; SAMPLES]);
    let by_class: fn(Fit) -> Fit = |fit| plainly(fit).class_weight([(1, 2.0)]);
    for (what, x, y, fit) in [
        ("labels", &x, &reversed(&y), plainly as fn(Fit) -> Fit),
        ("a pixel", &other, &y, plainly),
        ("the order", &swapped, &y, plainly),
        ("weights of samples", &x, &y, weighted),
        ("weights of classes", &x, &y, by_class),
    ] {
        let error = on_data(directory.path(), 2, (x, y), fit).unwrap_err().to_string();
        let expected = "resume: data: expected the data of the saved run (fingerprint 1-";
        assert!(error.starts_with(expected), "{what}: {error}");
        assert!(
            error.contains("received other samples, labels or weights, or another order (fi"),
            "{what}: {error}"
        );
    }
    assert_eq!(on_data(directory.path(), 2, (&x, &y), plainly).unwrap().len(), 2);
}

#[test]
fn other_data_of_a_flow_or_pipeline_are_refused_and_another_augmentation_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let (x, y) = images();
    let flow = |shift: f64, y: &Tensor| {
        let generator = ImageDataGenerator::new().width_shift_range(shift);
        generator.flow(x.clone(), y.clone(), 15).unwrap()
    };
    let pipeline = |buffer: usize, y: &Tensor| {
        let data = Pipeline::from_tensor_slices((x.clone(), y.clone())).unwrap();
        data.shuffle(buffer).unwrap().map(Ok).batch(15, false).unwrap()
    };
    let refused = |result: Result<Vec<f64>>| {
        let error = result.unwrap_err().to_string();
        assert!(error.starts_with("resume: data: expected "), "{error}");
    };
    let none = |fit: Fit| fit;
    let at = directory.path().join("flow");
    on_data(&at, 1, flow(0.2, &y), none).unwrap();
    refused(on_data(&at, 2, flow(0.2, &reversed(&y)), none));
    on_data(&at, 2, flow(0.1, &y), none).unwrap();
    // The same samples without any.
    on_data(&at, 3, (&x, &y), plainly).unwrap();
    let at = directory.path().join("pipeline");
    on_data(&at, 1, pipeline(90, &y), none).unwrap();
    refused(on_data(&at, 2, pipeline(80, &y), none));
    refused(on_data(&at, 2, pipeline(90, &reversed(&y)), none));
    on_data(&at, 2, pipeline(90, &y), none).unwrap();
}
