//! Text form of a program.

use super::{Instr, Location, Options, Program, Split, ValueId};
use crate::graph::ParamId;
use crate::ops::Epilogue;
use crate::text::shown;
use std::fmt;

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_header(f)?;
        self.instrs.iter().try_for_each(|instr| self.fmt_instr(instr, f))
    }
}

impl Program {
    fn fmt_header(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Options { mesh, max_batch, .. } = self.options;
        writeln!(
            f,
            "program {}: batch {max_batch}, {} device(s) of {} worker(s)",
            shown(&self.name),
            mesh.devices,
            mesh.workers
        )?;
        if self.split == Split::Spatial {
            writeln!(f, "workers share lines of every value, and the arena of the first")?;
        }
        writeln!(
            f,
            "memory per worker: arena {} B ({} B without reuse), shared {} B",
            self.memory.arena, self.memory.unplanned, self.memory.shared
        )?;
        if self.memory.device > 0 {
            writeln!(f, "memory shared by a device's workers: {} B", self.memory.device)?;
        }
        Ok(())
    }

    fn fmt_instr(&self, instr: &Instr, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = |id: &ValueId| self.location_text(*id);
        let param = |id: &ParamId| shown(&self.params[id.index()].name);
        match instr {
            Instr::Compute { op, inputs, output, scope } => {
                let args: Vec<String> = inputs.iter().map(at).collect();
                self.fmt_computation(f, &op.to_string(), &args.join(", "), (*output, *scope))
            }
            Instr::SlicedDot { x, kernel, output, scope } => {
                let args = format!("{}, {}", at(x), at(kernel));
                self.fmt_computation(f, "slice of dot", &args, (*output, *scope))
            }
            Instr::AddSlices { input, bias, relu, output, scope } => {
                let args = bias.iter().fold(at(input), |text, b| text + ", " + &at(b));
                let epilogue = Epilogue { bias: bias.is_some(), relu: *relu };
                self.fmt_computation(f, &format!("add slices{epilogue}"), &args, (*output, *scope))
            }
            Instr::SlicedGradInput { dy, kernel, output, scope } => {
                let args = format!("{}, {}", at(dy), at(kernel));
                self.fmt_computation(f, "slice of dot_grad_input", &args, (*output, *scope))
            }
            Instr::Copy { input, output } => writeln!(f, "  {} = copy({})", at(output), at(input)),
            Instr::Barrier(scope) => writeln!(f, "  barrier {scope}"),
            Instr::AllReduce { scope, input, output } => {
                writeln!(f, "  {} = all_reduce over={scope}({})", at(output), at(input))
            }
            Instr::ReplicaMean { input, output } => {
                writeln!(f, "  {} = replica_mean({})", at(output), at(input))
            }
            Instr::SlicedGradient { param: p, x, dy } => {
                writeln!(f, "  gradient slice of \"{}\" from {}, {}", param(p), at(x), at(dy))
            }
            Instr::Update => self.fmt_update(f),
            Instr::Assign { param: p, value } => {
                writeln!(f, "  \"{}\" := {}", param(p), at(value))
            }
            Instr::Fetch { index, value } => {
                writeln!(f, "  fetch \"{}\" {}", shown(&self.fetches[*index].name), at(value))
            }
        }
    }

    /// Prints the computation of a value by a layer.
    fn fmt_computation(
        &self,
        f: &mut fmt::Formatter<'_>,
        op: &str,
        args: &str,
        (output, layer): (ValueId, u32),
    ) -> fmt::Result {
        let (out, ty) = (self.location_text(output), &self.value(output).ty);
        write!(f, "  {out} = {op}({args}) : {ty}")?;
        match self.scopes[layer as usize].as_str() {
            "" => writeln!(f),
            name => writeln!(f, "  ; {}", shown(name)),
        }
    }

    fn location_text(&self, id: ValueId) -> String {
        let v = self.value(id);
        let mut text = match v.location {
            Location::Feed(p) => format!("\"{}\"", shown(&self.feeds[p.index()].name)),
            Location::Param(p) => format!("\"{}\"", shown(&self.params[p.index()].name)),
            Location::Arena(o) => format!("@{o}"),
            Location::Shared(o) => format!("@shared+{o}"),
            Location::Device(o) => format!("@device+{o}"),
            Location::Gradient(p) => format!("grad \"{}\"", shown(&self.params[p.index()].name)),
        };
        if v.offset > 0 {
            text += &format!("+{}", v.offset);
        }
        if !v.contiguous() {
            text += &format!("/{}", v.ld);
        }
        text
    }

    fn fmt_update(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(update) = &self.update else { return Ok(()) };
        for g in &update.gradients {
            let Some((x, dy)) = g.operands else { continue };
            let name = shown(&self.params[g.param.index()].name);
            let (x, dy) = (self.location_text(x), self.location_text(dy));
            writeln!(f, "  gradient slice of \"{name}\" from {x}, {dy}")?;
        }
        for (i, bucket) in update.buckets.iter().enumerate() {
            let gradients = &update.gradients[bucket.clone()];
            let count: usize = gradients.iter().map(|g| self.params[g.param.index()].len()).sum();
            let names: Vec<String> = gradients
                .iter()
                .map(|g| {
                    let name = shown(&self.params[g.param.index()].name);
                    format!("\"{name}\"{}", if g.sliced { " sliced" } else { "" })
                })
                .collect();
            writeln!(f, "  reduce bucket {i} ({count} elements): {}", names.join(", "))?;
        }
        if let Some(scaling) = update.loss_scale {
            let name = shown(&self.params[scaling.state.index()].name);
            writeln!(f, "  unscale by \"{name}\", skip unless finite")?;
        }
        writeln!(f, "  update {} {{{}}}", update.rule.name, update.rule.tape)
    }
}
