//! What `phalanx train` says before and after: the plan, where the time went, how replicas scale.

use crate::args::{Train, Where};
use crate::model_file::{Goal, Purpose};
use crate::prepare::Prepared;
use crate::subject::Subject;
use crate::{terminal, told};
use anyhow::Result;
use phalanx::model::Source;
use phalanx::prelude::*;
use phalanx::text::shown;
use std::io::Write;

/// Seconds that the measurement of one replica may take, and the steps it takes at least.
const WINDOW: f64 = 0.7;
const LEAST_STEPS: usize = 4;

/// The sizes of a run.
pub struct Plan {
    place: Where,
    /// Replicas in sync, over all workers.
    pub replicas: usize,
    workers: usize,
    /// Samples per step over all replicas.
    pub batch: usize,
    /// What was asked for, where the data have fewer samples.
    asked: Option<usize>,
    /// Steps of an epoch.
    pub steps: usize,
}

impl Plan {
    /// The sizes these arguments and data make; a batch is never larger than the data.
    pub fn new(
        args: &Train,
        strategy: &MultiWorkerMirroredStrategy,
        data: &Prepared,
        asked: usize,
    ) -> Plan {
        let rows = data.train.rows();
        let batch = asked.min(rows);
        Plan {
            place: args.place.clone(),
            replicas: strategy.num_replicas_in_sync(),
            workers: strategy.num_workers(),
            batch,
            asked: (batch < asked).then_some(asked),
            steps: args.steps_per_epoch.unwrap_or(rows.div_ceil(batch)),
        }
    }

    /// Samples per replica, of the one that has most.
    pub fn each(&self) -> usize {
        self.batch.div_ceil(self.replicas)
    }
}

fn counted(n: usize, word: &str) -> String {
    format!("{n} {word}{}", if n == 1 { "" } else { "s" })
}

/// Bytes in a unit that leaves something before the point.
pub fn size(bytes: usize) -> String {
    let bytes = bytes as f64;
    match bytes {
        b if b >= 1e9 => format!("{:.2} GiB", b / f64::from(1 << 30)),
        b if b >= 1e6 => format!("{:.1} MiB", b / f64::from(1 << 20)),
        b if b >= 1024.0 => format!("{:.1} KiB", b / 1024.0),
        b => format!("{b} bytes"),
    }
}

/// Says what will be done.
pub fn header(
    model: &mut Model,
    args: &Train,
    plan: &Plan,
    rate: f64,
    data: &Prepared,
) -> Result<()> {
    let mut out = terminal::stdout();
    let program = model.program(StepKind::Train, plan.batch)?;
    let devices = model.devices()?.join(", ");
    let mut replicas = counted(plan.replicas, "replica");
    if plan.workers > 1 {
        replicas += &format!(" on {}", counted(plan.workers, "worker"));
    }
    writeln!(out, "devices: {devices} ({replicas})")?;
    if let Some(asked) = plan.asked {
        writeln!(out, "notice: the batch of {asked} became {}, all there is", plan.batch)?;
    }
    writeln!(
        out,
        "batch: {} global, {} per replica; learning rate {}{}; {} per epoch",
        plan.batch,
        plan.each(),
        // Files keep it in single precision.
        rate as f32,
        told::schedule(args).map_or(String::new(), |word| format!(" ({word})")),
        counted(plan.steps, "step"),
    )?;
    writeln!(out, "{}", rows(data))?;
    if let Some(words) = told::augment(args) {
        writeln!(out, "augmentation: {words}")?;
    }
    writeln!(out, "{}", fed(data))?;
    writeln!(
        out,
        "parameters: {}; planned memory per device: {} of activations",
        model.count_params(),
        size(program.device_bytes()),
    )?;
    Ok(())
}

/// How many rows train, validate and test, and what a sample is.
pub fn rows(data: &Prepared) -> String {
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

/// Which rows were evaluated.
pub fn evaluated(data: &Prepared) -> String {
    let (name, rows) = (shown(&data.name), data.evaluated().rows());
    let which = match (&data.test, &data.validation, data.trained_on) {
        (Some(_), ..) => "test rows",
        (None, None, false) => "rows, all there are",
        (None, Some(_), false) => "rows, all but those to validate on",
        (None, _, true) => "rows, among them those that the model was trained on",
    };
    let notices: String = data.notices.iter().map(|notice| format!("; {notice}")).collect();
    format!("data: {name}, {rows} {which}{notices}")
}

/// What a sample is and how it is fed, and what the model is trained for.
pub fn fed(data: &Prepared) -> String {
    let (own, input, classes) = (&data.came, &data.origin.input, data.origin.classes.len());
    let came = match own == input || own.is_empty() {
        true => String::new(),
        false => format!(" (from {own:?})"),
    };
    let sample = match own.is_empty() {
        true => "several inputs, as they are".into(),
        false => {
            let scaling = data.origin.scaling(data.pictures.is_bytes());
            format!("{input:?}{came}, {scaling}")
        }
    };
    let classes = match classes {
        0 => String::new(),
        n => format!(" ({})", counted(n, "class").replace("classs", "classes")),
    };
    let (targets, losses) = (data.forms.join("; "), data.losses.join(", "));
    let chosen = match data.goal {
        Goal::Chosen { .. } => " (chosen: the file has none; --loss sets another)",
        Goal::Named(_) | Goal::Stored => "",
    };
    format!("inputs: {sample}; targets: {targets}{classes}; loss: {losses}{chosen}")
}

/// Where the time of training went, in seconds: by name, without what is left.
pub fn seconds(model: &mut Model, history: &History) -> Result<[(&'static str, f64); 3]> {
    let times = model.times()?;
    Ok([
        ("compute", times.compute),
        ("reduction", times.reduce),
        ("input_wait", history.input_wait_seconds()),
    ])
}

/// The closing evaluation, where the time went, and what was written.
pub fn end(
    model: &mut Model,
    history: &History,
    logs: &[(String, Option<f64>)],
    scaling: Option<&Scaling>,
    args: &Train,
) -> Result<()> {
    let mut out = terminal::stdout();
    let value = |(name, v): &(String, Option<f64>)| Some(format!("{}: {:.4}", shown(name), (*v)?));
    let text: Vec<String> = logs.iter().filter_map(value).collect();
    match text.is_empty() {
        true => writeln!(out, "test - no rows (--test-split or x_test and y_test give some)")?,
        false => writeln!(out, "test - {}", text.join(" - "))?,
    }
    let all = history.run_seconds();
    if all > 0.0 {
        let share = |seconds: f64| 100.0 * seconds / all;
        let [compute, reduction, input] = seconds(model, history)?.map(|(_, seconds)| seconds);
        let rest = (all - compute - reduction - input).max(0.0);
        let (input, rest) = (share(input), share(rest));
        // A step on GPUs is one launch: nobody sees its parts.
        let steps = match model.devices()?.iter().all(|name| name.starts_with("gpu")) {
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

/// How fast several replicas are beside one.
pub struct Scaling {
    replicas: usize,
    each: usize,
    threads: usize,
    /// Samples per second of one replica alone, and of all.
    one: f64,
    all: f64,
}

impl Scaling {
    /// The speed of all over as many times the speed of one.
    pub fn efficiency(&self) -> f64 {
        self.all / (self.one * self.replicas as f64)
    }
}

impl std::fmt::Display for Scaling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Scaling { replicas, each, threads, one, all } = self;
        let threads = counted(*threads, "thread");
        let percent = 100.0 * self.efficiency();
        write!(
            f,
            "scaling efficiency {percent:.0}%: {all:.0} samples/s on {replicas} replicas, {one:.0} on one \
             alone ({each} samples a step, {threads})"
        )
    }
}

/// Trains a fresh copy on the first device alone, for less than a second, with the samples per step and
/// the threads that one replica has. Nothing where a step takes too long for that.
pub fn scaling(
    plan: &Plan,
    history: &History,
    subject: &Subject,
    data: &Prepared,
    source: impl Fn() -> Result<Source>,
) -> Result<Option<Scaling>> {
    let Some(all) = history.images_per_second.last().copied().filter(|v| *v > 0.0) else {
        return Ok(None);
    };
    let step = plan.batch as f64 / all;
    if step * LEAST_STEPS as f64 > WINDOW {
        return Ok(None);
    }
    let shared_out = || (phalanx::usable_cores() / plan.replicas).max(1);
    let threads = plan.place.threads.unwrap_or_else(shared_out);
    let strategy = plan.place.strategy()?;
    let first: Vec<String> = strategy.devices().iter().take(1).map(ToString::to_string).collect();
    let strategy = MirroredStrategy::with_devices(&first)?.threads(threads);
    let mut model = subject.compiled(&data.origin, &data.goal, Purpose::Train, strategy.into())?;
    // One replica's step is no slower than theirs: the window is kept.
    let steps = ((WINDOW / step) as usize).clamp(LEAST_STEPS, 5000);
    let fit = |steps: usize| Fit::new().epochs(1).steps_per_epoch(steps).verbose(0);
    model.fit(source()?, fit(1))?;
    let alone = model.fit(source()?, fit(steps))?;
    let one = alone.images_per_second.last().copied().unwrap_or(0.0);
    let measured = Scaling { replicas: plan.replicas, each: plan.each(), threads, one, all };
    Ok((one > 0.0).then_some(measured))
}
