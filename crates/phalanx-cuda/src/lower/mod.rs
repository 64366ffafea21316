//! From a step program to the works of one GPU, for given rows of every replica on it.
//!
//! Instructions are taken in order, each for every replica, so that a collective finds what it adds
//! already there.

mod facts;
mod pending;

use crate::cx::{Aliases, Cx, Layout, Operand, Scratch};
use crate::launch::{Arg, Block, Elem, Launch, Ptr, Span, Word};
use crate::machine::Plan;
use crate::ops;
use crate::ops::update::{self, Filters, Update};
use crate::tape::{self, Tapes};
use crate::task::{Conv, Gemm, Images, Matrix, Pass, Task, Work};
pub(crate) use facts::Facts;
use pending::Move;
use phalanx_graph::ops::{self as op, Access, BatchNormAttrs, Binary, Epilogue, Tape, Unary};
use phalanx_graph::program::{Instr, Place, Program, ValueId};
use phalanx_graph::{ConvGeom, Op, ParamId, Scope};
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
    /// Bytes of scratch memory that other steps use.
    pub scratch: usize,
}

/// The works of a step, and where its scratch memory ends.
pub(crate) fn lower(request: &Request<'_>) -> (Plan, usize) {
    let mut l = Lowering {
        q: request,
        at: 0,
        works: vec![],
        scratch: request.replicas.iter().map(|r| Scratch::new(r.local, request.scratch)).collect(),
        aliases: Aliases::default(),
        tapes: Tapes::default(),
        packed: HashMap::new(),
        moves: vec![],
        unpacks: vec![],
        small: vec![],
    };
    l.pack_filters();
    for (i, instr) in request.program.instrs.iter().enumerate() {
        l.at = i;
        if !request.facts.covered.contains(&i) {
            l.instr(instr);
        }
    }
    l.flush();
    let end = l.scratch.iter().map(Scratch::end).max().unwrap_or(request.scratch);
    (Plan { work: l.works, tapes: l.tapes.source() }, end)
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
    unpacks: Vec<(Filters, Elem)>,
    small: Vec<Small>,
}

/// A small tape that was put off.
struct Small {
    tape: Tape,
    x: Vec<Operand>,
    y: Operand,
    reads: Vec<Span>,
    writes: Span,
}

impl Lowering<'_> {
    fn cx(&mut self, replica: usize) -> (Cx<'_>, &mut Tapes) {
        let r = self.q.replicas[replica];
        let cx = Cx {
            program: self.q.program,
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
        self.q.program.options.mesh.devices == 1
    }

    /// Adds a work behind whatever was put off and touches the same bytes.
    fn push(&mut self, work: Work) {
        let meets = |spans: &[Span], other: &Span| spans.iter().any(|s| s.overlaps(other));
        let moved = self.moves.iter().any(|m| {
            let (from, to) = (m.reads(), m.writes());
            meets(&work.reads, &to) || meets(&work.writes, &to) || meets(&work.writes, &from)
        });
        let unpacked = self.unpacks.iter().any(|(f, _)| {
            let to = plain(f);
            meets(&work.reads, &to) || meets(&work.writes, &to)
        });
        let small = self.small.iter().any(|t| {
            meets(&work.reads, &t.writes)
                || meets(&work.writes, &t.writes)
                || t.reads.iter().any(|r| meets(&work.writes, r))
        });
        if moved || unpacked || small {
            self.flush();
        }
        self.works.push(Work { instr: self.at, ..work });
    }

    /// Does what was put off.
    fn flush(&mut self) {
        let unpacks = std::mem::take(&mut self.unpacks);
        for elem in [Elem::F32, Elem::Bf16, Elem::F16] {
            let unpacks: Vec<Filters> =
                unpacks.iter().filter(|(_, e)| *e == elem).map(|(f, _)| *f).collect();
            if unpacks.is_empty() {
                continue;
            }
            self.works.push(Work {
                instr: self.at,
                label: format!("{} filter gradients", unpacks.len()),
                tasks: tasks(update::unpack_gradients(&unpacks, elem)),
                reads: unpacks.iter().map(|f| packed(f, elem)).collect(),
                writes: unpacks.iter().map(plain).collect(),
            });
        }
        self.flush_small();
        let moves = std::mem::take(&mut self.moves);
        if !moves.is_empty() {
            self.works.push(Work { instr: self.at, ..pending::copy_many(&moves) });
        }
    }

    /// Does the small tapes, all of one kind in one launch.
    fn flush_small(&mut self) {
        let mut rest = std::mem::take(&mut self.small);
        while let Some(first) = rest.first() {
            let tape = first.tape.clone();
            let alike = |t: &Small| t.tape == tape;
            let (group, others): (Vec<Small>, Vec<Small>) = rest.into_iter().partition(alike);
            rest = others;
            let instances: Vec<(Vec<Operand>, Operand)> =
                group.iter().map(|t| (t.x.clone(), t.y.clone())).collect();
            let launches = tape::fused_many(&mut self.tapes, &tape, &instances);
            self.works.push(Work {
                label: format!("{} small tapes", group.len()),
                instr: self.at,
                tasks: tasks(launches),
                reads: group.iter().flat_map(|t| t.reads.clone()).collect(),
                writes: group.iter().map(|t| t.writes).collect(),
            });
        }
    }

    /// Puts off a tape over few numbers.
    fn put_off_tape(&mut self, replica: usize, tape: &Tape, x: &[ValueId], y: ValueId) {
        let x: Vec<Operand> = x.iter().map(|id| self.operand(replica, *id)).collect();
        let y = self.operand(replica, y);
        let reads: Vec<Span> = x.iter().map(Operand::span).collect();
        let writes = y.span();
        let meets = |other: &Span| reads.iter().any(|r| r.overlaps(other));
        let small = self.small.iter().any(|t| {
            meets(&t.writes)
                || writes.overlaps(&t.writes)
                || t.reads.iter().any(|r| r.overlaps(&writes))
        });
        let moved = self.moves.iter().any(|m| {
            meets(&m.writes()) || writes.overlaps(&m.writes()) || writes.overlaps(&m.reads())
        });
        let unpacked =
            self.unpacks.iter().any(|(f, _)| meets(&plain(f)) || writes.overlaps(&plain(f)));
        if small || moved || unpacked {
            self.flush();
        }
        self.small.push(Small { tape: tape.clone(), x, y, reads, writes });
    }

    /// Puts off a copy; one that meets another comes behind it.
    fn put_off(&mut self, new: Move) {
        let (reads, writes) = (new.reads(), new.writes());
        let meets = |m: &Move| {
            m.writes().overlaps(&reads)
                || m.writes().overlaps(&writes)
                || m.reads().overlaps(&writes)
        };
        if self.moves.iter().any(meets)
            || self.unpacks.iter().any(|(f, _)| plain(f).overlaps(&reads))
        {
            self.flush();
        }
        self.moves.push(new);
    }

    /// Brings all weights that the libraries want otherwise into that order and type, in one launch
    /// for each type.
    fn pack_filters(&mut self) {
        let mut found: Vec<(ValueId, Elem)> = vec![];
        for instr in &self.q.program.instrs {
            let Instr::Compute { op, inputs, .. } = instr else { continue };
            let [x, w, ..] = inputs[..] else { continue };
            let elem = self.operand(0, x).elem;
            let repacked = match op {
                Op::Conv(..) | Op::ConvGradInput(_) => true,
                Op::Dot(_) | Op::DotGradInput => elem != Elem::F32,
                _ => false,
            };
            let is_param = matches!(self.q.program.value(w).place, Place::Param(_));
            if repacked && is_param && !found.contains(&(w, elem)) {
                found.push((w, elem));
            }
        }
        let mut filters = vec![];
        for replica in self.replicas().filter(|r| self.q.replicas[*r].rows > 0) {
            for (id, elem) in &found {
                filters.push((self.new_filter(replica, *id, *elem), *elem));
            }
        }
        for elem in [Elem::F32, Elem::Bf16, Elem::F16] {
            let alike = filters.iter().filter(|(_, e)| *e == elem).map(|(f, _)| *f);
            self.pack(&alike.collect::<Vec<Filters>>(), elem);
        }
    }

    /// A weight and a place for it in the library's order.
    fn new_filter(&mut self, replica: usize, id: ValueId, elem: Elem) -> Filters {
        let w = self.operand(replica, id);
        let to = self.scratch[replica].take(w.len * elem.bytes());
        self.packed.insert((w.ptr, elem), to);
        Filters { weights: w.ptr, packed: to, k: w.len / w.last().max(1), f: w.last() }
    }

    /// A weight in the library's order.
    fn packed(&mut self, replica: usize, id: ValueId, elem: Elem) -> Ptr {
        let key = (self.operand(replica, id).ptr, elem);
        if !self.packed.contains_key(&key) {
            let filter = self.new_filter(replica, id, elem);
            self.pack(&[filter], elem);
        }
        self.packed[&key]
    }

    fn pack(&mut self, filters: &[Filters], elem: Elem) {
        if filters.is_empty() {
            return;
        }
        self.push(Work {
            instr: self.at,
            label: format!("{} filters", filters.len()),
            tasks: tasks(update::pack_filters(filters, elem)),
            reads: filters.iter().map(plain).collect(),
            writes: filters.iter().map(|f| packed(f, elem)).collect(),
        });
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

    fn label(&self, op: &Op, scope: u32) -> String {
        format!("{} {}", op.name(), self.q.program.scopes[scope as usize])
    }

    fn compute(&mut self, replica: usize, op: &Op, x: &[ValueId], y: ValueId, scope: u32) {
        let label = self.label(op, scope);
        if self.q.replicas[replica].rows == 0 && self.without_rows(replica, &label, x, y) {
            return;
        }
        let bias = |l: &mut Self, id: ValueId| {
            let late = l.q.facts.late_bias.get(&id).copied();
            late.map(|b| l.operand(replica, b).ptr)
        };
        match op {
            Op::Conv(geom, e) => self.conv(replica, label, geom, *e, x, y),
            Op::ConvGradInput(geom) => {
                self.conv_pass(replica, label, Pass::GradInput, geom, (y, x[1], x[0]), y);
            }
            Op::ConvGradKernel(geom) => self.conv_grad_kernel(replica, label, geom, x, y),
            Op::Dot(e) => self.dot(replica, label, *e, x, y),
            Op::DotGradInput => self.dot_grad_input(replica, label, x, y),
            Op::DotGradKernel => {
                let task = self.dot_grad_kernel(replica, x[0], x[1], y);
                self.work(replica, label, vec![task], x, &[y]);
            }
            Op::Moments => {
                let late = bias(self, x[0]);
                let finish = self.q.facts.finish.get(&y).copied();
                let rows = self.q.replicas[replica].rows;
                let (mut cx, _) = self.cx(replica);
                match finish {
                    None => {
                        let launches = ops::norm::moments(&mut cx, x, y, late);
                        self.launches(replica, label, launches, x, &[y]);
                    }
                    Some(f) => {
                        let count = rows * f.positions;
                        let launches =
                            ops::norm::moments_and_stats(&mut cx, count, x, y, f.stats, late);
                        self.launches(replica, label, launches, x, &[y, f.stats]);
                    }
                }
            }
            Op::BatchStats { scope, positions } => {
                let count = self.scope_rows(replica, *scope) * positions;
                let launches = ops::norm::batch_stats(&mut self.cx(replica).0, count, x, y);
                self.launches(replica, label, launches, x, &[y]);
            }
            Op::BatchNorm(a) => {
                let late = bias(self, x[0]);
                let launches = ops::norm::batch_norm(&mut self.cx(replica).0, a, x, y, late);
                self.launches(replica, label, launches, x, &[y]);
            }
            Op::BatchNormGradSums(a) => {
                let late = bias(self, x[1]);
                let launches =
                    ops::norm::batch_norm_grad_sums(&mut self.cx(replica).0, a, x, y, late);
                self.launches(replica, label, launches, x, &[y]);
            }
            Op::BatchNormGradInput(a) => {
                let late = bias(self, x[1]);
                self.batch_norm_grad_input(replica, label, a, x, y, late);
            }
            Op::Reduce { .. } if self.q.facts.column_sums.contains_key(&self.at) => {
                let sums = self.q.facts.column_sums[&self.at];
                let (from, to) = (self.operand(replica, x[0]), self.operand(replica, sums));
                let sizes = [from.pixels(), from.last(), from.ld];
                let (mut cx, _) = self.cx(replica);
                let from = (from.ptr, from.elem);
                let launch = ops::reduce::column_sums(&mut cx, from, sizes, to.ptr);
                self.launches(replica, label, vec![launch], x, &[sums]);
            }
            Op::Fused(tape) if self.is_small(y) => self.put_off_tape(replica, tape, x, y),
            Op::Slice { axis, start, .. } if self.stays(replica, *axis, x[0]) => {
                self.slice_in_place(replica, *axis, *start, x[0], y);
            }
            _ => {
                let (mut cx, tapes) = self.cx(replica);
                let launches = ops::compute(&mut cx, tapes, op, x, y);
                self.launches(replica, label, launches, x, &[y]);
            }
        }
    }

    fn batch_norm_grad_input(
        &mut self,
        replica: usize,
        label: String,
        attrs: &BatchNormAttrs,
        x: &[ValueId],
        y: ValueId,
        late: Option<Ptr>,
    ) {
        let ty = &self.q.program.value(y).ty;
        let positions = ty.len() / ty.last().max(1);
        let count = self.scope_rows(replica, attrs.scope) * positions;
        let sums = self.q.facts.with_sums.get(&y).copied();
        let to = sums.map(|s| self.operand(replica, s).ptr);
        let (mut cx, _) = self.cx(replica);
        let launches = ops::norm::batch_norm_grad_input(&mut cx, attrs, count, x, y, late, to);
        let written: Vec<ValueId> = [y].into_iter().chain(sums).collect();
        self.launches(replica, label, launches, x, &written);
    }

    /// Rows that share statistics.
    fn scope_rows(&self, replica: usize, scope: Scope) -> usize {
        match scope {
            Scope::Device => self.q.replicas[replica].rows,
            Scope::All => self.q.rows,
        }
    }

    /// With no rows there is nothing to compute, and sums over rows are zero. Says whether that was all.
    fn without_rows(&mut self, replica: usize, label: &str, x: &[ValueId], y: ValueId) -> bool {
        let is_rows = |id: &ValueId| self.q.program.value(*id).ty.is_rows();
        let facts = self.q.facts;
        let sums = [
            (!is_rows(&y)).then_some(y),
            facts.column_sums.get(&self.at).copied(),
            facts.with_sums.get(&y).copied(),
            facts.finish.get(&y).map(|f| f.stats),
        ];
        if !is_rows(&y) && !x.iter().any(is_rows) {
            return false;
        }
        for sum in sums.into_iter().flatten() {
            let clear = Task::Clear(self.operand(replica, sum).span());
            self.work(replica, label.into(), vec![clear], &[], &[sum]);
        }
        true
    }

    /// Whether a value is the same for all rows and has few numbers.
    fn is_small(&self, y: ValueId) -> bool {
        let ty = &self.q.program.value(y).ty;
        !ty.is_rows() && ty.len() <= tape::GROUPED
    }

    /// Whether a part of a value along an axis is a run of neighbours that keep their place for the
    /// whole step.
    fn stays(&mut self, replica: usize, axis: usize, x: ValueId) -> bool {
        let v = self.q.program.value(x);
        let leading: usize = v.ty.dims[..axis].iter().product();
        let block = self.operand(replica, x).ptr.block;
        !v.ty.is_rows() && leading == 1 && matches!(block, Block::Shared | Block::Inputs)
    }

    /// A part of a value read where it lies; only weights' gradients are copied, later.
    fn slice_in_place(
        &mut self,
        replica: usize,
        axis: usize,
        start: usize,
        x: ValueId,
        y: ValueId,
    ) {
        let from = self.operand(replica, x);
        let inner: usize = from.dims[axis + 1..].iter().product();
        let part = from.ptr.add(start * inner * from.elem.bytes());
        match self.q.program.value(y).place {
            Place::Gradient(_) => {
                let to = self.operand(replica, y);
                self.put_off(Move { from: part, elem: from.elem, to: to.ptr, len: to.len });
            }
            _ => {
                let own = self.cx(replica).0.own(y).span();
                self.aliases.insert(own, (part.block, part.offset));
            }
        }
    }

    fn copy(&mut self, replica: usize, x: ValueId, y: ValueId) {
        let empty = self.q.replicas[replica].rows == 0;
        if empty && self.q.program.value(y).ty.is_rows() {
            return;
        }
        let launches = ops::layout::copy(&mut self.cx(replica).0, x, y);
        self.launches(replica, "copy".into(), launches, &[x], &[y]);
    }

    /// Adds over replicas. A single one's sum is read where it lies.
    fn all_reduce(&mut self, scope: Scope, x: ValueId, y: ValueId) {
        if scope == Scope::Device || self.alone() {
            self.read_in_place(x, y);
            return;
        }
        let (from, to) = self.everywhere(x, y);
        let elem = from[0].elem;
        let words = from.iter().zip(&to).flat_map(|(f, t)| [Word::Ptr(f.ptr), Word::Ptr(t.ptr)]);
        let kernel = format!("all_reduce<{}>", elem.c_name());
        let launch = Launch::over("collective", kernel, from[0].len)
            .arg(Arg::Table(words.collect()))
            .arg(from.len())
            .arg(from[0].len);
        self.collective("all_reduce", launch, &from, &to);
    }

    /// Instead of a copy.
    fn read_in_place(&mut self, x: ValueId, y: ValueId) {
        let from = self.operand(0, x).ptr;
        let own = self.cx(0).0.own(y).span();
        self.aliases.insert(own, (from.block, from.offset));
    }

    /// The mean over replicas, weighted by their rows.
    fn replica_mean(&mut self, x: ValueId, y: ValueId) {
        if self.alone() {
            self.read_in_place(x, y);
            return;
        }
        let (from, to) = self.everywhere(x, y);
        let total = self.q.rows.max(1) as f32;
        let mut words = vec![];
        for (r, (f, t)) in self.q.replicas.iter().zip(from.iter().zip(&to)) {
            let share = Word::F32(r.rows as f32 / total);
            words.extend([Word::Ptr(f.ptr), Word::Ptr(t.ptr), share]);
        }
        let launch = Launch::over("collective", "replica_mean", from[0].len)
            .arg(Arg::Table(words))
            .arg(from.len())
            .arg(from[0].len);
        self.collective("replica_mean", launch, &from, &to);
    }

    fn everywhere(&mut self, x: ValueId, y: ValueId) -> (Vec<Operand>, Vec<Operand>) {
        self.replicas().map(|r| (self.operand(r, x), self.operand(r, y))).unzip()
    }

    fn collective(&mut self, label: &str, launch: Launch, from: &[Operand], to: &[Operand]) {
        self.push(Work {
            instr: self.at,
            label: label.into(),
            tasks: vec![Task::Launch(launch)],
            reads: from.iter().map(Operand::span).collect(),
            writes: to.iter().map(Operand::span).collect(),
        });
    }

    fn conv(
        &mut self,
        replica: usize,
        label: String,
        geom: &ConvGeom,
        e: Epilogue,
        x: &[ValueId],
        y: ValueId,
    ) {
        self.conv_pass(replica, label.clone(), Pass::Forward, geom, (x[0], x[1], y), y);
        let late = self.q.facts.late_bias.contains_key(&y);
        if e.relu || e.bias && !late {
            self.epilogue(replica, label, e, geom.output[2], x, y);
        }
    }

    /// One of a convolution's products over images; `(x, w, y)` as in the forward pass.
    fn conv_pass(
        &mut self,
        replica: usize,
        label: String,
        pass: Pass,
        geom: &ConvGeom,
        (x, w, y): (ValueId, ValueId, ValueId),
        result: ValueId,
    ) {
        let images = if result == y { x } else { y };
        let elem = self.operand(replica, images).elem;
        let packed = self.packed(replica, w, elem);
        let task = self.conv_task(replica, pass, geom, x, (packed, elem), y);
        let bytes = self.operand(replica, w).len * elem.bytes();
        let mut work = Work {
            instr: self.at,
            label,
            tasks: vec![Task::Conv(task)],
            reads: vec![self.operand(replica, images).span()],
            writes: vec![self.operand(replica, result).span()],
        };
        work.reads.push(Span::whole(packed, bytes));
        self.push(work);
    }

    fn conv_task(
        &mut self,
        replica: usize,
        pass: Pass,
        geom: &ConvGeom,
        x: ValueId,
        w: (Ptr, Elem),
        y: ValueId,
    ) -> Conv {
        let images = |o: Operand| Images { at: o.ptr, elem: o.elem, ld: o.ld };
        let (x, y) = (self.operand(replica, x), self.operand(replica, y));
        let rows = self.q.replicas[replica].rows;
        Conv { pass, geom: *geom, rows, x: images(x), w, y: images(y) }
    }

    fn conv_grad_kernel(
        &mut self,
        replica: usize,
        label: String,
        geom: &ConvGeom,
        x: &[ValueId],
        dw: ValueId,
    ) {
        let dw = self.operand(replica, dw);
        let elem = self.operand(replica, x[0]).elem;
        let packed = self.scratch[replica].take(dw.len * elem.bytes());
        let task = self.conv_task(replica, Pass::GradKernel, geom, x[0], (packed, elem), x[1]);
        let work = Work {
            instr: self.at,
            label,
            tasks: vec![Task::Conv(task)],
            reads: x.iter().map(|id| self.operand(replica, *id).span()).collect(),
            writes: vec![Span::whole(packed, dw.len * elem.bytes())],
        };
        self.push(work);
        let (k, f) = (dw.len / dw.last().max(1), dw.last());
        let filter = Filters { weights: dw.ptr, packed, k, f };
        if self.moves.iter().any(|m| m.reads().overlaps(&plain(&filter))) {
            self.flush();
        }
        self.unpacks.push((filter, elem));
    }

    /// A dense kernel as a matrix: where it lies, or in the type of a narrow operand.
    fn kernel(
        &mut self,
        replica: usize,
        w: ValueId,
        elem: Elem,
        transposed: bool,
    ) -> (Matrix, Span) {
        let plain = self.operand(replica, w);
        if elem == Elem::F32 {
            return (matrix(&plain, transposed), plain.span());
        }
        // Packed kernels are transposed already.
        let at = self.packed(replica, w, elem);
        let ld = plain.len / plain.last().max(1);
        let span = Span::whole(at, plain.len * elem.bytes());
        (Matrix { at, elem, ld, transposed: !transposed }, span)
    }

    fn dot(&mut self, replica: usize, label: String, e: Epilogue, x: &[ValueId], y: ValueId) {
        let (a, c) = (self.operand(replica, x[0]), self.operand(replica, y));
        let dims = self.operand(replica, x[1]).dims;
        let (b, weights) = self.kernel(replica, x[1], a.elem, false);
        // The library adds a bias of its result's type.
        let fused = c.elem == Elem::F32;
        let bias = e.bias.then(|| self.operand(replica, x[2]));
        let mut reads = vec![a.span(), weights];
        reads.extend(bias.iter().map(Operand::span));
        let gemm = Gemm {
            m: c.pixels(),
            n: dims[1],
            k: dims[0],
            a: matrix(&a, false),
            b,
            c: matrix(&c, false),
            bias: bias.filter(|_| fused).map(|b| b.ptr),
            relu: e.relu && fused,
        };
        let tasks = vec![Task::Gemm(gemm)];
        let (instr, writes) = (self.at, vec![c.span()]);
        self.push(Work { label: label.clone(), instr, tasks, reads, writes });
        if !fused && (e.bias || e.relu) {
            self.epilogue(replica, label, e, dims[1], x, y);
        }
    }

    /// What follows a product that did not do it itself.
    fn epilogue(
        &mut self,
        replica: usize,
        label: String,
        e: Epilogue,
        channels: usize,
        x: &[ValueId],
        y: ValueId,
    ) {
        let reads: Vec<ValueId> = [y].into_iter().chain(e.bias.then(|| x[2])).collect();
        let (mut cx, tapes) = self.cx(replica);
        let tape = epilogue(e, channels);
        let launches = tape::fused(&mut cx, tapes, &tape, &reads, y);
        self.launches(replica, label, launches, &reads, &[y]);
    }

    fn dot_grad_input(&mut self, replica: usize, label: String, x: &[ValueId], y: ValueId) {
        let (dy, dx) = (self.operand(replica, x[0]), self.operand(replica, y));
        let dims = self.operand(replica, x[1]).dims;
        let (b, weights) = self.kernel(replica, x[1], dy.elem, true);
        let gemm = Gemm {
            m: dx.pixels(),
            n: dims[0],
            k: dims[1],
            a: matrix(&dy, false),
            b,
            c: matrix(&dx, false),
            bias: None,
            relu: false,
        };
        let (tasks, reads) = (vec![Task::Gemm(gemm)], vec![dy.span(), weights]);
        self.push(Work { label, instr: self.at, tasks, reads, writes: vec![dx.span()] });
    }

    fn dot_grad_kernel(&mut self, replica: usize, x: ValueId, dy: ValueId, dw: ValueId) -> Task {
        let dw = self.operand(replica, dw);
        self.dense_product(replica, x, dy, (dw.ptr, dw.dims[0], dw.dims[1]))
    }

    /// `dw[k, n] = xᵀ · dy`
    fn dense_product(
        &mut self,
        replica: usize,
        x: ValueId,
        dy: ValueId,
        (to, k, n): (Ptr, usize, usize),
    ) -> Task {
        let (x, dy) = (self.operand(replica, x), self.operand(replica, dy));
        Task::Gemm(Gemm {
            m: k,
            n,
            k: x.pixels(),
            a: matrix(&x, true),
            b: matrix(&dy, false),
            c: Matrix { at: to, elem: Elem::F32, ld: n, transposed: false },
            bias: None,
            relu: false,
        })
    }

    /// A dense kernel's gradient that CPU workers would compute in slices.
    fn dense_gradient(&mut self, replica: usize, param: ParamId, x: ValueId, dy: ValueId) {
        let dims = &self.q.program.params[param.index()].dims;
        let (k, n) = (dims[0], dims[1]);
        let local = self.q.replicas[replica].local;
        let to = Ptr::new(local, Block::Gradients, self.q.layout.params[param.index()]);
        let span = Span::whole(to, k * n * 4);
        let (task, reads) = match self.q.replicas[replica].rows {
            0 => (Task::Clear(span), vec![]),
            _ => {
                let reads = [x, dy].map(|id| self.operand(replica, id).span()).to_vec();
                (self.dense_product(replica, x, dy, (to, k, n)), reads)
            }
        };
        let label = format!("gradient of {}", self.q.program.params[param.index()].name);
        self.push(Work { label, instr: self.at, tasks: vec![task], reads, writes: vec![span] });
    }

    fn update(&mut self) {
        let Some(plan) = &self.q.program.update else { return };
        for g in &plan.gradients {
            let Some((x, dy)) = g.operands else { continue };
            for replica in self.replicas() {
                self.dense_gradient(replica, g.param, x, dy);
            }
        }
        self.flush();
        let count = self.q.replicas.len();
        let u = Update {
            plan,
            replicas: count,
            sources: count,
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

/// What follows a convolution that did not do it itself.
fn epilogue(e: Epilogue, channels: usize) -> Tape {
    let mut tape =
        Tape { inputs: vec![Access::Full], instrs: vec![op::Instr::Input(0)], outputs: vec![] };
    if e.bias {
        tape.inputs.push(Access::Suffix(channels));
        tape.instrs.extend([op::Instr::Input(1), op::Instr::Binary(Binary::Add, 0, 1)]);
    }
    if e.relu {
        let last = tape.instrs.len() as u16 - 1;
        tape.instrs.push(op::Instr::Unary(Unary::Relu, last));
    }
    tape.outputs.push(tape.instrs.len() as u16 - 1);
    tape
}

/// Filters, or their gradient, as the weights lie.
fn plain(f: &Filters) -> Span {
    Span::whole(f.weights, f.k * f.f * 4)
}

/// The same in the library's order.
fn packed(f: &Filters, elem: Elem) -> Span {
    Span::whole(f.packed, f.k * f.f * elem.bytes())
}

/// An operand as a matrix of pixels by channels.
fn matrix(x: &Operand, transposed: bool) -> Matrix {
    Matrix { at: x.ptr, elem: x.elem, ld: x.ld, transposed }
}
