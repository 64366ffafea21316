//! `phalanx bench`: throughput on synthetic data, as the median of three windows and the fastest tenth of all steps,
//! with an optional profile.

mod input;
mod profile;
mod synthetic;

use crate::args::Bench;
use crate::context::RunContext;
use crate::device_args::stored_precision;
use crate::model_file::Purpose;
use crate::model_spec::ModelSpec;
use crate::network::{ModelArg, Network};
use crate::terminal;
use anyhow::{Result, bail};
use phalanx::Profile;
use phalanx::model::PlannedDevices;
use phalanx::prelude::*;
use phalanx::strategy::Backend;
use phalanx::text::{escape_json, shown};
use std::io::Write;
use std::sync::Arc;
use std::time::Instant;

/// The results of a measurement.
struct Report {
    /// Whether this worker prints it.
    chief: bool,
    model: String,
    devices: Vec<String>,
    batch: usize,
    /// Steps per window.
    steps: usize,
    times: Times,
    /// Bytes planned for the replicas of one GPU, or for all CPU devices of this process.
    planned: usize,
    backend: Arc<dyn Backend>,
    /// The precision of stored activations.
    precision: &'static str,
    profile: Option<Profile>,
    input: Option<input::InputRates>,
}

/// Measured times, in seconds.
struct Times {
    /// Per step in the median window.
    step: f64,
    /// The first decile of the step times: barely affected by other programs on the machine.
    fastest: f64,
    /// From the start of the process to the end of the first step.
    setup: f64,
}

/// Measures and prints.
pub fn run(args: &Bench, context: &RunContext) -> Result<()> {
    let report = measure(args, context)?;
    if !report.chief {
        return Ok(());
    }
    if args.json { report.print_json(args) } else { report.print() }
}

/// A model that repeats steps on one batch.
struct Benchmark {
    model: Model,
    kind: StepKind,
    data: Arrays,
    batch: usize,
    spec: ModelSpec,
    /// Whether this worker prints.
    chief: bool,
    devices: PlannedDevices,
    backend: Arc<dyn Backend>,
}

/// Maximum number of steps per window.
const MAX_STEPS: usize = 10_000_000;
/// Maximum number of hidden layers. A deeper model takes minutes to build.
const MAX_DEPTH: usize = 1000;

impl Benchmark {
    fn new(args: &Bench, context: &RunContext) -> Result<Benchmark> {
        let spec = ModelSpec::from_arg(&args.model, None)?;
        spec.give_sizes(&args.shapes)?;
        if args.data.is_some() && !spec.takes_images() {
            bail!("--data: expected a network on images, received {}", spec.name());
        }
        let strategy = context.worker_strategy(&args.device_args)?;
        let chief = strategy.is_chief();
        if strategy.num_workers() > 1 && args.steps.is_none() {
            bail!("--steps: expected a number of steps, the same on all workers");
        }
        let replicas = strategy.num_replicas_in_sync();
        let batch = spec.batch_size(args.batch, spec.default_batch_size(), replicas)?;
        let devices = PlannedDevices::new(strategy.local().devices())?;
        let backend = strategy.local().backend().clone();
        let kind = if args.inference { StepKind::Predict } else { StepKind::Train };
        let model = match custom_mlp(args)? {
            Some(mut model) => {
                model.compile(Network::MnistMlp.compile(strategy))?;
                model
            }
            None if args.inference => {
                let (loss, _) = spec.default_loss();
                spec.compiled_model(
                    &spec.default_preprocessing(),
                    &loss,
                    Purpose::Predict,
                    strategy.into(),
                )?
            }
            None => spec.compiled_with_defaults(strategy)?,
        };
        let data = synthetic::batch(&model, &spec.default_loss().1, batch)?;
        Ok(Benchmark { model, kind, data, batch, spec, chief, devices, backend })
    }

    fn step(&mut self) -> Result<()> {
        if self.kind == StepKind::Predict {
            self.model.predict_with(&self.data, Inference::new().batch_size(self.batch))?;
        } else {
            self.model.train_repeatedly(&self.data, 1, |_| {})?;
        }
        Ok(())
    }

    /// Runs `steps` steps; returns the seconds of each.
    fn window(&mut self, steps: usize) -> Result<Vec<f64>> {
        let mut times = vec![];
        let mut begin = Instant::now();
        let mut lap = |steps: usize| {
            let end = Instant::now();
            let each = (end - begin).as_secs_f64() / steps as f64;
            times.extend(std::iter::repeat_n(each, steps));
            begin = end;
        };
        if self.kind == StepKind::Train {
            self.model.train_repeatedly(&self.data, steps, lap)?;
            return Ok(times);
        }
        for _ in 0..steps {
            self.step()?;
            lap(1);
        }
        Ok(times)
    }

    /// Profiles every instruction over `steps` steps.
    fn profile(&mut self, steps: usize) -> Result<Option<Profile>> {
        self.model.set_profiling(true)?;
        self.window(steps)?;
        self.model.set_profiling(false)?;
        Ok(self.model.profile(self.kind)?)
    }
}

/// An MLP of the requested width and depth, if either flag is given.
fn custom_mlp(args: &Bench) -> Result<Option<Model>> {
    if args.width.is_none() && args.depth.is_none() {
        return Ok(None);
    }
    if args.model != ModelArg::Network(Network::MnistMlp) {
        bail!("--width and --depth: expected mnist-mlp, to whose hidden layers they apply");
    }
    let (width, depth) = (args.width.unwrap_or(256), args.depth.unwrap_or(2));
    if depth > MAX_DEPTH {
        bail!("--depth: expected {MAX_DEPTH} or fewer, received {depth}");
    }
    let mut layers = Sequential::new().named("mlp").add(Input::new([784]));
    for _ in 0..depth {
        layers = layers.add(Dense::new(width).activation("relu"));
    }
    Ok(Some(layers.add(Dense::new(10)).build()?))
}

fn measure(args: &Bench, context: &RunContext) -> Result<Report> {
    if let Some(steps) = args.steps.filter(|steps| !(1..=MAX_STEPS).contains(steps)) {
        bail!("--steps: expected 1 to {MAX_STEPS}, received {steps}");
    }
    let mut job = Benchmark::new(args, context)?;
    job.step()?;
    let setup = process_age();
    let each = mean(&job.window(3)?);
    let steps = args.steps.unwrap_or(((1.0 / each) as usize).clamp(3, 5000)).max(1);
    let (mut windows, mut all) = ([0.0; 3], vec![]);
    for window in &mut windows {
        let times = job.window(steps)?;
        *window = mean(&times);
        all.extend(times);
    }
    windows.sort_by(f64::total_cmp);
    all.sort_by(f64::total_cmp);
    let profile = if args.profile { job.profile(steps)? } else { None };
    let input = match &args.data {
        Some(name) => Some(input::measure(args, name, &mut job, steps)?),
        None => None,
    };
    Ok(Report {
        chief: job.chief,
        model: job.model.name().into(),
        devices: job.model.devices()?,
        batch: job.batch,
        steps,
        times: Times { step: windows[1], fastest: all[all.len() / 10], setup },
        planned: job.model.own_memory_plan(job.kind, job.batch)?.total(job.devices.sharing),
        precision: stored_precision(job.model.dtype_policy()?, &*job.backend),
        backend: job.backend,
        profile,
        input,
    })
}

impl Report {
    fn print(&self) -> Result<()> {
        let Report { model, batch, steps, times, .. } = self;
        let Times { step, fastest, setup } = times;
        let mut out = terminal::stdout();
        let model = shown(model);
        writeln!(
            out,
            "{model}: {:.0} images/s, {:.3} ms/step (batch {batch}, {steps} steps per window)",
            *batch as f64 / step,
            step * 1e3,
        )?;
        writeln!(
            out,
            "fastest tenth of the steps: {:.0} images/s, {:.3} ms/step and less",
            *batch as f64 / fastest,
            fastest * 1e3,
        )?;
        let (peak, planned) = (mib(peak_rss()), mib(self.planned));
        match self.backend.traits().on_host {
            true => writeln!(
                out,
                "first step after {setup:.2} s; peak memory {peak} MiB, planned {planned} MiB"
            )?,
            false => writeln!(
                out,
                "first step after {setup:.2} s; planned device memory {planned} MiB per GPU"
            )?,
        }
        if let Some(input) = &self.input {
            input.print(*batch as f64 / step, &mut out)?;
        }
        if let Some(profile) = &self.profile {
            profile::print(profile, self.backend.traits().profile_note, &mut out)?;
        }
        Ok(())
    }

    fn print_json(&self, args: &Bench) -> Result<()> {
        let mut line = serde_json::json!({
            "model": self.model,
            "task": if args.inference { "infer" } else { "train" },
            "batch": self.batch,
            "devices": self.devices,
            "precision": self.precision,
            "images_per_second": (self.batch as f64 / self.times.step * 10.0).round() / 10.0,
            "step_ms": (self.times.step * 1e6).round() / 1e3,
            "fastest_tenth_ms": (self.times.fastest * 1e6).round() / 1e3,
            "setup_s": (self.times.setup * 1e3).round() / 1e3,
            "peak_rss_mib": mib(peak_rss()),
            "planned_mib": mib(self.planned),
        });
        if let Some(input) = &self.input {
            line["input"] = input.json();
        }
        if let Some(profile) = &self.profile {
            line["profile"] = profile::json(profile);
        }
        writeln!(terminal::stdout(), "{}", escape_json(&line.to_string()))?;
        Ok(())
    }
}

fn mean(times: &[f64]) -> f64 {
    times.iter().sum::<f64>() / times.len() as f64
}

fn mib(bytes: usize) -> f64 {
    (bytes as f64 / f64::from(1 << 20) * 10.0).round() / 10.0
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

/// Peak resident set size in bytes; 0 if unknown.
fn peak_rss() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|l| l.starts_with("VmHWM:"));
    let kib = line.and_then(|l| l.split_whitespace().nth(1)).and_then(|v| v.parse::<usize>().ok());
    kib.map_or(0, |k| k * 1024)
}
