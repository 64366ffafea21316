//! Memory requirements of a program.

use super::FlatLayout;
use crate::collectives::update::MIN_REDUCE_SCATTER_DEVICES;
use crate::compute;
use crate::kernels::elementwise::TapePlan;
use phalanx_graph::program::{Instr, Program, Split, ValueId};
use phalanx_graph::{DType, Op, Type};

/// Memory that a program needs, in bytes.
#[derive(Clone, Copy)]
pub(super) struct MemoryRequirements {
    pub worker: WorkerBytes,
    /// Number of arenas per device: one per worker, or a single one under `Split::Spatial`.
    pub arenas: usize,
    pub device: DeviceBytes,
    pub process: ProcessBytes,
}

/// The buffers of each worker.
#[derive(Clone, Copy)]
pub(super) struct WorkerBytes {
    pub arena: usize,
    pub shared: usize,
    pub scratch: usize,
    pub gradients: usize,
    pub norms: usize,
}

/// The buffers of each device.
#[derive(Clone, Copy)]
pub(super) struct DeviceBytes {
    pub rows: usize,
    pub sharded: usize,
    pub scattered: usize,
    pub reduced: usize,
    pub slots: usize,
}

/// The buffers of the process; zero in a single-process run.
#[derive(Clone, Copy, Default)]
pub(super) struct ProcessBytes {
    pub collective_results: usize,
    pub gradients: usize,
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
        MemoryRequirements {
            worker: WorkerBytes {
                arena: program.memory().arena,
                shared: program.memory().shared,
                scratch: compute::scratch_bytes(program, tapes, update),
                gradients: flat_if(plan.is_some()),
                norms: plan.map_or(0, |_| program.params().len() * 8),
            },
            arenas: if program.split() == Split::Spatial { 1 } else { mesh.workers },
            device: DeviceBytes {
                rows: program.memory().device,
                sharded: flat_if(sharded),
                scattered: flat_if(plan.is_some() && mesh.devices >= MIN_REDUCE_SCATTER_DEVICES),
                reduced: flat_if(
                    plan.is_some_and(|p| p.rule.clip.is_some() || p.loss_scale.is_some()),
                ),
                slots: plan.map_or(0, |p| p.rule.slots.len()).saturating_mul(flat),
            },
            process: ProcessBytes::default(),
        }
    }
}

/// Bytes of all parameters in the flat layout. A compiled program's parameters fit the address space.
fn flat_bytes(program: &Program) -> usize {
    FlatLayout::new(program.params()).map_or(usize::MAX, |layout| layout.len * 4)
}

/// The memory that a program needs on each device, in bytes by purpose. `accumulates` adds the buffer for
/// gradient accumulation. The entry "inputs" is the batch on the host.
pub fn memory_plan(program: &Program, accumulates: bool) -> Vec<(&'static str, usize)> {
    let (tapes, update) = tape_plans(program);
    let memory = MemoryRequirements::of(program, &tapes, update.as_ref());
    let (worker, device) = (memory.worker, memory.device);
    let (mesh, workers) = (program.options().mesh, program.options().mesh.workers);
    let flat = flat_bytes(program);
    let rows = mesh.max_device_rows(program.options().max_batch);
    let input = |ty: &Type| ty.len() * ty.dtype.bytes() * if ty.is_rows() { rows } else { 1 };
    let gradients = worker.gradients * workers + device.sharded + device.scattered + device.reduced;
    let mut parts = vec![
        ("weights", flat),
        ("inputs", program.feeds().iter().map(|f| input(&f.ty)).sum()),
        ("activations", worker.arena * memory.arenas),
        ("statistics", worker.shared * workers),
        ("gradients", gradients + worker.norms * workers),
        ("optimizer slots", device.slots),
        ("kernel scratch", worker.scratch * workers),
    ];
    if accumulates && program.update().is_some() {
        parts.push(("accumulated gradients", flat));
    }
    parts.retain(|(_, bytes)| *bytes > 0);
    parts
}
