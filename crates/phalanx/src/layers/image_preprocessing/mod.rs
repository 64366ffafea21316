//! Image preprocessing and augmentation inside a model: resizing, cropping and adaptive contrast, which are always
//! active, and random changes, which are only active in training.
//!
//! The augmentation of each sample is determined by the run's seed, the step and the sample, so it does not
//! depend on the number of replicas. Keras' `seed` is kept in the config but not used. Where Keras draws one
//! number for a whole batch, every sample has its own here.

mod affine;
pub(super) mod aug_mix;
pub(super) mod center_crop;
pub(super) mod color;
mod distribution;
mod factor;
pub(super) mod filter;
pub(super) mod histogram;
pub(super) mod mixing;
pub(super) mod pointwise;
pub(super) mod rand_augment;
pub(super) mod random_contrast;
pub(super) mod random_crop;
pub(super) mod random_elastic_transform;
pub(super) mod random_erasing;
pub(super) mod random_flip;
pub(super) mod random_perspective;
pub(super) mod random_rotation;
pub(super) mod random_shear;
pub(super) mod random_translation;
pub(super) mod random_zoom;
mod resize;
pub(super) mod resizing;

pub use affine::Interpolation;
pub use factor::Factor;
pub use random_elastic_transform::ElasticFillMode;
pub use random_erasing::Fill;
pub use random_flip::FlipMode;
pub(crate) use resize::AxisSampling;
pub use resize::Resampling;
pub(super) use resize::resize;

use super::spatial::{ImageDataFormat, spatial};
use crate::error::Result;
use crate::layer::{LayerContext, Outputs};
use phalanx_graph::functions::math::less;
use phalanx_graph::{DType, Graph, NodeId, Op};

/// The single input, an image of any number type, as floats; and its height, width and channels.
fn float_image(cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<(NodeId, [usize; 3])> {
    let image = spatial(cx, inputs, &ImageDataFormat::ChannelsLast.into())?;
    let [height, width] = image.sizes;
    Ok((cx.graph().cast(image.x, DType::F32)?, [height, width, image.channels]))
}

/// The height, width and channels of an image.
fn image_dims(cx: &LayerContext<'_>, x: NodeId) -> [usize; 3] {
    match cx.dims(x)[..] {
        [height, width, channels] => [height, width, channels],
        // `float_image` has checked the rank.
        _ => [1, 1, 1],
    }
}

/// A random change of images. Drawing and changing are apart, so that a layer of several changes can apply one
/// twice.
trait Augmentation: std::fmt::Debug {
    /// Fails if an argument is invalid for images of these sizes.
    fn check(&self, cx: &LayerContext<'_>, dims: [usize; 3]) -> Result<()>;

    /// Draws the random numbers of each sample, in Keras' order.
    fn draw(&self, cx: &mut LayerContext<'_>, dims: [usize; 3]) -> Result<Vec<NodeId>>;

    /// Changes the images.
    fn apply(&self, cx: &mut LayerContext<'_>, x: NodeId, drawn: &[NodeId]) -> Result<NodeId>;
}

/// Calls a layer that changes images in training and does nothing otherwise.
fn augment(
    layer: &dyn Augmentation,
    cx: &mut LayerContext<'_>,
    inputs: &[NodeId],
) -> Result<Outputs> {
    let (x, dims) = float_image(cx, inputs)?;
    layer.check(cx, dims)?;
    if !cx.training() {
        return Ok(x.into());
    }
    let drawn = layer.draw(cx, dims)?;
    Ok(layer.apply(cx, x, &drawn)?.into())
}

/// Random numbers in `[0, 1)` for each sample, in a separate stream for this call.
fn uniform(cx: &mut LayerContext<'_>, dims: &[usize]) -> Result<NodeId> {
    let key = cx.stream();
    Ok(cx.graph().push(Op::Uniform { key, dims: dims.to_vec() }, &[])?)
}

/// Random numbers between two others for each sample.
fn uniform_between(
    cx: &mut LayerContext<'_>,
    dims: &[usize],
    [low, high]: [f64; 2],
) -> Result<NodeId> {
    let u = uniform(cx, dims)?;
    let g = cx.graph();
    let scaled = g.scale(u, high - low)?;
    Ok(g.offset(scaled, low)?)
}

/// 1 for samples that a change applies to, with a probability that is drawn from a range, else 0.
fn chance(cx: &mut LayerContext<'_>, range: [f64; 2]) -> Result<NodeId> {
    let probability = uniform_between(cx, &[1, 1, 1], range)?;
    let threshold = uniform(cx, &[1, 1, 1])?;
    Ok(less(cx.graph(), threshold, probability)?)
}

/// Pixel values of 8 bits, Keras' default.
fn bytes() -> (f64, f64) {
    (0.0, 255.0)
}

/// Fails unless the range of pixel values has two ends in order.
fn check_value_range(cx: &LayerContext<'_>, (low, high): (f64, f64)) -> Result<()> {
    if low.is_finite() && high.is_finite() && low <= high {
        return Ok(());
    }
    Err(cx.argument("value_range", "two finite numbers in order", format!("({low}, {high})")))
}

/// Fails unless the range of pixel values has two different ends in order.
fn check_wide_value_range(cx: &LayerContext<'_>, (low, high): (f64, f64)) -> Result<()> {
    check_value_range(cx, (low, high))?;
    if low < high {
        return Ok(());
    }
    Err(cx.argument("value_range", "two different numbers", format!("({low}, {high})")))
}

/// Moves pixel values from a range to another.
fn change_range(
    g: &mut Graph,
    x: NodeId,
    from: (f64, f64),
    to: (f64, f64),
) -> phalanx_graph::Result<NodeId> {
    if from == to {
        return Ok(x);
    }
    let x = g.offset(x, -from.0)?;
    let width = g.scalar(from.1 - from.0);
    let x = g.div(x, width)?;
    let x = g.scale(x, to.1 - to.0)?;
    g.offset(x, to.0)
}

/// `start..start + len` of height and of width.
fn window(
    cx: &mut LayerContext<'_>,
    x: NodeId,
    start: [usize; 2],
    len: [usize; 2],
) -> Result<NodeId> {
    let mut y = x;
    for axis in 0..2 {
        if cx.dims(y)[axis] != len[axis] {
            let op = Op::Slice { axis, start: start[axis], len: len[axis] };
            y = cx.graph().push(op, &[y])?;
        }
    }
    Ok(y)
}
