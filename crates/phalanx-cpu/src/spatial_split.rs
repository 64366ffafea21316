//! Spatial splitting: if a device has fewer rows than workers, the workers split each instruction within the
//! rows. Convolution and pooling are split by output lines, dense layers by columns, elementwise ops and batch
//! normalisation by pixels. The first worker computes all other ops alone.

use crate::compute;
use crate::kernels::layout::{Dst, Src};
use crate::kernels::{conv, dot, norm, pool};
use crate::simd::MAX_LANES;
use crate::worker::WorkerCtx;
use phalanx_graph::ops::Epilogue;
use phalanx_graph::program::{Instr, Program, Split, ValueId};
use phalanx_graph::{ConvGeom, Op};
use std::ops::Range;

/// Floats of scratch memory that any part of an instruction needs. A part may be computed in
/// another way than the whole instruction, so all sizes are tried.
pub(crate) fn scratch_len(program: &Program) -> usize {
    if program.split() == Split::Rows {
        return 0;
    }
    let parts = |g: &ConvGeom| {
        let middle = g.output[0] / 2;
        let method = compute::conv_method(program, g, conv::Pass::Forward);
        let need = |lines| conv::scratch_len(method, &g.lines(lines).0, conv::Pass::Forward);
        let tops = (1..=g.output[0]).map(|n| need(0..n)).max();
        tops.max((1..=g.output[0] - middle).map(|n| need(middle..middle + n)).max())
    };
    let need = |i: &Instr| match i {
        Instr::Compute { op: Op::Conv(g, _), .. } => parts(g),
        _ => None,
    };
    program.instrs().iter().filter_map(need).max().unwrap_or(0)
}

/// 3x3 convolutions are split in groups of this many lines. Winograd tiles are 2 or 4 lines high,
/// so the bits of the result do not depend on the split.
const CONV3X3_LINE_GROUP: usize = 4;

/// Consecutive output lines of one image.
struct Lines {
    /// The geometry restricted to these lines.
    geom: ConvGeom,
    /// The first pixel of their input.
    from: usize,
    /// The first pixel of their output.
    to: usize,
}

impl<'a> WorkerCtx<'a> {
    /// Computes this worker's part of an instruction.
    pub fn compute_spatial(&self, at: usize, op: &Op, x: &[ValueId], y: ValueId) {
        match op {
            Op::Conv(geom, e) if self.value(y).ty.is_rows() => {
                let bias = e.bias.then(|| self.slice(x[2]));
                let (ldx, ldy) = (self.value(x[0]).ld, self.value(y).ld);
                // The method is the one for the whole image.
                let how = compute::conv_method(self.program(), geom, conv::Pass::Forward);
                for l in self.lines(geom) {
                    let input = &self.slice(x[0])[l.from * ldx..];
                    let (w, out) = (self.slice(x[1]), self.lines_mut(y, &l));
                    let scratch = self.scratch();
                    let (isa, relu) = (self.run.isa, e.relu);
                    conv::forward(
                        isa, how, &l.geom, 1, input, ldx, w, bias, relu, out, ldy, scratch,
                    );
                }
            }
            Op::Pool(kind, geom) => {
                for l in self.lines(geom) {
                    let (from, to) = (self.src_at(x[0], l.from), self.dst_at(y, l.to));
                    // SAFETY: the lines lie inside the image, and only this worker writes them.
                    unsafe { pool::pool(self.run.isa, *kind, &l.geom, 1, from, to) };
                }
            }
            Op::BatchNorm(a) => {
                let pixels = self.my_range(self.pixels(y));
                let n = self.batch_norm(a, &x[1..4]);
                let (from, to) = (self.src_at(x[0], pixels.start), self.dst_at(y, pixels.start));
                // SAFETY: the pixels lie inside both values, and only this worker writes them.
                unsafe {
                    norm::normalize(self.run.isa, &n, pixels.len(), from, to, self.scratch());
                }
            }
            Op::Fused(_) => self.tape(at, x, y),
            Op::Dot(e) => self.dot_part(e, x, y),
            _ if self.worker == self.memory_owner() => self.compute(at, op, x, y),
            _ => {}
        }
    }

    /// This worker's pixels of a dense layer if there is one for each worker, else its columns of all pixels.
    fn dot_part(&self, e: &Epilogue, x: &[ValueId], y: ValueId) {
        let (k, n) = (self.value(x[0]).ty.last(), self.value(y).ty.last());
        let pixels = self.pixels(y);
        let (rows, columns) = if pixels >= self.run.mesh.workers {
            (self.my_range(pixels), 0..n)
        } else {
            // Whole vectors of columns, so that the weights need no packing.
            let part = self.my_range(n.div_ceil(MAX_LANES));
            (0..pixels, (part.start * MAX_LANES).min(n)..(part.end * MAX_LANES).min(n))
        };
        let (ldx, ldy) = (self.value(x[0]).ld, self.value(y).ld);
        let (w, bias) = (self.slice(x[1]), e.bias.then(|| self.slice(x[2])));
        for row in rows {
            let (input, columns) = (&self.slice(x[0])[row * ldx..], columns.clone());
            let to = self.dst_at(y, row).ptr.wrapping_add(columns.start);
            // SAFETY: the columns of one pixel lie inside the value, and only this worker writes them.
            let out = unsafe { std::slice::from_raw_parts_mut(to, columns.len()) };
            let (isa, relu, scratch) = (self.run.isa, e.relu, self.scratch());
            dot::forward_columns(
                isa, 1, k, n, columns, input, ldx, w, bias, relu, out, ldy, scratch,
            );
        }
    }

    /// This worker's output lines, one item per image.
    fn lines(&self, geom: &ConvGeom) -> impl Iterator<Item = Lines> + use<> {
        let (geom, height) = (*geom, geom.output[0]);
        let conv3x3 = geom.kernel == [3, 3] && geom.stride == [1, 1];
        let group = if conv3x3 { CONV3X3_LINE_GROUP } else { 1 };
        let groups = height.div_ceil(group).max(1);
        let mine = self.my_range(self.rows.len() * groups);
        let images = mine.start / groups..mine.end.div_ceil(groups);
        images.map(move |image| {
            let top = image * groups;
            let (start, end) = (mine.start.max(top) - top, mine.end.min(top + groups) - top);
            let lines = start * group..(end * group).min(height);
            let (part, first) = geom.lines(lines.clone());
            let from = (image * geom.input[0] + first) * geom.input[1];
            let to = (image * height + lines.start) * geom.output[1];
            Lines { geom: part, from, to }
        })
    }

    /// The floats of some output lines, writable.
    #[allow(clippy::mut_from_ref)]
    fn lines_mut(&self, id: ValueId, l: &Lines) -> &'a mut [f32] {
        let v = self.value(id);
        let pixels: Range<usize> = l.to..l.to + l.geom.output[0] * l.geom.output[1];
        let len = if pixels.is_empty() { 0 } else { (pixels.len() - 1) * v.ld + v.ty.last() };
        // SAFETY: the lines lie inside the value, and workers write disjoint lines after the barrier that
        // ended the last instruction to access them.
        unsafe { std::slice::from_raw_parts_mut(self.dst_at(id, l.to).ptr, len) }
    }

    fn src_at(&self, id: ValueId, pixel: usize) -> Src {
        let Src { ptr, ld } = self.src(id);
        Src { ptr: ptr.wrapping_add(pixel * ld), ld }
    }

    fn dst_at(&self, id: ValueId, pixel: usize) -> Dst {
        let Dst { ptr, ld } = self.dst(id);
        Dst { ptr: ptr.wrapping_add(pixel * ld), ld }
    }
}
