//! Affine transforms of images, interpolated like `scipy.ndimage.affine_transform` with `order=1`, which
//! Keras' `apply_affine_transform` calls.
//!
//! A transform without rotation and shear is separable: two short tables give the two source pixels of
//! each row and column. This is an order of magnitude faster than the general case.

use crate::by_name::{Named, variant_by_serde_name};
use serde::{Deserialize, Serialize};

/// How to fill points outside an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FillMode {
    /// The nearest pixel: `aaaa|abcd|dddd`.
    #[default]
    Nearest,
    /// A constant: `kkkk|abcd|kkkk`.
    Constant,
    /// The mirrored image: `dcba|abcd|dcba`.
    Reflect,
    /// The repeated image: `abcd|abcd|abcd`.
    Wrap,
}

impl Named for FillMode {
    const KIND: &'static str = "fill_mode";
    const NAMES: &'static [&'static str] = &["nearest", "constant", "reflect", "wrap"];

    fn from_name(name: &str) -> Option<FillMode> {
        variant_by_serde_name(name)
    }
}

/// The size of an image, channels last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub height: usize,
    pub width: usize,
    pub channels: usize,
}

impl Size {
    pub fn len(self) -> usize {
        self.height * self.width * self.channels
    }
}

/// Parameters of an affine transform: angles in degrees, shifts in pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct AffineParams {
    pub theta: f64,
    /// Right and down, in the coordinates of the input: the image itself moves the opposite way.
    pub shift: [f64; 2],
    pub shear: f64,
    /// Horizontal and vertical.
    pub zoom: [f64; 2],
    pub flip_horizontal: bool,
    pub flip_vertical: bool,
}

impl AffineParams {
    pub const NONE: AffineParams = AffineParams {
        theta: 0.0,
        shift: [0.0; 2],
        shear: 0.0,
        zoom: [1.0; 2],
        flip_horizontal: false,
        flip_vertical: false,
    };

    /// Maps row and column of an output pixel to those of the input, about the center of the image:
    /// rotation, shift, shear and zoom multiplied in Keras' order.
    pub fn map(&self, size: Size) -> Map {
        let mut m = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]];
        if self.theta != 0.0 {
            let (sin, cos) = self.theta.to_radians().sin_cos();
            m = times(m, [[cos, -sin, 0.0], [sin, cos, 0.0]]);
        }
        if self.shift != [0.0; 2] {
            m = times(m, [[1.0, 0.0, self.shift[0]], [0.0, 1.0, self.shift[1]]]);
        }
        if self.shear != 0.0 {
            let (sin, cos) = self.shear.to_radians().sin_cos();
            m = times(m, [[1.0, -sin, 0.0], [0.0, cos, 0.0]]);
        }
        if self.zoom != [1.0; 2] {
            m = times(m, [[self.zoom[0], 0.0, 0.0], [0.0, self.zoom[1], 0.0]]);
        }
        let [x, y] = [size.width, size.height].map(|n| n as f64 / 2.0 - 0.5);
        let centred = times([[1.0, 0.0, x], [0.0, 1.0, y]], m);
        let [x, y] = times(centred, [[1.0, 0.0, -x], [0.0, 1.0, -y]]);
        [[y[1], y[0], y[2]], [x[1], x[0], x[2]]]
    }
}

/// The first two rows of a 3x3 matrix whose last row is `0 0 1`.
pub(super) type Map = [[f64; 3]; 2];

fn times(a: Map, b: Map) -> Map {
    let row = |r: [f64; 3]| {
        let cell = |j: usize| r[0] * b[0][j] + r[1] * b[1][j];
        [cell(0), cell(1), cell(2) + r[2]]
    };
    [row(a[0]), row(a[1])]
}

/// The two source pixels along an axis, and the weight of the second.
#[derive(Clone, Copy)]
struct Tap {
    first: usize,
    second: usize,
    weight: f32,
}

impl FillMode {
    /// The source pixels for a coordinate of an axis of `n` pixels; `None` means `cval`.
    fn tap(self, at: f64, n: usize) -> Option<Tap> {
        let last = n as f64 - 1.0;
        let at = match self {
            FillMode::Nearest => at.clamp(0.0, last),
            FillMode::Constant if at < 0.0 || at > last => return None,
            FillMode::Constant => at,
            FillMode::Wrap if n == 1 => 0.0,
            // Like scipy, which uses a period that is one pixel too short.
            FillMode::Wrap if at < 0.0 => at + last * ((-at / last).trunc() + 1.0),
            FillMode::Wrap if at > last => at - last * (at / last).trunc(),
            FillMode::Wrap => at,
            FillMode::Reflect => at,
        };
        let (floor, weight) = (at.floor(), (at - at.floor()) as f32);
        let index = |i: i64| match self {
            FillMode::Reflect => {
                let (n, i) = (n as i64, i.rem_euclid(2 * n as i64));
                (if i < n { i } else { 2 * n - 1 - i }) as usize
            }
            _ => i.clamp(0, n as i64 - 1) as usize,
        };
        let floor = floor as i64;
        Some(Tap { first: index(floor), second: index(floor.saturating_add(1)), weight })
    }
}

fn blend(a: f32, b: f32, weight: f32) -> f32 {
    a * (1.0 - weight) + b * weight
}

/// Transforms images of one size and reuses its tables between images.
#[derive(Default)]
pub(super) struct AffineTransformer {
    columns: Vec<Option<Tap>>,
    row: Vec<f32>,
}

impl AffineTransformer {
    /// Writes the transformed image `from` to `to`; both have the given size.
    pub fn apply(
        &mut self,
        params: &AffineParams,
        (fill, cval): (FillMode, f32),
        size: Size,
        from: &[f32],
        to: &mut [f32],
    ) {
        if *params == AffineParams::NONE || size.len() == 0 {
            to.copy_from_slice(from);
            return;
        }
        let map = params.map(size);
        let Size { height, width, channels } = size;
        let row_of = |r: usize| if params.flip_vertical { height - 1 - r } else { r } as f64;
        let column_of = |c: usize| if params.flip_horizontal { width - 1 - c } else { c } as f64;
        if map[0][1] != 0.0 || map[1][0] != 0.0 {
            let mut pixels = to.chunks_exact_mut(channels);
            for r in 0..height {
                for (c, pixel) in (0..width).zip(&mut pixels) {
                    let [row, column] = map.map(|m| m[0] * row_of(r) + m[1] * column_of(c) + m[2]);
                    match (fill.tap(row, height), fill.tap(column, width)) {
                        (Some(row), Some(column)) => interpolate(row, column, size, from, pixel),
                        _ => pixel.fill(cval),
                    }
                }
            }
            return;
        }
        self.columns.clear();
        self.columns
            .extend((0..width).map(|c| fill.tap(map[1][1] * column_of(c) + map[1][2], width)));
        let stride = width * channels;
        self.row.resize(stride, 0.0);
        for (r, to) in to.chunks_exact_mut(stride).enumerate() {
            let Some(tap) = fill.tap(map[0][0] * row_of(r) + map[0][2], height) else {
                to.fill(cval);
                continue;
            };
            let (a, b) = (&from[tap.first * stride..], &from[tap.second * stride..]);
            for ((row, a), b) in self.row.iter_mut().zip(a).zip(b) {
                *row = blend(*a, *b, tap.weight);
            }
            for (pixel, tap) in to.chunks_exact_mut(channels).zip(&self.columns) {
                let Some(tap) = tap else {
                    pixel.fill(cval);
                    continue;
                };
                let a = &self.row[tap.first * channels..][..channels];
                let b = &self.row[tap.second * channels..][..channels];
                for ((pixel, a), b) in pixel.iter_mut().zip(a).zip(b) {
                    *pixel = blend(*a, *b, tap.weight);
                }
            }
        }
    }
}

/// Interpolates one pixel from its four neighbors.
fn interpolate(row: Tap, column: Tap, size: Size, from: &[f32], pixel: &mut [f32]) {
    let at = |r: usize, c: usize| (r * size.width + c) * size.channels;
    let [a, b] = [row.first, row.second].map(|r| [at(r, column.first), at(r, column.second)]);
    for (k, pixel) in pixel.iter_mut().enumerate() {
        let left = blend(from[a[0] + k], from[b[0] + k], row.weight);
        let right = blend(from[a[1] + k], from[b[1] + k], row.weight);
        *pixel = blend(left, right, column.weight);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    /// `tests/python/augment.py` computed the numbers with Keras' own `apply_affine_transform`.
    #[test]
    fn images_move_as_in_keras() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/augment.safetensors");
        let bytes = std::fs::read(path).unwrap();
        let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
        let cases: Vec<Value> =
            serde_json::from_str(&header.metadata().as_ref().unwrap()["cases"]).unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let size = Size { height: 7, width: 7, channels: 3 };
        let mut transformer = AffineTransformer::default();
        for case in &cases {
            let name = case["name"].as_str().unwrap();
            let floats = |field: &str| -> Vec<f32> {
                let view = file.tensor(&format!("{name}/{field}")).unwrap();
                let words = view.data().chunks_exact(4);
                words.map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect()
            };
            let number = |key: &str, usual| case["motion"][key].as_f64().unwrap_or(usual);
            let params = AffineParams {
                theta: number("theta", 0.0),
                shift: [number("tx", 0.0), number("ty", 0.0)],
                shear: number("shear", 0.0),
                zoom: [number("zx", 1.0), number("zy", 1.0)],
                ..AffineParams::NONE
            };
            let fill = FillMode::from_name(case["fill_mode"].as_str().unwrap()).unwrap();
            let mut moved = vec![0.0; size.len()];
            transformer.apply(&params, (fill, 0.5), size, &floats("input"), &mut moved);
            for (i, (ours, keras)) in moved.iter().zip(floats("output")).enumerate() {
                assert!((ours - keras).abs() < 1e-5, "{name} at {i}: {ours}, Keras {keras}");
            }
        }
    }

    #[test]
    fn flips_reverse_rows_and_columns_on_either_path() {
        let size = Size { height: 2, width: 3, channels: 1 };
        let image = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let apply = |theta, flip_horizontal, flip_vertical| {
            let params =
                AffineParams { theta, flip_horizontal, flip_vertical, ..AffineParams::NONE };
            let mut moved = [0.0; 6];
            let fill = (FillMode::Nearest, 0.0);
            AffineTransformer::default().apply(&params, fill, size, &image, &mut moved);
            moved.map(f32::round)
        };
        for theta in [0.0, 1e-9] {
            assert_eq!(apply(theta, true, false), [3.0, 2.0, 1.0, 6.0, 5.0, 4.0]);
            assert_eq!(apply(theta, false, true), [4.0, 5.0, 6.0, 1.0, 2.0, 3.0]);
            assert_eq!(apply(theta, true, true), [6.0, 5.0, 4.0, 3.0, 2.0, 1.0]);
        }
    }

    #[test]
    fn images_of_one_pixel_and_far_coordinates_are_fine() {
        let size = Size { height: 1, width: 1, channels: 1 };
        for fill in FillMode::NAMES.iter().filter_map(|name| FillMode::from_name(name)) {
            for shift in [0.0, 0.3, -1e6, 1e300] {
                let params = AffineParams { shift: [shift; 2], shear: 10.0, ..AffineParams::NONE };
                let mut to = [0.0];
                AffineTransformer::default().apply(&params, (fill, 7.0), size, &[7.0], &mut to);
                assert_eq!(to, [7.0]);
            }
        }
    }
}
