//! Comparison with plain loops in f64 on every instruction set, with poisoned results and gaps.

use phalanx_graph::{ConvGeom, Depth, Padding, Window};
use proptest::prelude::*;

use super::*;
use crate::kernels::tile::testing::{Matrix, noise, refused};

/// Calls `visit(output pixel, input pixel, tap)` for every tap inside the image, over all rows.
fn taps(geom: &ConvGeom, rows: usize, mut visit: impl FnMut(usize, usize, usize)) {
    let ([h, w, _], [oh, ow, _], [kh, kw]) = (geom.input, geom.output, geom.kernel);
    let d = geom.depth;
    for pixel in 0..rows * d.output * oh * ow {
        let (slice, oy, ox) = (pixel / (oh * ow), pixel / ow % oh, pixel % ow);
        for tap in 0..d.kernel * kh * kw {
            let (kz, ky, kx) = (tap / (kh * kw), tap / kw % kh, tap % kw);
            let z = (slice % d.output * d.stride + kz * d.dilation).checked_sub(d.pad);
            let y = (oy * geom.stride[0] + ky * geom.dilation[0]).checked_sub(geom.pad[0]);
            let x = (ox * geom.stride[1] + kx * geom.dilation[1]).checked_sub(geom.pad[1]);
            if let (Some(z), Some(y), Some(x)) =
                (z.filter(|z| *z < d.input), y.filter(|y| *y < h), x.filter(|x| *x < w))
            {
                visit(pixel, ((slice / d.output * d.input + z) * h + y) * w + x, tap);
            }
        }
    }
}

fn check_all(geom: &ConvGeom, rows: usize, gap: usize, bias: bool, relu: bool) {
    let [kh, kw, cin, cout] = geom.kernel_dims();
    let group_out = cout / geom.groups;
    let pixels = |[height, width, _]: [usize; 3]| rows * height * width;
    let (in_pixels, out_pixels) = (pixels(geom.input_dims()), pixels(geom.output_dims()));
    let x = Matrix::noise(in_pixels, geom.input[2], gap, 1);
    let dy = Matrix::noise(out_pixels, cout, gap, 2);
    let w = noise(kh * kw * cin * cout, 3);
    let bias = bias.then(|| noise(cout, 4));

    let mut y_terms = vec![Vec::new(); out_pixels * cout];
    let mut dx_terms = vec![Vec::new(); in_pixels * geom.input[2]];
    let mut dw_terms = vec![Vec::new(); w.len()];
    taps(geom, rows, |o, i, tap| {
        for co in 0..cout {
            for ci in 0..cin {
                let channel = co / group_out * cin + ci;
                let at = (tap * cin + ci) * cout + co;
                let (xv, dyv, wv) = (x.at(i, channel) as f64, dy.at(o, co) as f64, w[at] as f64);
                y_terms[o * cout + co].push(xv * wv);
                dx_terms[i * geom.input[2] + channel].push(dyv * wv);
                dw_terms[at].push(xv * dyv);
            }
        }
    });

    for isa in Isa::available() {
        let what = format!("{isa} {geom:?} rows {rows} gap {gap}");
        let scratch = |pass| vec![f32::NAN; scratch_len(Method::Direct, geom, pass)];

        let conv = Conv { isa, method: Method::Direct, geom, rows };
        let mut y = Matrix::poisoned(out_pixels, cout, gap);
        let epilogue = Epilogue { bias: bias.as_deref(), relu };
        conv.forward(x.view(), &w, epilogue, y.view_mut(), &mut scratch(Pass::Forward));
        y.check(&format!("{what} forward"), |o, co| {
            let bias = bias.as_ref().map_or(0.0, |b| f64::from(b[co]));
            (y_terms[o * cout + co].clone(), bias, relu)
        });

        let mut dx = Matrix::poisoned(in_pixels, geom.input[2], gap);
        conv.grad_input(dy.view(), &w, dx.view_mut(), &mut scratch(Pass::GradInput));
        dx.check(&format!("{what} grad_input"), |i, ci| {
            (dx_terms[i * geom.input[2] + ci].clone(), 0.0, false)
        });

        let mut dw = Matrix::poisoned(kh * kw * cin, cout, 0);
        let mut room = scratch(Pass::GradKernel);
        let mut run = |out: &mut [f32]| conv.grad_kernel(x.view(), dy.view(), out, &mut room);
        run(&mut dw.data);
        dw.check(&format!("{what} grad_kernel"), |row, co| {
            (dw_terms[row * cout + co].clone(), 0.0, false)
        });
        let first = dw.data.clone();
        run(&mut dw.data);
        assert_eq!(first, dw.data, "{what}: the second call gave other bits");
    }
}

struct Case([usize; 3], usize, [usize; 2], [usize; 2], [usize; 2], Padding, usize);

#[test]
fn convolutions_match_plain_loops() {
    use Padding::{Same, Valid};
    let cases = [
        Case([1, 1, 1], 1, [1, 1], [1, 1], [1, 1], Valid, 1),
        Case([8, 8, 3], 24, [3, 3], [1, 1], [1, 1], Same, 1),
        Case([9, 7, 1], 6, [5, 5], [1, 1], [1, 1], Valid, 1),
        Case([14, 14, 3], 17, [7, 7], [2, 2], [1, 1], Same, 1),
        Case([6, 5, 16], 40, [1, 1], [1, 1], [1, 1], Valid, 1),
        Case([7, 6, 9], 5, [1, 1], [2, 2], [1, 1], Valid, 1),
        Case([7, 7, 20], 48, [3, 3], [1, 1], [1, 1], Same, 1),
        Case([8, 9, 12], 20, [3, 3], [2, 2], [1, 1], Valid, 1),
        Case([8, 9, 12], 20, [3, 3], [2, 3], [1, 1], Same, 1),
        Case([10, 11, 8], 7, [3, 2], [1, 1], [2, 3], Same, 1),
        Case([11, 10, 8], 7, [3, 3], [2, 2], [2, 2], Valid, 1),
        Case([12, 13, 10], 9, [4, 3], [4, 6], [2, 4], Same, 1),
        Case([2, 3, 8], 8, [5, 7], [1, 1], [1, 1], Same, 1),
        Case([3, 2, 2], 3, [6, 6], [2, 2], [1, 1], Same, 1),
        Case([5, 5, 8], 4, [2, 2], [3, 3], [1, 1], Valid, 1),
        Case([6, 6, 32], 48, [3, 3], [1, 1], [1, 1], Same, 2),
        Case([6, 6, 8], 4, [3, 3], [2, 2], [1, 1], Same, 4),
        Case([9, 9, 21], 21, [3, 3], [1, 1], [1, 1], Same, 21),
        Case([9, 20, 70], 70, [3, 3], [2, 2], [1, 1], Same, 70),
        Case([9, 9, 5], 10, [3, 3], [1, 1], [2, 2], Valid, 5),
        Case([4, 16, 80], 176, [3, 3], [1, 1], [1, 1], Same, 1),
        Case([1, 30, 130], 70, [1, 3], [1, 2], [1, 1], Same, 1),
    ];
    for Case(input, filters, kernel, stride, dilation, padding, groups) in cases {
        let window = Window { kernel, stride, dilation, padding, groups };
        let geom = ConvGeom::new(input, filters, window).unwrap();
        for rows in [0, 1, 3] {
            check_all(&geom, rows, 0, rows != 1, rows == 3);
            check_all(&geom, rows, 5, rows == 1, rows != 3);
        }
    }
}

#[test]
fn convolutions_of_volumes_match_plain_loops() {
    use Padding::{Same, Valid};
    // Slices, and the kernel, stride and dilation along the depth.
    let depths = [
        (1, [1, 1, 1], Valid),
        (4, [1, 1, 1], Valid),
        (5, [3, 1, 1], Same),
        (6, [3, 2, 1], Same),
        (6, [2, 1, 3], Valid),
        (2, [5, 1, 1], Same),
        (7, [2, 3, 1], Valid),
        (1, [3, 2, 1], Same),
    ];
    let flat = [
        Case([5, 4, 2], 3, [3, 3], [1, 1], [1, 1], Same, 1),
        Case([1, 7, 1], 5, [1, 1], [1, 2], [1, 1], Valid, 1),
        Case([4, 6, 12], 20, [3, 2], [2, 1], [1, 1], Same, 1),
        Case([5, 5, 16], 8, [2, 2], [1, 1], [2, 2], Valid, 2),
        Case([4, 4, 6], 6, [3, 3], [1, 1], [1, 1], Same, 6),
    ];
    for Case(input, filters, kernel, stride, dilation, padding, groups) in flat {
        let window = Window { kernel, stride, dilation, padding, groups };
        let flat = ConvGeom::new(input, filters, window).unwrap();
        for (slices, sizes, padding) in depths {
            let depth = Depth::new(slices, sizes, padding).unwrap();
            check_all(&ConvGeom { depth, ..flat }, 2, 0, true, false);
            check_all(&ConvGeom { depth, ..flat }, 1, 3, false, true);
        }
    }
}

#[test]
fn images_do_not_influence_each_other() {
    let geom = ConvGeom::new([9, 9, 24], 50, Window::new([3, 3], [1, 1], Padding::Same)).unwrap();
    let x = noise(5 * geom.input_len(), 1);
    let w = noise(9 * 24 * 50, 2);
    for isa in Isa::available() {
        let mut room = vec![0.0; scratch_len(Method::Direct, &geom, Pass::Forward)];
        let mut run = |x: &[f32], rows: usize, y: &mut [f32]| {
            let conv = Conv { isa, method: Method::Direct, geom: &geom, rows };
            let x = MatrixRef::contiguous(x, rows * 81, 24);
            let y = MatrixMut::contiguous(y, rows * 81, 50);
            conv.forward(x, &w, Epilogue::NONE, y, &mut room);
        };
        let mut all = vec![0.0; 5 * geom.output_len()];
        run(&x, 5, &mut all);
        let mut one = vec![0.0; geom.output_len()];
        run(&x[4 * geom.input_len()..], 1, &mut one);
        assert_eq!(all[4 * geom.output_len()..], one[..], "{isa}");
    }
}

prop_compose! {
    fn any_geometry()(
        input in [1usize..12, 1usize..12], kernel in [1usize..6, 1usize..6],
        stride in [1usize..4, 1usize..4], dilation in [1usize..4, 1usize..4],
        same: bool, groups in prop::sample::select(vec![1usize, 1, 1, 2, 3]),
        cin in 1usize..20, cout in 1usize..40, depthwise in 0usize..6,
        slices in prop::sample::select(vec![1usize, 1, 2, 5]), deep in [1usize..4, 1usize..4, 1usize..3],
    ) -> Option<ConvGeom> {
        let padding = if same { Padding::Same } else { Padding::Valid };
        let (cin, cout) = (cin * groups, cout * groups);
        let (groups, cout) = match depthwise {
            0 => (cin, cin),
            1 => (cin, 2 * cin),
            _ => (groups, cout),
        };
        let input = [input[0], input[1], cin];
        let flat = ConvGeom::new(input, cout, Window { kernel, stride, dilation, padding, groups })?;
        let depth = if slices == 1 { Depth::FLAT } else { Depth::new(slices, deep, padding)? };
        Some(ConvGeom { depth, ..flat })
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]
    #[test]
    fn random_convolutions_match_plain_loops(
        geom in any_geometry(), rows in 0usize..4, gap in 0usize..3, bias: bool, relu: bool,
    ) {
        if let Some(geom) = geom {
            check_all(&geom, rows, gap, bias, relu);
        }
    }
}

#[test]
fn sizes_that_wrap_around_are_refused() {
    let half = usize::MAX / 2 + 1;
    let good = geometry([4, 4, 2], 2, [1, 1]);
    let run = |geom: &ConvGeom, rows: usize, ldx: usize, ldy: usize| {
        let (x, mut y, w) = (vec![1.0; 64], vec![0.0; 64], vec![1.0; 64]);
        let mut room = vec![0.0; 1 << 16];
        let conv = Conv { isa: Isa::PORTABLE, method: Method::Direct, geom, rows };
        // Wrapping, so that only the checks of the kernels refuse a size.
        let pixels = |[h, w, _]: [usize; 3]| rows.wrapping_mul(h).wrapping_mul(w);
        let (xs, ys) = (pixels(geom.input), pixels(geom.output));
        let matrix = |rows, channels, ld| MatrixRef::new(&x, rows, channels, ld);
        let first = refused(|| {
            let out = MatrixMut::new(&mut y, ys, geom.output[2], ldy);
            conv.forward(matrix(xs, geom.input[2], ldx), &w, Epilogue::NONE, out, &mut room);
        });
        let input = refused(|| {
            let out = MatrixMut::new(&mut y, xs, geom.input[2], ldx);
            conv.grad_input(matrix(ys, geom.output[2], ldy), &w, out, &mut room);
        });
        let kernel = refused(|| {
            let (input, dy) = (matrix(xs, geom.input[2], ldx), matrix(ys, geom.output[2], ldy));
            conv.grad_kernel(input, dy, &mut [0.0; 64], &mut room);
        });
        [first, input, kernel]
    };
    assert_eq!(run(&good, 2, 2, 2), [false; 3]);
    assert_eq!(run(&good, half, 2, 2), [true; 3], "rows");
    assert_eq!(run(&good, usize::MAX / 16 + 2, 2, 2), [true; 3], "rows times pixels");
    assert_eq!(run(&good, 1, half, 2), [true; 3], "the input's stride");
    assert_eq!(run(&good, 1, 2, half), [true; 3], "the output's stride");
    let changes: [fn(&mut ConvGeom, usize); 7] = [
        |g, n| g.input = [n, 2, 2],
        |g, n| g.output = [2, n, 2],
        // Without channels there are no weights, regardless of the number of taps.
        |g, n| (g.kernel, g.input[2]) = ([n, 2], 0),
        |g, n| g.pad[0] = n,
        |g, n| g.dilation[1] = n,
        |g, n| g.stride = [n, 2],
        |g, _| g.stride[0] = 0,
    ];
    for change in changes {
        let mut geom = good;
        change(&mut geom, half);
        assert_eq!(run(&geom, 1, 2, 2), [true; 3], "{geom:?}");
        assert!(refused(|| assert!(scratch_len(Method::Direct, &geom, Pass::Forward) > 0)));
    }
}

#[test]
fn a_stride_beyond_the_image_costs_no_phases() {
    let mut geom = geometry([3, 3, 8], 8, [1 << 20, 1 << 20]);
    check_all(&geom, 1, 0, false, false);
    geom.groups = 8;
    check_all(&geom, 2, 1, false, false);
}

/// 3x3 windows, padded.
fn geometry(input: [usize; 3], filters: usize, stride: [usize; 2]) -> ConvGeom {
    ConvGeom::new(input, filters, Window::new([3, 3], stride, Padding::Same)).unwrap()
}
