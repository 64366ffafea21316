//! The header and summary of `phalanx train`: sizes, time breakdown and scaling efficiency.

use crate::args::{DeviceArgs, Train};
use crate::device_args::shard;
use crate::model_file::{LossSource, Purpose};
use crate::model_spec::ModelSpec;
use crate::prepare::PreparedData;
use crate::{resume_warnings, terminal};
use anyhow::Result;
use phalanx::model::Source;
use phalanx::prelude::*;
use phalanx::text::shown;
use std::io::Write;

/// Time limit of the scaling measurement, in seconds.
const MAX_SCALING_SECONDS: f64 = 0.7;
/// Minimum number of steps of the scaling measurement.
const MIN_SCALING_STEPS: usize = 4;

/// The sizes of a run.
pub struct RunSizes {
    device_args: DeviceArgs,
    /// Replicas over all workers.
    pub replicas: usize,
    workers: usize,
    /// Samples per step over all replicas.
    pub batch: usize,
    /// The requested batch, if the data have fewer samples.
    requested: Option<usize>,
    /// Steps of an epoch.
    pub steps: usize,
}

impl RunSizes {
    /// The sizes of a run with these arguments and data. A batch is never larger than the data.
    pub fn new(
        args: &Train,
        strategy: &MultiWorkerMirroredStrategy,
        data: &PreparedData,
        requested: usize,
    ) -> RunSizes {
        let rows = data.train.rows();
        let batch = requested.min(rows);
        RunSizes {
            device_args: args.device_args.clone(),
            replicas: strategy.num_replicas_in_sync(),
            workers: strategy.num_workers(),
            batch,
            requested: (batch < requested).then_some(requested),
            steps: args.steps_per_epoch.unwrap_or(rows.div_ceil(batch)),
        }
    }

    /// The largest number of samples per replica.
    pub fn per_replica(&self) -> usize {
        self.batch.div_ceil(self.replicas)
    }
}

/// A count and a noun, in the plural unless the count is 1.
fn plural(n: usize, word: &str) -> String {
    format!("{n} {word}{}", if n == 1 { "" } else { "s" })
}

/// Formats a number of bytes in a suitable unit.
pub fn format_bytes(bytes: usize) -> String {
    let bytes = bytes as f64;
    match bytes {
        b if b >= 1e9 => format!("{:.2} GiB", b / f64::from(1 << 30)),
        b if b >= 1e6 => format!("{:.1} MiB", b / f64::from(1 << 20)),
        b if b >= 1024.0 => format!("{:.1} KiB", b / 1024.0),
        b => format!("{b} bytes"),
    }
}

/// Says what linear scaling makes of the learning rate, if the global batch grew with the replicas.
fn describe_growth(args: &Train, rate: f64, growth: usize) -> String {
    match (args.scale_lr, growth) {
        (false, 1) => String::new(),
        (true, 1) => " (--scale-lr: the batch did not grow with the replicas)".into(),
        (true, _) => format!(" ({} times {growth} for the batch)", (rate / growth as f64) as f32),
        (false, _) => {
            let scaled = (rate * growth as f64) as f32;
            format!(" (the batch grew {growth} times; --scale-lr makes it {scaled})")
        }
    }
}

/// What `--shard` and `--mesh` divide.
fn division(args: &DeviceArgs, model_axis: usize) -> Option<String> {
    let shard = match shard(args.shard) {
        Shard::None => None,
        Shard::Optimizer => Some("the state of the optimizer"),
        Shard::Gradients => Some("gradients and the state of the optimizer"),
        Shard::Weights => Some("weights, gradients and the state of the optimizer"),
    };
    let shard = shard.map(|what| format!("{what} among the memories"));
    let model = (model_axis > 1)
        .then(|| format!("each replica among {model_axis} devices, as the layout says"));
    let parts: Vec<String> = shard.into_iter().chain(model).collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// Prints the header: devices, sizes, data and memory. `growth` is how many times the batch of one replica the
/// global batch is.
pub fn print_header(
    model: &mut Model,
    args: &Train,
    sizes: &RunSizes,
    (rate, growth): (f64, usize),
    data: &PreparedData,
) -> Result<()> {
    let mut out = terminal::stdout();
    // Texts of an open length have a program for each length.
    let program = match model.has_open_sizes() {
        true => None,
        false => Some(model.program(StepKind::Train, sizes.batch)?),
    };
    let planned = match &program {
        None => "depends on the length of the texts in a batch".into(),
        Some(program) => format!("{} of activations", format_bytes(program.device_bytes())),
    };
    let devices = model.devices()?.join(", ");
    let mut replicas = plural(sizes.replicas, "replica");
    if sizes.workers > 1 {
        replicas += &format!(" on {}", plural(sizes.workers, "worker"));
    }
    writeln!(out, "devices: {devices} ({replicas})")?;
    let model_axis = program.map_or(1, |program| program.options().mesh.devices_per_replica);
    if let Some(division) = division(&args.device_args, model_axis) {
        writeln!(out, "divided: {division}")?;
    }
    if let Some(requested) = sizes.requested {
        writeln!(
            out,
            "notice: the batch of {requested} became {}, the size of the data",
            sizes.batch
        )?;
    }
    writeln!(
        out,
        "batch: {} global, {} per replica; learning rate {}{}{}; {} per epoch",
        sizes.batch,
        sizes.per_replica(),
        // Files store it in single precision.
        rate as f32,
        describe_growth(args, rate, growth),
        resume_warnings::describe_schedule(args).map_or(String::new(), |text| format!(" ({text})")),
        plural(sizes.steps, "step"),
    )?;
    writeln!(out, "{}", describe_rows(data))?;
    if let Some(words) = resume_warnings::describe_augment(args) {
        writeln!(out, "augmentation: {words}")?;
    }
    writeln!(out, "{}", describe_inputs(data))?;
    writeln!(out, "parameters: {}; planned memory per device: {planned}", model.count_params(),)?;
    Ok(())
}

/// The number of rows to train, validate and test on.
pub fn describe_rows(data: &PreparedData) -> String {
    let train = data.train.rows();
    let validate = match (&data.validation, &data.test) {
        (Some(rows), _) => format!("{} to validate on", rows.rows()),
        (None, Some(_)) => "validated on the test rows".into(),
        (None, None) => "none to validate on".into(),
    };
    let test = match &data.test {
        Some(rows) => format!("{} to test on", rows.rows()),
        None => "none to test on".into(),
    };
    let notices: String = data.notices.iter().map(|notice| format!("; {notice}")).collect();
    format!("data: {train} rows to train on, {validate}, {test}{notices}")
}

/// The rows that were evaluated.
pub fn describe_evaluated(data: &PreparedData) -> String {
    let (name, rows) = (shown(&data.name), data.evaluated().rows());
    let which = match (&data.test, &data.validation, data.trained_on) {
        (Some(_), ..) => "test rows",
        (None, None, false) => "rows, the whole dataset",
        (None, Some(_), false) => "rows, all except the validation rows",
        (None, _, true) => "rows, including those that the model was trained on",
    };
    let notices: String = data.notices.iter().map(|notice| format!("; {notice}")).collect();
    format!("data: {name}, {rows} {which}{notices}")
}

/// The shape and preprocessing of a sample, the targets and the loss.
pub fn describe_inputs(data: &PreparedData) -> String {
    let (raw_dims, input, classes) =
        (&data.raw_dims, &data.preprocessing.input, data.preprocessing.classes.len());
    let from = match raw_dims == input || raw_dims.is_empty() {
        true => String::new(),
        false => format!(" (from {raw_dims:?})"),
    };
    let sample = match raw_dims.is_empty() {
        true => "several inputs, as they are".into(),
        false => {
            let scaling = data.preprocessing.describe_scaling(data.raw_inputs.is_bytes());
            format!("{input:?}{from}, {scaling}")
        }
    };
    let classes = match classes {
        0 => String::new(),
        n => format!(" ({})", plural(n, "class").replace("classs", "classes")),
    };
    let (targets, losses) =
        (data.objective.target_forms.join("; "), data.objective.losses.join(", "));
    let note = match data.objective.source {
        LossSource::Inferred { .. } => " (chosen: the file has none; --loss sets another)",
        LossSource::Named(_) | LossSource::Stored => "",
    };
    format!("inputs: {sample}; targets: {targets}{classes}; loss: {losses}{note}")
}

/// Training time by activity, in seconds. The remainder is not listed.
pub fn time_breakdown(model: &mut Model, history: &History) -> Result<[(&'static str, f64); 3]> {
    let times = model.times()?;
    Ok([
        ("compute", times.compute),
        ("reduction", times.reduce),
        ("input_wait", history.input_wait_seconds()),
    ])
}

/// Prints the summary: test results, time breakdown and written files.
pub fn print_summary(
    model: &mut Model,
    history: &History,
    logs: Option<&Logs>,
    scaling: Option<&Scaling>,
    args: &Train,
) -> Result<()> {
    let mut out = terminal::stdout();
    match logs {
        None => writeln!(out, "test - no rows (--test-split or x_test and y_test give some)")?,
        Some(logs) => writeln!(out, "test - {logs}")?,
    }
    let all = history.run_seconds();
    if all > 0.0 {
        let share = |seconds: f64| 100.0 * seconds / all;
        let [compute, reduction, input] =
            time_breakdown(model, history)?.map(|(_, seconds)| seconds);
        let rest = (all - compute - reduction - input).max(0.0);
        let (input, rest) = (share(input), share(rest));
        // A step on GPUs is one launch, whose parts cannot be timed.
        let steps = match !model.backend()?.traits().on_host {
            true => format!("steps {:.0}%", share(compute)),
            false => {
                let (compute, reduction) = (share(compute), share(reduction));
                format!("compute {compute:.0}%, reduction and update {reduction:.0}%")
            }
        };
        writeln!(
            out,
            "training time {all:.1} s: {steps}, input wait {input:.0}%, other {rest:.0}%"
        )?;
    }
    if let Some(scaling) = scaling {
        writeln!(out, "{scaling}")?;
    }
    for (what, path) in [("saved", &args.save), ("curves", &args.output)] {
        if let Some(path) = path {
            writeln!(out, "{what}: {}", shown(path.display()))?;
        }
    }
    Ok(())
}

/// The throughput of several replicas compared with one.
pub struct Scaling {
    replicas: usize,
    per_replica: usize,
    threads: usize,
    /// Samples per second of one replica alone.
    one: f64,
    /// Samples per second of all replicas.
    all: f64,
}

impl Scaling {
    /// The throughput of all replicas, divided by the throughput of one times their number.
    pub fn efficiency(&self) -> f64 {
        self.all / (self.one * self.replicas as f64)
    }
}

impl std::fmt::Display for Scaling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Scaling { replicas, per_replica, threads, one, all } = self;
        let threads = plural(*threads, "thread");
        let percent = 100.0 * self.efficiency();
        write!(
            f,
            "scaling efficiency {percent:.0}%: {all:.0} samples/s on {replicas} replicas, {one:.0} on one \
             alone ({per_replica} samples a step, {threads})"
        )
    }
}

/// Measures scaling efficiency. Trains a fresh copy of the model on the first device alone, for less than a
/// second, with the batch and threads of one replica. `None` if a step takes too long for that.
pub fn measure_scaling(
    sizes: &RunSizes,
    history: &History,
    spec: &ModelSpec,
    data: &PreparedData,
    source: impl Fn() -> Result<Source>,
) -> Result<Option<Scaling>> {
    let Some(all) = history.images_per_second.last().copied().filter(|v| *v > 0.0) else {
        return Ok(None);
    };
    let step = sizes.batch as f64 / all;
    if step * MIN_SCALING_STEPS as f64 > MAX_SCALING_SECONDS {
        return Ok(None);
    }
    let even_share = || (phalanx::usable_cores() / sizes.replicas).max(1);
    let threads = sizes.device_args.threads.unwrap_or_else(even_share);
    let strategy = sizes.device_args.strategy()?;
    let first: Vec<String> = strategy.devices().iter().take(1).map(ToString::to_string).collect();
    let strategy = MirroredStrategy::with_devices(&first)?.threads(threads);
    let mut model = spec.compiled_model(
        &data.preprocessing,
        &data.objective.source,
        Purpose::Train,
        strategy.into(),
    )?;
    // A step of one replica is no slower than a step of all, so the time limit holds.
    let steps = ((MAX_SCALING_SECONDS / step) as usize).clamp(MIN_SCALING_STEPS, 5000);
    let fit = |steps: usize| Fit::new().epochs(1).steps_per_epoch(steps).verbose(0);
    model.fit(source()?, fit(1))?;
    let alone = model.fit(source()?, fit(steps))?;
    let one = alone.images_per_second.last().copied().unwrap_or(0.0);
    let measured =
        Scaling { replicas: sizes.replicas, per_replica: sizes.per_replica(), threads, one, all };
    Ok((one > 0.0).then_some(measured))
}
