//! Memory requirements of a program.

use super::FlatLayout;
use crate::collectives::exchange_layout::GradientLayout;
use crate::collectives::reduction::MIN_REDUCE_SCATTER_DEVICES;
use crate::collectives::update::clips_norms;
use crate::compute;
use crate::kernels::elementwise::TapePlan;
use phalanx_exec::MemoryPlan;
use phalanx_graph::program::{BLOCK, Instr, Program, ShardLevel, Split, ValueId};
use phalanx_graph::{DType, Op, ParamId, ParamSpec, Type};
use std::ops::Range;

/// Memory that a program needs, in bytes.
#[derive(Clone, Copy)]
pub(super) struct MemoryRequirements {
    pub worker: WorkerBytes,
    /// Number of arenas per device: one per worker, or a single one under `Split::Spatial`.
    pub arenas: usize,
    pub device: DeviceBytes,
    pub state: StateNeeds,
    pub process: ProcessBytes,
}

/// The buffers of each worker.
#[derive(Clone, Copy)]
pub(super) struct WorkerBytes {
    pub arena: usize,
    pub shared: usize,
    pub scratch: usize,
    pub gradients: usize,
    pub finite: usize,
}

/// The buffers of each device.
#[derive(Clone, Copy)]
pub(super) struct DeviceBytes {
    pub rows: usize,
    pub sharded: usize,
    pub scattered: usize,
}

/// What a copy of the training state needs besides weights.
#[derive(Clone, Copy)]
pub(super) struct StateNeeds {
    /// Whether reduced gradients are stored.
    pub reduced: bool,
    /// Bytes of the norms of all blocks.
    pub block_norms: usize,
    /// Number of optimizer slots.
    pub slots: usize,
}

/// The buffers of the process; zero in a single-process run.
#[derive(Clone, Copy, Default)]
pub(crate) struct ProcessBytes {
    pub collective_results: usize,
    pub gradients: usize,
    /// Each of the two buffers of gathered weights.
    pub gathered: usize,
}

/// Why the CPU kernels cannot run a program, if so. They support element types of four bytes, and doubles in
/// the statistics of batch normalisation.
pub(super) fn unsupported_reason(program: &Program) -> Option<String> {
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

/// The tape of each instruction, if any, and the tape of the update.
pub(super) fn tape_plans(program: &Program) -> (Vec<Option<TapePlan>>, Option<TapePlan>) {
    let tapes = program.instrs().iter().map(|i| match i {
        Instr::Compute { op: Op::Fused(tape), .. } => Some(TapePlan::new(tape)),
        _ => None,
    });
    (tapes.collect(), program.update().map(|u| TapePlan::new(&u.rule.tape)))
}

impl MemoryRequirements {
    pub fn of(
        program: &Program,
        tapes: &[Option<TapePlan>],
        update: Option<&TapePlan>,
    ) -> MemoryRequirements {
        let mesh = program.options().mesh;
        let flat = flat_bytes(program);
        let plan = program.update();
        let flat_if = |needed: bool| if needed { flat } else { 0 };
        let sharded =
            plan.is_some_and(|p| p.gradients.iter().any(|g| g.sharded && g.operands.is_none()));
        // Otherwise partial gradients are in the arena until their bucket is reduced.
        let whole_gradients = mesh.sharding.level < ShardLevel::Gradients;
        let scatters = !mesh.sharding.is_on() && mesh.replicas >= MIN_REDUCE_SCATTER_DEVICES;
        MemoryRequirements {
            worker: WorkerBytes {
                arena: program.memory().arena,
                shared: program.memory().shared,
                scratch: compute::scratch_bytes(program, tapes, update),
                gradients: flat_if(plan.is_some() && whole_gradients),
                finite: if plan.is_some_and(|p| p.loss_scale.is_some()) { 8 } else { 0 },
            },
            arenas: if program.split() == Split::Spatial { 1 } else { mesh.workers },
            device: DeviceBytes {
                rows: program.memory().device,
                sharded: flat_if(sharded),
                scattered: flat_if(plan.is_some() && scatters),
            },
            state: StateNeeds {
                reduced: plan.is_some_and(|p| {
                    !whole_gradients || p.rule.clip.is_some() || p.loss_scale.is_some()
                }),
                block_norms: plan.filter(|p| clips_norms(p)).map_or(0, |_| 8 * blocks(program)),
                slots: plan.map_or(0, |p| p.rule.slots.len()),
            },
            process: ProcessBytes::default(),
        }
    }
}

/// The number of blocks of all parameters.
fn blocks(program: &Program) -> usize {
    program.params().iter().map(|p| p.len().div_ceil(BLOCK)).sum()
}

/// Bytes of all parameters in the flat layout. A compiled program's parameters fit the address space.
fn flat_bytes(program: &Program) -> usize {
    FlatLayout::new(program.params()).map_or(usize::MAX, |layout| layout.len * 4)
}

/// The memory that a program needs, in bytes by purpose. `accumulates` adds the buffer for gradient accumulation. The
/// entry "inputs" is the batch on the host.
pub fn memory_plan(program: &Program, accumulates: bool) -> MemoryPlan {
    let (tapes, update) = tape_plans(program);
    let memory = MemoryRequirements::of(program, &tapes, update.as_ref());
    let (worker, device) = (memory.worker, memory.device);
    let (mesh, workers) = (program.options().mesh, program.options().mesh.workers);
    let rows = mesh.max_replica_rows(program.options().max_batch);
    let input = |ty: &Type| ty.len() * ty.dtype.bytes() * if ty.is_rows() { rows } else { 1 };
    let gradients = worker.gradients * workers + device.sharded + device.scattered;
    let sharding = mesh.sharding;
    let owned = largest_bytes(program, |id, p, domain| sharding.owned(id, p.len(), domain));
    let held = largest_bytes(program, |id, p, domain| sharding.held(id, p, domain));
    let reduced = if memory.state.reduced { owned } else { 0 } + memory.state.block_norms;
    let accumulated = if accumulates && program.update().is_some() { owned } else { 0 };
    let inputs = program.feeds().iter().map(|f| input(&f.ty)).sum();
    // The purpose, bytes of each replica, and bytes of each copy of the training state.
    let parts = [
        ("weights", 0, held),
        // Two groups, and the messages that fill one.
        ("gathered weights", 0, 3 * program.memory().gathered),
        ("inputs", inputs, 0),
        ("activations", worker.arena * memory.arenas, 0),
        ("statistics", worker.shared * workers, 0),
        ("gradients", gradients + worker.finite * workers, reduced),
        ("optimizer slots", 0, owned.saturating_mul(memory.state.slots)),
        ("kernel scratch", worker.scratch * workers, 0),
        ("accumulated gradients", 0, accumulated),
        ("gradients between processes", 0, exchanged_gradients(program)),
    ];
    MemoryPlan::new(program, parts)
}

/// Bytes of the elements of all parameters that `part` returns for a process; the most of any process.
fn largest_bytes(
    program: &Program,
    part: impl Fn(ParamId, &ParamSpec, usize) -> Range<usize>,
) -> usize {
    let of_domain = |domain| {
        let layout = FlatLayout::of(program.params(), |id, p| part(id, p, domain));
        layout.map_or(usize::MAX, |layout| layout.len * 4)
    };
    (0..program.options().mesh.sharding.domains).map(of_domain).max().unwrap_or(0)
}

/// Bytes of the buffer in which processes that divide the state exchange gradients and weights, and of the messages that a
/// process has received.
fn exchanged_gradients(program: &Program) -> usize {
    let domains = program.options().mesh.sharding.domains;
    let Some(owned) = FlatLayout::new(program.params()).filter(|_| domains > 1) else { return 0 };
    let layout = GradientLayout::new(program, (0, domains), &owned);
    4 * (layout.len + layout.largest_message(domains))
}
