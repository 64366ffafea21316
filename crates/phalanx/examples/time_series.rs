//! A forecast with an LSTM: from 48 hours of a generated load curve with a daily rhythm, a weekly rhythm and noise, the
//! network predicts the next 6 hours. The baseline repeats the day before.
//!
//! `cargo run --release -p phalanx --example time_series -- --epochs 10`

pub mod arguments;

use phalanx::Stream;
use phalanx::prelude::*;
use std::f64::consts::TAU;

const PAST: usize = 48;
const FUTURE: usize = 6;

fn main() -> Result<()> {
    let flags = arguments::read("[--epochs N] [--hours N]")?;
    let hours = flags.number("--hours", 6000)?;
    let (error, baseline) = run(hours, flags.number("--epochs", 10)?, 2)?;
    println!("mean absolute error {error:.3}, of the day before {baseline:.3}");
    Ok(())
}

/// A load per hour, around zero.
fn series(hours: usize) -> Vec<f32> {
    let mut rng = Stream::new(3, 0, 0, 0);
    let load = |hour: usize| {
        let day = (TAU * hour as f64 / 24.0).sin();
        let week = 0.5 * (TAU * hour as f64 / 168.0).cos();
        // Mornings are steeper at the end of a week.
        let shape = 0.4 * (2.0 * TAU * hour as f64 / 24.0).cos() * week;
        (day + week + shape + 0.2 * (rng.unit() - 0.5)) as f32
    };
    (0..hours).map(load).collect()
}

/// Windows of the series: the past as input, the future as target.
fn windows(series: &[f32]) -> Result<(Tensor, Tensor)> {
    let rows = series.len() - PAST - FUTURE + 1;
    let x = (0..rows).flat_map(|i| &series[i..i + PAST]).copied().collect::<Vec<f32>>();
    let y = (0..rows).flat_map(|i| &series[i + PAST..i + PAST + FUTURE]).copied();
    let y = y.collect::<Vec<f32>>();
    Ok((Tensor::new([rows, PAST, 1], x)?, Tensor::new([rows, FUTURE], y)?))
}

/// Trains on the first four fifths; returns the mean absolute errors of the network and of the baseline on the rest.
pub fn run(hours: usize, epochs: usize, verbose: u8) -> Result<(f64, f64)> {
    let series = series(hours);
    let (past, recent) = series.split_at(hours * 4 / 5);
    let mut model = Sequential::new()
        .add(Input::new([PAST, 1]))
        .add(LSTM::new(24))
        .add(Dense::new(FUTURE))
        .build()?;
    model.compile(Compile::new(Adam::new(5e-3)).loss("mse").metrics(["mae"]))?;
    model.fit(windows(past)?, Fit::new().epochs(epochs).batch_size(32).verbose(verbose))?;
    let logs = model.evaluate(windows(recent)?)?;
    let errors = (24..recent.len()).map(|i| f64::from((recent[i] - recent[i - 24]).abs()));
    let baseline = errors.sum::<f64>() / (recent.len() - 24) as f64;
    Ok((logs.get("mae").unwrap_or(f64::NAN), baseline))
}
