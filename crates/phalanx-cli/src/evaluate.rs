//! `phalanx evaluate`: saved weights on a test split, with pictures where asked.

use crate::args::Evaluate;
use anyhow::Result;
use phalanx::pictures;
use phalanx::prelude::*;
use std::io::Write;

/// Samples drawn into the picture.
const SHOWN: usize = 40;

/// Evaluates and prints.
pub fn run(args: &Evaluate) -> Result<()> {
    let mut model = args.model.compiled(&args.place)?;
    model.load_weights(&args.file)?;
    let data = args.model.load(&args.data)?;
    let (x, y) = data.test;
    let test = Arrays::new(x, y.clone())?;
    let logs = model.evaluate(test.clone(), args.model.usual().batch)?;
    let text: Vec<String> = logs.iter().map(|(name, v)| format!("{name}: {v:.4}")).collect();
    writeln!(std::io::stdout().lock(), "test - {}", text.join(" - "))?;
    if args.confusion.is_none() && args.samples.is_none() {
        return Ok(());
    }
    let scores = model.predict(test)?;
    let guesses = best(&scores);
    let truths: Vec<usize> =
        y.i32().unwrap_or_default().iter().map(|l| usize::try_from(*l).unwrap_or(0)).collect();
    let classes = scores.row_len();
    if let Some(path) = &args.confusion {
        let mut counts = vec![vec![0; classes]; classes];
        for (truth, guess) in truths.iter().zip(&guesses) {
            counts[*truth][*guess] += 1;
        }
        let labels: Vec<String> = (0..classes).map(|c| c.to_string()).collect();
        let title = format!("{} on {}", model.name(), args.data);
        pictures::confusion_matrix(&counts, &labels, &title, path)?;
    }
    if let Some(path) = &args.samples {
        let shown = SHOWN.min(truths.len());
        let images = data.pictures.slice_rows(0..shown).map(|s| s.to_tensor());
        let captions: Vec<(String, bool)> = truths
            .iter()
            .zip(&guesses)
            .take(shown)
            .map(|(truth, guess)| (format!("{guess} ({truth})"), truth == guess))
            .collect();
        if let Some(images) = images {
            pictures::samples(&images, &captions, 8, path)?;
        }
    }
    Ok(())
}

/// The best class of every row.
fn best(scores: &Tensor) -> Vec<usize> {
    let width = scores.row_len().max(1);
    let rows = scores.f32().unwrap_or_default().chunks_exact(width);
    rows.map(|row| {
        let largest = row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
        largest.map_or(0, |(i, _)| i)
    })
    .collect()
}
