//! Pooling over windows and its derivative. The geometry is part of the kernel's name.

use super::norm::vector;
use crate::cx::{Cx, Operand};
use crate::launch::Launch;
use phalanx_graph::ConvGeom;
use phalanx_graph::ops::PoolKind;
use phalanx_graph::program::ValueId;

/// Threads that fill a GPU; fewer vectors than this are taken apart.
const FILLS: usize = 132 * 256;

/// One thread for each vector of `over`, one of the operands.
fn launch(kernel: &str, g: &ConvGeom, over: &Operand, operands: &[&Operand]) -> Vec<Launch> {
    if over.len == 0 {
        return vec![];
    }
    let wide = vector(operands);
    let v = if over.len / wide < FILLS { 1 } else { wide };
    let items = over.len / v;
    let index = if items < 1 << 31 { "u32" } else { "u64" };
    let sizes = [&g.input[..2], &g.output[..2], &g.kernel, &g.stride, &g.dilation, &g.pad].concat();
    let sizes: Vec<String> = sizes.iter().chain(&[g.input[2]]).map(usize::to_string).collect();
    let name =
        format!("{kernel}<{}, {v}, {index}, Geom<{}>>", over.elem.c_name(), sizes.join(", "));
    let launch = Launch::over("pool", name, items);
    let launch = operands.iter().fold(launch, |l, o| l.arg(o.ptr).arg(o.ld));
    vec![launch.arg(items)]
}

/// Largest element or mean of each window.
pub(crate) fn pool(
    cx: &mut Cx<'_>,
    kind: PoolKind,
    geom: &ConvGeom,
    x: &[ValueId],
    y: ValueId,
) -> Vec<Launch> {
    let (x, y) = (cx.operand(x[0]), cx.operand(y));
    let kernel = match kind {
        PoolKind::Max => "max_pool",
        PoolKind::Average => "average_pool",
    };
    launch(kernel, geom, &y, &[&x, &y])
}

/// Whether every input pixel lies in exactly one window.
fn apart(g: &ConvGeom) -> bool {
    (0..2).all(|a| {
        let fits = g.dilation[a] == 1 && g.kernel[a] == g.stride[a];
        // Padding cuts a window short but leaves nothing out.
        fits && g.output[a] * g.stride[a] >= g.input[a] + g.pad[a]
    })
}

/// Operands `x, y, dy` (max) or `dy` (average).
pub(crate) fn pool_grad(
    cx: &mut Cx<'_>,
    kind: PoolKind,
    geom: &ConvGeom,
    x: &[ValueId],
    y: ValueId,
) -> Vec<Launch> {
    let dx = cx.operand(y);
    let x: Vec<Operand> = x.iter().map(|id| cx.operand(*id)).collect();
    let operands: Vec<&Operand> = x.iter().chain([&dx]).collect();
    match kind {
        PoolKind::Max if apart(geom) => launch("max_pool_grad_apart", geom, &x[2], &operands),
        PoolKind::Max => launch("max_pool_grad", geom, &dx, &operands),
        PoolKind::Average => launch("average_pool_grad", geom, &dx, &operands),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_graph::Padding;

    #[test]
    fn only_windows_that_tile_the_image_are_apart() {
        let geom = |size, kernel, stride, padding| {
            let (k, s) = ([kernel, kernel], [stride, stride]);
            ConvGeom::new([size, size, 4], 4, k, s, [1, 1], padding, 1).unwrap()
        };
        assert!(apart(&geom(8, 2, 2, Padding::Valid)));
        assert!(apart(&geom(7, 7, 7, Padding::Valid)));
        assert!(apart(&geom(7, 2, 2, Padding::Same)));
        assert!(!apart(&geom(7, 2, 2, Padding::Valid)));
        assert!(!apart(&geom(8, 3, 2, Padding::Same)));
        assert!(!apart(&geom(8, 2, 3, Padding::Valid)));
    }
}
