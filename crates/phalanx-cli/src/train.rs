//! `phalanx train`.

use crate::args::{Augment, Schedule, Train};
use crate::network::Prepared;
use anyhow::{Context, Result, bail};
use phalanx::callbacks::{CSVLogger, JsonLines, ModelCheckpoint, TensorBoard};
use phalanx::data::{ImageDataGenerator, ImageFlow};
use phalanx::model::{IntoDataset, Source};
use phalanx::optimizers;
use phalanx::pictures;
use phalanx::prelude::*;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Trains and evaluates.
pub fn run(args: &Train) -> Result<()> {
    let begin = Instant::now();
    check_paths(args)?;
    let strategy = args.place.strategy()?;
    let replicas = strategy.num_replicas_in_sync();
    let batch = global_batch(args, replicas)?;
    let data = args.model.load(&args.data)?;
    let held = args.model.validation_share().filter(|_| args.augment.is_empty()).unwrap_or(0.0);
    let trained = data.train.0.rows() as f64 * (1.0 - held);
    let steps = args.steps_per_epoch.unwrap_or((trained / batch as f64).ceil() as usize).max(1);

    let optimizer = optimizer(args, steps)?;
    let rate = optimizer.common().learning_rate.at(0);
    let mut model = args.model.build()?;
    model.compile(
        Compile::new(optimizer)
            .loss(args.model.loss())
            .metrics(["accuracy"])
            .strategy(strategy)
            .seed(args.seed),
    )?;
    // A JSON stream on standard output must not be mixed with anything else.
    let verbose = if args.json.as_deref() == Some(Path::new("-")) { 0 } else { args.verbose };
    if verbose > 0 {
        header(&mut model, batch, replicas, rate, steps)?;
    }

    let json = args.json.as_ref().map(JsonLines::new);
    let mut fit = Fit::new().epochs(args.epochs).shuffle(!args.no_shuffle).verbose(verbose);
    fit = if held > 0.0 {
        fit.validation_split(held)
    } else {
        let (x, y) = data.test.clone();
        fit.validation_data(Arrays::new(x, y)?.batch(batch)?)
    };
    if let Some(steps) = args.steps_per_epoch {
        fit = fit.steps_per_epoch(steps);
    }
    fit = callbacks(args, fit, rate)?;
    if let Some(json) = &json {
        fit = fit.callback(json.clone());
    }
    let source = source(&args.augment, !args.no_shuffle, &data, batch)?;
    let history = model.fit(source, fit)?;
    let test = Arrays::new(data.test.0, data.test.1)?;
    let logs = model.evaluate(test, batch)?;

    if let Some(path) = &args.save {
        model.save_weights(path)?;
    }
    if let Some(json) = json {
        let mut fields: Vec<(String, serde_json::Value)> =
            logs.iter().map(|(name, v)| (format!("test_{name}"), (*v).into())).collect();
        fields.push(("seconds".into(), begin.elapsed().as_secs_f64().into()));
        fields.push(("weights_sha256".into(), model.weights_sha256()?.into()));
        json.event("end", fields.iter().map(|(name, v)| (name.as_str(), v.clone())))?;
    }
    if verbose > 0 {
        report(&mut model, &history, &logs, args)?;
    }
    if let Some(path) = &args.output {
        let title = format!("{} on {}", model.name(), args.data);
        pictures::curves(&history, &title, path)?;
    }
    Ok(())
}

/// Places to write to are tried before hours of training, not after.
fn check_paths(args: &Train) -> Result<()> {
    let kinds: [(&str, &Option<PathBuf>, &[&str]); 2] =
        [("--output", &args.output, &["png", "svg"]), ("--save", &args.save, &["safetensors"])];
    for (flag, path, kinds) in kinds {
        let Some(path) = path else { continue };
        let parent = match path.parent() {
            Some(p) if !p.as_os_str().is_empty() => p,
            _ => Path::new("."),
        };
        if !parent.is_dir() {
            bail!(
                "{flag}: expected a file in a directory that exists, received {}",
                path.display()
            );
        }
        if path.is_dir() {
            bail!("{flag}: expected a file, received the directory {}", path.display());
        }
        let kind = path.extension().map(|e| e.to_string_lossy().to_lowercase());
        if !kind.as_deref().is_some_and(|k| kinds.contains(&k)) {
            let known = kinds.join(" or .");
            bail!("{flag}: expected a name ending in .{known}, received {}", path.display());
        }
    }
    Ok(())
}

fn global_batch(args: &Train, replicas: usize) -> Result<usize> {
    let each = args.batch_size.unwrap_or(args.model.usual().batch);
    let batch = match args.global_batch_size {
        Some(global) => global,
        None => each.checked_mul(replicas).context("--batch-size is too large")?,
    };
    if batch == 0 {
        bail!("--batch-size: expected 1 or more, received 0");
    }
    Ok(batch)
}

fn optimizer(args: &Train, steps: usize) -> Result<Box<dyn Optimizer>> {
    let mut optimizer = match (&args.optimizer, args.momentum) {
        (Some(name), Some(momentum)) if name.eq_ignore_ascii_case("sgd") => {
            Box::new(SGD::default().momentum(momentum))
        }
        (None, Some(momentum)) if args.model.optimizer().class_name() == "SGD" => {
            let rate = args.model.optimizer().common().learning_rate.clone();
            Box::new(SGD::new(rate).momentum(momentum))
        }
        (_, Some(_)) => bail!("--momentum: expected the optimizer sgd beside it"),
        (Some(name), None) => optimizers::get(name)?,
        (None, None) => args.model.optimizer(),
    };
    if let Some(lr) = args.lr {
        optimizer.common_mut().learning_rate = lr.into();
    }
    if args.schedule == Schedule::Cosine {
        let rate = optimizer.common().learning_rate.at(0);
        let total = (steps as u64).saturating_mul(args.epochs as u64).max(1);
        optimizer.common_mut().learning_rate = CosineDecay::new(rate, total).into();
    }
    Ok(optimizer)
}

/// The training data, distorted where asked.
fn source(augment: &[Augment], shuffle: bool, data: &Prepared, batch: usize) -> Result<Source> {
    if augment.is_empty() {
        let (x, y) = data.train.clone();
        return Ok(Source::Arrays(Arrays::new(x, y)?.batch(batch)?));
    }
    Ok(flow(augment, shuffle, data, batch)?.into_source()?)
}

/// The training images, distorted.
pub fn flow(
    augment: &[Augment],
    shuffle: bool,
    data: &Prepared,
    batch: usize,
) -> Result<ImageFlow> {
    let (x, y) = data.train.clone();
    let mut aug = ImageDataGenerator::new().fill_mode("nearest");
    for kind in augment {
        aug = match kind {
            Augment::Shift => aug.width_shift_range(0.1).height_shift_range(0.1),
            Augment::Flip => aug.horizontal_flip(true),
            Augment::Rotate => aug.rotation_range(15.0),
            Augment::Zoom => aug.zoom_range(0.1),
        };
    }
    Ok(aug.flow(x, y, batch)?.shuffle(shuffle))
}

fn callbacks(args: &Train, mut fit: Fit, rate: f64) -> Result<Fit> {
    let epochs = args.epochs.max(1) as f64;
    match args.schedule {
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
        std::fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
        let mut checkpoint = ModelCheckpoint::new(dir.join("ckpt-{epoch}.safetensors"));
        if let Some(every) = args.checkpoint_every {
            checkpoint = checkpoint.save_freq(every);
        }
        fit = fit.callback(checkpoint.save_weights_only(true));
    }
    if let Some(dir) = &args.log_dir {
        fit = fit.callback(TensorBoard::new(dir));
    }
    if let Some(path) = &args.csv {
        fit = fit.callback(CSVLogger::new(path));
    }
    Ok(fit)
}

fn header(model: &mut Model, batch: usize, replicas: usize, rate: f64, steps: usize) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let program = model.program(StepKind::Train, batch)?;
    writeln!(out, "devices: {} ({replicas} replica(s))", model.devices()?.join(", "))?;
    writeln!(
        out,
        "batch: {batch} global, {} per replica; learning rate {rate}; {steps} steps per epoch",
        batch.div_ceil(replicas),
    )?;
    writeln!(
        out,
        "parameters: {}; planned memory per device: {:.1} MiB of activations",
        model.count_params(),
        program.device_bytes() as f64 / f64::from(1 << 20),
    )?;
    Ok(())
}

/// Where the time went, and the closing evaluation.
fn report(
    model: &mut Model,
    history: &History,
    logs: &[(String, f64)],
    args: &Train,
) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let text: Vec<String> = logs.iter().map(|(name, v)| format!("{name}: {v:.4}")).collect();
    writeln!(out, "test - {}", text.join(" - "))?;
    let times = model.times()?;
    let all: f64 = history.seconds.iter().sum();
    if all > 0.0 {
        let share = |seconds: f64| 100.0 * seconds / all;
        let rest = (all - times.compute - times.reduce).max(0.0);
        writeln!(
            out,
            "training time {all:.1} s: compute {:.0}%, reduction and update {:.0}%, input and host {:.0}%",
            share(times.compute),
            share(times.reduce),
            share(rest),
        )?;
    }
    for (what, path) in [("weights", &args.save), ("curves", &args.output)] {
        if let Some(path) = path {
            writeln!(out, "{what}: {}", path.display())?;
        }
    }
    Ok(())
}
