//! What a program takes of the machine's memory.

use super::{CpuExecutor, FlatLayout, grow};
use crate::compute;
use crate::kernels::elementwise::TapePlan;
use crate::update::SCATTER_FROM;
use phalanx_graph::exec::ExecError;
use phalanx_graph::program::{Instr, Program, Split, ValueId};
use phalanx_graph::update::{SlotInit, UpdateRule};
use phalanx_graph::{DType, Op, Type};

/// Bytes that a program needs.
#[derive(Clone, Copy)]
pub(super) struct Needs {
    /// Of each worker; a single arena for all workers of a device where they share lines.
    pub arena: usize,
    pub arenas: usize,
    pub shared: usize,
    pub scratch: usize,
    pub gradients: usize,
    pub norms: usize,
    /// Of each device.
    pub sliced: usize,
    pub scattered: usize,
    pub reduced: usize,
    pub slots: usize,
    pub rows: usize,
    /// Of the process, where there are others.
    pub totals: usize,
    pub host_gradients: usize,
}

/// Why kernels of the CPU cannot run a program, where they cannot: they know numbers of four bytes, and
/// doubles in the statistics of batch normalisation.
pub(super) fn unsupported(program: &Program) -> Option<String> {
    let dtype = |id: &ValueId| program.value(*id).ty.dtype;
    let wide = |id: &ValueId| dtype(id).bytes() != 4;
    program.instrs().iter().find_map(|instr| match instr {
        Instr::Compute { op: Op::Cast { .. }, inputs, output, .. } => {
            let (from, to) = (dtype(&inputs[0]), dtype(output));
            let known = matches!((from, to), (DType::I32, DType::F32) | (DType::F32, DType::I32));
            (!known).then(|| format!("no kernel casts {from} to {to}"))
        }
        Instr::Compute { op: Op::Moments | Op::BatchStats { .. }, .. } => None,
        Instr::Compute { op, inputs, output, .. } => {
            let odd = inputs.iter().chain([output]).find(|id| wide(id))?;
            Some(format!("no kernel computes {} of {}", op.name(), dtype(odd)))
        }
        Instr::Copy { input, .. } => {
            wide(input).then(|| format!("no kernel copies {}", dtype(input)))
        }
        _ => None,
    })
}

/// The tape of each instruction that has one, and that of the update.
pub(super) fn tape_plans(program: &Program) -> (Vec<Option<TapePlan>>, Option<TapePlan>) {
    let tapes = program.instrs().iter().map(|i| match i {
        Instr::Compute { op: Op::Fused(tape), .. } => Some(TapePlan::new(tape)),
        _ => None,
    });
    (tapes.collect(), program.update().map(|u| TapePlan::new(&u.rule.tape)))
}

impl Needs {
    pub fn of(program: &Program, tapes: &[Option<TapePlan>], update: Option<&TapePlan>) -> Needs {
        let mesh = program.options().mesh;
        let flat = flat_bytes(program);
        let plan = program.update();
        let flat_if = |needed: bool| if needed { flat } else { 0 };
        let sliced =
            plan.is_some_and(|p| p.gradients.iter().any(|g| g.sliced && g.operands.is_none()));
        Needs {
            arena: program.memory().arena,
            arenas: if program.split() == Split::Spatial { 1 } else { mesh.workers },
            shared: program.memory().shared,
            scratch: compute::scratch_bytes(program, tapes, update),
            gradients: flat_if(plan.is_some()),
            norms: plan.map_or(0, |_| program.params().len() * 8),
            sliced: flat_if(sliced),
            scattered: flat_if(plan.is_some() && mesh.devices >= SCATTER_FROM),
            reduced: flat_if(plan.is_some_and(|p| p.rule.clip.is_some() || p.loss_scale.is_some())),
            slots: plan.map_or(0, |p| p.rule.slots.len()).saturating_mul(flat),
            rows: program.memory().device,
            totals: 0,
            host_gradients: 0,
        }
    }
}

/// Bytes of all parameters; a program's can be addressed.
fn flat_bytes(program: &Program) -> usize {
    FlatLayout::new(program.params()).map_or(usize::MAX, |layout| layout.len * 4)
}

impl CpuExecutor {
    /// Makes room for a program; what is there already stays.
    pub(super) fn reserve(&mut self, needs: Needs) -> Result<(), ExecError> {
        let heap = &mut self.heap;
        for (i, w) in self.workers.iter_mut().enumerate() {
            if i % self.mesh.workers < needs.arenas {
                grow(heap, &mut w.arena, needs.arena, "activations")?;
            }
            grow(heap, &mut w.shared, needs.shared, "statistics")?;
            grow(heap, &mut w.scratch, needs.scratch, "kernel scratch")?;
            grow(heap, &mut w.gradients, needs.gradients, "gradients")?;
            grow(heap, &mut w.norms, needs.norms, "gradient norms")?;
        }
        for d in &mut self.devices {
            grow(heap, &mut d.rows, needs.rows, "activations")?;
            grow(heap, &mut d.sliced, needs.sliced, "gradients")?;
            grow(heap, &mut d.scattered, needs.scattered, "gradients")?;
            grow(heap, &mut d.reduced, needs.reduced, "reduced gradients")?;
        }
        match &mut self.between {
            Some(between) => between.reserve(heap, needs.totals, needs.host_gradients),
            None => Ok(()),
        }
    }

    /// Makes the slots of an optimizer, on all devices or on none.
    pub(super) fn make_slots(&mut self, rule: &UpdateRule) -> Result<(), ExecError> {
        let mut made = vec![];
        for d in self.devices.iter().filter(|d| d.slots.len() != rule.slots.len()) {
            let mut slots = vec![];
            for slot in &rule.slots {
                let mut buffer = self.heap.buffer(self.layout.len * 4, "optimizer slots")?;
                match slot.init {
                    SlotInit::Value(v) => buffer.as_floats_mut().fill(v),
                    SlotInit::Weight => {
                        let (to, from) = (buffer.as_floats_mut(), d.params.as_floats());
                        to[..from.len()].copy_from_slice(from);
                    }
                }
                slots.push(buffer);
            }
            made.push(slots);
        }
        let wanted = self.devices.iter_mut().filter(|d| d.slots.len() != rule.slots.len());
        wanted.zip(made).for_each(|(d, slots)| d.slots = slots);
        Ok(())
    }
}

/// What a program takes of each device's memory, by purpose and in bytes; `gathers` where gradients are
/// accumulated over steps. The inputs are those of the batch on the host.
pub fn memory_plan(program: &Program, gathers: bool) -> Vec<(&'static str, usize)> {
    let (tapes, update) = tape_plans(program);
    let needs = Needs::of(program, &tapes, update.as_ref());
    let (mesh, workers) = (program.options().mesh, program.options().mesh.workers);
    let flat = flat_bytes(program);
    let rows = mesh.max_device_rows(program.options().max_batch);
    let input = |ty: &Type| ty.len() * ty.dtype.bytes() * if ty.is_rows() { rows } else { 1 };
    let gradients = needs.gradients * workers + needs.sliced + needs.scattered + needs.reduced;
    let mut parts = vec![
        ("weights", flat),
        ("inputs", program.feeds().iter().map(|f| input(&f.ty)).sum()),
        ("activations", needs.arena * needs.arenas),
        ("statistics", needs.shared * workers),
        ("gradients", gradients + needs.norms * workers),
        ("optimizer slots", needs.slots),
        ("kernel scratch", needs.scratch * workers),
    ];
    if gathers && program.update().is_some() {
        parts.push(("accumulated gradients", flat));
    }
    parts.retain(|(_, bytes)| *bytes > 0);
    parts
}
