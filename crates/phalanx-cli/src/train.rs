//! `phalanx train`: trains a model and evaluates it.

use crate::args::{Augment, Schedule, Train};
use crate::context::RunContext;
use crate::defaults;
use crate::model_file::Purpose;
use crate::model_spec::{CompileOptions, ModelSpec, is_imagenet, save};
use crate::network::ModelArg;
use crate::paths::{self, is_stdout};
use crate::prepare::{DataRequest, PreparedData, prepare};
use crate::report::{self, RunSizes};
use crate::resume_warnings::RecordedFlags;
use crate::samples::SampleSource;
use crate::signals;
use crate::terminal;
use anyhow::{Context, Result, bail};
use phalanx::callbacks::{CSVLogger, JsonLines, TensorBoard};
use phalanx::data::{ImageDataGenerator, ImageFlow};
use phalanx::model::{IntoDataset, Source};
use phalanx::optimizers;
use phalanx::plots;
use phalanx::prelude::*;
use phalanx::strategy::Backend;
use serde_json::Value;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

/// Trains and evaluates.
pub fn run(args: &Train, context: &RunContext) -> Result<()> {
    let begin = Instant::now();
    let strategy = context.worker_strategy(&args.device_args)?.deterministic(args.deterministic);
    let interrupt = signals::interrupt()?;
    strategy.watch(&interrupt);
    let silent = (!strategy.is_chief()).then(|| args.silent());
    let args = silent.as_ref().unwrap_or(args);
    let spec = validate(args)?;
    let default = defaults::batch_size(&spec, strategy.local());
    let requested = spec.batch_size(args.batch, default, strategy.num_replicas_in_sync())?;
    let growth = lr_growth(args, &spec, strategy.num_replicas_in_sync());
    let args = &defaults::fill(args, &spec, requested);
    let data = prepare(&spec, &data_request(args), &strategy)?;
    let sizes = RunSizes::new(args, &strategy, &data, requested);
    let workers = strategy.num_workers();
    // A CSV or JSON stream on standard output must not contain other lines.
    let stdout_is_stream = is_stdout(args.json.as_deref()) || is_stdout(args.csv.as_deref());
    let verbose = if stdout_is_stream { 0 } else { args.verbose };

    let optimizer = optimizer(args, &spec, sizes.steps, growth)?;
    let options = CompileOptions { optimizer, strategy, seed: args.seed };
    let mut model =
        spec.compiled_model(&data.preprocessing, &data.objective.source, Purpose::Train, options)?;
    let rate = model.learning_rate()?;
    if verbose > 0 {
        report::print_header(&mut model, args, &sizes, (rate, growth), &data)?;
    }
    let json = args.json.as_ref().map(JsonLines::new);
    let fit = fit_arguments(args, &data, &sizes)?.verbose(verbose).interrupt(&interrupt);
    let mut fit = add_callbacks(args, fit, rate, verbose > 0);
    if let Some(json) = &json {
        fit = fit.callback(json.clone());
    }
    let loader_threads = loader_threads(&*model.backend()?);
    let batches = |batch| training_source(args, &data, batch, loader_threads);
    let history = model.fit(batches(sizes.batch)?, fit)?;
    if args.resume && history.run_seconds() == 0.0 && verbose > 0 {
        let done = history.epochs.len();
        writeln!(
            terminal::stdout(),
            "notice: the run already has {done} epochs; raise --epochs to continue it"
        )?;
    }
    let logs = evaluate_test_rows(&mut model, &data, &sizes)?;
    if let Some(path) = &args.save {
        save(&model, &data.preprocessing, path)?;
    }
    let measured = workers == 1 && sizes.replicas > 1 && !args.no_scaling && !args.deterministic;
    let scaling = match measured && (verbose > 0 || json.is_some()) {
        true => report::measure_scaling(&sizes, &history, &spec, &data, || {
            batches(sizes.per_replica())
        })?,
        false => None,
    };
    if let Some(json) = json {
        let mut fields = test_fields(logs.as_ref(), &history);
        fields.push(("seconds".into(), begin.elapsed().as_secs_f64().into()));
        fields.push(("weights_sha256".into(), model.weights_sha256()?.into()));
        let times = report::time_breakdown(&mut model, &history)?;
        fields.extend(times.map(|(name, v)| (format!("{name}_seconds"), v.into())));
        fields.extend(scaling.iter().map(|s| ("scaling_efficiency".into(), s.efficiency().into())));
        json.event("end", fields.iter().map(|(name, v)| (name.as_str(), v.clone())))?;
    }
    if let Some(path) = &args.output {
        let title = format!("{} on {}", model.name(), args.data);
        plots::curves(&history, &title, path)?;
    }
    if verbose > 0 {
        report::print_summary(&mut model, &history, logs.as_ref(), scaling.as_ref(), args)?;
    }
    Ok(())
}

/// Checks the arguments before any work is done.
fn validate(args: &Train) -> Result<ModelSpec> {
    let Some(model) = &args.model else {
        bail!("MODEL: expected a network on the command line or as `model` in the --config file");
    };
    if args.epochs == 0 {
        bail!("--epochs: expected 1 or more, received 0");
    }
    if args.steps_per_epoch == Some(0) {
        bail!("--steps-per-epoch: expected 1 or more, received 0");
    }
    paths::check_plot("--output", args.output.as_deref())?;
    paths::check_file("--save", args.save.as_deref(), &["keras", "h5", "hdf5", "safetensors"])?;
    paths::check_stream("--csv", args.csv.as_deref())?;
    paths::check_stream("--json", args.json.as_deref())?;
    check_distinct(args, model)?;
    paths::check_directory("--checkpoint-dir", args.checkpoint_dir.as_deref())?;
    paths::check_directory("--log-dir", args.log_dir.as_deref())?;
    let spec = ModelSpec::from_arg(model, args.weights.as_deref())?;
    if !args.augment.is_empty() && !spec.takes_images() {
        bail!("--augment: expected a network on images, received {}", spec.name());
    }
    Ok(spec)
}

/// Checks that outputs do not overwrite each other, and that logs do not overwrite inputs.
fn check_distinct(args: &Train, model: &ModelArg) -> Result<()> {
    let results = [
        ("--checkpoint-dir", args.checkpoint_dir.as_deref()),
        ("--log-dir", args.log_dir.as_deref()),
        ("--output", args.output.as_deref()),
        ("--save", args.save.as_deref()),
        ("--csv", args.csv.as_deref()),
        ("--json", args.json.as_deref()),
    ];
    for (i, result) in results.iter().enumerate().skip(2) {
        paths::check_distinct(*result, &results[..i])?;
    }
    let model = match model {
        ModelArg::File(path) => Some(path.as_path()),
        ModelArg::Network(_) => None,
    };
    // The name of a dataset is not a path.
    let data = Some(Path::new(&args.data)).filter(|data| data.exists());
    let read = [
        ("MODEL", model),
        ("--weights", args.weights.as_deref().filter(|weights| !is_imagenet(weights))),
        ("--data", data),
        ("--config", args.config.as_deref()),
    ];
    results[4..].iter().try_for_each(|log| paths::check_distinct(*log, &read))
}

/// How many times the batch of one replica the global batch is, if the learning rate does not follow it already.
fn lr_growth(args: &Train, spec: &ModelSpec, replicas: usize) -> usize {
    let fixed = args.batch.global_batch_size.is_some();
    if fixed || defaults::rate_follows_batch(args, spec) { 1 } else { replicas }
}

/// The optimizer that the arguments select; `None` for the model's own. `--scale-lr` multiplies its rate by `growth`.
fn optimizer(
    args: &Train,
    spec: &ModelSpec,
    steps: usize,
    growth: usize,
) -> Result<Option<Box<dyn Optimizer>>> {
    let named = args.optimizer.is_some() || args.momentum.is_some();
    let scaled = args.scale_lr && growth > 1;
    if !named && args.lr.is_none() && args.schedule != Some(Schedule::Cosine) && !scaled {
        return Ok(None);
    }
    let mut optimizer: Box<dyn Optimizer> = match (&args.optimizer, args.momentum) {
        (Some(name), Some(momentum)) if name.eq_ignore_ascii_case("sgd") => {
            Box::new(SGD::default().momentum(momentum))
        }
        (None, Some(momentum)) if spec.optimizer()?.class_name() == "SGD" => {
            let rate = spec.optimizer()?.common().learning_rate.clone();
            Box::new(SGD::new(rate).momentum(momentum))
        }
        (_, Some(_)) => bail!("--momentum: expected --optimizer sgd"),
        (Some(name), None) => optimizers::get(name).context("--optimizer")?,
        (None, None) => spec.optimizer()?,
    };
    if let Some(lr) = args.lr {
        optimizer.common_mut().learning_rate = lr.into();
    }
    if scaled {
        let common = optimizer.common_mut();
        common.learning_rate = common.learning_rate.clone().scaled(growth as f64);
    }
    if args.schedule == Some(Schedule::Cosine) {
        let rate = optimizer.common().learning_rate.at(0);
        let total = (steps as u64).saturating_mul(args.epochs as u64).max(1);
        optimizer.common_mut().learning_rate = CosineDecay::new(rate, total).into();
    }
    Ok(Some(optimizer))
}

/// The data that the arguments request.
fn data_request(args: &Train) -> DataRequest<'_> {
    let (size, grayscale) = (args.image_size, args.grayscale);
    let (args, name, validation_split) = (&args.data_args, &args.data, args.validation_split);
    DataRequest { name, args, size, grayscale, validation_split }
}

/// The training data, augmented if requested.
fn training_source(
    args: &Train,
    data: &PreparedData,
    batch: usize,
    loader_threads: usize,
) -> Result<Source> {
    if args.augment.is_empty() {
        return data.train.batches(!args.no_shuffle, batch);
    }
    let flow = augmented_flow(&args.augment, !args.no_shuffle, data, batch)?;
    Ok(match data.train.input()? {
        SampleSource::Memory(_) => flow.workers(loader_threads).into_source()?,
        SampleSource::Files(_) => flow.into_source()?,
    })
}

/// The number of augmentation threads: half of the cores if GPUs train, since those are idle.
fn loader_threads(backend: &dyn Backend) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    match backend.traits().on_host {
        true => 1,
        false => (cores / 2).clamp(1, 8),
    }
}

/// The augmented training images.
pub fn augmented_flow(
    augment: &[Augment],
    shuffle: bool,
    data: &PreparedData,
    batch: usize,
) -> Result<ImageFlow> {
    let mut aug = ImageDataGenerator::new().fill_mode("nearest");
    for kind in augment {
        aug = match kind {
            Augment::Shift => aug.width_shift_range(0.1).height_shift_range(0.1),
            Augment::Flip => aug.horizontal_flip(true),
            Augment::Rotate => aug.rotation_range(15.0),
            Augment::Zoom => aug.zoom_range(0.1),
            Augment::None => aug,
        };
    }
    Ok(data.train.flow(&aug, batch)?.shuffle(shuffle))
}

/// The arguments of `fit`. Validates on the validation rows, or on the test rows if there are none, as the tutorials do.
fn fit_arguments(args: &Train, data: &PreparedData, sizes: &RunSizes) -> Result<Fit> {
    let mut fit = Fit::new().epochs(args.epochs).shuffle(!args.no_shuffle);
    if let Some(steps) = args.steps_per_epoch {
        fit = fit.steps_per_epoch(steps);
    }
    match data.validation.as_ref().or(data.test.as_ref()) {
        Some(rows) => Ok(fit.validation_data(rows.in_order(sizes.batch)?)),
        None => Ok(fit),
    }
}

/// Loss and metrics on the test rows, if any.
fn evaluate_test_rows(
    model: &mut Model,
    data: &PreparedData,
    sizes: &RunSizes,
) -> Result<Option<Logs>> {
    let Some(test) = &data.test else { return Ok(None) };
    Ok(Some(model.evaluate_with(test.in_order(sizes.batch)?, Inference::new())?))
}

/// Loss and metrics on the test rows as JSON; `null` under the names of the training without test rows.
fn test_fields(logs: Option<&Logs>, history: &History) -> Vec<(String, Value)> {
    let field = |name: &str, value: Value| (format!("test_{name}"), value);
    match logs {
        Some(logs) => logs.to_json().map(|(name, value)| field(name, value)).collect(),
        None => {
            let names = history.names().filter(|name| !name.starts_with("val_") && *name != "lr");
            names.map(|name| field(name, Value::Null)).collect()
        }
    }
}

/// Adds the callbacks for the schedule, checkpoints and logs.
fn add_callbacks(args: &Train, mut fit: Fit, rate: f64, verbose: bool) -> Fit {
    let epochs = args.epochs.max(1) as f64;
    match args.schedule.unwrap_or(Schedule::Constant) {
        Schedule::Constant | Schedule::Cosine => {}
        Schedule::Poly => {
            let decay = move |epoch: usize| rate * (1.0 - epoch as f64 / epochs);
            fit = fit.callback(LearningRateScheduler::new(decay));
        }
        Schedule::Steps => {
            let decay = move |epoch: usize| match epoch {
                0..3 => rate,
                3..7 => rate / 10.0,
                _ => rate / 100.0,
            };
            fit = fit.callback(LearningRateScheduler::new(decay));
        }
    }
    if let Some(dir) = &args.checkpoint_dir {
        let mut backup = BackupAndRestore::new(dir).delete_checkpoint(false);
        if let Some(every) = args.checkpoint_every {
            backup = backup.save_freq(every);
        }
        let keep = usize::try_from(args.keep).unwrap_or(usize::MAX);
        fit = fit
            .callback(backup.keep_last(keep).restore(args.resume))
            .callback(RecordedFlags::new(args, verbose));
    }
    if let Some(dir) = &args.log_dir {
        fit = fit.callback(TensorBoard::new(dir));
    }
    if let Some(path) = &args.csv {
        fit = fit.callback(CSVLogger::new(path).first_epoch(1));
    }
    fit
}
