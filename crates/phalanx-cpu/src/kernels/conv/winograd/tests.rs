//! Comparison with direct sums in f64 on every instruction set, with poisoned results, scratch and gaps.

use phalanx_graph::{ConvGeom, Padding, Window};
use proptest::prelude::*;

use crate::kernels::conv::{Conv, Method, Pass, scratch_len};
use crate::kernels::matrix::{Epilogue, MatrixMut, MatrixRef};
use crate::kernels::tile::testing::{Matrix, noise};
use crate::simd::Isa;

/// Maximum error relative to the largest value of a result, for sums of up to 256 channels or tiles.
const TOLERANCE: f64 = 4e-6;

const METHODS: [Method; 2] = [Method::Winograd2, Method::Winograd4];

/// Exact results of the three passes.
struct Exact {
    y: Vec<f64>,
    dx: Vec<f64>,
    dw: Vec<f64>,
}

fn exact(geom: &ConvGeom, rows: usize, x: &Matrix, dy: &Matrix, w: &[f32]) -> Exact {
    let ([h, wide, cin], [oh, ow, cout]) = (geom.input, geom.output);
    let mut out = Exact {
        y: vec![0.0; rows * oh * ow * cout],
        dx: vec![0.0; rows * h * wide * cin],
        dw: vec![0.0; w.len()],
    };
    for o in 0..rows * oh * ow {
        for tap in 0..9 {
            let row = (o / ow % oh + tap / 3).wrapping_sub(geom.pad[0]);
            let col = (o % ow + tap % 3).wrapping_sub(geom.pad[1]);
            if row >= h || col >= wide {
                continue;
            }
            let i = (o / (oh * ow) * h + row) * wide + col;
            for ci in 0..cin {
                for co in 0..cout {
                    let at = (tap * cin + ci) * cout + co;
                    let (xv, dyv) = (f64::from(x.at(i, ci)), f64::from(dy.at(o, co)));
                    out.y[o * cout + co] += xv * f64::from(w[at]);
                    out.dx[i * cin + ci] += dyv * f64::from(w[at]);
                    out.dw[at] += xv * dyv;
                }
            }
        }
    }
    out
}

/// Compares with `want` of `cols` columns. Each element is a sum over `terms` channels or tiles, whose
/// rounding errors grow like a random walk.
fn near(what: &str, got: &Matrix, want: &[f64], cols: usize, terms: usize) {
    let size = want.iter().fold(0.0f64, |a, b| a.max(b.abs()));
    let size = size * (terms as f64 / 256.0).sqrt().max(1.0);
    for (at, want) in want.iter().enumerate() {
        let got = f64::from(got.at(at / cols, at % cols));
        let error = (got - want).abs();
        assert!(error <= TOLERANCE * size, "{what} [{at}]: got {got}, expected {want}, of {size}");
    }
    got.check_gaps(what);
}

fn check_all(geom: &ConvGeom, rows: usize, gap: usize, bias: bool, relu: bool) {
    let ([h, wide, cin], [oh, ow, cout]) = (geom.input, geom.output);
    let (in_pixels, out_pixels) = (rows * h * wide, rows * oh * ow);
    let x = Matrix::noise(in_pixels, cin, gap, 1);
    let dy = Matrix::noise(out_pixels, cout, gap, 2);
    let w = noise(9 * cin * cout, 3);
    let bias = bias.then(|| noise(cout, 4));
    let mut want = exact(geom, rows, &x, &dy, &w);
    for (at, y) in want.y.iter_mut().enumerate() {
        *y += bias.as_ref().map_or(0.0, |b| f64::from(b[at % cout]));
        *y = if relu { y.max(0.0) } else { *y };
    }
    for (isa, method) in Isa::available().into_iter().flat_map(|i| METHODS.map(|m| (i, m))) {
        let what = format!("{isa} {method:?} {geom:?} rows {rows} gap {gap}");
        let scratch = |pass| vec![f32::NAN; scratch_len(method, geom, pass)];

        let conv = Conv { isa, method, geom, rows };
        let mut y = Matrix::poisoned(out_pixels, cout, gap);
        let epilogue = Epilogue { bias: bias.as_deref(), relu };
        conv.forward(x.view(), &w, epilogue, y.view_mut(), &mut scratch(Pass::Forward));
        near(&format!("{what} forward"), &y, &want.y, cout, cin);

        let mut dx = Matrix::poisoned(in_pixels, cin, gap);
        conv.grad_input(dy.view(), &w, dx.view_mut(), &mut scratch(Pass::GradInput));
        near(&format!("{what} grad_input"), &dx, &want.dx, cin, cout);

        let mut dw = Matrix::poisoned(9 * cin, cout, 0);
        let mut room = scratch(Pass::GradKernel);
        conv.grad_kernel(x.view(), dy.view(), &mut dw.data, &mut room);
        near(&format!("{what} grad_kernel"), &dw, &want.dw, cout, out_pixels / 4);
    }
}

fn geometry(input: [usize; 3], filters: usize, padding: Padding) -> ConvGeom {
    ConvGeom::new(input, filters, Window::new([3, 3], [1, 1], padding)).unwrap()
}

#[test]
fn odd_shapes_match_direct_sums() {
    use Padding::{Same, Valid};
    let cases = [
        ([1, 1, 1], 1, Same),
        ([3, 3, 1], 1, Valid),
        ([2, 9, 3], 24, Same),
        ([4, 4, 16], 32, Same),
        ([7, 7, 20], 48, Same),
        ([15, 15, 33], 17, Same),
        ([9, 6, 8], 7, Valid),
        ([6, 6, 32], 96, Valid),
        ([5, 3, 130], 70, Same),
        ([3, 5, 70], 130, Valid),
        ([13, 12, 5], 40, Same),
    ];
    for (input, filters, padding) in cases {
        let geom = geometry(input, filters, padding);
        for rows in [0, 1, 3] {
            check_all(&geom, rows, 0, rows != 1, rows == 3);
            check_all(&geom, rows, 5, rows == 1, rows != 3);
        }
    }
}

/// Root mean square error of the forward pass relative to the result's root mean square.
fn forward_error(isa: Isa, method: Method, geom: &ConvGeom) -> f64 {
    let ([h, wide, cin], [oh, ow, cout]) = (geom.input, geom.output);
    let x = Matrix::noise(h * wide, cin, 0, 1);
    let dy = Matrix::noise(oh * ow, cout, 0, 2);
    let w = noise(9 * cin * cout, 3);
    let want = exact(geom, 1, &x, &dy, &w).y;
    let mut y = Matrix::poisoned(oh * ow, cout, 0);
    let mut room = vec![0.0; scratch_len(method, geom, Pass::Forward)];
    let conv = Conv { isa, method, geom, rows: 1 };
    conv.forward(x.view(), &w, Epilogue::NONE, y.view_mut(), &mut room);
    let errors: f64 =
        y.data.iter().zip(&want).map(|(y, want)| (f64::from(*y) - want).powi(2)).sum();
    (errors / want.iter().map(|want| want * want).sum::<f64>()).sqrt()
}

#[test]
fn errors_stay_near_those_of_the_direct_sum() {
    let geom = geometry([12, 12, 128], 32, Padding::Same);
    for isa in Isa::available() {
        let direct = forward_error(isa, Method::Direct, &geom);
        for method in METHODS {
            let error = forward_error(isa, method, &geom);
            println!("{isa} {method:?}: {error:.2e}, direct {direct:.2e}");
            assert!(error < 1.5e-6 && error < 3.0 * direct, "{isa} {method:?}: {error}, {direct}");
        }
    }
}

#[test]
fn columns_in_several_groups_match_direct_sums() {
    check_all(&geometry([3, 4, 900], 300, Padding::Same), 1, 1, true, false);
}

#[test]
fn many_tiles_match_direct_sums() {
    check_all(&geometry([21, 22, 6], 5, Padding::Same), 13, 0, false, true);
}

#[test]
fn images_do_not_influence_each_other() {
    let geom = geometry([9, 9, 24], 50, Padding::Same);
    let x = noise(30 * geom.input_len(), 1);
    let w = noise(9 * 24 * 50, 2);
    for (isa, method) in Isa::available().into_iter().flat_map(|i| METHODS.map(|m| (i, m))) {
        let mut room = vec![0.0; scratch_len(method, &geom, Pass::Forward)];
        let mut run = |x: &[f32], rows: usize, y: &mut [f32]| {
            let x = MatrixRef::contiguous(x, rows * 81, 24);
            let y = MatrixMut::contiguous(y, rows * 81, 50);
            Conv { isa, method, geom: &geom, rows }.forward(x, &w, Epilogue::NONE, y, &mut room);
        };
        let mut all = vec![0.0; 30 * geom.output_len()];
        run(&x, 30, &mut all);
        let mut one = vec![0.0; geom.output_len()];
        run(&x[29 * geom.input_len()..], 1, &mut one);
        assert_eq!(all[29 * geom.output_len()..], one[..], "{isa} {method:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn random_shapes_match_direct_sums(
        input in [3usize..20, 3usize..20, 1usize..40], cout in 1usize..70, same: bool,
        rows in 0usize..4, gap in 0usize..3, (bias, relu) in any::<(bool, bool)>(),
    ) {
        let padding = if same { Padding::Same } else { Padding::Valid };
        check_all(&geometry(input, cout, padding), rows, gap, bias, relu);
    }
}
