//! Ops along an axis: strides, cumulative sums, sorting, lookups, layer normalisation, recurrent cells.

use crate::launch::Elem;
use crate::ops::case::{Case, numbers};
use crate::ops::harness::Harness;
use crate::ops::{index, softmax};
use phalanx_graph::ops::{LayerNormAttrs, RecurrentAttrs, RecurrentCell, TakeAxis};
use phalanx_graph::{DType, Op, Type};

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

/// The gaps hold a larger number than any vector, which no kernel may count or overwrite.
#[phalanx_testing::needs(gxx)]
#[test]
fn classes_of_vectors_with_gaps() {
    for (n, gap) in [(5001, 7), (4104, 8), (517, 3), (40, 8), (9, 0)] {
        for narrow in [DType::F32, DType::Bf16] {
            let rows = 2;
            let x: Vec<f32> = numbers(rows * n, 1).iter().map(|v| (v * 4.0) as f32).collect();
            let mut harness = Harness::new(None, rows);
            let logits = harness.rows(&[n], gap, &x);
            let integers = Type { dtype: DType::I32, ..Type::rows([]) };
            let labels = [3, n as i32 - 1];
            let labels_at = harness.put(&integers, 0, &labels.map(i32::to_le_bytes).concat());
            let best = harness.put(&integers, 0, &[0; 8]);
            let dy = harness.put(&Type::rows([]), 0, &[1f32, -0.5].map(f32::to_le_bytes).concat());
            let loss = harness.put(&Type::rows([]), 0, &[0; 8]);
            let dx = harness.rows_of(narrow, &[n], gap, &vec![0.0; rows * n]);
            harness.run(|cx, _| index::arg_max(cx, &[logits], best));
            harness.run(|cx, _| softmax::sparse_xent(cx, &[logits, labels_at], loss));
            harness.run(|cx, _| softmax::sparse_xent_grad(cx, &[logits, labels_at, dy], dx));
            let best = harness.words(harness.at(best), Elem::I32, rows);
            let (loss, dx) = (harness.read(harness.at(loss), rows), harness.get(dx));
            for (r, x) in x.chunks(n).enumerate() {
                let what = format!("{n} numbers, gaps of {gap}, {narrow:?}, row {r}");
                let x: Vec<f64> = x.iter().map(|v| f64::from(*v)).collect();
                let top = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = x.iter().map(|v| (v - top).exp()).sum();
                let label = labels[r] as usize;
                assert_eq!(x[best[r] as usize], top, "{what}");
                let expected = sum.ln() + top - x[label];
                assert!((f64::from(loss[r]) - expected).abs() < 1e-5, "{what}: {}", loss[r]);
                let tolerance = if narrow == DType::F32 { 1e-6 } else { 4e-3 };
                for (i, v) in x.iter().enumerate() {
                    let own = f64::from(u8::from(i == label));
                    let expected = ((v - top).exp() / sum - own) * [1.0, -0.5][r];
                    let got = f64::from(dx[r * n + i]);
                    assert!((got - expected).abs() < tolerance, "{what}: {got}, not {expected}");
                }
            }
        }
    }
}

/// Vectors too long for registers, whose sums are scaled when a larger number follows.
#[phalanx_testing::needs(gxx)]
#[test]
fn long_vectors_with_infinities() {
    let n = 5000;
    let vector = |first: f64, rest: f64| {
        let mut x = numbers(n, 5);
        x[..300].fill(rest);
        x[0] = first;
        x
    };
    let (low, high, nan) = (f64::NEG_INFINITY, f64::INFINITY, f64::NAN);
    let rows =
        [vector(low, low), vector(1.0, low), vector(high, 0.0), vector(nan, 0.0), vec![low; n]];
    for op in [Op::Softmax, Op::LogSoftmax] {
        Case::new(op, rows.len()).floats(Type::rows([n]), rows.concat()).check(2e-6);
    }
    Case::new(Op::SoftmaxGrad, 3).rows(&[n]).rows(&[n]).check(2e-6);
    // Whole warps with as many numbers as registers hold.
    // These numbers are no probabilities, so their sums are larger than one.
    Case::new(Op::SoftmaxGrad, 2048).rows(&[520]).rows(&[520]).check(1e-5);
    Case::new(Op::Softmax, 2048).rows(&[520]).check(1e-6);
}
