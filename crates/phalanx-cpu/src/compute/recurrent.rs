//! Recurrent cells over a sequence.

use crate::kernels::recurrent::{self, Backward, Forward, Optional, Shape};
use crate::worker::WorkerCtx;
use phalanx_graph::Op;
use phalanx_graph::program::ValueId;

/// Computes `y` from `x` if `op` is of this family. Safety is argued in [`compute`](super::compute).
pub(super) fn compute(ctx: &WorkerCtx<'_>, op: &Op, x: &[ValueId], y: ValueId) {
    let (isa, rows) = (ctx.run.isa, ctx.rows.len());
    let (steps, units) = (ctx.value(x[0]).ty.dims[0], ctx.value(x[1]).ty.dims[0]);
    let optional = |initial: Option<usize>, states: usize, mask: Option<usize>| Optional {
        initial: [0, 1].map(|s| initial.filter(|_| s < states).map(|first| ctx.src(x[first + s]))),
        mask: mask.map(|mask| ctx.f32(x[mask]).cast_const()),
    };
    match op {
        // SAFETY: see above.
        Op::Recurrent(attrs) => unsafe {
            let at = attrs.operands();
            let pass = Forward {
                shape: Shape { attrs: *attrs, rows, steps, units },
                x: ctx.src(x[0]),
                kernel: ctx.slice(x[1]),
                bias: at.bias.map(|bias| ctx.slice(x[bias])),
                optional: optional(at.initial, attrs.cell.states(), at.mask),
                y: ctx.f32(y),
            };
            recurrent::forward(isa, pass, ctx.scratch());
        },
        // SAFETY: see above.
        Op::RecurrentGrad(attrs, more) => unsafe {
            let at = attrs.grad_operands(*more);
            let pass = Backward {
                shape: Shape { attrs: *attrs, rows, steps, units },
                y: ctx.f32(x[0]),
                kernel: ctx.slice(x[1]),
                optional: optional(at.initial, attrs.cell.states(), at.mask),
                dy: [Some(at.first), at.second].map(|dy| dy.map(|dy| ctx.src(x[dy]))),
                d: ctx.f32(y),
            };
            recurrent::backward(isa, pass, ctx.scratch());
        },
        _ => unreachable!("{} is of another family", op.name()),
    }
}
