//! What a GPU does in a step, as plain data: launches of own kernels, products and convolutions of
//! the vendor's libraries, copies, sums over GPUs; and what each reads and writes, from which follows
//! what may run side by side.

use crate::launch::{Elem, Launch, Ptr, Span};
use phalanx_graph::ConvGeom;

/// A matrix in memory: rows of `ld` elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Matrix {
    pub at: Ptr,
    pub elem: Elem,
    pub ld: usize,
    /// Whether it enters the product transposed.
    pub transposed: bool,
}

/// `c[m, n] = a[m, k] · b[k, n]`, then `relu(c + bias)`, each part optional. All row by row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Gemm {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub a: Matrix,
    pub b: Matrix,
    pub c: Matrix,
    /// `[n]`, of 32-bit floats.
    pub bias: Option<Ptr>,
    pub relu: bool,
}

/// Which of a convolution's three products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Pass {
    /// `y = x * w`
    Forward,
    /// `dx = dy * wᵀ`
    GradInput,
    /// `dw = xᵀ * dy`
    GradKernel,
}

/// A tensor of images: NHWC, pixels `ld` elements apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Images {
    pub at: Ptr,
    pub elem: Elem,
    pub ld: usize,
}

/// A convolution. Filters lie as `[filters, height, width, channels / groups]`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Conv {
    pub pass: Pass,
    pub geom: ConvGeom,
    pub rows: usize,
    /// The layer's input, or its gradient.
    pub x: Images,
    /// The filters, or their gradient.
    pub w: (Ptr, Elem),
    /// The layer's output, or its gradient.
    pub y: Images,
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Task {
    Launch(Launch),
    Gemm(Gemm),
    Conv(Conv),
    /// Fills bytes with zero.
    Clear(Span),
}

/// Tasks that follow one another, with everything they touch.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Work {
    /// The op, and the layer it belongs to.
    pub label: String,
    /// The instruction it belongs to.
    pub instr: usize,
    pub tasks: Vec<Task>,
    pub reads: Vec<Span>,
    pub writes: Vec<Span>,
}

impl Work {
    /// Whether this must wait for an earlier one.
    pub fn follows(&self, earlier: &Work) -> bool {
        let meet = |a: &[Span], b: &[Span]| a.iter().any(|x| b.iter().any(|y| x.overlaps(y)));
        meet(&self.reads, &earlier.writes)
            || meet(&self.writes, &earlier.reads)
            || meet(&self.writes, &earlier.writes)
    }
}
