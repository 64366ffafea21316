//! What a program takes of the machine's memory.

use super::FlatLayout;
use crate::compute;
use crate::kernels::elementwise::TapePlan;
use crate::update::SCATTER_FROM;
use phalanx_graph::program::{Instr, Program, Split};
use phalanx_graph::{Op, Type};

/// Bytes that a program needs.
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
}

/// The tape of each instruction that has one, and that of the update.
pub(super) fn tape_plans(program: &Program) -> (Vec<Option<TapePlan>>, Option<TapePlan>) {
    let tapes = program.instrs.iter().map(|i| match i {
        Instr::Compute { op: Op::Fused(tape), .. } => Some(TapePlan::new(tape)),
        _ => None,
    });
    (tapes.collect(), program.update.as_ref().map(|u| TapePlan::new(&u.rule.tape)))
}

impl Needs {
    pub fn of(program: &Program, tapes: &[Option<TapePlan>], update: Option<&TapePlan>) -> Needs {
        let mesh = program.options.mesh;
        let flat = FlatLayout::new(&program.params).len.saturating_mul(4);
        let plan = program.update.as_ref();
        let flat_if = |needed: bool| if needed { flat } else { 0 };
        let sliced =
            plan.is_some_and(|p| p.gradients.iter().any(|g| g.sliced && g.operands.is_none()));
        Needs {
            arena: program.memory.arena,
            arenas: if program.split == Split::Lines { 1 } else { mesh.workers },
            shared: program.memory.shared,
            scratch: compute::scratch_bytes(program, tapes, update),
            gradients: flat_if(plan.is_some()),
            norms: plan.map_or(0, |_| program.params.len() * 8),
            sliced: flat_if(sliced),
            scattered: flat_if(plan.is_some() && mesh.devices >= SCATTER_FROM),
            reduced: flat_if(plan.is_some_and(|p| p.rule.clip.is_some() || p.loss_scale.is_some())),
            slots: plan.map_or(0, |p| p.rule.slots.len()) * flat,
        }
    }
}

/// What a program takes of each device's memory, by purpose and in bytes; `gathers` where gradients are
/// accumulated over steps. The inputs are those of the batch on the host.
pub fn memory_plan(program: &Program, gathers: bool) -> Vec<(&'static str, usize)> {
    let (tapes, update) = tape_plans(program);
    let needs = Needs::of(program, &tapes, update.as_ref());
    let (mesh, workers) = (program.options.mesh, program.options.mesh.workers);
    let flat = FlatLayout::new(&program.params).len * 4;
    let rows = mesh.max_device_rows(program.options.max_batch);
    let input = |ty: &Type| ty.len() * ty.dtype.bytes() * if ty.is_rows() { rows } else { 1 };
    let gradients = needs.gradients * workers + needs.sliced + needs.scattered + needs.reduced;
    let mut parts = vec![
        ("weights", flat),
        ("inputs", program.feeds.iter().map(|f| input(&f.ty)).sum()),
        ("activations", needs.arena * needs.arenas),
        ("statistics", needs.shared * workers),
        ("gradients", gradients + needs.norms * workers),
        ("optimizer slots", needs.slots),
        ("kernel scratch", needs.scratch * workers),
    ];
    if gathers && program.update.is_some() {
        parts.push(("accumulated gradients", flat));
    }
    parts.retain(|(_, bytes)| *bytes > 0);
    parts
}
