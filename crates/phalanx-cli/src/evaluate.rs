//! `phalanx evaluate`: saved weights on a test split, with pictures where asked.

use crate::args::Evaluate;
use crate::model_file::Purpose;
use crate::network::Choice;
use crate::paths;
use crate::prepare::{Asked, Prepared, load, prepare};
use crate::report;
use crate::subject::Subject;
use crate::terminal;
use anyhow::{Result, bail};
use phalanx::plots;
use phalanx::prelude::*;
use phalanx::text::shown;
use std::io::Write;

/// Samples drawn into the picture.
const SHOWN: usize = 40;

/// Evaluates and prints.
pub fn run(args: &Evaluate) -> Result<()> {
    let kinds = ["png", "svg"];
    paths::check_file("--confusion", args.confusion.as_deref(), &kinds)?;
    paths::check_file("--samples", args.samples.as_deref(), &kinds)?;
    let confusion = ("--confusion", args.confusion.as_deref());
    paths::check_apart(("--samples", args.samples.as_deref()), &[confusion])?;
    let strategy = args.place.workers()?;
    let chief = strategy.is_chief();
    let subject = subject(args)?;
    let origin = subject.origin.as_ref();
    let name = args.data.as_deref().or(origin.map(|origin| &*origin.data)).unwrap_or("glyphs");
    let asked = Asked::plain(name, &args.reading);
    let data = match origin {
        Some(origin) => load(&subject, origin, &asked, &strategy)?,
        None => prepare(&subject, &asked, &strategy)?,
    };
    if args.confusion.is_some() || args.samples.is_some() {
        check_drawable(args, &data)?;
    }
    let classes = data.origin.classes.len();
    if args.confusion.is_some() && classes > plots::MAX_CLASSES {
        let most = plots::MAX_CLASSES;
        bail!("--confusion: expected at most {most} classes, received {classes}");
    }
    let batch = args.batch.global(subject.usual_batch(), strategy.num_replicas_in_sync())?;
    let how = strategy.into();
    let mut model = subject.compiled(&data.origin, &data.goal, Purpose::Evaluate, how)?;
    let rows = || data.evaluated().in_order(batch);
    let logs = model.evaluate_with(rows()?, Inference::new())?;
    let text: Vec<String> =
        logs.iter().map(|(name, v)| format!("{}: {v:.4}", shown(name))).collect();
    if chief {
        let mut out = terminal::stdout();
        writeln!(out, "{}", report::evaluated(&data))?;
        writeln!(out, "{}", report::fed(&data))?;
        writeln!(out, "test - {}", text.join(" - "))?;
    }
    if args.confusion.is_some() || args.samples.is_some() {
        let outputs = model.predict(rows()?)?;
        if chief {
            draw(args, &subject, &data, &outputs)?;
        }
    }
    Ok(())
}

/// What FILE stands for: a model or weights, or with --weights a model that those belong to.
fn subject(args: &Evaluate) -> Result<Subject> {
    match &args.weights {
        Some(weights) => Subject::saved(&paths::weights(weights)?, Some(&Choice::of(&args.file))),
        None => Subject::saved(&paths::weights(&args.file)?, args.model.as_ref()),
    }
}

/// Pictures need one class for each row.
fn check_drawable(args: &Evaluate, data: &Prepared) -> Result<()> {
    if data.labels.is_some() {
        return Ok(());
    }
    let flag = if args.confusion.is_some() { "--confusion" } else { "--samples" };
    bail!("{flag}: expected a model that tells classes apart, and data with a class for each row")
}

fn draw(args: &Evaluate, subject: &Subject, data: &Prepared, outputs: &Tensor) -> Result<()> {
    let guesses = best(subject, outputs);
    let labels = data.labels.as_deref().unwrap_or_default();
    let truths: Vec<usize> = labels.iter().map(|l| usize::try_from(*l).unwrap_or(0)).collect();
    let names = &data.origin.classes;
    if let Some(path) = &args.confusion {
        let mut counts = vec![vec![0; names.len()]; names.len()];
        for (truth, guess) in truths.iter().zip(&guesses) {
            if let Some(count) = counts.get_mut(*truth).and_then(|row| row.get_mut(*guess)) {
                *count += 1;
            }
        }
        let title = format!("{} on {}", subject.name(), data.name);
        plots::confusion_matrix(&counts, names, &title, path)?;
    }
    if let Some(path) = &args.samples {
        let count = SHOWN.min(truths.len());
        // As bytes, and as the floats that they are drawn from.
        let bytes = data.pictures.dims().iter().product::<usize>().saturating_mul(5 * count);
        if bytes > phalanx::free_memory() {
            bail!("--samples: no memory for {count} images of {:?}", data.pictures.dims());
        }
        let images = data.pictures.first(count)?;
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

/// The best class of every row.
fn best(subject: &Subject, outputs: &Tensor) -> Vec<usize> {
    let width = outputs.row_len().max(1);
    let rows = outputs.f32().unwrap_or_default().chunks_exact(width);
    rows.map(|row| {
        let chances = subject.probabilities(row);
        let largest = chances.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
        largest.map_or(0, |(i, _)| i)
    })
    .collect()
}
