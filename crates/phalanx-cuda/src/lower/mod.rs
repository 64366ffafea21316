//! Lowering of a step program to the work items of one GPU, for given rows of every replica on it.
//!
//! Instructions are lowered in order, each for every replica, so that the operands of a collective
//! are complete on all replicas.

mod analysis;
mod batching;
mod casts;
mod compute;
mod conv;
mod dense;
mod depthwise;
mod matmul;
mod norm;
mod resident_dataset;
mod row_sums;

use crate::collectives::ReduceSchedule;
use crate::device::Plan;
use crate::launch::{Block, Elem, Launch, Ptr, Span};
use crate::lowering_context::{Aliases, Layout, LowerCtx, Operand, Scratch};
use crate::ops::reduce::RowSum;
use crate::ops::update::{self, Filters, Update};
use crate::tape::Tapes;
use crate::work_item::{Task, WorkItem};
pub(crate) use analysis::FusionFacts;
use batching::{CopyOp, SmallTape};
use phalanx_graph::program::{Instr, Program, ValueId};
pub(crate) use resident_dataset::FromTable;
use std::collections::HashMap;

/// A replica on this GPU, and its part of the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Replica {
    /// Its index on this GPU.
    pub local: usize,
    pub rows: usize,
    /// Its first row in the global batch.
    pub first_row: usize,
}

/// The input of a lowering.
pub(crate) struct Request<'a> {
    pub program: &'a Program,
    pub layout: &'a Layout,
    pub facts: &'a FusionFacts,
    pub replicas: &'a [Replica],
    /// Rows of the global batch.
    pub rows: usize,
    /// Byte offset of each fetch in its block.
    pub fetches: &'a [usize],
    /// With gradient accumulation, whether this step applies the sum.
    pub accumulate: Option<bool>,
    /// The resident dataset that its rows come from; from the host if `None`.
    pub from: Option<FromTable<'a>>,
    /// Whether it reduces across GPUs.
    pub joined: bool,
}

/// Lowers a step. Returns its plan, and its bytes of scratch memory and of counters.
pub(crate) fn lower(request: &Request<'_>) -> (Plan, (usize, usize)) {
    let mut l = Lowering {
        request,
        at: 0,
        work_items: vec![],
        scratch: request.replicas.iter().map(|r| Scratch::new(r.local)).collect(),
        aliases: Aliases::default(),
        tapes: Tapes::default(),
        packed: HashMap::new(),
        copies: vec![],
        unpacks: vec![],
        small_tapes: vec![],
        sums: vec![],
        reduce_schedule: ReduceSchedule::default(),
    };
    if request.joined {
        l.plan_reductions();
    }
    if let Some(from) = &request.from {
        l.load_step_input(from);
    }
    l.pack_filters();
    for (i, instr) in request.program.instrs().iter().enumerate() {
        l.at = i;
        if !request.facts.covered.contains(&i) {
            l.instr(instr);
        }
        l.reduce_gradients();
    }
    l.flush();
    if let Some(from) = &request.from {
        l.store_results(from);
    }
    let max = |part: fn((usize, usize)) -> usize| {
        l.scratch.iter().map(|s| part(s.used())).max().unwrap_or(0)
    };
    let scratch = (max(|used| used.0), max(|used| used.1));
    (Plan { work_items: l.work_items, tapes: l.tapes.source() }, scratch)
}

pub(crate) struct Lowering<'a> {
    pub request: &'a Request<'a>,
    /// The current instruction.
    pub at: usize,
    pub work_items: Vec<WorkItem>,
    pub scratch: Vec<Scratch>,
    pub aliases: Aliases,
    pub tapes: Tapes,
    /// Weights in the library's layout and the type of its operands, by address.
    pub packed: HashMap<(Ptr, Elem), Ptr>,
    pub copies: Vec<CopyOp>,
    /// Filter gradients to convert back, with the type in which the library wrote them.
    pub unpacks: Vec<(Filters, Elem)>,
    small_tapes: Vec<SmallTape>,
    pub sums: Vec<RowSum>,
    pub reduce_schedule: ReduceSchedule,
}

impl Lowering<'_> {
    pub fn cx(&mut self, replica: usize) -> (LowerCtx<'_>, &mut Tapes) {
        let r = self.request.replicas[replica];
        let cx = LowerCtx {
            values: self.request.program.values(),
            params: self.request.program.params(),
            layout: self.request.layout,
            aliases: &self.aliases,
            scratch: &mut self.scratch[replica],
            replica: r.local,
            rows: r.rows,
            first_row: r.first_row,
        };
        (cx, &mut self.tapes)
    }

    pub fn operand(&mut self, replica: usize, id: ValueId) -> Operand {
        self.cx(replica).0.operand(id)
    }

    pub fn replicas(&self) -> std::ops::Range<usize> {
        0..self.request.replicas.len()
    }

    /// Whether this is the only replica in all processes.
    pub fn alone(&self) -> bool {
        self.request.program.options().mesh.replicas == 1 && !self.request.joined
    }

    fn instr(&mut self, instr: &Instr) {
        self.enter(instr);
        match instr {
            Instr::Compute { op, inputs, output, layer, .. } => {
                for replica in self.replicas() {
                    self.compute(replica, op, inputs, *output, *layer);
                }
            }
            Instr::Copy { input, output } => {
                for replica in self.replicas() {
                    self.copy(replica, *input, *output);
                }
            }
            Instr::Barrier(_) => {}
            Instr::AllReduce { scope, input, output } => self.all_reduce(*scope, *input, *output),
            Instr::ReplicaMean { input, output } => self.replica_mean(*input, *output),
            Instr::ReduceScatter { .. } | Instr::ShardedGradKernel { .. } => {
                unreachable!("`load` rejects programs of several workers per device")
            }
            Instr::GatherWeights { .. }
            | Instr::ReduceGradients { .. }
            | Instr::ExchangeParts { .. } => {
                unreachable!("`open` rejects a divided state")
            }
            Instr::Update => self.update(),
            Instr::Assign { param, value } => {
                for replica in self.replicas() {
                    let from = self.operand(replica, *value);
                    let local = self.request.replicas[replica].local;
                    let to =
                        Ptr::new(local, Block::Params, self.request.layout.params[param.index()]);
                    if from.ptr != to {
                        self.defer_copy(CopyOp {
                            from: from.ptr,
                            elem: from.elem,
                            to,
                            len: from.len,
                        });
                    }
                }
            }
            Instr::Fetch { index, value } => self.fetch(*index, *value),
        }
    }

    /// Begins an instruction: resolves its operands, and drops aliases that its result overwrites.
    fn enter(&mut self, instr: &Instr) {
        let (inputs, output) = match instr {
            Instr::Compute { inputs, output, .. } => (&inputs[..], output),
            Instr::Copy { input, output }
            | Instr::AllReduce { input, output, .. }
            | Instr::ReplicaMean { input, output } => (std::slice::from_ref(input), output),
            _ => return self.aliases.leave(),
        };
        let largest = self.replicas().max_by_key(|r| self.request.replicas[*r].rows);
        let (cx, _) = self.cx(largest.unwrap_or(0));
        let operands: Vec<(ValueId, Ptr)> =
            inputs.iter().map(|id| (*id, cx.operand(*id).ptr)).collect();
        let result = cx.assigned(*output).span();
        self.aliases.enter(operands, result);
    }

    fn fetch(&mut self, index: usize, value: ValueId) {
        let rows = self.request.program.value(value).ty.is_rows();
        let replicas = if rows { self.replicas() } else { 0..1 };
        for replica in replicas {
            let from = self.operand(replica, value);
            let local = self.request.replicas[replica].local;
            let to = Ptr::new(local, Block::Fetches, self.request.fetches[index]);
            if from.len > 0 {
                self.defer_copy(CopyOp { from: from.ptr, elem: from.elem, to, len: from.len });
            }
        }
    }

    /// A work item of launches that reads `x` and writes `y`.
    fn launches(
        &mut self,
        replica: usize,
        label: String,
        launches: Vec<Launch>,
        x: &[ValueId],
        y: &[ValueId],
    ) {
        self.work(replica, label, tasks(launches), x, y);
    }

    fn work(
        &mut self,
        replica: usize,
        label: String,
        tasks: Vec<Task>,
        x: &[ValueId],
        y: &[ValueId],
    ) {
        let reads = x.iter().map(|id| self.operand(replica, *id).span()).collect();
        let writes = y.iter().map(|id| self.operand(replica, *id).span()).collect();
        self.push(WorkItem { label, instr: self.at, tasks, reads, writes });
    }

    fn update(&mut self) {
        let Some(plan) = self.request.program.update() else { return };
        self.reduce_gradients();
        self.flush();
        let count = self.request.replicas.len();
        let u = Update {
            plan,
            replicas: count,
            sources: if self.request.joined { 1 } else { count },
            tree_sum: false,
            accumulate: self.request.accumulate,
        };
        let (mut cx, tapes) = self.cx(0);
        let launches = update::update(&mut cx, tapes, &u);
        let blocks = [Block::Params, Block::Gradients, Block::Accumulated]
            .into_iter()
            .chain((0..plan.rule.slots.len()).map(Block::Slot));
        let touched: Vec<Span> = blocks
            .flat_map(|b| (0..count).map(move |r| Span::whole(Ptr::new(r, b, 0), usize::MAX >> 1)))
            .collect();
        self.push(WorkItem {
            instr: self.at,
            label: "update".into(),
            tasks: tasks(launches),
            reads: touched.clone(),
            writes: touched,
        });
    }
}

fn tasks(launches: Vec<Launch>) -> Vec<Task> {
    launches.into_iter().map(Task::Launch).collect()
}
