//! Ops along an axis: strides, cumulative sums, sorting, lookups, layer normalisation, recurrent cells.

use crate::ops::case::{Case, numbers};
use phalanx_graph::ops::{LayerNormAttrs, RecurrentAttrs, RecurrentCell, TakeAxis};
use phalanx_graph::{Op, Type};

#[phalanx_testing::needs(gxx)]
#[test]
fn strides_and_their_inverse() {
    for step in [1, 2, 5, 40, -1, -3] {
        for (axis, dims) in [(0, &[7, 3][..]), (1, &[3, 11]), (1, &[2, 6, 5])] {
            Case::new(Op::Stride { axis, step }, 3).rows(dims).check(0.0);
            let mut part = dims.to_vec();
            part[axis] = dims[axis].div_ceil(step.unsigned_abs());
            let dilate = Op::Dilate { axis, step, len: dims[axis] };
            Case::new(dilate, 3).rows(&part).shifted(1).check(0.0);
        }
    }
}

#[phalanx_testing::needs(gxx)]
#[test]
fn cumulative_sums_and_products() {
    for (product, reverse) in [(false, false), (false, true), (true, false), (true, true)] {
        for (axis, dims) in [(0, &[300][..]), (1, &[3, 40]), (0, &[5, 7]), (1, &[2, 9, 3])] {
            Case::new(Op::Cumulative { axis, product, reverse }, 3).rows(dims).check(2e-6);
        }
    }
}

#[phalanx_testing::needs(gxx)]
#[test]
fn sorting_keeps_the_order_of_equal_numbers() {
    for n in [1, 6, 300] {
        let mut x: Vec<f64> = numbers(3 * n, 4).iter().map(|v| (v * 4.0).round()).collect();
        x[n / 2] = f64::NAN;
        x[3 * n - 1] = f64::INFINITY;
        Case::new(Op::ArgSort, 3).floats(Type::rows([n]), x).check(0.0);
    }
}

#[phalanx_testing::needs(gxx)]
#[test]
fn positions_outside_give_nan() {
    let at = |axis, along| TakeAxis { axis, along };
    let index: Vec<i32> = (0..24).map(|i| i * 5 % 13 - 6).collect();
    for axis in 0..3 {
        let dims = [2, 3, 2];
        let take = Case::new(Op::Take(at(axis, false)), 2).rows(&dims);
        take.ints(&[4, 3], index.clone()).check(0.0);
        let along = Case::new(Op::Take(at(axis, true)), 2).rows(&dims);
        along.ints(&dims, index.clone()).check(0.0);
        let grad = Op::TakeGrad { at: at(axis, true), size: dims[axis], sum_rows: false };
        Case::new(grad, 2).ints(&dims, index.clone()).rows(&dims).check(2e-6);
        let table = Op::TakeGrad { at: at(axis, true), size: dims[axis], sum_rows: true };
        Case::new(table, 2).ints(&dims, index.clone()).rows(&dims).check(2e-6);
    }
}

#[phalanx_testing::needs(gxx)]
#[test]
fn vectors_are_normalised_by_a_warp_or_a_block() {
    for rms in [false, true] {
        let attrs = LayerNormAttrs { epsilon: 1e-3.into(), rms };
        for dims in [&[1][..], &[5, 33], &[1024], &[2, 1500]] {
            Case::new(Op::LayerNorm(attrs), 3).rows(dims).check(1e-5);
            Case::new(Op::LayerNormGrad(attrs), 3).rows(dims).rows(dims).check(2e-5);
        }
        Case::new(Op::LayerNorm(attrs), 3).rows(&[64]).narrow().check(1e-2);
    }
}

/// Kernels in registers whose columns fill no warp, fill one, or need several; one launch per step beyond.
#[phalanx_testing::needs(gxx)]
#[test]
fn recurrent_cells_of_any_width() {
    for (cell, units) in [RecurrentCell::Lstm, RecurrentCell::Gru]
        .into_iter()
        .flat_map(|cell| [1, 5, 8, 33, 96, 97].map(|units| (cell, units)))
    {
        let attrs = RecurrentAttrs {
            cell,
            reverse: units % 2 == 0,
            keep: true,
            bias: cell == RecurrentCell::Gru,
            initial: units != 5,
            masked: units != 8,
        };
        let (rows, steps, columns) = (9, 3, cell.gates() * units);
        let scale = 1.0 / (units as f64).sqrt();
        let kernel = numbers(units * columns, 8).into_iter();
        let kernel: Vec<f64> = kernel.map(|v| f64::from((v * scale) as f32)).collect();
        let mask: Vec<f64> = (0..rows * steps).map(|i| f64::from(i % 4 != 1)).collect();
        let optional = |mut case: Case| {
            if attrs.initial {
                case = (0..cell.states()).fold(case, |case, _| case.rows(&[units]));
            }
            match attrs.masked {
                true => case.floats(Type::rows([steps]), mask.clone()),
                false => case,
            }
        };
        let case = Case::new(Op::Recurrent(attrs), rows).rows(&[steps, columns]);
        let mut case = case.floats(Type::mirrored([units, columns]), kernel.clone());
        if attrs.bias {
            case = case.floats(Type::mirrored([columns]), numbers(columns, 9));
        }
        optional(case).check(1e-5);
        let more = cell == RecurrentCell::Lstm && units % 2 == 1;
        let case = Case::new(Op::RecurrentGrad(attrs, more), rows);
        let case = case.rows(&[steps, attrs.width() * units]);
        let case = optional(case.floats(Type::mirrored([units, columns]), kernel));
        let case = case.rows(&[steps, units]);
        if more { case.rows(&[steps, units]).check(1e-5) } else { case.check(1e-5) }
    }
}
