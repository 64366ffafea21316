//! Products of two computed values with any strides and types.

use super::axes::{axes, index_type, sizes};
use crate::launch::Launch;
use crate::lowering_context::Operand;
use phalanx_graph::ops::matmul::{Axis, ProductAxes};

const FILE: &str = "matmul";

/// A product with one thread for each element of the result.
pub(crate) fn plain(product: &ProductAxes, [a, b, y]: &[Operand; 3]) -> Launch {
    let one = Axis { count: 1, strides: [0; 3] };
    let or_one = |loops: Vec<Axis>| if loops.is_empty() { vec![one] } else { loops };
    let free = [product.batch.loops(), product.left.loops(), product.right.loops()].concat();
    let (free, summed) = (or_one(free), or_one(product.sum.loops().to_vec()));
    let (n, depth) = (y.len, product.sum.count());
    let strides = |loops: &[Axis], i: usize| axes(loops.iter().map(|l| l.strides[i]));
    let counts = |loops: &[Axis]| sizes(loops.iter().map(|l| l.count));
    let types = [a, b, y].map(|v| v.elem.c_name()).join(", ");
    let outer: Vec<String> = (0..3).map(|i| strides(&free, i)).collect();
    let inner: Vec<String> = (0..2).map(|i| strides(&summed, i)).collect();
    let name = format!(
        "matmul<{types}, {}, {}, {}, {}, {}>",
        index_type(n.max(depth)),
        counts(&free),
        outer.join(", "),
        counts(&summed),
        inner.join(", ")
    );
    Launch::over(FILE, name, n).arg(a.ptr).arg(b.ptr).arg(y.ptr).arg(n).arg(depth)
}
