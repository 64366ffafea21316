//! `phalanx evaluate`: evaluates a saved model on a test split, with optional plots.

use crate::args::Evaluate;
use crate::context::RunContext;
use crate::model_file::Purpose;
use crate::model_spec::ModelSpec;
use crate::network::ModelArg;
use crate::paths;
use crate::prepare::{DataRequest, PreparedData, prepare, prepare_for_trained};
use crate::report;
use crate::terminal;
use anyhow::{Result, bail};
use phalanx::plots;
use phalanx::prelude::*;
use phalanx::text::shown;
use std::io::Write;

/// Maximum number of samples in the plot.
const MAX_SAMPLES_DRAWN: usize = 40;

/// Evaluates and prints.
pub fn run(args: &Evaluate, context: &RunContext) -> Result<()> {
    paths::check_plot("--confusion", args.confusion.as_deref())?;
    paths::check_plot("--samples", args.samples.as_deref())?;
    let confusion = ("--confusion", args.confusion.as_deref());
    paths::check_distinct(("--samples", args.samples.as_deref()), &[confusion])?;
    let strategy = context.worker_strategy(&args.device_args)?;
    let chief = strategy.is_chief();
    let spec = model_spec(args)?;
    let preprocessing = spec.preprocessing.as_ref();
    let name = args
        .data
        .as_deref()
        .or(preprocessing.map(|preprocessing| &*preprocessing.data))
        .unwrap_or("glyphs");
    let request = DataRequest::plain(name, &args.data_args);
    let data = match preprocessing {
        Some(preprocessing) => prepare_for_trained(&spec, preprocessing, &request, &strategy)?,
        None => prepare(&spec, &request, &strategy)?,
    };
    if args.confusion.is_some() || args.samples.is_some() {
        check_plottable(args, &data)?;
    }
    let classes = data.preprocessing.classes.len();
    if args.confusion.is_some() && classes > plots::MAX_CLASSES {
        let max = plots::MAX_CLASSES;
        bail!("--confusion: expected at most {max} classes, received {classes}");
    }
    let replicas = strategy.num_replicas_in_sync();
    let batch = spec.batch_size(args.batch, spec.default_batch_size(), replicas)?;
    let mut model = spec.compiled_model(
        &data.preprocessing,
        &data.objective.source,
        Purpose::Evaluate,
        strategy.into(),
    )?;
    let rows = || data.evaluated().in_order(batch);
    let logs = model.evaluate_with(rows()?, Inference::new())?;
    if chief {
        let mut out = terminal::stdout();
        writeln!(out, "{}", report::describe_evaluated(&data))?;
        writeln!(out, "{}", report::describe_inputs(&data))?;
        writeln!(out, "test - {logs}")?;
    }
    if args.confusion.is_some() || args.samples.is_some() {
        let outputs = model.predict(rows()?)?;
        if chief {
            draw(args, &spec, &data, &outputs)?;
        }
    }
    Ok(())
}

/// The model of FILE: a model or weights file, or with `--weights` the model that the weights belong to.
fn model_spec(args: &Evaluate) -> Result<ModelSpec> {
    match &args.weights {
        Some(weights) => ModelSpec::from_file(
            &paths::resolve_weights(weights)?,
            Some(&ModelArg::from_path(&args.file)),
        ),
        None => ModelSpec::from_file(&paths::resolve_weights(&args.file)?, args.model.as_ref()),
    }
}

/// Checks that each row has a class, which plots need.
fn check_plottable(args: &Evaluate, data: &PreparedData) -> Result<()> {
    if data.labels.is_some() {
        return Ok(());
    }
    let flag = if args.confusion.is_some() { "--confusion" } else { "--samples" };
    bail!("{flag}: expected a classifier, and data with a class for each row")
}

/// Draws the requested plots.
fn draw(args: &Evaluate, spec: &ModelSpec, data: &PreparedData, outputs: &Tensor) -> Result<()> {
    let guesses = best_classes(spec, outputs);
    let labels = data.labels.as_deref().unwrap_or_default();
    let truths: Vec<usize> = labels.iter().map(|l| usize::try_from(*l).unwrap_or(0)).collect();
    let names = &data.preprocessing.classes;
    if let Some(path) = &args.confusion {
        let mut counts = vec![vec![0; names.len()]; names.len()];
        for (truth, guess) in truths.iter().zip(&guesses) {
            if let Some(count) = counts.get_mut(*truth).and_then(|row| row.get_mut(*guess)) {
                *count += 1;
            }
        }
        let title = format!("{} on {}", spec.name(), data.name);
        plots::confusion_matrix(&counts, names, &title, path)?;
    }
    if let Some(path) = &args.samples {
        let count = MAX_SAMPLES_DRAWN.min(truths.len());
        // Each element as a byte and as a float.
        let bytes = data.raw_inputs.dims().iter().product::<usize>().saturating_mul(5 * count);
        if bytes > phalanx::free_memory() {
            bail!("--samples: no memory for {count} images of {:?}", data.raw_inputs.dims());
        }
        let images = data.raw_inputs.first(count)?;
        let captions: Vec<(String, bool)> = truths
            .iter()
            .zip(&guesses)
            .take(count)
            .map(|(truth, guess)| {
                let name = |class: &usize| shown(names.get(*class).map_or("?", String::as_str));
                (format!("{} ({})", name(guess), name(truth)), truth == guess)
            })
            .collect();
        if let Some(images) = images {
            plots::samples(&images, &captions, "prediction (true class)", 8, path)?;
        }
    }
    Ok(())
}

/// The most probable class of every row.
fn best_classes(spec: &ModelSpec, outputs: &Tensor) -> Vec<usize> {
    let width = outputs.row_len().max(1);
    let rows = outputs.f32().unwrap_or_default().chunks_exact(width);
    rows.map(|row| {
        let probabilities = spec.probabilities(row);
        let largest = probabilities.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
        largest.map_or(0, |(i, _)| i)
    })
    .collect()
}
