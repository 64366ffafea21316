//! `phalanx bench`: speed on synthetic data, the median of three windows.

use crate::args::Bench;
use crate::prepare::Origin;
use anyhow::{Context, Result};
use phalanx::prelude::*;
use std::io::Write;
use std::time::Instant;

/// Measures and prints.
pub fn run(args: &Bench) -> Result<()> {
    let network = args.model.network()?;
    let strategy = args.place.strategy()?;
    let batch = args.batch.global(network, strategy.num_replicas_in_sync())?;
    let mut model = Origin::usual(network).build()?;
    model.compile(network.compile(strategy))?;
    let kind = if args.inference { StepKind::Predict } else { StepKind::Train };
    let planned = model.program(kind, batch)?.device_bytes();
    let (x, y) = synthetic(batch, &network.dims(&network.usual_input()))?;
    let mut step = || -> Result<()> {
        if args.inference {
            model.predict_with(&x, Inference::new().batch_size(batch))?;
        } else {
            model.train_on_batch(&x, &y)?;
        }
        Ok(())
    };
    step()?;
    let setup = process_age();
    let begin = Instant::now();
    for _ in 0..3 {
        step()?;
    }
    let each = begin.elapsed().as_secs_f64() / 3.0;
    let steps = args.steps.unwrap_or(((1.0 / each) as usize).clamp(3, 5000)).max(1);
    let mut windows = vec![];
    for _ in 0..3 {
        let begin = Instant::now();
        for _ in 0..steps {
            step()?;
        }
        windows.push(begin.elapsed().as_secs_f64() / steps as f64);
    }
    windows.sort_by(f64::total_cmp);
    let seconds = windows[1];
    let mib = |bytes: f64| (bytes / f64::from(1 << 20) * 10.0).round() / 10.0;
    let mut out = std::io::stdout().lock();
    if args.json {
        let line = serde_json::json!({
            "model": model.name(),
            "task": if args.inference { "infer" } else { "train" },
            "batch": batch,
            "devices": model.devices()?,
            "images_per_second": (batch as f64 / seconds * 10.0).round() / 10.0,
            "step_ms": (seconds * 1e6).round() / 1e3,
            "setup_s": setup,
            "peak_rss_mib": mib(peak_rss() as f64),
            "planned_mib": mib(planned as f64),
        });
        writeln!(out, "{line}")?;
    } else {
        writeln!(
            out,
            "{}: {:.0} images/s, {:.3} ms/step (batch {batch}, {steps} steps per window)",
            model.name(),
            batch as f64 / seconds,
            seconds * 1e3,
        )?;
        writeln!(
            out,
            "first step after {setup:.2} s; peak memory {} MiB, planned {} MiB",
            mib(peak_rss() as f64),
            mib(planned as f64)
        )?;
    }
    Ok(())
}

/// A batch of noise with labels.
fn synthetic(batch: usize, input: &[usize]) -> Result<(Tensor, Tensor)> {
    let mut dims = vec![batch];
    dims.extend(input);
    let len = dims.iter().try_fold(1usize, |n, d| n.checked_mul(*d)).context("batch too large")?;
    let mut rng = phalanx::Stream::new(0, 0, 1, 0);
    let mut x: Vec<f32> = vec![];
    x.try_reserve_exact(len).with_context(|| format!("no memory for a batch of {batch}"))?;
    x.extend((0..len).map(|_| rng.unit() as f32));
    let y: Vec<i32> = (0..batch).map(|_| rng.below(10) as i32).collect();
    Ok((Tensor::new(dims, x)?, Tensor::new([batch], y)?))
}

/// Seconds since this process was created.
fn process_age() -> f64 {
    let read = || -> Option<f64> {
        let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
        let start: f64 = stat.rsplit(')').next()?.split_whitespace().nth(19)?.parse().ok()?;
        let up = std::fs::read_to_string("/proc/uptime").ok()?;
        let up: f64 = up.split_whitespace().next()?.parse().ok()?;
        // Linux reports start times in hundredths of a second.
        Some(up - start / 100.0)
    };
    read().unwrap_or(f64::NAN)
}

/// Largest resident size so far, in bytes; 0 where the system does not say.
fn peak_rss() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|l| l.starts_with("VmHWM:"));
    let kib = line.and_then(|l| l.split_whitespace().nth(1)).and_then(|v| v.parse::<usize>().ok());
    kib.map_or(0, |k| k * 1024)
}
