//! Comparison with plain loops in f64 on every instruction set, with poisoned results and gaps.

use proptest::prelude::*;

use super::*;
use crate::kernels::tile::testing::{Matrix, noise, refused};

fn check_all(m: usize, k: usize, n: usize, gap: usize, bias: bool, relu: bool) {
    let x = Matrix::noise(m, k, gap, 1);
    let dy = Matrix::noise(m, n, gap, 2);
    let w = noise(k * n, 3);
    let bias = bias.then(|| noise(n, 4));
    for isa in Isa::available() {
        let what = format!("{isa} {m}x{k}x{n} gap {gap}");
        let mut scratch = vec![f32::NAN; scratch_len(k, n)];

        let mut y = Matrix::poisoned(m, n, gap);
        let (weights, b) = (MatrixRef::contiguous(&w, k, n), bias.as_deref());
        forward(isa, x.view(), weights, Epilogue { bias: b, relu }, y.view_mut(), &mut scratch);
        y.check(&format!("{what} forward"), |i, j| {
            let terms = (0..k).map(|l| f64::from(x.at(i, l)) * f64::from(w[l * n + j]));
            (terms.collect(), bias.as_ref().map_or(0.0, |b| f64::from(b[j])), relu)
        });

        for (i, x) in x.data.chunks(x.ld).enumerate() {
            let (cut, mut row) = (n / 2, vec![f32::NAN; n]);
            for part in [0..cut, cut..n] {
                let out = MatrixMut::contiguous(&mut row[part.clone()], 1, part.len());
                let epilogue = Epilogue { bias: b, relu }.skip_columns(part.start);
                let x = MatrixRef::contiguous(x, 1, k);
                forward(isa, x, weights.columns(part), epilogue, out, &mut scratch);
            }
            let whole = &y.data[i * y.ld..i * y.ld + n];
            assert_eq!(row, whole, "{what}: the split of the columns changed the bits");
        }

        let mut dx = Matrix::poisoned(m, k, gap);
        grad_input(isa, dy.view(), weights, dx.view_mut(), &mut scratch);
        dx.check(&format!("{what} grad_input"), |i, l| {
            let terms = (0..n).map(|j| f64::from(dy.at(i, j)) * f64::from(w[l * n + j]));
            (terms.collect(), 0.0, false)
        });

        // All rows of the gradient at once and in two ranges.
        let gradient = |range: std::ops::Range<usize>, dw: &mut [f32]| {
            let dw = MatrixMut::contiguous(dw, range.len(), n);
            grad_weight(isa, x.view().columns(range), dy.view(), dw);
        };
        let mut dw = Matrix::poisoned(k, n, 0);
        gradient(0..k, &mut dw.data);
        dw.check(&format!("{what} grad_weight"), |l, j| {
            let terms = (0..m).map(|i| f64::from(x.at(i, l)) * f64::from(dy.at(i, j)));
            (terms.collect(), 0.0, false)
        });
        let cut = k / 2;
        let mut split = vec![f32::NAN; k * n];
        gradient(0..cut, &mut split[..cut * n]);
        gradient(cut..k, &mut split[cut * n..]);
        assert_eq!(dw.data, split, "{what}: the split of k changed the bits");
    }
}

#[test]
fn products_match_plain_loops() {
    for (m, k, n) in [
        (0, 3, 5),
        (1, 1, 1),
        (1, 7, 10),
        (5, 16, 16),
        (13, 33, 17),
        (32, 784, 64),
        (64, 50, 100),
        (200, 20, 40),
        (600, 31, 65),
        (7, 400, 130),
    ] {
        check_all(m, k, n, 0, true, false);
        check_all(m, k, n, 3, false, true);
    }
}

#[test]
fn rows_do_not_influence_each_other() {
    let (k, n) = (300, 70);
    let (x, w) = (noise(9 * k, 1), noise(k * n, 2));
    for isa in Isa::available() {
        let mut scratch = vec![0.0; scratch_len(k, n)];
        let mut product = |x: &[f32], rows: usize, y: &mut [f32]| {
            let (x, w) = (MatrixRef::contiguous(x, rows, k), MatrixRef::contiguous(&w, k, n));
            let y = MatrixMut::contiguous(y, rows, n);
            forward(isa, x, w, Epilogue::NONE, y, &mut scratch);
        };
        let mut all = vec![0.0; 9 * n];
        product(&x, 9, &mut all);
        let mut one = vec![0.0; n];
        product(&x[8 * k..], 1, &mut one);
        assert_eq!(all[8 * n..], one[..], "{isa}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn random_products_match_plain_loops(
        m in 0usize..40, k in 1usize..70, n in 1usize..90, gap in 0usize..4,
        bias: bool, relu: bool,
    ) {
        check_all(m, k, n, gap, bias, relu);
    }
}

#[test]
fn sizes_that_wrap_around_are_refused() {
    let half = usize::MAX / 2 + 1;
    let isa = Isa::PORTABLE;
    let forward = |[m, k, n]: [usize; 3], ldx, ldy| {
        let mut scratch = vec![0.0; scratch_len(4, 4)];
        let (x, w, mut y) = ([1.0; 16], [1.0; 16], [0.0; 16]);
        let (x, w) = (MatrixRef::new(&x, m, k, ldx), MatrixRef::contiguous(&w, k, n));
        forward(isa, x, w, Epilogue::NONE, MatrixMut::new(&mut y, m, n, ldy), &mut scratch);
    };
    forward([2, 4, 4], 4, 4);
    assert!(refused(|| forward([3, 4, 4], half, 4)), "the input's stride");
    assert!(refused(|| forward([3, 4, 4], 4, half)), "the result's stride");
    assert!(refused(|| forward([2, half, 4], half, 4)), "the kernel's rows");
    assert!(refused(|| forward([half + 2, 0, 0], 4, 4)), "the rows");
    assert!(refused(|| assert!(scratch_len(half, 2) > 0)), "scratch memory");
}

#[test]
fn shapes_that_do_not_agree_are_refused() {
    let isa = Isa::PORTABLE;
    let run = |[m, k, n]: [usize; 3]| {
        let (x, w, mut out) = ([1.0; 16], [1.0; 16], [0.0; 16]);
        let mut scratch = vec![0.0; scratch_len(4, 4)];
        let matrix = |rows, cols| MatrixRef::contiguous(&x, rows, cols);
        let weights = MatrixRef::contiguous(&w, 4, 4);
        [
            refused(|| {
                let bias = Epilogue { bias: Some(&[0.0; 4][..n.min(4)]), relu: false };
                forward(
                    isa,
                    matrix(2, k),
                    weights,
                    bias,
                    MatrixMut::contiguous(&mut out, m, n),
                    &mut scratch,
                );
            }),
            refused(|| {
                grad_input(
                    isa,
                    matrix(2, n),
                    weights,
                    MatrixMut::contiguous(&mut out, m, k),
                    &mut scratch,
                )
            }),
            refused(|| {
                grad_weight(isa, matrix(m, 4), matrix(2, 4), MatrixMut::contiguous(&mut out, k, n))
            }),
        ]
    };
    assert_eq!(run([2, 4, 4]), [false; 3]);
    for wrong in [[3, 4, 4], [2, 3, 4], [2, 4, 3]] {
        assert_eq!(run(wrong), [true; 3], "{wrong:?}");
    }
}
