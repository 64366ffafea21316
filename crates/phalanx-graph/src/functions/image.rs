//! Composed functions of images: colour spaces, interpolation at computed coordinates, perspective maps, Gaussian
//! smoothing. An image is `[height, width, channels]`.

use super::index::{max_axes, min_axes, take};
use super::layout::{concat, iota, offsets};
use super::math::{less, logical_and, modulo};
use crate::error::{GraphError, Result};
use crate::graph::{Graph, NodeId};
use crate::ops::{Binary, Op, Unary};
use crate::types::DType;

/// The difference of 1 and the next 32-bit float.
const EPSILON: f64 = f32::EPSILON as f64;

/// Coordinates are clamped to this range, so that they and their neighbours are exact as 32-bit floats.
const MAX_COORDINATE: f64 = (1 << 22) as f64;

/// One channel of an image, which stays an axis of size one.
fn channel(g: &mut Graph, x: NodeId, at: usize) -> Result<NodeId> {
    let axis = g.ty(x).dims.len().saturating_sub(1);
    g.push(Op::Slice { axis, start: at, len: 1 }, &[x])
}

/// The three channels of an image.
pub fn channels(g: &mut Graph, x: NodeId) -> Result<[NodeId; 3]> {
    if g.ty(x).dims.last() != Some(&3) {
        let received = g.ty(x).shape_text();
        return Err(GraphError::mismatch("image", "3 channels", received));
    }
    Ok([channel(g, x, 0)?, channel(g, x, 1)?, channel(g, x, 2)?])
}

/// Joins channels to an image.
pub fn join_channels(g: &mut Graph, parts: [NodeId; 3]) -> Result<NodeId> {
    let axis = g.ty(parts[0]).dims.len().saturating_sub(1);
    concat(g, &parts, axis)
}

/// The hue, saturation and value of red, green and blue, as in Keras.
pub fn rgb_to_hsv(g: &mut Graph, x: NodeId) -> Result<NodeId> {
    let (zero, one, tiny) = (g.scalar(0.0), g.scalar(1.0), g.scalar(EPSILON));
    let size = g.unary(Unary::Abs, x)?;
    let small = less(g, size, tiny)?;
    let x = g.select(small, zero, x)?;
    let [red, green, blue] = channels(g, x)?;
    let axis = g.ty(x).dims.len() - 1;
    let (value, minimum) = (max_axes(g, x, &[axis])?, min_axes(g, x, &[axis])?);
    let range = g.sub(value, minimum)?;
    let (bright, coloured) = (less(g, zero, value)?, less(g, zero, range)?);
    let (safe_value, safe_range) = (g.select(bright, value, one)?, g.select(coloured, range, one)?);
    let saturation = g.div(range, safe_value)?;
    let saturation = g.select(bright, saturation, zero)?;
    let sixth = g.scale(safe_range, 6.0)?;
    let mut sector = |a: NodeId, b: NodeId, start: f64| -> Result<NodeId> {
        let apart = g.sub(a, b)?;
        let hue = g.div(apart, sixth)?;
        g.offset(hue, start / 6.0)
    };
    let (from_red, from_green) = (sector(green, blue, 0.0)?, sector(blue, red, 2.0)?);
    let from_blue = sector(red, green, 4.0)?;
    let is_green = g.binary(Binary::Eq, value, green)?;
    let is_red = g.binary(Binary::Eq, value, red)?;
    let hue = g.select(is_green, from_green, from_blue)?;
    let hue = g.select(is_red, from_red, hue)?;
    let below = less(g, hue, zero)?;
    let hue = g.select(coloured, hue, zero)?;
    let hue = g.add(hue, below)?;
    join_channels(g, [hue, saturation, value])
}

/// Red, green and blue of hue, saturation and value.
pub fn hsv_to_rgb(g: &mut Graph, x: NodeId) -> Result<NodeId> {
    let [hue, saturation, value] = channels(g, x)?;
    let one = g.scalar(1.0);
    let turn = modulo(g, hue, one)?;
    let angle = g.scale(turn, 6.0)?;
    let rest = g.sub(one, saturation)?;
    // The weight of a colour is `slope · |angle - center| + start`, between 0 and 1.
    let mut colour = |center: f64, slope: f64, start: f64| -> Result<NodeId> {
        let apart = g.offset(angle, -center)?;
        let apart = g.unary(Unary::Abs, apart)?;
        let weight = g.scale(apart, slope)?;
        let weight = g.offset(weight, start)?;
        let weight = g.clamp(weight, 0.0, 1.0)?;
        let part = g.mul(saturation, weight)?;
        let part = g.add(rest, part)?;
        g.mul(value, part)
    };
    let red = colour(3.0, 1.0, -1.0)?;
    let green = colour(2.0, -1.0, 2.0)?;
    let blue = colour(4.0, -1.0, 2.0)?;
    join_channels(g, [red, green, blue])
}

/// How a value `a b c d` continues beyond its ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Extension {
    /// A number.
    Constant(f64),
    /// `a a a a | a b c d | d d d d`
    Nearest,
    /// `a b c d | a b c d | a b c d`
    Wrap,
    /// `d c b | a b c d | c b a`
    Mirror,
    /// `d c b a | a b c d | d c b a`
    Reflect,
}

impl Extension {
    /// The position of `index` on an axis of `size` elements, and 1 where it is on it.
    fn position(
        self,
        g: &mut Graph,
        index: NodeId,
        size: usize,
    ) -> Result<(NodeId, Option<NodeId>)> {
        let n = size as f64;
        let triangle = |g: &mut Graph, index: NodeId, half: f64| -> Result<NodeId> {
            let (shifted, period) = (g.offset(index, half)?, g.scalar(2.0 * half));
            let phase = modulo(g, shifted, period)?;
            let apart = g.offset(phase, -half)?;
            g.unary(Unary::Abs, apart)
        };
        let at = match self {
            Extension::Constant(_) => {
                let (zero, last) = (g.scalar(0.0), g.scalar(n - 1.0));
                let after = g.binary(Binary::Ge, index, zero)?;
                let before = g.binary(Binary::Ge, last, index)?;
                let inside = logical_and(g, after, before)?;
                return Ok((g.clamp(index, 0.0, n - 1.0)?, Some(inside)));
            }
            Extension::Mirror if size > 1 => triangle(g, index, n - 1.0)?,
            Extension::Nearest | Extension::Mirror => g.clamp(index, 0.0, n - 1.0)?,
            Extension::Wrap => {
                let size = g.scalar(n);
                modulo(g, index, size)?
            }
            Extension::Reflect => {
                let double = g.scale(index, 2.0)?;
                let odd = g.offset(double, 1.0)?;
                let at = triangle(g, odd, 2.0 * n)?;
                let at = g.offset(at, -1.0)?;
                let at = g.scale(at, 0.5)?;
                g.unary(Unary::Floor, at)?
            }
        };
        Ok((at, None))
    }
}

/// A neighbour of coordinates along one axis: its position, its weight, and where it exists.
struct Tap {
    at: NodeId,
    weight: Option<NodeId>,
    inside: Option<NodeId>,
}

/// The neighbours of coordinates along an axis of `size` elements.
fn taps(g: &mut Graph, at: NodeId, size: usize, how: Extension, linear: bool) -> Result<Vec<Tap>> {
    let at = g.clamp(at, -MAX_COORDINATE, MAX_COORDINATE)?;
    if !linear {
        // Halves are rounded away from zero.
        let (length, sign) = (g.unary(Unary::Abs, at)?, g.unary(Unary::Sign, at)?);
        let length = g.offset(length, 0.5)?;
        let length = g.unary(Unary::Floor, length)?;
        let nearest = g.mul(length, sign)?;
        let (at, inside) = how.position(g, nearest, size)?;
        return Ok(vec![Tap { at, weight: None, inside }]);
    }
    let low = g.unary(Unary::Floor, at)?;
    let upper = g.sub(at, low)?;
    let one = g.scalar(1.0);
    let lower = g.sub(one, upper)?;
    let high = g.offset(low, 1.0)?;
    let mut out = vec![];
    for (index, weight) in [(low, lower), (high, upper)] {
        let (at, inside) = how.position(g, index, size)?;
        out.push(Tap { at, weight: Some(weight), inside });
    }
    Ok(out)
}

/// The elements of `x` at coordinates along its first axes, interpolated linearly or taken from the nearest
/// position. The coordinates have one shape, which replaces those axes.
pub fn map_coordinates(
    g: &mut Graph,
    x: NodeId,
    coordinates: &[NodeId],
    how: Extension,
    linear: bool,
) -> Result<NodeId> {
    let dims = g.ty(x).dims.clone();
    let Some(sizes) = dims.get(..coordinates.len()).filter(|s| !s.is_empty() && !s.contains(&0))
    else {
        let received = g.ty(x).shape_text();
        let expected = format!("elements along {} axes", coordinates.len());
        return Err(GraphError::mismatch("map_coordinates", expected, received));
    };
    let (count, inner) = (sizes.iter().product(), &dims[sizes.len()..]);
    let flat = g.reshape(x, &[&[count], inner].concat())?;
    let mut corners = vec![Tap { at: g.scalar(0.0), weight: None, inside: None }];
    for (at, size) in coordinates.iter().zip(sizes) {
        let mut next = vec![];
        for corner in &corners {
            for tap in taps(g, *at, *size, how, linear)? {
                let line = g.scale(corner.at, *size as f64)?;
                let at = g.add(line, tap.at)?;
                let weight = joined(g, corner.weight, tap.weight)?;
                let inside = joined(g, corner.inside, tap.inside)?;
                next.push(Tap { at, weight, inside });
            }
        }
        corners = next;
    }
    let mut sum: Option<NodeId> = None;
    for corner in corners {
        let index = g.stop_gradient(corner.at)?;
        let index = g.cast(index, DType::I32)?;
        let found = take(g, flat, index, 0)?;
        let spread = |g: &mut Graph, node: NodeId| {
            let dims = [&g.ty(node).dims[..], &vec![1; inner.len()]].concat();
            g.reshape(node, &dims)
        };
        let mut part = found;
        if let (Extension::Constant(value), Some(inside)) = (how, corner.inside) {
            let (inside, value) = (spread(g, inside)?, g.scalar(value));
            part = g.select(inside, part, value)?;
        }
        if let Some(weight) = corner.weight {
            let weight = spread(g, weight)?;
            part = g.mul(part, weight)?;
        }
        sum = Some(match sum {
            Some(sum) => g.add(sum, part)?,
            None => part,
        });
    }
    sum.ok_or_else(|| GraphError::mismatch("map_coordinates", "coordinates", "none"))
}

/// The product of two factors, either of which may be one.
fn joined(g: &mut Graph, a: Option<NodeId>, b: Option<NodeId>) -> Result<Option<NodeId>> {
    match (a, b) {
        (Some(a), Some(b)) => g.mul(a, b).map(Some),
        (a, b) => Ok(a.or(b)),
    }
}

/// The coordinates `(x, y)` of every pixel: rows of `[1, width]` and columns of `[height, 1]`.
pub fn pixel_grid(g: &mut Graph, height: usize, width: usize) -> Result<[NodeId; 2]> {
    let (x, y) = (iota(g, width)?, iota(g, height)?);
    Ok([g.reshape(x, &[1, width])?, g.reshape(y, &[height, 1])?])
}

/// A matrix of three by three; its entries are numbers per sample, `[1, 1]`.
pub type Matrix = [[NodeId; 3]; 3];

/// `a · b - c · d`
fn cross(g: &mut Graph, [a, b]: [NodeId; 2], [c, d]: [NodeId; 2]) -> Result<NodeId> {
    let (left, right) = (g.mul(a, b)?, g.mul(c, d)?);
    g.sub(left, right)
}

/// The perspective map of the unit square to the corners `points`, `[4, 2]`: top left, top right, bottom left and
/// bottom right. Its scale is arbitrary.
fn square_to_corners(g: &mut Graph, points: NodeId) -> Result<Matrix> {
    let mut corner = |i: usize| -> Result<[NodeId; 2]> {
        let point = g.push(Op::Slice { axis: 0, start: i, len: 1 }, &[points])?;
        let x = g.push(Op::Slice { axis: 1, start: 0, len: 1 }, &[point])?;
        Ok([x, g.push(Op::Slice { axis: 1, start: 1, len: 1 }, &[point])?])
    };
    let (p00, p10, p01, p11) = (corner(0)?, corner(1)?, corner(2)?, corner(3)?);
    let mut difference = |a: [NodeId; 2], b: [NodeId; 2]| -> Result<[NodeId; 2]> {
        Ok([g.sub(a[0], b[0])?, g.sub(a[1], b[1])?])
    };
    let (right, down) = (difference(p10, p11)?, difference(p01, p11)?);
    let (top, bottom) = (difference(p00, p10)?, difference(p01, p11)?);
    // p00 - p10 - p01 + p11, zero for a parallelogram
    let skew = difference(top, bottom)?;
    let scale = cross(g, [right[0], down[1]], [down[0], right[1]])?;
    let across = cross(g, [skew[0], down[1]], [down[0], skew[1]])?;
    let along = cross(g, [right[0], skew[1]], [skew[0], right[1]])?;
    let mut row = |axis: usize| -> Result<[NodeId; 3]> {
        let origin = g.mul(scale, p00[axis])?;
        let mut step = |p: NodeId, by: NodeId| -> Result<NodeId> {
            let both = g.add(scale, by)?;
            let there = g.mul(both, p)?;
            g.sub(there, origin)
        };
        let (x, y) = (step(p10[axis], across)?, step(p01[axis], along)?);
        Ok([x, y, origin])
    };
    Ok([row(0)?, row(1)?, [across, along, scale]])
}

/// The adjugate: the inverse up to a factor.
fn adjugate(g: &mut Graph, m: &Matrix) -> Result<Matrix> {
    let mut minor = |r: usize, c: usize| {
        let ([r0, r1], [c0, c1]) = ([(r + 1) % 3, (r + 2) % 3], [(c + 1) % 3, (c + 2) % 3]);
        cross(g, [m[r0][c0], m[r1][c1]], [m[r0][c1], m[r1][c0]])
    };
    let mut row = |i: usize| Ok([minor(0, i)?, minor(1, i)?, minor(2, i)?]);
    Ok([row(0)?, row(1)?, row(2)?])
}

/// The image of which the corners `start`, `[4, 2]` of `(x, y)`, move to `end`: top left, top right, bottom left and
/// bottom right.
pub fn perspective(
    g: &mut Graph,
    x: NodeId,
    [start, end]: [NodeId; 2],
    how: Extension,
    linear: bool,
) -> Result<NodeId> {
    let from_square = square_to_corners(g, start)?;
    let to_corners = square_to_corners(g, end)?;
    let [first, second, third] = adjugate(g, &to_corners)?;
    let mut product = |row: &[NodeId; 3], column: usize| -> Result<NodeId> {
        let (a, b) = (g.mul(row[0], first[column])?, g.mul(row[1], second[column])?);
        let (sum, c) = (g.add(a, b)?, g.mul(row[2], third[column])?);
        g.add(sum, c)
    };
    let mut row = |i: usize| -> Result<[NodeId; 3]> {
        let of_start = &from_square[i];
        Ok([product(of_start, 0)?, product(of_start, 1)?, product(of_start, 2)?])
    };
    let matrix = [row(0)?, row(1)?, row(2)?];
    project(g, x, &matrix, how, linear)
}

/// The image whose pixel `(x, y)` is taken from the position to which a matrix maps `(x, y, 1)`.
pub fn project(
    g: &mut Graph,
    x: NodeId,
    matrix: &Matrix,
    how: Extension,
    linear: bool,
) -> Result<NodeId> {
    let [height, width] = image_size(g, x)?;
    let grid = pixel_grid(g, height, width)?;
    let mut line = |row: &[NodeId; 3]| -> Result<NodeId> {
        let (along, down) = (g.mul(row[0], grid[0])?, g.mul(row[1], grid[1])?);
        let both = g.add(along, down)?;
        g.add(both, row[2])
    };
    let (across, down, divisor) = (line(&matrix[0])?, line(&matrix[1])?, line(&matrix[2])?);
    let (x_at, y_at) = (g.div(across, divisor)?, g.div(down, divisor)?);
    map_coordinates(g, x, &[y_at, x_at], how, linear)
}

/// The height and width of an image.
fn image_size(g: &Graph, x: NodeId) -> Result<[usize; 2]> {
    match g.ty(x).dims[..] {
        [height, width, _] => Ok([height, width]),
        _ => Err(GraphError::mismatch("image", "height, width, channels", g.ty(x).shape_text())),
    }
}

/// An elastic deformation: pixel `(x, y)` is taken from `(x + alpha · d, y + alpha · d)`, where `d` is the smoothed noise.
#[derive(Clone, Copy, Debug)]
pub struct Elastic {
    /// The noise, `[height, width, 1]`.
    pub noise: NodeId,
    /// The strength, a number or `[1, 1]`.
    pub alpha: NodeId,
    /// The deviation of the smoothing, a number or `[1, 1]`. Its kernel has `6 · sigma` elements, rounded to an odd number.
    pub sigma: NodeId,
    /// The largest number of elements of the kernel, odd.
    pub taps: usize,
}

/// The image after an elastic deformation.
pub fn elastic(
    g: &mut Graph,
    x: NodeId,
    Elastic { noise, alpha, sigma, taps }: Elastic,
    how: Extension,
    linear: bool,
) -> Result<NodeId> {
    let [height, width] = image_size(g, x)?;
    let size = g.scale(sigma, 6.0)?;
    let size = g.unary(Unary::Floor, size)?;
    let reach = g.scale(size, 0.5)?;
    let reach = g.unary(Unary::Floor, reach)?;
    let tiny = g.scalar(1e-6);
    let sigma = g.binary(Binary::Max, sigma, tiny)?;
    let y = smooth(g, noise, 1, [sigma, reach], taps)?;
    let y = smooth(g, y, 0, [sigma, reach], taps)?;
    let y = g.reshape(y, &[height, width])?;
    let distance = g.mul(alpha, y)?;
    let [column, row] = pixel_grid(g, height, width)?;
    let (across, down) = (g.add(distance, column)?, g.add(distance, row)?);
    map_coordinates(g, x, &[down, across], how, linear)
}

/// A Gaussian smoothing of images along an axis (0 or 1), over neighbours at a distance of at most `reach`. It and the
/// deviation `sigma` are numbers, or one for each sample, `[1, 1]`. The kernel has at most `taps` elements; the middle of
/// an even number of them is half a pixel after its pixel. Outside of the image are zeros.
pub fn smooth(
    g: &mut Graph,
    x: NodeId,
    axis: usize,
    [sigma, reach]: [NodeId; 2],
    taps: usize,
) -> Result<NodeId> {
    let weights = |g: &mut Graph, distance: NodeId| -> Result<NodeId> {
        let ratio = g.div(distance, sigma)?;
        let square = g.unary(Unary::Square, ratio)?;
        let exponent = g.scale(square, -0.5)?;
        let weight = g.unary(Unary::Exp, exponent)?;
        let length = g.unary(Unary::Abs, distance)?;
        let near = g.binary(Binary::Ge, reach, length)?;
        g.mul(weight, near)
    };
    let n = g.ty(x).dims.get(axis).copied().unwrap_or(0);
    let mut apart = offsets(g, n, n)?;
    if taps.is_multiple_of(2) {
        apart = g.offset(apart, 0.5)?;
    }
    let band = weights(g, apart)?;
    // The whole kernel, of which a border cuts a part, sums to one.
    let line = iota(g, taps)?;
    let line = g.reshape(line, &[1, taps])?;
    let line = g.offset(line, -(taps.saturating_sub(1) as f64) / 2.0)?;
    let kernel = weights(g, line)?;
    let total = g.sum_axes(kernel, &[0, 1])?;
    let band = g.div(band, total)?;
    let samples = if g.ty(band).is_rows() { "b" } else { "" };
    let subscripts = match axis {
        0 => format!("bhwc,{samples}hv->bvwc"),
        _ => format!("bhwc,{samples}wv->bhvc"),
    };
    g.einsum(&subscripts, &[x, band])
}
