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

/// A part of a sum over GPUs: everybody's `to` becomes the sum of everybody's `from`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Part {
    pub from: Ptr,
    pub to: Ptr,
    pub elem: Elem,
    pub len: usize,
}

impl Part {
    pub fn reads(&self) -> Span {
        Span::whole(self.from, self.len * self.elem.bytes())
    }

    pub fn writes(&self) -> Span {
        Span::whole(self.to, self.len * self.elem.bytes())
    }
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Task {
    Launch(Launch),
    Gemm(Gemm),
    Conv(Conv),
    /// Fills bytes with zero.
    Clear(Span),
    /// Adds over GPUs. All of them do this together, with parts of the same types and lengths.
    Reduce(Vec<Part>),
}

/// Tasks that follow one another, with everything they touch.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WorkItem {
    /// The op, and the layer it belongs to.
    pub label: String,
    /// The instruction it belongs to.
    pub instr: usize,
    pub tasks: Vec<Task>,
    pub reads: Vec<Span>,
    pub writes: Vec<Span>,
}

impl WorkItem {
    /// A sum over GPUs.
    pub fn reduce(label: String, instr: usize, parts: Vec<Part>) -> WorkItem {
        let reads = parts.iter().map(Part::reads).collect();
        let writes = parts.iter().map(Part::writes).collect();
        WorkItem { label, instr, tasks: vec![Task::Reduce(parts)], reads, writes }
    }

    /// Whether this is a sum over GPUs. Those of a step keep their order.
    pub fn reduces(&self) -> bool {
        self.tasks.iter().any(|task| matches!(task, Task::Reduce(_)))
    }

    /// Whether this must wait for an earlier one.
    pub fn follows(&self, earlier: &WorkItem) -> bool {
        let meet = |a: &[Span], b: &[Span]| a.iter().any(|x| b.iter().any(|y| x.overlaps(y)));
        self.reduces() && earlier.reduces()
            || meet(&self.reads, &earlier.writes)
            || meet(&self.writes, &earlier.reads)
            || meet(&self.writes, &earlier.writes)
    }
}
