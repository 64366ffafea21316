//! Input throughput: how fast batches of a dataset are produced, and whether training waits for them.

use super::Benchmark;
use crate::args::{Bench, DataArgs};
use crate::prepare::{DataRequest, prepare};
use crate::train;
use anyhow::Result;
use phalanx::data::HostBatch;
use phalanx::prelude::*;
use serde_json::{Value, json};
use std::io::Write;
use std::time::Instant;

/// Number of batches produced to measure the loader.
const LOADER_BATCHES: usize = 200;

/// The measured rates, in images per second.
pub struct InputRates {
    data: String,
    /// Images produced by one dedicated thread.
    loader: f64,
    /// Images trained on while they are loaded in the background.
    fed: f64,
}

/// Measures the loader alone, then training on its batches.
pub fn measure(args: &Bench, name: &str, job: &mut Benchmark, steps: usize) -> Result<InputRates> {
    let Benchmark { model, spec, batch, .. } = job;
    let batch = *batch;
    let data_args = DataArgs::default();
    let request = DataRequest::plain(name, &data_args);
    let data = prepare(spec, &request, &MirroredStrategy::new().into())?;
    let flow = || train::augmented_flow(&args.augment, true, &data, batch);
    let loader = loader_rate(&flow()?)?;
    let fit = || Fit::new().epochs(1).steps_per_epoch(steps).verbose(0);
    model.fit(flow()?, fit().steps_per_epoch(1))?;
    let begin = Instant::now();
    model.fit(flow()?, fit())?;
    let fed = steps as f64 * batch as f64 / begin.elapsed().as_secs_f64();
    Ok(InputRates { data: name.into(), loader, fed })
}

/// Images per second that one thread produces.
fn loader_rate(data: &dyn Dataset) -> Result<f64> {
    let mut batch = HostBatch::default();
    let (mut images, mut epoch) = (0, data.epoch(0, 0, 0)?);
    let begin = Instant::now();
    for _ in 0..LOADER_BATCHES {
        if !epoch.next(&mut batch)? {
            break;
        }
        images += batch.rows;
    }
    Ok(images as f64 / begin.elapsed().as_secs_f64())
}

impl InputRates {
    /// Prints the rates. `unfed` is the training rate on one batch, without loading.
    pub fn print(&self, unfed: f64, out: &mut impl Write) -> std::io::Result<()> {
        let InputRates { data, loader, fed } = self;
        writeln!(
            out,
            "{data}: one core makes {loader:.0} images/s; fed with them training runs at {fed:.0} \
             images/s, {:.0}% of its speed on one batch",
            100.0 * fed / unfed
        )
    }

    /// The rates as JSON.
    pub fn json(&self) -> Value {
        json!({
            "data": self.data,
            "loader_images_per_second": self.loader.round(),
            "fed_images_per_second": self.fed.round(),
        })
    }
}
