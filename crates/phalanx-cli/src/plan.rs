//! `phalanx plan`: the memory that training needs on each device, without running it.

use crate::args::Plan;
use crate::device_args::stored_precision;
use crate::model_spec::ModelSpec;
use crate::plan_mesh;
use crate::report::format_bytes;
use crate::terminal;
use anyhow::{Context, Result};
use phalanx::model::{MemoryPlan, PlannedDevices};
use phalanx::prelude::*;
use phalanx::strategy::{Backend, Device, visible_devices};
use phalanx::text::{escape_json, shown};
use serde_json::{Map, Value, json};
use std::io::Write;
use std::sync::Arc;

/// Prints the plan.
pub fn run(args: &Plan) -> Result<()> {
    if plan_mesh::wants_mesh(&args.mesh) {
        return plan_mesh::run(args);
    }
    let devices = devices(args)?;
    let spec = ModelSpec::from_arg(&args.model, None)?;
    spec.give_sizes(&args.shapes)?;
    let batch = spec.batch_size(args.batch, spec.default_batch_size(), devices.replicas)?;
    let mut strategy = MirroredStrategy::cpus(1)?;
    let backend = devices.kind.backend()?;
    if let Some(precision) = args.precision {
        strategy = strategy.policy(precision.policy());
        precision.warn_if_ignored(&*backend);
    }
    let model = spec.compiled_with_defaults(strategy)?;
    let plan = model.memory_plan(StepKind::Train, batch, devices)?;
    let largest = match args.memory {
        Some(memory) => Some(model.largest_batch(StepKind::Train, memory.0, devices)?),
        None => None,
    };
    let precision = stored_precision(model.dtype_policy()?, &*backend);
    let model = spec.name();
    let report = Report { model, devices, backend, batch, plan, args, largest, precision };
    let mut out = terminal::stdout();
    match args.json {
        true => writeln!(out, "{}", escape_json(&report.json().to_string()))?,
        false => report.lines().iter().try_for_each(|line| writeln!(out, "{line}"))?,
    }
    Ok(())
}

/// The devices that these arguments select.
fn devices(args: &Plan) -> Result<PlannedDevices> {
    let found: Vec<Device> = match (args.device, &args.devices[..]) {
        (Some(kind), _) => vec![Device::new(kind, 0)],
        (None, []) => visible_devices(),
        (None, names) => {
            let parsed: phalanx::Result<_> = names.iter().map(|name| name.parse()).collect();
            parsed.context("--devices")?
        }
    };
    Ok(PlannedDevices { threads: args.threads.unwrap_or(0), ..PlannedDevices::new(&found)? })
}

struct Report<'a> {
    model: String,
    devices: PlannedDevices,
    backend: Arc<dyn Backend>,
    batch: usize,
    plan: MemoryPlan,
    args: &'a Plan,
    /// The largest batch that fits into `--memory`, if that is given and any fits.
    largest: Option<Option<usize>>,
    /// How activations are stored.
    precision: &'static str,
}

impl Report<'_> {
    fn lines(&self) -> Vec<String> {
        let PlannedDevices { kind, replicas, sharing, .. } = self.devices;
        let word = if replicas == 1 { "replica" } else { "replicas" };
        let each = self.batch.div_ceil(replicas);
        let mut lines = vec![format!(
            "training {} on {replicas} {kind} {word}: batch {} global, {each} per replica",
            shown(&self.model),
            self.batch
        )];
        let row = |name: &str, bytes: usize| format!("{name:<24}{:>12}", format_bytes(bytes));
        for (purpose, bytes) in &self.plan.parts {
            let mut line = row(purpose, *bytes);
            if *purpose == "activations" {
                line += &format!("  ({} without reuse)", format_bytes(self.plan.without_reuse));
            }
            lines.push(line);
        }
        if sharing > 1 {
            lines.push(row("total per replica", self.plan.total(1)));
        }
        let traits = self.backend.traits();
        let label = match (traits.on_host, sharing) {
            (true, 2..) => "total of the machine",
            _ => "total per device",
        };
        lines.push(row(label, self.device_total()));
        if let Some(others) = traits.unplanned_memory {
            lines.push(format!("{others} reserve additional memory"));
        }
        lines.extend(self.fit_lines());
        lines
    }

    /// Bytes that all replicas on the most crowded device take.
    fn device_total(&self) -> usize {
        self.plan.total(self.devices.sharing)
    }

    /// The value of `--memory`; for CPU devices the memory of this machine by default.
    fn memory(&self) -> Option<usize> {
        let machine = || self.backend.memory_limit().map(|limit| limit.total);
        let own = || machine().filter(|bytes| *bytes < usize::MAX);
        self.args.memory.map(|memory| memory.0).or_else(own)
    }

    fn fit_lines(&self) -> Vec<String> {
        let mut lines = vec![];
        if let Some(memory) = self.memory().filter(|bytes| self.device_total() > *bytes) {
            lines.push(format!(
                "a batch of {} does not fit in {}",
                self.batch,
                format_bytes(memory)
            ));
        }
        let Some((memory, largest)) = self.args.memory.zip(self.largest) else { return lines };
        let memory = format_bytes(memory.0);
        lines.push(match largest {
            Some(batch) => {
                let each = batch / self.devices.replicas;
                format!("largest batch in {memory}: {batch} global, {each} per replica")
            }
            None => format!("largest batch in {memory}: none fits"),
        });
        lines
    }

    fn json(&self) -> Value {
        let parts: Map<String, Value> =
            self.plan.parts.iter().map(|(p, bytes)| ((*p).into(), json!(bytes))).collect();
        let mut line = json!({
            "model": self.model,
            "device": self.devices.kind.to_string(),
            "replicas": self.devices.replicas,
            "batch": self.batch,
            "bytes": parts,
            "activations_without_reuse": self.plan.without_reuse,
            "total": self.plan.total(1),
            "replicas_per_device": self.devices.sharing,
            "device_total": self.device_total(),
            "precision": self.precision,
        });
        if let (Some(memory), Some(largest)) = (self.args.memory, self.largest) {
            line["memory"] = json!(memory.0);
            line["largest_batch"] = json!(largest);
        }
        line
    }
}
