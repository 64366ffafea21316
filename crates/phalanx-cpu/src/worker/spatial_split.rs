//! Spatial splitting: if a device has fewer rows than workers, the workers split each instruction within the
//! rows. Convolution and pooling are split by output lines (of volumes: slices), dense layers by columns, other
//! products by items, elementwise ops and batch normalisation by pixels. The first worker computes all other ops alone.

use super::WorkerCtx;
use crate::compute;
use crate::kernels::conv::{self, Conv};
use crate::kernels::dot;
use crate::kernels::layout::Dst;
use crate::kernels::matrix::{MatrixMut, MatrixRef};
use crate::kernels::norm::{self, NormPass};
use crate::kernels::pool::{self, Windows};
use crate::simd::MAX_LANES;
use phalanx_graph::ops;
use phalanx_graph::program::{Instr, Program, Split, ValueId};
use phalanx_graph::{ConvGeom, Op};

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
    // Slices of a volume need as much as the volume.
    let need = |i: &Instr| match i {
        Instr::Compute { op: Op::Conv(g, _), .. } if g.is_flat() => parts(g),
        _ => None,
    };
    program.instrs().iter().filter_map(need).max().unwrap_or(0)
}

/// 3x3 convolutions are split in groups of this many lines. Winograd tiles are 2 or 4 lines high,
/// so the bits of the result do not depend on the split.
const CONV3X3_LINE_GROUP: usize = 4;

/// Consecutive output lines of one image, or slices of one volume.
struct LineRange {
    /// The geometry restricted to these lines.
    geom: ConvGeom,
    /// The first pixel of their input.
    from: usize,
    /// The first pixel of their output.
    to: usize,
}

/// Computes this worker's part of an instruction.
///
/// Why the contracts of the kernels and of the worker's memory hold: a barrier after each instruction separates
/// it from the others, so operands are complete. The workers write disjoint parts of the result, which shares
/// no byte with an operand. Each worker has its own scratch memory.
pub(super) fn compute(ctx: &WorkerCtx<'_>, at: usize, op: &Op, x: &[ValueId], y: ValueId) {
    match op {
        Op::Conv(geom, e) if ctx.value(y).ty.is_rows() => conv_lines(ctx, geom, e, x, y),
        Op::Pool(kind, geom) => {
            for l in lines(ctx, geom) {
                let windows = Windows { geom: &l.geom, rows: 1 };
                let (from, to) = (ctx.src(x[0]).skip_pixels(l.from), ctx.dst(y).skip_pixels(l.to));
                // SAFETY: the lines lie inside the image, and only this worker writes them.
                unsafe { pool::pool(ctx.run.isa, *kind, windows, from, to) };
            }
        }
        Op::BatchNorm(a) => {
            let pixels = ctx.my_range(ctx.pixels(y));
            let (from, to) = (ctx.src(x[0]), ctx.dst(y).skip_pixels(pixels.start));
            // SAFETY: the pixels lie inside both values, and only this worker writes them. The parameters
            // are complete operands. Nothing else uses the scratch memory during this instruction.
            unsafe {
                let norm = compute::batch_norm(ctx, a, &x[1..4]);
                let from = from.skip_pixels(pixels.start);
                let pass = NormPass { norm, pixels: pixels.len(), x: from };
                norm::normalize(ctx.run.isa, &pass, to, ctx.scratch());
            }
        }
        Op::Fused(_) => compute::tape(ctx, at, x, y),
        Op::Dot(e) => dot_part(ctx, e, x, y),
        // Workers compute different items.
        Op::MatMul(_) => compute::compute(ctx, at, op, x, y),
        _ if ctx.worker == ctx.memory_owner() => compute::compute(ctx, at, op, x, y),
        _ => {}
    }
}

/// This worker's output lines of a convolution.
fn conv_lines(ctx: &WorkerCtx<'_>, geom: &ConvGeom, e: &ops::Epilogue, x: &[ValueId], y: ValueId) {
    // The method is the one for the whole image.
    let method = compute::conv_method(ctx.program(), geom, conv::Pass::Forward);
    let (ldx, isa) = (ctx.value(x[0]).ld, ctx.run.isa);
    for l in lines(ctx, geom) {
        let [height, width, channels] = l.geom.input_dims();
        let [out_height, out_width, filters] = l.geom.output_dims();
        let conv = Conv { isa, method, geom: &l.geom, rows: 1 };
        // SAFETY: the operands are complete. The lines lie inside the result, and workers write disjoint
        // lines. Nothing else uses the scratch memory during this instruction.
        unsafe {
            let input = &ctx.slice(x[0])[l.from * ldx..];
            let input = MatrixRef::new(input, height * width, channels, ldx);
            let epilogue = compute::epilogue(ctx, e, x);
            let to = ctx.dst(y).skip_pixels(l.to);
            let out = MatrixMut::from_raw(to, out_height * out_width, filters);
            conv.forward(input, ctx.slice(x[1]), epilogue, out, ctx.scratch());
        }
    }
}

/// This worker's pixels of a dense layer if there is one for each worker, else its columns of all pixels.
fn dot_part(ctx: &WorkerCtx<'_>, e: &ops::Epilogue, x: &[ValueId], y: ValueId) {
    let (k, n) = (ctx.value(x[0]).ty.last(), ctx.value(y).ty.last());
    let pixels = ctx.pixels(y);
    let (rows, columns) = if pixels >= ctx.run.mesh.workers {
        (ctx.my_range(pixels), 0..n)
    } else {
        // Whole vectors of columns, so that the weights need no packing.
        let part = ctx.my_range(n.div_ceil(MAX_LANES));
        (0..pixels, (part.start * MAX_LANES).min(n)..(part.end * MAX_LANES).min(n))
    };
    let ldx = ctx.value(x[0]).ld;
    for row in rows {
        // SAFETY: the operands are complete. The columns of one pixel lie inside the result, and only this
        // worker writes them. Nothing else uses the scratch memory during this instruction.
        unsafe {
            let input = MatrixRef::new(&ctx.slice(x[0])[row * ldx..], 1, k, ldx);
            let w = MatrixRef::contiguous(ctx.slice(x[1]), k, n).columns(columns.clone());
            let epilogue = compute::epilogue(ctx, e, x).skip_columns(columns.start);
            let Dst { ptr, ld } = ctx.dst(y).skip_pixels(row);
            let dst = Dst { ptr: ptr.wrapping_add(columns.start), ld };
            let out = MatrixMut::from_raw(dst, 1, columns.len());
            dot::forward(ctx.run.isa, input, w, epilogue, out, ctx.scratch());
        }
    }
}

/// This worker's output lines, one item per image; of volumes, its slices.
fn lines(ctx: &WorkerCtx<'_>, geom: &ConvGeom) -> impl Iterator<Item = LineRange> + use<> {
    let (geom, flat) = (*geom, geom.is_flat());
    let height = if flat { geom.output[0] } else { geom.depth.output };
    let conv3x3 = geom.kernel == [3, 3] && geom.stride == [1, 1];
    let group = if conv3x3 && flat { CONV3X3_LINE_GROUP } else { 1 };
    let groups = height.div_ceil(group).max(1);
    let mine = ctx.my_range(ctx.rows.len() * groups);
    let images = mine.start / groups..mine.end.div_ceil(groups);
    images.map(move |image| {
        let top = image * groups;
        let (start, end) = (mine.start.max(top) - top, mine.end.min(top + groups) - top);
        let lines = start * group..(end * group).min(height);
        let ([_, width, _], [_, out_width, _]) = (geom.input, geom.output);
        if flat {
            let (part, first) = geom.lines(lines.clone());
            let from = (image * geom.input[0] + first) * width;
            LineRange { geom: part, from, to: (image * height + lines.start) * out_width }
        } else {
            let (part, first) = geom.slices(lines.clone());
            let from = (image * geom.depth.input + first) * geom.input[0] * width;
            let to = (image * height + lines.start) * geom.output[0] * out_width;
            LineRange { geom: part, from, to }
        }
    })
}
