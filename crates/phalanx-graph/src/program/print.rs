//! Text form of a program.

use super::{Instr, Location, Options, Program, Split, ValueId};
use crate::text::shown;
use std::fmt;

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
        let at = |id: &ValueId| self.location_text(*id);
        let layer = |scope: &u32| match self.scopes[*scope as usize].as_str() {
            "" => String::new(),
            name => format!("  ; {}", shown(name)),
        };
        for instr in &self.instrs {
            match instr {
                Instr::Compute { op, inputs, output, scope } => {
                    let args: Vec<String> = inputs.iter().map(at).collect();
                    let ty = &self.value(*output).ty;
                    let (out, args) = (at(output), args.join(", "));
                    writeln!(f, "  {out} = {op}({args}) : {ty}{}", layer(scope))?;
                }
                Instr::SlicedDot { x, kernel, output, scope } => {
                    let (out, ty) = (at(output), &self.value(*output).ty);
                    let args = format!("{}, {}", at(x), at(kernel));
                    writeln!(f, "  {out} = slice of dot({args}) : {ty}{}", layer(scope))?;
                }
                Instr::AddSlices { input, bias, relu, output, scope } => {
                    let args = bias.iter().fold(at(input), |text, b| text + ", " + &at(b));
                    let what = format!(
                        "add slices{}{}",
                        if bias.is_some() { " +bias" } else { "" },
                        if *relu { " +relu" } else { "" }
                    );
                    let (out, ty) = (at(output), &self.value(*output).ty);
                    writeln!(f, "  {out} = {what}({args}) : {ty}{}", layer(scope))?;
                }
                Instr::SlicedGradInput { dy, kernel, output, scope } => {
                    let (out, ty) = (at(output), &self.value(*output).ty);
                    let args = format!("{}, {}", at(dy), at(kernel));
                    writeln!(
                        f,
                        "  {out} = slice of dot_grad_input({args}) : {ty}{}",
                        layer(scope)
                    )?;
                }
                Instr::Copy { input, output } => {
                    writeln!(f, "  {} = copy({})", at(output), at(input))?
                }
                Instr::Barrier(scope) => writeln!(f, "  barrier {scope}")?,
                Instr::AllReduce { scope, input, output } => {
                    writeln!(f, "  {} = all_reduce over={scope}({})", at(output), at(input))?;
                }
                Instr::ReplicaMean { input, output } => {
                    writeln!(f, "  {} = replica_mean({})", at(output), at(input))?;
                }
                Instr::SlicedGradient { param, x, dy } => {
                    let name = shown(&self.params[param.index()].name);
                    writeln!(f, "  gradient slice of \"{name}\" from {}, {}", at(x), at(dy))?;
                }
                Instr::Update => self.fmt_update(f)?,
                Instr::Assign { param, value } => {
                    writeln!(
                        f,
                        "  \"{}\" := {}",
                        shown(&self.params[param.index()].name),
                        at(value)
                    )?;
                }
                Instr::Fetch { index, value } => {
                    writeln!(f, "  fetch \"{}\" {}", shown(&self.fetches[*index].name), at(value))?;
                }
            }
        }
        Ok(())
    }
}

impl Program {
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
