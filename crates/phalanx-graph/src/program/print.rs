//! Text form of a program.

use super::{GradientPlan, Instr, Location, Options, Program, ShardLevel, Split, ValueId};
use crate::graph::ParamId;
use crate::ops::{Epilogue, Op};
use crate::text::shown;
use std::fmt;

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let printer = Printer(self);
        printer.header(f)?;
        self.instrs.iter().try_for_each(|instr| printer.instr(instr, f))
    }
}

/// Prints the parts of a program.
struct Printer<'a>(&'a Program);

impl Printer<'_> {
    fn header(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Options { mesh, max_batch, .. } = self.0.options;
        writeln!(
            f,
            "program {}: batch {max_batch}, {} device(s) of {} worker(s)",
            shown(&self.0.name),
            mesh.replicas * mesh.devices_per_replica,
            mesh.workers
        )?;
        if mesh.devices_per_replica > 1 {
            writeln!(f, "{} devices divide the work of each replica", mesh.devices_per_replica)?;
        }
        if self.0.split == Split::Spatial {
            writeln!(f, "workers share lines of every value, and the arena of the first")?;
        }
        writeln!(
            f,
            "memory per worker: arena {} B ({} B without reuse), shared {} B",
            self.0.memory.arena, self.0.memory.unplanned, self.0.memory.shared
        )?;
        if self.0.memory.device > 0 {
            writeln!(f, "memory shared by a device's workers: {} B", self.0.memory.device)?;
        }
        Ok(())
    }

    fn instr(&self, instr: &Instr, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = |id: &ValueId| self.location_text(*id);
        let param = |id: &ParamId| shown(&self.0.params[id.index()].name);
        match instr {
            Instr::Compute { op, inputs, output, layer, sharded } => {
                let args: Vec<String> = inputs.iter().map(at).collect();
                let op = format!("{}{op}", if *sharded { "sharded " } else { "" });
                self.computation(f, &op, &args.join(", "), (*output, *layer))
            }
            Instr::ReduceScatter { input, bias, relu, output, layer } => {
                let args = bias.iter().fold(at(input), |text, b| text + ", " + &at(b));
                let epilogue = Epilogue { bias: bias.is_some(), relu: *relu };
                self.computation(f, &format!("reduce_scatter{epilogue}"), &args, (*output, *layer))
            }
            Instr::Copy { input, output } => writeln!(f, "  {} = copy({})", at(output), at(input)),
            Instr::Barrier(scope) => writeln!(f, "  barrier {scope}"),
            Instr::AllReduce { scope, input, output } => {
                writeln!(f, "  {} = all_reduce over={scope}({})", at(output), at(input))
            }
            Instr::ReplicaMean { input, output } => {
                writeln!(f, "  {} = replica_mean({})", at(output), at(input))
            }
            Instr::ExchangeParts { op, input, output, layer } => {
                let op = Op::Parts(*op).to_string();
                self.computation(f, &op, &at(input), (*output, *layer))
            }
            Instr::ShardedGradKernel { param: p, x, dy } => {
                writeln!(f, "  gradient shard of \"{}\" from {}, {}", param(p), at(x), at(dy))
            }
            Instr::GatherWeights { group } => {
                let names = self.0.weight_groups[*group].weights.iter().map(|(id, _)| param(id));
                let names: Vec<String> = names.map(|name| format!("\"{name}\"")).collect();
                writeln!(f, "  gather weights {group}: {}", names.join(", "))
            }
            Instr::ReduceGradients { bucket } => {
                writeln!(f, "  reduce_scatter bucket {bucket}: {}", self.bucket_text(*bucket))
            }
            Instr::Update => self.update(f),
            Instr::Assign { param: p, value } => {
                writeln!(f, "  \"{}\" := {}", param(p), at(value))
            }
            Instr::Fetch { index, value } => {
                writeln!(f, "  fetch \"{}\" {}", shown(&self.0.fetches[*index].name), at(value))
            }
        }
    }

    /// Prints the computation of a value by a layer.
    fn computation(
        &self,
        f: &mut fmt::Formatter<'_>,
        op: &str,
        args: &str,
        (output, layer): (ValueId, u32),
    ) -> fmt::Result {
        let (out, ty) = (self.location_text(output), &self.0.value(output).ty);
        write!(f, "  {out} = {op}({args}) : {ty}")?;
        match self.0.layers[layer as usize].as_str() {
            "" => writeln!(f),
            name => writeln!(f, "  ; {}", shown(name)),
        }
    }

    fn location_text(&self, id: ValueId) -> String {
        let v = self.0.value(id);
        let mut text = match v.location {
            Location::Feed(p) => format!("\"{}\"", shown(&self.0.feeds[p.index()].name)),
            Location::Param(p) => format!("\"{}\"", shown(&self.0.params[p.index()].name)),
            Location::Gathered { group, offset } => format!("@weights{group}+{offset}"),
            Location::Arena(o) => format!("@{o}"),
            Location::Shared(o) => format!("@shared+{o}"),
            Location::Device(o) => format!("@device+{o}"),
            Location::Gradient(p) => format!("grad \"{}\"", shown(&self.0.params[p.index()].name)),
        };
        if v.offset > 0 {
            text += &format!("+{}", v.offset);
        }
        if !v.contiguous() {
            text += &format!("/{}", v.ld);
        }
        text
    }

    /// The gradients of a bucket.
    fn bucket(&self, bucket: usize) -> &[GradientPlan] {
        self.0.update.as_ref().map_or(&[], |u| &u.gradients[u.buckets[bucket].clone()])
    }

    fn bucket_elements(&self, bucket: usize) -> usize {
        self.bucket(bucket).iter().map(|g| self.0.params[g.param.index()].len()).sum()
    }

    fn bucket_text(&self, bucket: usize) -> String {
        let name = |g: &GradientPlan| {
            let name = shown(&self.0.params[g.param.index()].name);
            let from = g.value.map(|value| format!(" from {}", self.location_text(value)));
            format!(
                "\"{name}\"{}{}",
                if g.sharded { " sharded" } else { "" },
                from.unwrap_or_default()
            )
        };
        self.bucket(bucket).iter().map(name).collect::<Vec<_>>().join(", ")
    }

    fn update(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(update) = &self.0.update else { return Ok(()) };
        for g in &update.gradients {
            let Some((x, dy)) = g.operands else { continue };
            let name = shown(&self.0.params[g.param.index()].name);
            let (x, dy) = (self.location_text(x), self.location_text(dy));
            writeln!(f, "  gradient shard of \"{name}\" from {x}, {dy}")?;
        }
        let sharded = self.0.options.mesh.sharding.level >= ShardLevel::Gradients;
        for i in (0..update.buckets.len()).filter(|_| !sharded) {
            let count = self.bucket_elements(i);
            writeln!(f, "  reduce bucket {i} ({count} elements): {}", self.bucket_text(i))?;
        }
        if let Some(scaling) = update.loss_scale {
            let name = shown(&self.0.params[scaling.state.index()].name);
            writeln!(f, "  unscale by \"{name}\", skip unless finite")?;
        }
        writeln!(f, "  update {} {{{}}}", update.rule.name, update.rule.tape)
    }
}
