//! Matrix products: dense layers and their gradients.

use super::Lowering;
use crate::launch::{Elem, Ptr, Span};
use crate::lowering_context::Operand;
use crate::work_item::{Batch, Gemm, Matrix, Task, WorkItem};
use phalanx_graph::ops::Epilogue;
use phalanx_graph::program::ValueId;

impl Lowering<'_> {
    /// A dense kernel as a matrix: in place, or converted to the type of a 16-bit operand.
    fn kernel(
        &mut self,
        replica: usize,
        w: ValueId,
        elem: Elem,
        transposed: bool,
    ) -> (Matrix, Span) {
        let plain = self.operand(replica, w);
        if elem == Elem::F32 {
            return (matrix(&plain, transposed), plain.span());
        }
        // Packed kernels are already transposed.
        let at = self.packed(replica, w, elem);
        let ld = plain.len / plain.last().max(1);
        let span = Span::whole(at, plain.len * elem.bytes());
        (Matrix { at, elem, ld, transposed: !transposed }, span)
    }

    pub(super) fn dot(
        &mut self,
        replica: usize,
        label: String,
        e: Epilogue,
        x: &[ValueId],
        y: ValueId,
    ) {
        let (a, c) = (self.operand(replica, x[0]), self.operand(replica, y));
        let dims = self.operand(replica, x[1]).dims;
        let (b, weights) = self.kernel(replica, x[1], a.elem, false);
        // The library needs a bias of the result's type.
        let fused = c.elem == Elem::F32;
        let bias = e.bias.then(|| self.operand(replica, x[2]));
        let mut reads = vec![a.span(), weights];
        reads.extend(bias.iter().map(Operand::span));
        let gemm = Gemm {
            m: c.pixels(),
            n: dims[1],
            k: dims[0],
            a: matrix(&a, false),
            b,
            c: matrix(&c, false),
            bias: bias.filter(|_| fused).map(|b| b.ptr),
            relu: e.relu && fused,
            batch: Batch::ONE,
        };
        let tasks = vec![Task::Gemm(gemm)];
        let (instr, writes) = (self.at, vec![c.span()]);
        self.push(WorkItem { label: label.clone(), instr, tasks, reads, writes });
        if !fused && (e.bias || e.relu) {
            self.epilogue(replica, label, e, dims[1], x, y);
        }
    }

    pub(super) fn dot_grad_input(
        &mut self,
        replica: usize,
        label: String,
        x: &[ValueId],
        y: ValueId,
    ) {
        let (dy, dx) = (self.operand(replica, x[0]), self.operand(replica, y));
        let dims = self.operand(replica, x[1]).dims;
        let (b, weights) = self.kernel(replica, x[1], dy.elem, true);
        let gemm = Gemm {
            m: dx.pixels(),
            n: dims[0],
            k: dims[1],
            a: matrix(&dy, false),
            b,
            c: matrix(&dx, false),
            bias: None,
            relu: false,
            batch: Batch::ONE,
        };
        let (tasks, reads) = (vec![Task::Gemm(gemm)], vec![dy.span(), weights]);
        self.push(WorkItem { label, instr: self.at, tasks, reads, writes: vec![dx.span()] });
    }

    pub(super) fn dot_grad_kernel(
        &mut self,
        replica: usize,
        x: ValueId,
        dy: ValueId,
        dw: ValueId,
    ) -> Task {
        let dw = self.operand(replica, dw);
        self.dense_product(replica, x, dy, (dw.ptr, dw.dims[0], dw.dims[1]))
    }

    /// `dw[k, n] = xᵀ · dy`
    pub(super) fn dense_product(
        &mut self,
        replica: usize,
        x: ValueId,
        dy: ValueId,
        (to, k, n): (Ptr, usize, usize),
    ) -> Task {
        let (x, dy) = (self.operand(replica, x), self.operand(replica, dy));
        Task::Gemm(Gemm {
            m: k,
            n,
            k: x.pixels(),
            a: matrix(&x, true),
            b: matrix(&dy, false),
            c: Matrix { at: to, elem: Elem::F32, ld: n, transposed: false },
            bias: None,
            relu: false,
            batch: Batch::ONE,
        })
    }
}

/// An operand as a matrix of pixels by channels.
fn matrix(x: &Operand, transposed: bool) -> Matrix {
    Matrix { at: x.ptr, elem: x.elem, ld: x.ld, transposed }
}
