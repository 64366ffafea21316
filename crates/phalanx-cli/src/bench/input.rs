//! How fast a dataset's batches are made, and whether training has to wait for them.

use super::Job;
use crate::args::{Bench, DataArgs};
use crate::prepare::{Asked, prepare};
use crate::train;
use anyhow::Result;
use phalanx::data::HostBatch;
use phalanx::prelude::*;
use serde_json::{Value, json};
use std::io::Write;
use std::time::Instant;

/// Batches made to measure the loader.
const BATCHES: usize = 200;

/// What was measured, in images a second.
pub struct Input {
    data: String,
    /// Made by one thread that does nothing else.
    loader: f64,
    /// Trained on, made on the side.
    fed: f64,
}

/// Makes batches alone, then trains on them.
pub fn measure(args: &Bench, name: &str, job: &mut Job, steps: usize) -> Result<Input> {
    let Job { model, subject, batch, .. } = job;
    let batch = *batch;
    let reading = DataArgs::default();
    let asked = Asked::plain(name, &reading);
    let data = prepare(subject, &asked, &MirroredStrategy::new().into())?;
    let flow = || train::flow(&args.augment, true, &data, batch);
    let loader = loader_rate(&flow()?)?;
    let fit = || Fit::new().epochs(1).steps_per_epoch(steps).verbose(0);
    model.fit(flow()?, fit().steps_per_epoch(1))?;
    let begin = Instant::now();
    model.fit(flow()?, fit())?;
    let fed = steps as f64 * batch as f64 / begin.elapsed().as_secs_f64();
    Ok(Input { data: name.into(), loader, fed })
}

/// Images a second that one thread prepares.
fn loader_rate(data: &dyn Dataset) -> Result<f64> {
    let mut batch = HostBatch::default();
    let (mut images, mut epoch) = (0, data.epoch(0, 0, 0)?);
    let begin = Instant::now();
    for _ in 0..BATCHES {
        if !epoch.next(&mut batch)? {
            break;
        }
        images += batch.rows;
    }
    Ok(images as f64 / begin.elapsed().as_secs_f64())
}

impl Input {
    /// In words; `steps` is the speed without loading.
    pub fn print(&self, steps: f64, out: &mut impl Write) -> std::io::Result<()> {
        let Input { data, loader, fed } = self;
        writeln!(
            out,
            "{data}: one core makes {loader:.0} images/s; fed with them training runs at {fed:.0} \
             images/s, {:.0}% of its speed on one batch",
            100.0 * fed / steps
        )
    }

    /// For programs to read.
    pub fn json(&self) -> Value {
        json!({
            "data": self.data,
            "loader_images_per_second": self.loader.round(),
            "fed_images_per_second": self.fed.round(),
        })
    }
}
