//! Image preprocessing and augmentation inside a model: resizing and cropping, which are always active, and
//! random flips, translations, rotations, zooms and contrast changes, which are only active in training.
//!
//! The augmentation of each sample is determined by the run's seed, the step and the sample, so it does not
//! depend on the number of replicas. Keras' `seed` is kept in the config but not used.

mod affine;
pub(super) mod center_crop;
mod factor;
pub(super) mod random_contrast;
pub(super) mod random_crop;
pub(super) mod random_flip;
pub(super) mod random_rotation;
pub(super) mod random_translation;
pub(super) mod random_zoom;
mod resize;
pub(super) mod resizing;

pub use affine::Interpolation;
pub use factor::Factor;
pub use random_flip::FlipMode;
pub use resize::Resampling;
pub(super) use resize::resize;

use super::spatial::{ImageDataFormat, spatial};
use crate::error::Result;
use crate::layer::LayerContext;
use phalanx_graph::{DType, NodeId, Op};

/// The single input, an image of any number type, as floats; and its height, width and channels.
fn float_image(cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<(NodeId, [usize; 3])> {
    let image = spatial(cx, inputs, &ImageDataFormat::ChannelsLast.into())?;
    let [height, width] = image.sizes;
    Ok((cx.graph().cast(image.x, DType::F32)?, [height, width, image.channels]))
}

/// Random numbers in `[0, 1)` for each sample, in a separate stream for this call.
fn uniform(cx: &mut LayerContext<'_>, dims: &[usize]) -> Result<NodeId> {
    let key = cx.stream();
    Ok(cx.graph().push(Op::Uniform { key, dims: dims.to_vec() }, &[])?)
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
