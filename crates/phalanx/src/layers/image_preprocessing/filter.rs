//! Sharper and softer images, in training; otherwise the identity. The output has the shape of the input.
//!
//! - `RandomSharpness`: `x + (1 - 2f) · (smooth(x) - x)` with a smoothing of 3 by 3 pixels
//! - `RandomGaussianBlur`: a Gaussian smoothing of a part of the images

use super::super::support::DataFormat;
use super::{
    Augmentation, Factor, augment, bytes, chance, check_value_range, image_dims, uniform,
    uniform_between,
};
use crate::config::setters;
use crate::error::Result;
use crate::layer::{Layer, LayerContext, Outputs};
use crate::layers::spatial::Pair;
use crate::registry::keras_class;
use phalanx_graph::functions::image::smooth;
use phalanx_graph::ops::PoolKind;
use phalanx_graph::{ConvGeom, NodeId, Op, Padding, Window};
use serde::{Deserialize, Serialize};

/// Randomly changes the sharpness of images in training.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::RandomSharpness;
///
/// let sharpness = RandomSharpness::new((0.2, 0.8)); // 0.5 does not change an image
/// assert_eq!(sharpness.config()["factor"], serde_json::json!([0.2, 0.8]));
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomSharpness {
    factor: Factor,
    #[serde(default = "bytes")]
    value_range: (f64, f64),
    seed: Option<i64>,
    #[serde(default)]
    data_format: DataFormat,
}

impl RandomSharpness {
    /// The sharpness from 0 (smooth) to 1 (sharper); one number stands for 0 up to it.
    pub fn new(factor: impl Into<Factor>) -> RandomSharpness {
        RandomSharpness {
            factor: factor.into().span(0.0),
            value_range: bytes(),
            seed: None,
            data_format: DataFormat::ChannelsLast,
        }
    }

    setters! {
        /// The minimum and maximum pixel values; default to 0 and 255.
        value_range: (f64, f64),
        /// Ignored; kept for compatibility with Keras. The run's seed is used.
        seed: Option<i64>,
    }
}

impl Layer for RandomSharpness {
    keras_class!("RandomSharpness");

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        augment(self, cx, inputs)
    }
}

impl Augmentation for RandomSharpness {
    fn check(&self, cx: &LayerContext<'_>, _: [usize; 3]) -> Result<()> {
        self.factor.within(cx, "factor", [0.0, 1.0])?;
        check_value_range(cx, self.value_range)
    }

    fn draw(&self, cx: &mut LayerContext<'_>, _: [usize; 3]) -> Result<Vec<NodeId>> {
        Ok(vec![uniform_between(cx, &[1, 1, 1], self.factor.span(0.0).ends())?])
    }

    fn apply(&self, cx: &mut LayerContext<'_>, x: NodeId, drawn: &[NodeId]) -> Result<NodeId> {
        let smooth = three_by_three(cx, x)?;
        let g = cx.graph();
        let sharp = g.scale(drawn[0], 2.0)?;
        let one = g.scalar(1.0);
        let part = g.sub(one, sharp)?;
        let apart = g.sub(smooth, x)?;
        let apart = g.mul(part, apart)?;
        let y = g.add(x, apart)?;
        Ok(g.clamp(y, self.value_range.0, self.value_range.1)?)
    }
}

/// The sum of the 3 by 3 pixels around each one, of which the middle counts five times, divided by 13. Outside of the
/// image are zeros.
fn three_by_three(cx: &mut LayerContext<'_>, x: NodeId) -> Result<NodeId> {
    let [height, width, channels] = image_dims(cx, x);
    let before = vec![1, 1, 0];
    let g = cx.graph();
    let padded = g.push(Op::Pad { before: before.clone(), after: before }, &[x])?;
    let window = Window {
        kernel: [3, 3],
        stride: [1, 1],
        dilation: [1, 1],
        padding: Padding::Valid,
        groups: 1,
    };
    let geom = ConvGeom::new([height + 2, width + 2, channels], channels, window);
    let geom = geom.ok_or_else(|| cx.argument("input", "an image", "none"))?;
    let g = cx.graph();
    let mean = g.push(Op::Pool(PoolKind::Average, geom), &[padded])?;
    let sum = g.scale(mean, 9.0)?;
    let middle = g.scale(x, 4.0)?;
    let sum = g.add(sum, middle)?;
    Ok(g.scale(sum, 1.0 / 13.0)?)
}

/// The largest kernel, and so the largest matrix of weights along an axis.
const MAX_KERNEL: usize = 1 << 12;

/// Smooths a random part of the images in training.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::RandomGaussianBlur;
///
/// let blur = RandomGaussianBlur::new(0.5).kernel_size(5).sigma((0.1, 1.0));
/// assert_eq!(blur.config()["kernel_size"], serde_json::json!([5, 5]));
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RandomGaussianBlur {
    factor: Factor,
    kernel_size: Pair,
    sigma: Factor,
    value_range: (f64, f64),
    seed: Option<i64>,
    data_format: DataFormat,
}

impl Default for RandomGaussianBlur {
    fn default() -> RandomGaussianBlur {
        RandomGaussianBlur::new(1.0)
    }
}

impl RandomGaussianBlur {
    /// The range from which the probability is drawn; one number stands for 0 up to it.
    pub fn new(factor: impl Into<Factor>) -> RandomGaussianBlur {
        RandomGaussianBlur {
            factor: factor.into().span(0.0),
            kernel_size: 3.into(),
            sigma: Factor::Ends([0.0, 1.0]),
            value_range: bytes(),
            seed: None,
            data_format: DataFormat::ChannelsLast,
        }
    }

    /// The standard deviation of the kernel, at most 1; one number stands for 0 up to it.
    #[must_use]
    pub fn sigma(mut self, sigma: impl Into<Factor>) -> RandomGaussianBlur {
        self.sigma = sigma.into().span(0.0);
        self
    }

    setters! {
        /// The width and the height of the kernel, odd numbers; default to 3.
        kernel_size: impl Into<Pair>,
        /// The minimum and maximum pixel values; default to 0 and 255.
        value_range: (f64, f64),
        /// Ignored; kept for compatibility with Keras. The run's seed is used.
        seed: Option<i64>,
    }
}

impl Layer for RandomGaussianBlur {
    keras_class!("RandomGaussianBlur");

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        augment(self, cx, inputs)
    }
}

impl Augmentation for RandomGaussianBlur {
    fn check(&self, cx: &LayerContext<'_>, dims: [usize; 3]) -> Result<()> {
        self.factor.within(cx, "factor", [0.0, 1.0])?;
        self.sigma.within(cx, "sigma", [0.0, 1.0])?;
        if self.kernel_size.0.iter().any(|n| n.is_multiple_of(2) || *n > MAX_KERNEL) {
            let expected = format!("odd numbers up to {MAX_KERNEL}");
            return Err(cx.argument("kernel_size", &expected, self.kernel_size));
        }
        if dims[..2].iter().any(|n| *n > MAX_KERNEL) {
            let expected = format!("an image of at most {MAX_KERNEL} pixels along an axis");
            return Err(cx.argument("input", &expected, format!("{:?}", &dims[..2])));
        }
        check_value_range(cx, self.value_range)
    }

    fn draw(&self, cx: &mut LayerContext<'_>, _: [usize; 3]) -> Result<Vec<NodeId>> {
        let applies = chance(cx, self.factor.span(0.0).ends())?;
        let u = uniform(cx, &[2, 1])?;
        let [low, high] = self.sigma.span(0.0).ends();
        let g = cx.graph();
        let sigma = g.scale(u, high - low)?;
        let sigma = g.offset(sigma, low + 1e-6)?;
        let mut along = |start: usize| g.push(Op::Slice { axis: 0, start, len: 1 }, &[sigma]);
        Ok(vec![applies, along(0)?, along(1)?])
    }

    fn apply(&self, cx: &mut LayerContext<'_>, x: NodeId, drawn: &[NodeId]) -> Result<NodeId> {
        let g = cx.graph();
        let mut y = x;
        // The first size and deviation are those along the width.
        for (axis, size, sigma) in
            [(1, self.kernel_size.0[0], drawn[1]), (0, self.kernel_size.0[1], drawn[2])]
        {
            let reach = g.scalar((size / 2) as f64);
            y = smooth(g, y, axis, [sigma, reach], size)?;
        }
        let y = g.select(drawn[0], y, x)?;
        Ok(g.clamp(y, self.value_range.0, self.value_range.1)?)
    }
}
