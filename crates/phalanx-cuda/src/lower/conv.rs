//! Convolutions: the library's products, its filters' order, and what follows them.

use super::{Lowering, tasks};
use crate::cx::Operand;
use crate::launch::{Elem, Ptr, Span};
use crate::ops::update::{self, Filters};
use crate::tape;
use crate::task::{Conv, Images, Pass, Task, Work};
use phalanx_graph::ops::{self as op, Access, Binary, Epilogue, Tape, Unary};
use phalanx_graph::program::{Instr, Place, ValueId};
use phalanx_graph::{ConvGeom, Op};

impl Lowering<'_> {
    /// Brings all convolution weights into the library's order, in one launch.
    pub(super) fn pack_filters(&mut self) {
        let mut found = vec![];
        for instr in &self.q.program.instrs {
            let Instr::Compute { op: Op::Conv(..) | Op::ConvGradInput(_), inputs, .. } = instr
            else {
                continue;
            };
            let is_param = matches!(self.q.program.value(inputs[1]).place, Place::Param(_));
            if is_param && !found.contains(&inputs[1]) {
                found.push(inputs[1]);
            }
        }
        let mut filters = vec![];
        for replica in self.replicas().filter(|r| self.q.replicas[*r].rows > 0) {
            for id in &found {
                filters.push(self.new_filter(replica, *id));
            }
        }
        self.pack(&filters);
    }

    /// A weight and a place for it in the library's order.
    pub(super) fn new_filter(&mut self, replica: usize, id: ValueId) -> Filters {
        let w = self.operand(replica, id);
        let to = self.scratch[replica].take(w.len * 4);
        self.packed.insert(w.ptr, to);
        Filters { weights: w.ptr, packed: to, k: w.len / w.last().max(1), f: w.last() }
    }

    pub(super) fn pack(&mut self, filters: &[Filters]) {
        if filters.is_empty() {
            return;
        }
        self.push(Work {
            instr: self.at,
            label: format!("{} filters", filters.len()),
            tasks: tasks(update::pack_filters(filters, Elem::F32)),
            reads: filters.iter().map(plain).collect(),
            writes: filters.iter().map(packed).collect(),
        });
    }

    pub(super) fn conv(
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
            let reads: Vec<ValueId> = [y].into_iter().chain(e.bias.then(|| x[2])).collect();
            let (mut cx, tapes) = self.cx(replica);
            let tape = epilogue(e, geom.output[2]);
            let launches = tape::fused(&mut cx, tapes, &tape, &reads, y);
            self.launches(replica, label, launches, &reads, &[y]);
        }
    }

    /// One of a convolution's products over images; `(x, w, y)` as in the forward pass.
    pub(super) fn conv_pass(
        &mut self,
        replica: usize,
        label: String,
        pass: Pass,
        geom: &ConvGeom,
        (x, w, y): (ValueId, ValueId, ValueId),
        result: ValueId,
    ) {
        let plain = self.operand(replica, w).ptr;
        if !self.packed.contains_key(&plain) {
            let filter = self.new_filter(replica, w);
            self.pack(&[filter]);
        }
        let packed = self.packed[&plain];
        let task = self.conv_task(replica, pass, geom, x, (packed, Elem::F32), y);
        let images = if result == y { x } else { y };
        let bytes = self.operand(replica, w).len * 4;
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

    pub(super) fn conv_task(
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

    pub(super) fn conv_grad_kernel(
        &mut self,
        replica: usize,
        label: String,
        geom: &ConvGeom,
        x: &[ValueId],
        dw: ValueId,
    ) {
        let dw = self.operand(replica, dw);
        let packed = self.scratch[replica].take(dw.len * 4);
        let task = self.conv_task(replica, Pass::GradKernel, geom, x[0], (packed, Elem::F32), x[1]);
        let work = Work {
            instr: self.at,
            label,
            tasks: vec![Task::Conv(task)],
            reads: x.iter().map(|id| self.operand(replica, *id).span()).collect(),
            writes: vec![Span::whole(packed, dw.len * 4)],
        };
        self.push(work);
        let (k, f) = (dw.len / dw.last().max(1), dw.last());
        let filter = Filters { weights: dw.ptr, packed, k, f };
        if self.moves.iter().any(|m| m.reads().overlaps(&plain(&filter))) {
            self.flush();
        }
        self.unpacks.push(filter);
    }
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
pub(super) fn plain(f: &Filters) -> Span {
    Span::whole(f.weights, f.k * f.f * 4)
}

/// The same in the library's order.
pub(super) fn packed(f: &Filters) -> Span {
    Span::whole(f.packed, f.k * f.f * 4)
}
