//! Comparison with plain loops in f64 on every instruction set, for axes in any order.

use super::*;
use crate::kernels::math::testing::{close, numbers};
use phalanx_graph::ops::Contraction;
use phalanx_graph::ops::matmul::Layout;

/// Sizes of the labels `a`, `b`, ….
type Sizes = [usize; 5];

fn dims(labels: &str, sizes: &Sizes) -> Vec<usize> {
    labels.bytes().map(|l| sizes[usize::from(l - b'a')]).collect()
}

/// The product of all steps of all labels.
fn expected(terms: [&str; 3], sizes: &Sizes, l: &[f32], r: &[f32]) -> Vec<f64> {
    let [left, right, result] = terms;
    let mut y = vec![0.0; dims(result, sizes).iter().product()];
    let all: usize = sizes.iter().product();
    for i in 0..all {
        let mut rest = i;
        let at: Vec<usize> = sizes
            .iter()
            .map(|s| {
                let at = rest % s;
                rest /= s;
                at
            })
            .collect();
        let flat = |labels: &str| {
            labels.bytes().fold(0, |sum, label| {
                let label = usize::from(label - b'a');
                sum * sizes[label] + at[label]
            })
        };
        y[flat(result)] += f64::from(l[flat(left)]) * f64::from(r[flat(right)]);
    }
    y
}

/// Computes the items in two parts, the last ones first.
unsafe fn run(isa: Isa, axes: &ProductAxes, at: Pointers, scratch: &mut [f32]) {
    let product = Product::new(axes);
    let (items, cut) = (product.items(), product.items() / 2);
    for part in [cut..items, 0..cut] {
        // SAFETY: the caller's contract.
        unsafe { product.run(isa, at, part, scratch) };
    }
}

fn check(left: &str, right: &str, result: &str, sizes: Sizes) {
    let used = format!("{left}{right}{result}");
    let sizes =
        std::array::from_fn(
            |i| {
                if used.contains(char::from(b'a' + i as u8)) { sizes[i] } else { 1 }
            },
        );
    let [dl, dr, dy] = [left, right, result].map(|labels| dims(labels, &sizes));
    let len = |dims: &[usize]| dims.iter().product::<usize>();
    let (l, r) = (numbers(len(&dl), 1), numbers(len(&dr), 2));
    let want = expected([left, right, result], &sizes, &l, &r);
    let bytes = str::as_bytes;
    let c = Contraction::new(bytes(left), bytes(right), bytes(result), false);
    let layout = |dims| Layout { dims, ld: *<[usize]>::last(dims).unwrap_or(&1), rows: None };
    let axes = c.axes(layout(&dl), layout(&dr), layout(&dy));
    for isa in Isa::available() {
        let mut y = vec![f32::NAN; len(&dy)];
        let mut scratch = vec![f32::NAN; scratch_len()];
        let at = Pointers { left: l.as_ptr(), right: r.as_ptr(), result: y.as_mut_ptr() };
        // SAFETY: all have the lengths of their shapes.
        unsafe { run(isa, &axes, at, &mut scratch) };
        close(isa, &format!("{c} {sizes:?}"), &y, &want, 1e-4);
    }
}

#[test]
fn axes_come_in_any_order() {
    for sizes in [[3, 5, 2, 4, 1], [2, 1, 3, 16, 2], [1, 1, 1, 1, 1]] {
        for (l, r, y) in [
            ("ab", "bc", "ac"),
            ("ba", "bc", "ac"),
            ("ab", "cb", "ac"),
            ("ba", "cb", "ca"),
            ("abc", "dbc", "bad"),
            ("bad", "dbc", "abc"),
            ("bad", "abc", "dbc"),
            ("abc", "acd", "bda"),
            ("abcd", "dbe", "ace"),
            ("abcd", "cdbe", "ae"),
            ("ab", "ab", ""),
            ("a", "b", "ba"),
            ("abe", "cbe", "eca"),
        ] {
            check(l, r, y, sizes);
        }
    }
}

#[test]
fn blocks_end_anywhere() {
    for (l, r, y) in [("ab", "bc", "ac"), ("ba", "cb", "ac"), ("dab", "dbc", "dca")] {
        for sizes in [[193, 257, 33, 1, 1], [2, 600, 513, 1, 1], [400, 3, 1, 2, 1]] {
            check(l, r, y, sizes);
        }
    }
    check("abd", "bcd", "acd", [3, 300, 4, 2, 1]);
}

/// The gradients of attention sum over the rows of a large operand.
#[test]
fn the_smaller_operand_is_transposed() {
    for (l, r, y) in [("abc", "bad", "cad"), ("bad", "abc", "dbc"), ("bad", "abc", "bcd")] {
        check(l, r, y, [2, 40, 210, 16, 1]);
        check(l, r, y, [40, 2, 17, 210, 1]);
    }
}

#[test]
fn empty_sums_are_zero() {
    for (l, r, y) in [("ab", "bc", "ac"), ("abd", "bcd", "acd")] {
        check(l, r, y, [3, 0, 20, 2, 1]);
        check(l, r, y, [0, 3, 20, 2, 1]);
        check(l, r, y, [3, 2, 0, 2, 1]);
    }
}
