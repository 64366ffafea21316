//! `phalanx evaluate`: saved weights on a test split, with pictures where asked.

use crate::args::Evaluate;
use crate::network::Choice;
use crate::paths;
use crate::prepare::{Prepared, load, prepare};
use crate::subject::Subject;
use crate::terminal;
use anyhow::{Result, bail};
use phalanx::pictures;
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
    let strategy = args.place.workers()?;
    let chief = strategy.is_chief();
    let subject = subject(args)?;
    let data = match &subject.origin {
        Some(origin) => {
            load(&subject, origin, args.data.as_ref().unwrap_or(&origin.data), &strategy)?
        }
        None => {
            prepare(&subject, args.data.as_deref().unwrap_or("glyphs"), None, false, &strategy)?
        }
    };
    let classes = data.origin.classes.len();
    if args.confusion.is_some() && classes > pictures::MAX_CLASSES {
        let most = pictures::MAX_CLASSES;
        bail!("--confusion: expected at most {most} classes, received {classes}");
    }
    let batch = args.batch.global(subject.usual_batch(), strategy.num_replicas_in_sync())?;
    let mut model = subject.compiled(&data.origin, strategy.into())?;
    let test = || data.test.0.in_order(&data.test.1, batch);
    let logs = model.evaluate_with(test()?, Inference::new())?;
    let text: Vec<String> =
        logs.iter().map(|(name, v)| format!("{}: {v:.4}", shown(name))).collect();
    if chief {
        writeln!(terminal::stdout(), "test - {}", text.join(" - "))?;
    }
    if args.confusion.is_some() || args.samples.is_some() {
        let outputs = model.predict(test()?)?;
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

fn draw(args: &Evaluate, subject: &Subject, data: &Prepared, outputs: &Tensor) -> Result<()> {
    let guesses = best(subject, outputs);
    let labels = data.labels.i32().unwrap_or_default();
    let truths: Vec<usize> = labels.iter().map(|l| usize::try_from(*l).unwrap_or(0)).collect();
    let names = &data.origin.classes;
    if let Some(path) = &args.confusion {
        let mut counts = vec![vec![0; names.len()]; names.len()];
        for (truth, guess) in truths.iter().zip(&guesses) {
            counts[*truth][*guess] += 1;
        }
        let title = format!("{} on {}", subject.name(), data.name);
        pictures::confusion_matrix(&counts, names, &title, path)?;
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
                let named = |class: usize| shown(&names[class]);
                (format!("{} ({})", named(*guess), named(*truth)), truth == guess)
            })
            .collect();
        if let Some(images) = images {
            pictures::samples(&images, &captions, 8, path)?;
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
