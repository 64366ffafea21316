//! Glyphs: synthetic images of the ten digits, drawn from strokes.
//!
//! Each image shows the polylines of a digit, bent, rotated, scaled, sheared and shifted at random. The
//! distance of each pixel to the nearest segment gives the ink of a pen of random width. The image is
//! then dimmed, and noise is added. An image depends only on the seed and its index.

use super::Split;
use crate::error::{Error, Result};
use phalanx_graph::Tensor;
use phalanx_graph::rng::Stream;

/// Side length in pixels.
const SIDE: usize = 28;
const PIXELS: usize = SIDE * SIDE;
/// Height in pixels of a digit before distortion.
const HEIGHT: f32 = 19.0;
/// Random stream of these images. Layers number theirs from 1.
const STREAM: u32 = 0xFFFF_0002;

/// Number of images, and their seed.
///
/// ```
/// use phalanx::datasets::glyphs::{self, Glyphs};
///
/// let data = glyphs::load(Glyphs { train: 100, test: 20, seed: 7 })?;
/// assert_eq!(data.train.0.dims(), [100, 28, 28, 1]);
/// assert_eq!(data.test.1.dims(), [20]);
/// # Ok::<(), phalanx::error::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Glyphs {
    /// Number of training images.
    pub train: usize,
    /// Number of test images, distinct from the training images.
    pub test: usize,
    /// Seed of the random generator.
    pub seed: u64,
}

impl Default for Glyphs {
    fn default() -> Glyphs {
        Glyphs { train: 6000, test: 1000, seed: 0 }
    }
}

/// Draws the images: `[n, 28, 28, 1]` in `[0, 1]`, with bright ink, and their labels `[n]`.
pub fn load(glyphs: Glyphs) -> Result<Split> {
    let digits: Vec<Vec<Strokes>> = (0..10).map(styles).collect();
    let part = |argument: &str, n: usize, part: u32| {
        let wrong = || Error::argument("glyphs", argument, "1 to 10,000,000 images", n);
        if n == 0 || n > 10_000_000 {
            return Err(wrong());
        }
        let mut pixels = vec![0.0; n * PIXELS];
        let mut labels = Vec::with_capacity(n);
        for (i, image) in pixels.chunks_exact_mut(PIXELS).enumerate() {
            let mut random = Stream::new(glyphs.seed, i as u64, STREAM, part);
            labels.push(draw(&digits, image, &mut random));
        }
        let images = Tensor::new([n, SIDE, SIDE, 1], pixels).map_err(|_| wrong())?;
        Ok((images.into(), Tensor::new([n], labels).map_err(|_| wrong())?))
    };
    Ok(Split { train: part("train", glyphs.train, 0)?, test: part("test", glyphs.test, 1)? })
}

type Point = [f32; 2];
/// Polylines of a digit in the unit square, y pointing down.
type Strokes = Vec<Vec<Point>>;

/// The ways to write a digit.
fn styles(digit: usize) -> Vec<Strokes> {
    let line = |points: &[Point]| points.to_vec();
    match digit {
        0 => vec![vec![arc([0.5, 0.5], [0.31, 0.48], 0.0, 360.0)]],
        1 => {
            let stem = line(&[[0.3, 0.22], [0.55, 0.02], [0.55, 0.98]]);
            let foot = line(&[[0.32, 0.98], [0.78, 0.98]]);
            vec![vec![stem.clone()], vec![stem, foot]]
        }
        2 => {
            let mut hook = arc([0.5, 0.29], [0.3, 0.27], 185.0, 395.0);
            hook.extend([[0.2, 0.98], [0.84, 0.98]]);
            vec![vec![hook]]
        }
        3 => {
            let belly = arc([0.45, 0.73], [0.33, 0.25], 270.0, 515.0);
            let round = arc([0.45, 0.25], [0.29, 0.23], 205.0, 450.0);
            let flat = line(&[[0.2, 0.03], [0.74, 0.03], [0.45, 0.48]]);
            vec![vec![round, belly.clone()], vec![flat, belly]]
        }
        4 => {
            let closed = line(&[[0.64, 0.98], [0.64, 0.02], [0.14, 0.68], [0.88, 0.68]]);
            let open = line(&[[0.28, 0.05], [0.2, 0.58], [0.85, 0.58]]);
            vec![vec![closed], vec![open, line(&[[0.66, 0.1], [0.66, 0.98]])]]
        }
        5 => {
            let mut hook = line(&[[0.8, 0.03], [0.28, 0.03], [0.25, 0.47]]);
            hook.extend(arc([0.47, 0.69], [0.33, 0.29], 230.0, 510.0));
            vec![vec![hook]]
        }
        6 => {
            let mut hook = line(&[[0.7, 0.02], [0.45, 0.2], [0.27, 0.45]]);
            hook.extend(arc([0.5, 0.71], [0.29, 0.27], 190.0, 550.0));
            vec![vec![hook]]
        }
        7 => {
            let hook = line(&[[0.17, 0.03], [0.83, 0.03], [0.4, 0.98]]);
            let bar = line(&[[0.4, 0.5], [0.8, 0.5]]);
            vec![vec![hook.clone()], vec![hook, bar]]
        }
        8 => {
            let (upper, lower) = ([0.5, 0.25], [0.5, 0.73]);
            let upper = arc(upper, [0.25, 0.23], 90.0, 450.0);
            vec![vec![upper, arc(lower, [0.31, 0.25], -90.0, 270.0)]]
        }
        _ => {
            let head = arc([0.48, 0.29], [0.28, 0.27], 0.0, 360.0);
            let straight = line(&[[0.76, 0.29], [0.74, 0.55], [0.6, 0.98]]);
            let hooked = arc([0.46, 0.62], [0.3, 0.36], -10.0, 140.0);
            vec![vec![head.clone(), straight], vec![head, hooked]]
        }
    }
}

/// An elliptic arc between two angles in degrees, clockwise from the right.
fn arc(centre: Point, radius: Point, from: f32, to: f32) -> Vec<Point> {
    let steps = ((to - from) / 24.0).ceil().max(1.0) as usize;
    let at = |i: usize| {
        let angle = (from + (to - from) * i as f32 / steps as f32).to_radians();
        [centre[0] + radius[0] * angle.cos(), centre[1] + radius[1] * angle.sin()]
    };
    (0..=steps).map(at).collect()
}

/// Draws a random digit onto a black image and returns its label.
fn draw(digits: &[Vec<Strokes>], image: &mut [f32], random: &mut Stream) -> i32 {
    let digit = random.below(digits.len() as u64) as usize;
    let styles = &digits[digit];
    let style = random.below(styles.len() as u64) as usize;
    let warp = Warp::random(random);
    let pen = between(random, 0.8, 1.8);
    for stroke in &styles[style] {
        for ends in stroke.windows(2) {
            segment(image, warp.apply(ends[0]), warp.apply(ends[1]), pen);
        }
    }
    let ink = between(random, 0.65, 1.0);
    let grain = between(random, 0.0, 0.25);
    for pixel in image {
        // The sum of four bytes approximates a normal distribution around 2.
        let bytes = random.word().to_le_bytes().map(u32::from);
        let noise = bytes.iter().sum::<u32>() as f32 / 255.0 - 2.0;
        *pixel = (*pixel * ink + noise * grain).clamp(0.0, 1.0);
    }
    digit as i32
}

/// A uniform random number in a range.
fn between(random: &mut Stream, low: f32, high: f32) -> f32 {
    low + (high - low) * random.unit() as f32
}

/// Maps the unit square to the image: a bend, then an affine map.
struct Warp {
    bend: Point,
    phase: Point,
    matrix: [Point; 2],
    shift: Point,
}

impl Warp {
    fn random(random: &mut Stream) -> Warp {
        let mut r = |low, high| between(random, low, high);
        let bend = [r(-0.07, 0.07), r(-0.05, 0.05)];
        let phase = [r(0.0, std::f32::consts::TAU), r(0.0, std::f32::consts::TAU)];
        let (sin, cos) = r(-0.25, 0.25).sin_cos();
        let shear = r(-0.25, 0.25);
        let (x, y) = (r(0.7, 1.15) * HEIGHT, r(0.75, 1.15) * HEIGHT);
        // Scale, then shear, then rotate.
        let matrix = [
            [cos * x, (cos * shear - sin) * y], //
            [sin * x, (sin * shear + cos) * y],
        ];
        let middle = (SIDE as f32 - 1.0) / 2.0;
        Warp { bend, phase, matrix, shift: [middle + r(-2.0, 2.0), middle + r(-2.0, 2.0)] }
    }

    fn apply(&self, [x, y]: Point) -> Point {
        let along = |v: f32, phase: f32| (std::f32::consts::TAU * v + phase).sin();
        let p = [
            x - 0.5 + self.bend[0] * along(y, self.phase[0]),
            y - 0.5 + self.bend[1] * along(x, self.phase[1]),
        ];
        let row = |i: usize| self.matrix[i][0] * p[0] + self.matrix[i][1] * p[1] + self.shift[i];
        [row(0), row(1)]
    }
}

/// Draws from `a` to `b` with a round pen of radius `pen`. The ink falls from 1 to 0 over one pixel
/// around the edge of the pen.
fn segment(image: &mut [f32], a: Point, b: Point, pen: f32) {
    let reach = pen + 0.5;
    let span = |i: usize| {
        let low = (a[i].min(b[i]) - reach).ceil().max(0.0) as usize;
        let high = (a[i].max(b[i]) + reach).floor().min(SIDE as f32 - 1.0);
        low..(high + 1.0).max(0.0) as usize
    };
    let d = [b[0] - a[0], b[1] - a[1]];
    let scale = 1.0 / (d[0] * d[0] + d[1] * d[1]).max(1e-12);
    for y in span(1) {
        for x in span(0) {
            let p = [x as f32 - a[0], y as f32 - a[1]];
            let t = ((p[0] * d[0] + p[1] * d[1]) * scale).clamp(0.0, 1.0);
            let off = [p[0] - t * d[0], p[1] - t * d[1]];
            let distance = (off[0] * off[0] + off[1] * off[1]).sqrt();
            let pixel = &mut image[y * SIDE + x];
            *pixel = pixel.max((reach - distance).min(1.0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_depend_only_on_seed_and_index() {
        let few = load(Glyphs { train: 20, test: 10, seed: 3 }).unwrap();
        let more = load(Glyphs { train: 50, test: 10, seed: 3 }).unwrap();
        assert_eq!(few.train.0, more.train.0.slice_rows(0..20).unwrap());
        assert_eq!(few.test, more.test);
        assert_ne!(few.train.0.slice_rows(0..10).unwrap(), few.test.0);
        assert_ne!(few, load(Glyphs { train: 20, test: 10, seed: 4 }).unwrap());
    }

    #[test]
    fn images_are_in_range_and_classes_are_balanced() {
        let data = load(Glyphs { train: 2000, test: 1, seed: 0 }).unwrap();
        let x = data.train.0.to_tensor();
        let x = x.f32().unwrap();
        assert!(x.iter().all(|p| (0.0..=1.0).contains(p)));
        let mut counts = [0; 10];
        data.train.1.i32().unwrap().iter().for_each(|c| counts[*c as usize] += 1);
        assert!(counts.iter().all(|n| (150..250).contains(n)), "{counts:?}");
        // Every image has ink.
        assert!(x.chunks(PIXELS).all(|p| p.iter().filter(|v| **v > 0.5).count() > 15));
    }

    #[test]
    fn zero_images_are_rejected() {
        let message = load(Glyphs { train: 0, test: 1, seed: 0 }).unwrap_err().to_string();
        assert_eq!(message, "glyphs: train: expected 1 to 10,000,000 images, received 0");
        assert!(load(Glyphs { train: 1, test: usize::MAX, seed: 0 }).is_err());
    }
}
