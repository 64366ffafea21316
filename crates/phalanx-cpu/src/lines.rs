//! Instructions shared by the workers of a device line by line, where it has fewer rows than
//! workers: convolution and pooling by output lines, dense layers by columns, elementwise ops and
//! batch norms by pixels. The first worker computes the rest alone.

use crate::compute;
use crate::kernels::layout::{Dst, Src};
use crate::kernels::{conv, dot, norm, pool};
use crate::simd::MAX_LANES;
use crate::worker::Ctx;
use phalanx_graph::ops::Epilogue;
use phalanx_graph::program::{Instr, Program, Split, ValueId};
use phalanx_graph::{ConvGeom, Op};
use std::ops::Range;

/// Floats of scratch memory for any part of an instruction: a part may be computed another way
/// than the whole.
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

/// Lines of a 3x3 convolution that stay together: where it is computed in tiles of so many, its bits
/// do not depend on who computes them.
const TOGETHER: usize = 4;

/// Some lines of one image.
struct Lines {
    /// Their geometry.
    geom: ConvGeom,
    /// The pixel where their input starts.
    from: usize,
    /// The pixel where their output starts.
    to: usize,
}

impl<'a> Ctx<'a> {
    /// Computes this worker's part of an instruction.
    pub fn compute_lines(&self, at: usize, op: &Op, x: &[ValueId], y: ValueId) {
        match op {
            Op::Conv(geom, e) if self.value(y).ty.is_rows() => {
                let bias = e.bias.then(|| self.slice(x[2]));
                let (ldx, ldy) = (self.value(x[0]).ld, self.value(y).ld);
                // Lines are computed as their whole image would be.
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
                let pixels = self.part(self.pixels(y));
                let n = self.batch_norm(a, &x[1..4]);
                let (from, to) = (self.src_at(x[0], pixels.start), self.dst_at(y, pixels.start));
                // SAFETY: the pixels lie inside both values, and only this worker writes them.
                unsafe {
                    norm::normalize(self.run.isa, &n, pixels.len(), from, to, self.scratch());
                }
            }
            Op::Fused(_) => self.tape(at, x, y),
            Op::Dot(e) => self.dot_part(e, x, y),
            _ if self.worker == self.home() => self.compute(at, op, x, y),
            _ => {}
        }
    }

    /// This worker's pixels of a dense layer where there is one for each, else its columns of all.
    fn dot_part(&self, e: &Epilogue, x: &[ValueId], y: ValueId) {
        let (k, n) = (self.value(x[0]).ty.last(), self.value(y).ty.last());
        let pixels = self.pixels(y);
        let (rows, columns) = if pixels >= self.run.mesh.workers {
            (self.part(pixels), 0..n)
        } else {
            // Whole vectors of columns, whose weights are read where they lie.
            let part = self.part(n.div_ceil(MAX_LANES));
            (0..pixels, (part.start * MAX_LANES).min(n)..(part.end * MAX_LANES).min(n))
        };
        let (ldx, ldy) = (self.value(x[0]).ld, self.value(y).ld);
        let (w, bias) = (self.slice(x[1]), e.bias.then(|| self.slice(x[2])));
        for row in rows {
            let (input, columns) = (&self.slice(x[0])[row * ldx..], columns.clone());
            let to = self.dst_at(y, row).ptr.wrapping_add(columns.start);
            // SAFETY: columns of one pixel inside the value, which this worker alone writes.
            let out = unsafe { std::slice::from_raw_parts_mut(to, columns.len()) };
            let (isa, relu, scratch) = (self.run.isa, e.relu, self.scratch());
            dot::forward_columns(
                isa, 1, k, n, columns, input, ldx, w, bias, relu, out, ldy, scratch,
            );
        }
    }

    /// This worker's output lines, image by image.
    fn lines(&self, geom: &ConvGeom) -> impl Iterator<Item = Lines> + use<> {
        let (geom, height) = (*geom, geom.output[0]);
        let together = if geom.kernel == [3, 3] && geom.stride == [1, 1] { TOGETHER } else { 1 };
        let each = height.div_ceil(together).max(1);
        let mine = self.part(self.rows.len() * each);
        let images = mine.start / each..mine.end.div_ceil(each);
        images.map(move |image| {
            let top = image * each;
            let (start, end) = (mine.start.max(top) - top, mine.end.min(top + each) - top);
            let lines = start * together..(end * together).min(height);
            let (part, first) = geom.lines(lines.clone());
            let from = (image * geom.input[0] + first) * geom.input[1];
            let to = (image * height + lines.start) * geom.output[1];
            Lines { geom: part, from, to }
        })
    }

    /// The floats of some output lines, to write.
    #[allow(clippy::mut_from_ref)]
    fn lines_mut(&self, id: ValueId, l: &Lines) -> &'a mut [f32] {
        let v = self.value(id);
        let pixels: Range<usize> = l.to..l.to + l.geom.output[0] * l.geom.output[1];
        let len = if pixels.is_empty() { 0 } else { (pixels.len() - 1) * v.ld + v.ty.last() };
        // SAFETY: the lines lie inside the value; workers write disjoint ones, behind the barrier
        // that ended the last instruction to touch them.
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
