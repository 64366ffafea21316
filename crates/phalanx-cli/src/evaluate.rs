//! `phalanx evaluate`: saved weights on a test split, with pictures where asked.

use crate::args::Evaluate;
use crate::paths;
use crate::prepare::{Origin, Prepared, prepare};
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
    let strategy = args.place.strategy()?;
    let file = paths::weights(&args.file)?;
    let data = match Origin::read(&file, args.model)? {
        Some(origin) => origin.load(args.data.as_ref().unwrap_or(&origin.data))?,
        None => {
            let name = args.data.as_deref().unwrap_or("glyphs");
            prepare(Origin::network_of(&file, args.model)?, name, None, false)?
        }
    };
    let network = data.origin.network()?;
    let batch = args.batch.global(network.usual_batch(), strategy.num_replicas_in_sync())?;
    let mut model = data.origin.build()?;
    model.compile(network.compile(strategy))?;
    model.load_weights(&file)?;
    let test = Arrays::new(data.test.0.clone(), data.test.1.clone())?.batch(batch)?;
    let logs = model.evaluate_with(&test, Inference::new())?;
    let text: Vec<String> = logs.iter().map(|(name, v)| format!("{name}: {v:.4}")).collect();
    writeln!(std::io::stdout().lock(), "test - {}", text.join(" - "))?;
    if args.confusion.is_some() || args.samples.is_some() {
        draw(args, &data, &model.predict(&test)?)?;
    }
    Ok(())
}

fn draw(args: &Evaluate, data: &Prepared, scores: &Tensor) -> Result<()> {
    let guesses = best(scores);
    let labels = data.test.1.i32().unwrap_or_default();
    let truths: Vec<usize> = labels.iter().map(|l| usize::try_from(*l).unwrap_or(0)).collect();
    let names = &data.origin.classes;
    if let Some(path) = &args.confusion {
        let mut counts = vec![vec![0; names.len()]; names.len()];
        for (truth, guess) in truths.iter().zip(&guesses) {
            counts[*truth][*guess] += 1;
        }
        let title = format!("{} on {}", data.origin.network()?.name(), data.name);
        pictures::confusion_matrix(&counts, names, &title, path)?;
    }
    if let Some(path) = &args.samples {
        let shown = SHOWN.min(truths.len());
        let images = data.pictures.slice_rows(0..shown).map(|s| s.to_tensor());
        let captions: Vec<(String, bool)> = truths
            .iter()
            .zip(&guesses)
            .take(shown)
            .map(|(truth, guess)| {
                (format!("{} ({})", names[*guess], names[*truth]), truth == guess)
            })
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
