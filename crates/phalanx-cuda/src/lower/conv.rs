//! Convolutions: the products, the filter layout of the library, and the epilogue.

use super::{Lowering, tasks};
use crate::launch::{Elem, Ptr, Span};
use crate::lowering_context::Operand;
use crate::ops::depthwise::is_depthwise;
use crate::ops::update::{self, Filters};
use crate::tape;
use crate::work_item::{Conv, Images, Pass, Task, WorkItem};
use phalanx_graph::ops::{self as op, Access, Binary, Epilogue, Tape, Unary};
use phalanx_graph::program::{Instr, Location, ValueId};
use phalanx_graph::{ConvGeom, Op};

impl Lowering<'_> {
    /// Converts all weights that the libraries need in another layout or type, in one launch for
    /// each type.
    pub(super) fn pack_filters(&mut self) {
        let mut found: Vec<(ValueId, Elem)> = vec![];
        for instr in self.request.program.instrs() {
            let Instr::Compute { op, inputs, .. } = instr else { continue };
            let [x, w, ..] = inputs[..] else { continue };
            let elem = self.operand(0, x).elem;
            let repacked = match op {
                Op::Conv(geom, _) | Op::ConvGradInput(geom) => !is_depthwise(geom),
                Op::Dot(_) | Op::DotGradInput => elem != Elem::F32,
                _ => false,
            };
            let is_param = matches!(self.request.program.value(w).location, Location::Param(_));
            if repacked && is_param && !found.contains(&(w, elem)) {
                found.push((w, elem));
            }
        }
        let mut filters = vec![];
        for replica in self.replicas().filter(|r| self.request.replicas[*r].rows > 0) {
            for (id, elem) in &found {
                filters.push((self.new_filter(replica, *id, *elem), *elem));
            }
        }
        for elem in [Elem::F32, Elem::Bf16, Elem::F16] {
            self.pack(&of_type(&filters, elem), elem);
        }
    }

    /// A weight, and scratch memory for it in the library's layout.
    fn new_filter(&mut self, replica: usize, id: ValueId, elem: Elem) -> Filters {
        let w = self.operand(replica, id);
        let to = self.scratch[replica].take(w.len * elem.bytes());
        self.packed.insert((w.ptr, elem), to);
        Filters { weights: w.ptr, packed: to, k: w.len / w.last().max(1), f: w.last() }
    }

    /// A weight in the library's layout.
    pub(super) fn packed(&mut self, replica: usize, id: ValueId, elem: Elem) -> Ptr {
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
        self.push(WorkItem {
            instr: self.at,
            label: format!("{} filters", filters.len()),
            tasks: tasks(update::pack_filters(filters, elem)),
            reads: filters.iter().map(plain).collect(),
            writes: filters.iter().map(|f| packed(f, elem)).collect(),
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
        self.conv_pass(replica, label.clone(), Pass::Forward, geom, x, y);
        let deferred = self.request.facts.deferred_bias.contains_key(&y);
        if e.relu || e.bias && !deferred {
            self.epilogue(replica, label, e, geom.output[2], x, y);
        }
    }

    /// The epilogue of a product that was not fused into it.
    pub(super) fn epilogue(
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

    /// One of a convolution's products over images: from the input `x[0]` to `y`, or from the output's gradient `x[0]`
    /// to the input's `y`. The filters are `x[1]`.
    pub(super) fn conv_pass(
        &mut self,
        replica: usize,
        label: String,
        pass: Pass,
        geom: &ConvGeom,
        x: &[ValueId],
        y: ValueId,
    ) {
        let (images, w) = (x[0], x[1]);
        let [input, output] = if pass == Pass::Forward { [images, y] } else { [y, images] };
        let elem = self.operand(replica, images).elem;
        let packed = self.packed(replica, w, elem);
        let task = self.conv_task(replica, pass, geom, [input, output], (packed, elem));
        let bytes = self.operand(replica, w).len * elem.bytes();
        let mut work = WorkItem {
            instr: self.at,
            label,
            tasks: vec![Task::Conv(task)],
            reads: vec![self.operand(replica, images).span()],
            writes: vec![self.operand(replica, y).span()],
        };
        work.reads.push(Span::whole(packed, bytes));
        self.push(work);
    }

    pub(super) fn conv_task(
        &mut self,
        replica: usize,
        pass: Pass,
        geom: &ConvGeom,
        [x, y]: [ValueId; 2],
        w: (Ptr, Elem),
    ) -> Conv {
        let images = |o: Operand| Images { at: o.ptr, elem: o.elem, ld: o.ld };
        let (x, y) = (self.operand(replica, x), self.operand(replica, y));
        let rows = self.request.replicas[replica].rows;
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
        let elem = self.operand(replica, x[0]).elem;
        let packed = self.scratch[replica].take(dw.len * elem.bytes());
        let task = self.conv_task(replica, Pass::GradKernel, geom, [x[0], x[1]], (packed, elem));
        let work = WorkItem {
            instr: self.at,
            label,
            tasks: vec![Task::Conv(task)],
            reads: x.iter().map(|id| self.operand(replica, *id).span()).collect(),
            writes: vec![Span::whole(packed, dw.len * elem.bytes())],
        };
        self.push(work);
        let (k, f) = (dw.len / dw.last().max(1), dw.last());
        let filter = Filters { weights: dw.ptr, packed, k, f };
        if self.copies.iter().any(|m| m.reads().overlaps(&plain(&filter))) {
            self.flush();
        }
        self.unpacks.push((filter, elem));
    }
}

/// The epilogue of a convolution that was not fused into it.
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

/// Filters, or their gradient, in the layout of the weights.
pub(super) fn plain(f: &Filters) -> Span {
    Span::whole(f.weights, f.k * f.f * 4)
}

/// Filters, or their gradient, in the library's layout.
pub(super) fn packed(f: &Filters, elem: Elem) -> Span {
    Span::whole(f.packed, f.k * f.f * elem.bytes())
}

/// The filters of one element type in the library's layout.
pub(super) fn of_type(filters: &[(Filters, Elem)], elem: Elem) -> Vec<Filters> {
    filters.iter().filter(|(_, e)| *e == elem).map(|(f, _)| *f).collect()
}
