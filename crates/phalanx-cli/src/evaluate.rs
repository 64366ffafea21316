//! `phalanx evaluate`: saved weights on a test split, with pictures where asked.

use crate::args::Evaluate;
use crate::network::Choice;
use crate::paths;
use crate::prepare::{Prepared, load, prepare};
use crate::subject::Subject;
use anyhow::Result;
use phalanx::pictures;
use phalanx::prelude::*;
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
    let batch = args.batch.global(subject.usual_batch(), strategy.num_replicas_in_sync())?;
    let mut model = subject.compiled(&data.origin, strategy.into())?;
    let test = || data.test.0.in_order(&data.test.1, batch);
    let logs = model.evaluate_with(test()?, Inference::new())?;
    let text: Vec<String> = logs.iter().map(|(name, v)| format!("{name}: {v:.4}")).collect();
    if chief {
        writeln!(std::io::stdout().lock(), "test - {}", text.join(" - "))?;
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
        let shown = SHOWN.min(truths.len());
        let images = data.pictures.first(shown)?;
        let captions: Vec<(String, bool)> = truths
            .iter()
            .zip(&guesses)
            .take(shown)
            .map(|(truth, guess)| {
                (format!("{} ({})", names[*guess], names[*truth]), truth == guess)
            })
            .collect();
        if let Some(images) = images {
            pictures::samples(&images, &captions, "prediction (true class)", 8, path)?;
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
