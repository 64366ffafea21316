//! The kernel's gradient: `dw = Σ over tiles` of transformed inputs times transformed output
//! gradients, transformed to 3x3 taps at the end.

use std::marker::PhantomData;

use phalanx_graph::ConvGeom;

use super::tiling::{Tiling, planes};
use super::transform::{Map, Points};
use super::{Plan, inputs};
use crate::kernels::conv::Pass;
use crate::kernels::matrix::MatrixRef;
use crate::kernels::tile::{Arena, Outer, Panels};
use crate::simd::{Kernel, Simd};

/// Overwrites `dw`; lengths are checked by the caller.
pub(in crate::kernels::conv) struct GradKernel<'a, P> {
    pub geom: &'a ConvGeom,
    pub rows: usize,
    pub x: MatrixRef<'a>,
    pub dy: MatrixRef<'a>,
    pub dw: &'a mut [f32],
    pub scratch: &'a mut [f32],
    pub tile: PhantomData<P>,
}

impl<P: Points> Kernel for GradKernel<'_, P> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let plan = Plan::new(self.geom, Pass::GradKernel, P::M);
        let tiling = Tiling::forward(self.geom, P::M);
        let mut arena = Arena(self.scratch);
        let zeros = arena.floats(plan.k_step().max(plan.width));
        zeros.fill(0.0);
        let zeros = zeros.as_mut_ptr();
        let sums = arena.floats(plan.points * plan.weights());
        let room = arena.floats(plan.points * plan.inputs()).as_mut_ptr();
        let spread = arena.floats(plan.points * plan.results()).as_mut_ptr();
        let total = self.rows * tiling.per_image();
        let filters = plan.cols;
        let (x, dy) = (self.x.src(), self.dy.src());
        for group in 0..plan.groups {
            let columns = plan.group(group);
            if columns.is_empty() {
                continue;
            }
            let (col, cols) = (columns.start, columns.len());
            sums.fill(0.0);
            let sums = sums.as_mut_ptr();
            // SAFETY: lengths were checked; tiles and columns lie inside the tensors, and scratch was
            // sized by the same plan. Nothing writes to `zeros`.
            unsafe {
                for first in (0..total).step_by(plan.tiles) {
                    let count = plan.tiles.min(total - first);
                    inputs::<S, P>(&plan, &tiling, first..first + count, x, zeros, room);
                    for i in 0..count {
                        let from = dy.ptr.add(col).cast_mut();
                        let from = tiling.targets(first + i, from, dy.ld, zeros);
                        let to = planes(P::N, spread.add(i * plan.width), plan.results());
                        S::enter(Map::<P::Spread>::plain(&from, &to, cols));
                    }
                    multiply::<S>(&plan, (room, spread, sums), count, cols);
                }
                for row in 0..plan.k {
                    let from = planes(P::N, sums.add(row * plan.width), plan.weights());
                    let dw = self.dw.as_mut_ptr().add(row * filters + col);
                    let to = planes(3, dw, plan.k * filters);
                    S::enter(Map::<P::Taps>::plain(&from, &to, cols));
                }
            }
        }
    }
}

/// Adds the products of a block of tiles, point by point.
#[inline(always)]
unsafe fn multiply<S: Simd>(
    plan: &Plan,
    (inputs, spread, sums): (*const f32, *const f32, *mut f32),
    count: usize,
    cols: usize,
) {
    for point in 0..plan.points {
        // SAFETY: the caller's contract.
        unsafe {
            let outer = Outer {
                rows: plan.k,
                cols,
                extent: [1, 1, count],
                x: inputs.add(point * plan.inputs()),
                x_step: [0, 0, plan.k_step()],
                y: spread.add(point * plan.results()),
                y_step: [0, 0, plan.width],
                out: sums.add(point * plan.weights()),
                out_step: plan.width,
                accumulate: true,
            };
            for panel in Panels::new::<S>(cols) {
                outer.run_panel::<S>(panel);
            }
        }
    }
}
