//! From a step program to the works of one GPU, for given rows of every replica on it.
//!
//! Instructions are taken in order, each for every replica, so that a collective finds what it adds
//! already there.

mod casts;
mod collective;
mod compute;
mod conv;
mod dense;
mod facts;
mod joined;
mod kept;
mod norm;
mod pending;
mod sums;

use crate::cx::{Aliases, Cx, Layout, Operand, Scratch};
use crate::launch::{Block, Elem, Launch, Ptr, Span};
use crate::machine::Plan;
use crate::ops::reduce::RowSum;
use crate::ops::update::{self, Filters, Update};
use crate::tape::Tapes;
use crate::task::{Task, Work};
pub(crate) use facts::Facts;
use joined::Departures;
pub(crate) use kept::FromTable;
use pending::{Move, Small};
use phalanx_graph::program::{Instr, Program, ValueId};
use std::collections::HashMap;

/// A replica on this GPU, and its part of the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Replica {
    /// Its number on this GPU.
    pub local: usize,
    pub rows: usize,
    /// Its first row in the global batch.
    pub first_row: usize,
}

/// What is to be lowered.
pub(crate) struct Request<'a> {
    pub program: &'a Program,
    pub layout: &'a Layout,
    pub facts: &'a Facts,
    pub replicas: &'a [Replica],
    /// Rows of the global batch.
    pub rows: usize,
    /// Where each fetch begins in its block.
    pub fetches: &'a [usize],
    /// Under gradient accumulation, whether this step applies the sum.
    pub accumulate: Option<bool>,
    /// Where its rows come from, if not from the host.
    pub from: Option<FromTable<'a>>,
    /// Whether there are other GPUs to add with.
    pub joined: bool,
}

/// The works of a step, and its bytes of scratch memory and of counters.
pub(crate) fn lower(request: &Request<'_>) -> (Plan, (usize, usize)) {
    let mut l = Lowering {
        q: request,
        at: 0,
        works: vec![],
        scratch: request.replicas.iter().map(|r| Scratch::new(r.local)).collect(),
        aliases: Aliases::default(),
        tapes: Tapes::default(),
        packed: HashMap::new(),
        moves: vec![],
        unpacks: vec![],
        small: vec![],
        sums: vec![],
        departures: Departures::default(),
    };
    if request.joined {
        l.join();
    }
    if let Some(from) = &request.from {
        l.take(from);
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
        l.leave(from);
    }
    let most = |part: fn((usize, usize)) -> usize| {
        l.scratch.iter().map(|s| part(s.used())).max().unwrap_or(0)
    };
    let room = (most(|used| used.0), most(|used| used.1));
    (Plan { work: l.works, tapes: l.tapes.source() }, room)
}

struct Lowering<'a> {
    q: &'a Request<'a>,
    /// The instruction under way.
    at: usize,
    works: Vec<Work>,
    scratch: Vec<Scratch>,
    aliases: Aliases,
    tapes: Tapes,
    /// Weights in the library's order and the type of its operands, by address.
    packed: HashMap<(Ptr, Elem), Ptr>,
    moves: Vec<Move>,
    /// With the type the library gave them.
    unpacks: Vec<(Filters, Elem)>,
    small: Vec<Small>,
    sums: Vec<RowSum>,
    departures: Departures,
}

impl Lowering<'_> {
    fn cx(&mut self, replica: usize) -> (Cx<'_>, &mut Tapes) {
        let r = self.q.replicas[replica];
        let cx = Cx {
            values: self.q.program.values(),
            params: self.q.program.params(),
            layout: self.q.layout,
            aliases: &self.aliases,
            scratch: &mut self.scratch[replica],
            replica: r.local,
            rows: r.rows,
            first_row: r.first_row,
        };
        (cx, &mut self.tapes)
    }

    fn operand(&mut self, replica: usize, id: ValueId) -> Operand {
        self.cx(replica).0.operand(id)
    }

    fn replicas(&self) -> std::ops::Range<usize> {
        0..self.q.replicas.len()
    }

    /// Whether there is no other replica anywhere.
    fn alone(&self) -> bool {
        self.q.program.options().mesh.devices == 1 && !self.q.joined
    }

    fn instr(&mut self, instr: &Instr) {
        self.enter(instr);
        match instr {
            Instr::Compute { op, inputs, output, scope } => {
                for replica in self.replicas() {
                    self.compute(replica, op, inputs, *output, *scope);
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
            Instr::SlicedGradient { param, x, dy } => {
                for replica in self.replicas() {
                    self.dense_gradient(replica, *param, *x, *dy);
                }
            }
            Instr::SlicedDot { .. } | Instr::AddSlices { .. } | Instr::SlicedGradInput { .. } => {
                unreachable!("a GPU's replica has one worker: nothing is cut into slices")
            }
            Instr::Update => self.update(),
            Instr::Assign { param, value } => {
                for replica in self.replicas() {
                    let from = self.operand(replica, *value);
                    let local = self.q.replicas[replica].local;
                    let to = Ptr::new(local, Block::Params, self.q.layout.params[param.index()]);
                    if from.ptr != to {
                        self.put_off(Move { from: from.ptr, elem: from.elem, to, len: from.len });
                    }
                }
            }
            Instr::Fetch { index, value } => self.fetch(*index, *value),
        }
    }

    /// Before an instruction: its operands are where they are, and where its result goes nothing else
    /// is read any more.
    fn enter(&mut self, instr: &Instr) {
        let (inputs, output) = match instr {
            Instr::Compute { inputs, output, .. } => (&inputs[..], output),
            Instr::Copy { input, output }
            | Instr::AllReduce { input, output, .. }
            | Instr::ReplicaMean { input, output } => (std::slice::from_ref(input), output),
            _ => return self.aliases.leave(),
        };
        let largest = self.replicas().max_by_key(|r| self.q.replicas[*r].rows);
        let (cx, _) = self.cx(largest.unwrap_or(0));
        let operands: Vec<(ValueId, Ptr)> =
            inputs.iter().map(|id| (*id, cx.operand(*id).ptr)).collect();
        let result = cx.own(*output).span();
        self.aliases.enter(operands, result);
    }

    fn fetch(&mut self, index: usize, value: ValueId) {
        let rows = self.q.program.value(value).ty.is_rows();
        let replicas = if rows { self.replicas() } else { 0..1 };
        for replica in replicas {
            let from = self.operand(replica, value);
            let local = self.q.replicas[replica].local;
            let to = Ptr::new(local, Block::Fetches, self.q.fetches[index]);
            if from.len > 0 {
                self.put_off(Move { from: from.ptr, elem: from.elem, to, len: from.len });
            }
        }
    }

    /// A work of launches, with operands and result as what it touches.
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
        self.push(Work { label, instr: self.at, tasks, reads, writes });
    }

    fn update(&mut self) {
        let Some(plan) = self.q.program.update() else { return };
        for g in &plan.gradients {
            let Some((x, dy)) = g.operands else { continue };
            for replica in self.replicas() {
                self.dense_gradient(replica, g.param, x, dy);
            }
        }
        self.reduce_gradients();
        self.flush();
        let count = self.q.replicas.len();
        let u = Update {
            plan,
            replicas: count,
            sources: if self.q.joined { 1 } else { count },
            fixed: false,
            accumulate: self.q.accumulate,
        };
        let (mut cx, tapes) = self.cx(0);
        let launches = update::update(&mut cx, tapes, &u);
        let blocks = [Block::Params, Block::Gradients, Block::Gathered]
            .into_iter()
            .chain((0..plan.rule.slots.len()).map(Block::Slot));
        let touched: Vec<Span> = blocks
            .flat_map(|b| (0..count).map(move |r| Span::whole(Ptr::new(r, b, 0), usize::MAX >> 1)))
            .collect();
        self.push(Work {
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
