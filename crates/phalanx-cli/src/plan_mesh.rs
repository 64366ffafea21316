//! `phalanx plan --mesh`: memory, exchanges and time of a step on a mesh of devices, and the choice of a mesh.

use crate::args::{MeshPlanArgs, Plan};
use crate::device_args::shard;
use crate::mesh_args::{MeshArg, MeshChoice, read_layout};
use crate::model_spec::ModelSpec;
use crate::report::format_bytes;
use crate::terminal;
use anyhow::{Result, bail};
use phalanx::model::{MeshPlan, MeshSpeed, PlannedMesh};
use phalanx::prelude::*;
use phalanx::strategy::{Backend, visible_devices};
use phalanx::text::{escape_json, shown};
use serde_json::{Map, Value, json};
use std::io::Write;

/// Whether the arguments ask for a mesh.
pub fn wants_mesh(args: &MeshPlanArgs) -> bool {
    args.mesh.is_some() || args.shard.is_some()
}

/// Prints the plan.
pub fn run(args: &Plan) -> Result<()> {
    let mesh = &args.mesh;
    let spec = ModelSpec::from_arg(&args.model, None)?;
    spec.give_sizes(&args.shapes)?;
    let wanted = planned_mesh(args)?;
    let replicas = if mesh.mesh == Some(MeshChoice::Auto) { mesh.count } else { wanted.replicas };
    let batch = spec.batch_size(args.batch, spec.default_batch_size(), replicas)?;
    let mut strategy = MirroredStrategy::cpus(1)?.threads(1);
    let backend = wanted.kind.backend()?;
    if let Some(precision) = args.precision {
        strategy = strategy.policy(precision.policy());
        precision.warn_if_ignored(&*backend);
    }
    let model = spec.compiled_with_defaults(strategy)?;
    let speed = speed(mesh)?;
    let memory = args.memory.map(|memory| memory.0);
    let plans = match (&mesh.mesh, speed) {
        (Some(MeshChoice::Auto), None) => {
            bail!("--mesh auto: expected --flops and --link, the speed of devices and links")
        }
        (Some(MeshChoice::Auto), Some(speed)) => {
            let machine = backend.memory_limit().map(|limit| limit.total);
            let Some(memory) = memory.or(machine.filter(|bytes| *bytes < usize::MAX)) else {
                bail!("--mesh auto: expected --memory, the memory of each device");
            };
            model.best_meshes(batch, &wanted, (memory, speed))?
        }
        _ => vec![model.mesh_plan(batch, &wanted, speed)?],
    };
    let report = Report { model: spec.name(), batch, memory, backend: &*backend, plans: &plans };
    let mut out = terminal::stdout();
    match args.json {
        true => writeln!(out, "{}", escape_json(&report.json().to_string()))?,
        false => report.lines().iter().try_for_each(|line| writeln!(out, "{line}"))?,
    }
    Ok(())
}

/// The mesh that the arguments describe; for `auto` one of all devices.
fn planned_mesh(args: &Plan) -> Result<PlannedMesh> {
    let mesh = &args.mesh;
    let visible = || visible_devices().first().map_or(DeviceKind::Cpu, |d| d.kind);
    let kind = args.device.unwrap_or_else(visible);
    let axes = match &mesh.mesh {
        Some(MeshChoice::Axes(axes)) => Some(axes),
        Some(MeshChoice::Auto) | None => None,
    };
    let devices_per_replica = axes.map_or(1, MeshArg::devices_per_replica);
    let replicas =
        axes.and_then(|axes| axes.data).unwrap_or(mesh.count / devices_per_replica).max(1);
    let names = axes.map_or(["data".into(), "model".into()], MeshArg::names);
    let layout = match (&mesh.layout, devices_per_replica > 1 || axes.is_none()) {
        (Some(path), true) => {
            Some(read_layout(&DeviceMesh::new([replicas, devices_per_replica], names)?, path)?)
        }
        (Some(_), false) => bail!("--layout: expected a mesh with a second axis"),
        (None, _) if devices_per_replica > 1 => {
            bail!("--mesh: expected --layout, which says what is divided")
        }
        (None, _) => None,
    };
    let (processes, threads) = (mesh.workers, args.threads.unwrap_or(0));
    let shard = shard(mesh.shard);
    Ok(PlannedMesh { kind, replicas, devices_per_replica, shard, processes, threads, layout })
}

/// The speeds that the arguments give.
fn speed(args: &MeshPlanArgs) -> Result<Option<MeshSpeed>> {
    let Some(flops) = args.flops else { return Ok(None) };
    let links = match args.link[..] {
        [] => bail!("--flops: expected --link too, the speed of the links"),
        [one] => [one.0; 2],
        [model, data, ..] => [model.0, data.0],
    };
    Ok(Some(MeshSpeed { flops: flops.0, links, latency: MeshSpeed::LATENCY }))
}

struct Report<'a> {
    model: String,
    batch: usize,
    memory: Option<usize>,
    backend: &'a dyn Backend,
    /// The best first.
    plans: &'a [MeshPlan],
}

impl Report<'_> {
    fn lines(&self) -> Vec<String> {
        let [best, others @ ..] = self.plans else { return vec![] };
        let mut lines = self.plan_lines(best);
        if !others.is_empty() {
            lines.push(String::new());
            lines.push("the meshes that were compared, the best first:".into());
            lines.extend(self.plans.iter().map(|plan| self.candidate_line(plan)));
        }
        lines
    }

    fn total(&self, plan: &MeshPlan) -> usize {
        plan.memory.total(plan.mesh.sharing(self.backend))
    }

    fn plan_lines(&self, plan: &MeshPlan) -> Vec<String> {
        let PlannedMesh { kind, replicas, devices_per_replica, .. } = plan.mesh;
        let each = self.batch.div_ceil(replicas);
        let of = match devices_per_replica {
            1 => String::new(),
            n => format!(" of {n} devices"),
        };
        let mut lines = vec![format!(
            "training {} on {} {kind} devices, mesh {}: batch {} global, {each} per replica{of}",
            shown(&self.model),
            replicas * devices_per_replica,
            plan.mesh.name(),
            self.batch
        )];
        let row = |name: &str, bytes: usize| format!("{name:<24}{:>12}", format_bytes(bytes));
        let (held, all) = plan.weights;
        for (purpose, bytes) in plan.memory.parts.iter().chain(&plan.memory.shared) {
            let mut line = row(purpose, *bytes);
            if *purpose == "weights" && held < all {
                line += &format!("  ({} in all)", format_bytes(all));
            }
            lines.push(line);
        }
        let sharing = plan.mesh.sharing(self.backend);
        if sharing > 1 {
            lines.push(row("total per device", plan.memory.total(1)));
        }
        let label = if sharing > 1 { "total per process" } else { "total per device" };
        lines.push(row(label, self.total(plan)));
        lines.extend(self.exchange_lines(plan));
        if let Some(time) = plan.time {
            let ms = |seconds: f64| format!("{:.2} ms", seconds * 1e3);
            let (total, compute, exposed) = (ms(time.total), ms(time.compute), ms(time.exposed));
            lines.push(format!(
                "predicted step          {total:>12}  (compute {compute}, not hidden {exposed})"
            ));
        }
        if let Some(memory) = self.memory.filter(|memory| self.total(plan) > *memory) {
            lines.push(format!(
                "a batch of {} does not fit in {}",
                self.batch,
                format_bytes(memory)
            ));
        }
        lines
    }

    /// What the devices send each other in a step, and what the layout divides.
    fn exchange_lines(&self, plan: &MeshPlan) -> Vec<String> {
        let mut lines = vec![];
        let mut sent = |axis: &str, (count, bytes): (usize, f64)| {
            if count > 0 {
                let bytes = format_bytes(bytes as usize);
                lines.push(format!(
                    "sent over {axis:<14}{bytes:>12}  by each member, {count} exchanges a step"
                ));
            }
        };
        sent("model", plan.over_model);
        sent("data", plan.over_data);
        let [(partitioned, elements), (weights, all)] = plan.partitioned;
        if partitioned > 0 {
            let share = 100.0 * elements as f64 / all.max(1) as f64;
            lines.push(format!(
                "partitioned             {partitioned} of {weights} weights, {share:.1}% of the elements"
            ));
        }
        lines
    }

    fn candidate_line(&self, plan: &MeshPlan) -> String {
        let total = self.total(plan);
        let fits = self.memory.is_none_or(|memory| total <= memory - memory / 10);
        let time = plan.time.map_or(0.0, |time| time.total * 1e3);
        let reason = if fits { format!("{time:.2} ms") } else { "does not fit".into() };
        format!("  {:<40}{:>12}  {reason}", plan.mesh.name(), format_bytes(total))
    }

    fn json(&self) -> Value {
        let parts = |parts: &[(&str, usize)]| -> Map<String, Value> {
            parts.iter().map(|(purpose, bytes)| ((*purpose).into(), json!(bytes))).collect()
        };
        let plan = |plan: &MeshPlan| {
            let mut line = json!({
                "mesh": plan.mesh.name(),
                "data": plan.mesh.replicas,
                "model": plan.mesh.devices_per_replica,
                "shard": plan.mesh.shard.name(),
                "bytes": parts(&plan.memory.parts),
                "shared_bytes": parts(&plan.memory.shared),
                "total": self.total(plan),
                "weights": { "held": plan.weights.0, "all": plan.weights.1 },
                "gathered": plan.gathered,
                "sent_over_model": plan.over_model.1,
                "sent_over_data": plan.over_data.1,
            });
            if let Some(time) = plan.time {
                line["seconds"] = json!(time.total);
                line["seconds_not_hidden"] = json!(time.exposed);
            }
            line
        };
        let plans: Vec<Value> = self.plans.iter().map(plan).collect();
        json!({ "model": self.model, "batch": self.batch, "plans": plans })
    }
}
