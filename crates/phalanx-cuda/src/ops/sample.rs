//! Upsampling of images, affine sampling with a matrix per sample, and their derivatives.

use super::axes::{Loop, index_type, pack_width};
use super::layout::{copy_loops, typed_ptr};
use crate::launch::{Elem, Launch};
use crate::lowering_context::{LowerCtx, Operand};
use phalanx_graph::ops::{FillMode, SampleGeom};
use phalanx_graph::program::ValueId;

const FILE: &str = "sample";

/// Maximum blocks per image in the derivative.
const MAX_BLOCKS_PER_IMAGE: usize = 8;

/// Repeats pixels, or interpolates between them.
pub(crate) fn upsample(
    cx: &mut LowerCtx<'_>,
    size: [usize; 2],
    bilinear: bool,
    x: &[ValueId],
    y: ValueId,
) -> Vec<Launch> {
    let (x, y) = (cx.operand(x[0]), cx.operand(y));
    enlarge("upsample", size, bilinear, &x, &y, &x.dims)
}

/// Operand `dy`. Every small pixel sums the derivatives of the pixels that it was spread over.
pub(crate) fn upsample_grad(
    cx: &mut LowerCtx<'_>,
    size: [usize; 2],
    bilinear: bool,
    x: &[ValueId],
    y: ValueId,
) -> Vec<Launch> {
    let (dy, dx) = (cx.operand(x[0]), cx.operand(y));
    enlarge("upsample_grad", size, bilinear, &dy, &dx, &dx.dims)
}

fn enlarge(
    name: &str,
    size: [usize; 2],
    bilinear: bool,
    x: &Operand,
    y: &Operand,
    small: &[usize],
) -> Vec<Launch> {
    if y.len == 0 {
        return vec![];
    }
    let width = pack_width(&[typed_ptr(x), typed_ptr(y)], &[y.last(), x.ld, y.ld]);
    let n = y.len / width;
    let (from, to, index) = (x.elem.c_name(), y.elem.c_name(), index_type(n));
    let name = format!("{name}<{from}, {to}, {width}, {bilinear}, {index}>");
    let launch = Launch::over(FILE, name, n).arg(x.ptr).arg(y.ptr).arg(n);
    let launch = launch.arg(small[0]).arg(small[1]).arg(small[2] / width);
    vec![launch.arg(size[0]).arg(size[1]).arg(x.ld).arg(y.ld)]
}

/// Must match `enum Fill` of the kernels.
fn fill(mode: FillMode) -> i32 {
    match mode {
        FillMode::Constant => 0,
        FillMode::Nearest => 1,
        FillMode::Reflect => 2,
        FillMode::Wrap => 3,
    }
}

/// Samples images through their matrices; operands `x, matrix`.
pub(crate) fn affine(
    cx: &mut LowerCtx<'_>,
    geom: &SampleGeom,
    x: &[ValueId],
    y: ValueId,
) -> Vec<Launch> {
    let (x, matrix, y) = (cx.operand(x[0]), cx.operand(x[1]), cx.operand(y));
    if y.len == 0 {
        return vec![];
    }
    let n = y.pixels();
    let types = [&x, &matrix, &y].map(|o| o.elem.c_name()).join(", ");
    let name = format!("affine_sample<{types}, {}>", index_type(n));
    let launch = Launch::over(FILE, name, n).arg(x.ptr).arg(matrix.ptr).arg(y.ptr).arg(n);
    let launch = sizes(launch, geom).arg(fill(geom.fill)).arg(geom.bilinear);
    vec![launch.arg(geom.fill_value.get() as f32)]
}

fn sizes(launch: Launch, geom: &SampleGeom) -> Launch {
    let numbers = geom.input.iter().chain(&geom.output);
    numbers.fold(launch, |launch, n| launch.arg(*n))
}

/// Sums derivatives at the pixels that were sampled; operands `dy, matrix`. The sums are 32-bit
/// floats, converted at the end if the result is narrower.
pub(crate) fn affine_grad(
    cx: &mut LowerCtx<'_>,
    geom: &SampleGeom,
    x: &[ValueId],
    y: ValueId,
) -> Vec<Launch> {
    let rows = cx.rows_of(y);
    let (dy, matrix, dx) = (cx.operand(x[0]), cx.operand(x[1]), cx.operand(y));
    if dx.len == 0 {
        return vec![];
    }
    let narrow = dx.elem != Elem::F32;
    let sums = if narrow { cx.scratch.take(dx.len * Elem::F32.bytes()) } else { dx.ptr };
    let shares = (geom.input[0] * geom.input[1]).div_ceil(256).min(MAX_BLOCKS_PER_IMAGE);
    let name = format!("affine_sample_grad<{}, {}>", dy.elem.c_name(), matrix.elem.c_name());
    let launch = Launch::blocks(FILE, name, rows * shares, 256);
    let launch = sizes(launch.arg(dy.ptr).arg(matrix.ptr).arg(sums), geom);
    let mut launches = vec![launch.arg(shares).arg(fill(geom.fill)).arg(geom.bilinear)];
    if narrow {
        let all = vec![Loop { count: dx.len, src: 1, dst: 1 }];
        launches.extend(copy_loops(all, (sums, Elem::F32), typed_ptr(&dx)));
    }
    launches
}
