//! The memory plan of a program. It is known without a GPU, and is what the executor reserves.

use crate::device::{MAX_STAGED_STEPS, Plan};
use crate::inputs::INPUT_BYTES;
use crate::launch::Block;
use crate::lower::{self, FromTable, FusionFacts, Replica, Request};
use crate::lowering_context::Layout;
use crate::schedule::{STREAMS, schedule};
use crate::work_item::{Task, WorkItem};
use crate::{algorithms, cublas};
use phalanx_graph::ParamSpec;
use phalanx_graph::program::Program;

/// Alignment of parameters, feeds and fetches in bytes, and the minimum size of a block.
pub(crate) const ALIGN: usize = 256;

/// Purpose of the staged copies of the inputs.
pub(crate) const INPUT_COPIES: &str = "input copies";

/// Purpose of the workspaces of the vendor's libraries.
pub(crate) const WORKSPACES: &str = "library workspaces";

/// A block of memory and its purpose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Allocation {
    pub block: Block,
    pub bytes: usize,
    pub purpose: &'static str,
}

impl Allocation {
    pub fn new(block: Block, bytes: usize, purpose: &'static str) -> Allocation {
        Allocation { block, bytes: bytes.max(ALIGN), purpose }
    }
}

/// The layout of a program's feeds and fetches, and the blocks it needs.
pub(crate) struct Allocations {
    pub layout: Layout,
    /// Bytes of a replica's inputs.
    pub inputs: usize,
    /// Offset of each fetch, in bytes, and their total size.
    pub fetches: Vec<usize>,
    pub fetch_bytes: usize,
    /// Bytes of all parameters.
    param_bytes: usize,
}

/// How a step runs, besides its rows.
#[derive(Clone, Copy, Default)]
pub(crate) struct RunMode<'a> {
    /// Whether it reduces across GPUs.
    pub joined: bool,
    /// The resident dataset that its rows come from; from the host if `None`.
    pub from: Option<FromTable<'a>>,
    /// With gradient accumulation, whether the sum is applied.
    pub accumulate: Option<bool>,
}

/// Byte offsets of consecutive parts, and their total size.
fn pack_offsets(sizes: impl Iterator<Item = usize>, from: usize) -> (Vec<usize>, usize) {
    let mut end = from;
    let mut offsets = vec![];
    for bytes in sizes {
        offsets.push(end);
        end += bytes.next_multiple_of(ALIGN);
    }
    (offsets, end)
}

/// Byte offset of each parameter, and their total size.
pub(crate) fn param_offsets(params: &[ParamSpec]) -> (Vec<usize>, usize) {
    pack_offsets(params.iter().map(|p| p.len() * 4), 0)
}

impl Allocations {
    pub fn of(program: &Program) -> Allocations {
        let max_rows = program.options().mesh.max_rows(program.options().max_batch);
        let bytes = |ty: &phalanx_graph::Type| {
            ty.len() * ty.dtype.bytes() * if ty.is_rows() { max_rows } else { 1 }
        };
        let (feeds, inputs) =
            pack_offsets(program.feeds().iter().map(|f| bytes(&f.ty)), INPUT_BYTES);
        let (fetches, fetch_bytes) =
            pack_offsets(program.fetches().iter().map(|f| bytes(&f.ty)), 0);
        let (params, param_bytes) = param_offsets(program.params());
        Allocations { layout: Layout { feeds, params }, inputs, fetches, fetch_bytes, param_bytes }
    }

    /// The blocks of a program that are independent of the number of rows.
    pub fn blocks(&self, program: &Program) -> Vec<Allocation> {
        let mut allocations = vec![
            Allocation::new(Block::Params, self.param_bytes, "weights"),
            Allocation::new(Block::Inputs, self.inputs, "inputs"),
            Allocation::new(Block::Fetches, self.fetch_bytes, "results"),
            Allocation::new(Block::Arena, program.memory().arena, "activations"),
            Allocation::new(Block::Shared, program.memory().shared, "statistics"),
        ];
        if let Some(plan) = program.update() {
            allocations.push(Allocation::new(Block::Gradients, self.param_bytes, "gradients"));
            let slots = 0..plan.rule.slots.len();
            allocations.extend(
                slots.map(|i| Allocation::new(Block::Slot(i), self.param_bytes, "optimizer slots")),
            );
        }
        allocations
    }

    /// The work items of the largest batch with all replicas on one GPU, and their bytes of scratch
    /// memory and of counters.
    pub fn lower(&self, program: &Program, mode: RunMode<'_>) -> (Plan, (usize, usize)) {
        let (mesh, rows) = (program.options().mesh, program.options().max_batch);
        let replica = |local: usize| {
            let range = mesh.replica_rows(rows, local);
            Replica { local, rows: range.len(), first_row: range.start }
        };
        let replicas: Vec<Replica> = (0..mesh.replicas).map(replica).collect();
        lower::lower(&Request {
            program,
            layout: &self.layout,
            facts: &FusionFacts::of(program, mesh.replicas == 1),
            replicas: &replicas,
            rows,
            fetches: &self.fetches,
            accumulate: mode.accumulate,
            joined: mode.joined,
            from: mode.from,
        })
    }
}

/// Maximum workspace of each stream, in bytes. How much the libraries actually use is known only on
/// the GPU.
pub(crate) fn workspaces(work_items: &[WorkItem]) -> Vec<usize> {
    let mut max_bytes = vec![0; STREAMS + 1];
    for (work, slot) in work_items.iter().zip(schedule(work_items, STREAMS)) {
        let bytes = |task: &Task| match task {
            Task::Conv(conv) => algorithms::max_workspace(conv),
            Task::Gemm(_) => cublas::WORKSPACE,
            Task::Launch(_) | Task::Clear(_) | Task::Reduce(_) => 0,
        };
        let wanted = work.tasks.iter().map(bytes).max().unwrap_or(0);
        max_bytes[slot.stream] = wanted.max(max_bytes[slot.stream]);
    }
    max_bytes
}

/// Memory of each replica by purpose, in bytes, of a program compiled for a mesh of one worker per
/// device. `accumulates` says whether gradients are accumulated over steps. For `library
/// workspaces` it is the allowed maximum, which replicas on one GPU share. The memory of the driver
/// and of the vendor's libraries themselves is not included.
pub fn memory_plan(program: &Program, accumulates: bool) -> Vec<(&'static str, usize)> {
    let allocations = Allocations::of(program);
    let mut blocks = allocations.blocks(program);
    let (plan, (scratch, counters)) = allocations.lower(program, RunMode::default());
    blocks.push(Allocation::new(Block::Scratch, scratch, "partial sums"));
    blocks.push(Allocation::new(Block::Counters, counters, "partial sums"));
    if accumulates && program.update().is_some() {
        blocks.push(Allocation::new(
            Block::Accumulated,
            allocations.param_bytes,
            "accumulated gradients",
        ));
    }
    let mut parts: Vec<(&'static str, usize)> = vec![];
    for allocation in blocks {
        match parts.iter_mut().find(|(purpose, _)| *purpose == allocation.purpose) {
            Some((_, bytes)) => *bytes += allocation.bytes,
            None => parts.push((allocation.purpose, allocation.bytes)),
        }
    }
    parts.push((INPUT_COPIES, MAX_STAGED_STEPS * (allocations.inputs - INPUT_BYTES)));
    parts.push((WORKSPACES, workspaces(&plan.work_items).iter().sum()));
    parts
}
