//! Affine sampling of images, with one matrix per sample, and its derivative.

use crate::simd::{Isa, Kernel, Simd, dispatch};
use phalanx_graph::ops::SampleGeom;

/// Samples `rows` images at the positions given by their matrices, `[6]` per row.
///
/// # Panics
/// If a slice does not have the length of `rows` rows.
pub fn affine(
    isa: Isa,
    geom: &SampleGeom,
    rows: usize,
    x: &[f32],
    matrices: &[f32],
    y: &mut [f32],
) {
    let [input, output] = check(geom, rows, x.len(), matrices.len(), y.len());
    for r in 0..rows {
        let matrix = matrix(&matrices[6 * r..]);
        let (x, y) = (&x[r * input..][..input], &mut y[r * output..][..output]);
        // SAFETY: the kernel requires only its instruction set.
        unsafe { dispatch(isa, Read { geom, matrix, x, y }) };
    }
}

/// Adds the derivatives of `rows` results to the pixels they were sampled from.
///
/// # Panics
/// If a slice does not have the length of `rows` rows.
pub fn affine_grad(
    isa: Isa,
    geom: &SampleGeom,
    rows: usize,
    dy: &[f32],
    matrices: &[f32],
    dx: &mut [f32],
) {
    let [input, output] = check(geom, rows, dx.len(), matrices.len(), dy.len());
    for r in 0..rows {
        let matrix = matrix(&matrices[6 * r..]);
        let (dx, dy) = (&mut dx[r * input..][..input], &dy[r * output..][..output]);
        // SAFETY: the kernel requires only its instruction set.
        unsafe { dispatch(isa, Spread { geom, matrix, dy, dx }) };
    }
}

/// Floats of an image and of a result; panics unless the slices hold `rows` of each.
fn check(geom: &SampleGeom, rows: usize, x: usize, matrices: usize, y: usize) -> [usize; 2] {
    let parts = [("images", x, geom.input), ("results", y, geom.output_dims())];
    let lens = parts.map(|(name, received, dims)| {
        let row = dims.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
        let all = row.and_then(|n| n.checked_mul(rows));
        let held = all.is_some_and(|n| received >= n);
        assert!(held, "{name}: expected {rows} of {dims:?}, received {received} floats");
        row.unwrap_or_default()
    });
    let held = rows.checked_mul(6).is_some_and(|n| matrices >= n);
    assert!(held, "matrices: expected {rows} of 6 numbers, received {matrices} floats");
    lens
}

fn matrix(numbers: &[f32]) -> [f64; 6] {
    std::array::from_fn(|i| f64::from(numbers[i]))
}

/// The pixels that pixel `(x, y)` of a result reads: offset in the image (`None` beyond its border) and weight.
/// Without interpolation only the first counts.
#[inline(always)]
fn corners(geom: &SampleGeom, m: &[f64; 6], [y, x]: [usize; 2]) -> [(Option<usize>, f32); 4] {
    let [h, w, c] = geom.input;
    let (x, y) = (x as f64, y as f64);
    let down = geom.taps(m[3] * x + m[4] * y + m[5]);
    let across = geom.taps(m[0] * x + m[1] * y + m[2]);
    let weights: [f32; 4] = std::array::from_fn(|k| (down[k / 2].1 * across[k % 2].1) as f32);
    let ([(row, _), (below, _)], [(column, _), (right, _)]) = (down, across);
    // Fast path: most positions lie inside the image and need no fill rule.
    if row >= 0 && column >= 0 && below < h as i64 && right < w as i64 && geom.bilinear {
        let start = (row as usize * w + column as usize) * c;
        let starts = [start, start + c, start + w * c, start + w * c + c];
        return std::array::from_fn(|k| (Some(starts[k]), weights[k]));
    }
    let rows = [row, below].map(|i| geom.fill.pixel(i, h));
    let columns = [column, right].map(|i| geom.fill.pixel(i, w));
    std::array::from_fn(|k| {
        let (i, j) = (k / 2, k % 2);
        let start = rows[i].zip(columns[j]).map(|(row, column)| (row * w + column) * c);
        (start, weights[k])
    })
}

struct Read<'a> {
    geom: &'a SampleGeom,
    matrix: [f64; 6],
    x: &'a [f32],
    y: &'a mut [f32],
}

impl Kernel for Read<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Read { geom, matrix, x, y } = self;
        let (width, c) = (geom.output[1], geom.input[2]);
        let fill = geom.fill_value.get() as f32;
        for (at, pixel) in y.chunks_exact_mut(c).enumerate() {
            let corners = corners(geom, &matrix, [at / width, at % width]);
            if !geom.bilinear {
                match corners[0].0 {
                    Some(start) => pixel.copy_from_slice(&x[start..start + c]),
                    None => pixel.fill(fill),
                }
                continue;
            }
            pixel.fill(0.0);
            for (start, weight) in corners {
                match start {
                    Some(start) => add(pixel, &x[start..start + c], weight),
                    None => pixel.iter_mut().for_each(|v| *v += weight * fill),
                }
            }
        }
    }
}

struct Spread<'a> {
    geom: &'a SampleGeom,
    matrix: [f64; 6],
    dy: &'a [f32],
    dx: &'a mut [f32],
}

impl Kernel for Spread<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Spread { geom, matrix, dy, dx } = self;
        let (width, c) = (geom.output[1], geom.input[2]);
        let read = if geom.bilinear { 4 } else { 1 };
        dx.fill(0.0);
        for (at, pixel) in dy.chunks_exact(c).enumerate() {
            let corners = corners(geom, &matrix, [at / width, at % width]);
            for (start, weight) in &corners[..read] {
                if let Some(start) = *start {
                    add(&mut dx[start..start + c], pixel, *weight);
                }
            }
        }
    }
}

/// `y += weight · x`
#[inline(always)]
fn add(y: &mut [f32], x: &[f32], weight: f32) {
    y.iter_mut().zip(x).for_each(|(y, x)| *y += weight * x);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::math::testing::{close, numbers};
    use crate::kernels::tile::testing::refused;
    use phalanx_graph::ops::FillMode;

    const MODES: [FillMode; 4] =
        [FillMode::Constant, FillMode::Nearest, FillMode::Reflect, FillMode::Wrap];

    fn geom(fill: FillMode, bilinear: bool) -> SampleGeom {
        SampleGeom { input: [5, 4, 3], output: [3, 6], fill, fill_value: 0.5.into(), bilinear }
    }

    /// A shift by whole pixels moves pixels without changing them, in every mode.
    #[test]
    fn whole_shifts_move_pixels() {
        let x = numbers(60, 1);
        let shift = [1.0, 0.0, -2.0, 0.0, 1.0, 1.0];
        for isa in Isa::available() {
            for (fill, bilinear) in MODES.into_iter().flat_map(|m| [(m, false), (m, true)]) {
                let (g, mut y) = (geom(fill, bilinear), vec![9.0; 54]);
                affine(isa, &g, 1, &x, &shift, &mut y);
                let want = (0..54).map(|i| {
                    let (row, column) = (i as i64 / 18 + 1, i as i64 / 3 % 6 - 2);
                    let pixel = fill.pixel(row, 5).zip(fill.pixel(column, 4));
                    pixel.map_or(0.5, |(r, c)| f64::from(x[(r * 4 + c) * 3 + i % 3]))
                });
                close(isa, &format!("{g}"), &y, &want.collect::<Vec<_>>(), 0.0);
            }
        }
    }

    /// `Σ y(x) · d = Σ x · dx(d)` if nothing is read from beyond the border.
    #[test]
    fn the_derivative_is_the_transpose() {
        let (x, d) = (numbers(120, 2), numbers(108, 3));
        let maps = [0.8, 0.3, -1.2, -0.4, 1.1, 0.7, 1.3, 0.0, 0.1, 0.2, -0.9, 3.0];
        for isa in Isa::available() {
            for (fill, bilinear) in MODES.into_iter().flat_map(|m| [(m, false), (m, true)]) {
                let g = SampleGeom { fill_value: 0.0.into(), ..geom(fill, bilinear) };
                let (mut y, mut dx) = (vec![9.0; 108], vec![9.0; 120]);
                affine(isa, &g, 2, &x, &maps, &mut y);
                affine_grad(isa, &g, 2, &d, &maps, &mut dx);
                let dot = |a: &[f32], b: &[f32]| -> f64 {
                    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
                };
                let (there, back) = (dot(&y, &d), dot(&x, &dx));
                assert!((there - back).abs() < 1e-5, "{isa} {g}: {there} {back}");
            }
        }
    }

    #[test]
    fn extreme_maps_stay_inside_the_image() {
        let x = numbers(60, 4);
        for wild in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN] {
            for (fill, bilinear) in MODES.into_iter().flat_map(|m| [(m, false), (m, true)]) {
                let (g, mut y, mut dx) = (geom(fill, bilinear), vec![0.0; 54], vec![0.0; 60]);
                affine(Isa::PORTABLE, &g, 1, &x, &[wild; 6], &mut y);
                affine_grad(Isa::PORTABLE, &g, 1, &y, &[wild; 6], &mut dx);
            }
        }
    }

    #[test]
    fn sizes_that_wrap_around_are_refused() {
        let half = usize::MAX / 2 + 1;
        let run = |g: &SampleGeom, rows: usize| {
            let (x, m, mut y) = (vec![0.0; 60], vec![0.0; 6], vec![0.0; 60]);
            [
                refused(|| affine(Isa::PORTABLE, g, rows, &x, &m, &mut y)),
                refused(|| affine_grad(Isa::PORTABLE, g, rows, &x, &m, &mut y)),
            ]
        };
        let good = geom(FillMode::Nearest, true);
        assert_eq!(run(&good, 1), [false; 2]);
        assert_eq!(run(&good, half), [true; 2]);
        let input = SampleGeom { input: [half, 2, 3], ..good };
        assert_eq!(run(&input, 1), [true; 2]);
        let output = SampleGeom { output: [2, half], ..good };
        assert_eq!(run(&output, 1), [true; 2]);
    }
}
