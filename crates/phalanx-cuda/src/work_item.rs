//! The work items of a step, as plain data: kernel launches, products and convolutions of the
//! vendor's libraries, copies, and reductions across GPUs. Each item lists what it reads and
//! writes, which determines what can run concurrently.

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

/// The items of a batched product, and the elements between items of `a`, `b` and `c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Batch {
    pub count: usize,
    pub strides: [usize; 3],
}

impl Batch {
    /// A single product.
    pub const ONE: Batch = Batch { count: 1, strides: [0; 3] };
}

/// `c[m, n] = a[m, k] · b[k, n]`, then `relu(c + bias)`, each part optional. All matrices are
/// row-major.
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
    /// Products with a bias or a ReLU are not batched.
    pub batch: Batch,
}

/// One of the three products of a convolution.
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

/// A convolution. The filters are laid out as `[filters, height, width, channels / groups]`.
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

/// A part of an all-reduce: `to` on every GPU becomes the sum of `from` over all GPUs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ReducePart {
    pub from: Ptr,
    pub to: Ptr,
    pub elem: Elem,
    pub len: usize,
}

impl ReducePart {
    pub fn reads(&self) -> Span {
        Span::whole(self.from, self.len * self.elem.bytes())
    }

    pub fn writes(&self) -> Span {
        Span::whole(self.to, self.len * self.elem.bytes())
    }
}

/// A single operation of a work item.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Task {
    Launch(Launch),
    Gemm(Gemm),
    Conv(Conv),
    /// Fills bytes with zero.
    Clear(Span),
    /// All-reduce across GPUs. All GPUs run it together, with parts of the same types and lengths.
    Reduce(Vec<ReducePart>),
}

/// Tasks that run one after another, with all bytes that they access.
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
    /// An all-reduce across GPUs.
    pub fn reduce(label: String, instr: usize, parts: Vec<ReducePart>) -> WorkItem {
        let reads = parts.iter().map(ReducePart::reads).collect();
        let writes = parts.iter().map(ReducePart::writes).collect();
        WorkItem { label, instr, tasks: vec![Task::Reduce(parts)], reads, writes }
    }

    /// Whether this is an all-reduce. The all-reduces of a step keep their order.
    pub fn reduces(&self) -> bool {
        self.tasks.iter().any(|task| matches!(task, Task::Reduce(_)))
    }

    /// Whether this must wait for an earlier item.
    pub fn follows(&self, earlier: &WorkItem) -> bool {
        let meet = |a: &[Span], b: &[Span]| a.iter().any(|x| b.iter().any(|y| x.overlaps(y)));
        self.reduces() && earlier.reduces()
            || meet(&self.reads, &earlier.writes)
            || meet(&self.writes, &earlier.reads)
            || meet(&self.writes, &earlier.writes)
    }
}
