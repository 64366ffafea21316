//! Perspective maps that move the corners of images at random, in training; otherwise the identity. The output has the
//! shape of the input.

use super::super::support::{DataFormat, check_finite};
use super::affine::Interpolation;
use super::random_translation::bilinear;
use super::{Augmentation, Factor, augment, chance, image_dims, uniform_between};
use crate::by_name::ByName;
use crate::config::setters;
use crate::error::Result;
use crate::layer::{Layer, LayerContext, Outputs};
use crate::registry::keras_class;
use phalanx_graph::NodeId;
use phalanx_graph::functions::image::{Extension, perspective};
use phalanx_graph::functions::layout::concat;
use serde::{Deserialize, Serialize};

/// Randomly changes the perspective of images in training.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::RandomPerspective;
///
/// let perspective = RandomPerspective::new(0.5).scale(0.3);
/// assert_eq!(perspective.config()["scale"], 0.3);
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RandomPerspective {
    factor: Factor,
    scale: f64,
    interpolation: ByName<Interpolation>,
    fill_value: f64,
    seed: Option<i64>,
    data_format: DataFormat,
}

impl Default for RandomPerspective {
    fn default() -> RandomPerspective {
        RandomPerspective::new(1.0)
    }
}

impl RandomPerspective {
    /// The range from which the probability is drawn; one number stands for 0 up to it.
    pub fn new(factor: impl Into<Factor>) -> RandomPerspective {
        RandomPerspective {
            factor: factor.into().span(0.0),
            scale: 1.0,
            interpolation: bilinear(),
            fill_value: 0.0,
            seed: None,
            data_format: DataFormat::ChannelsLast,
        }
    }

    setters! {
        /// How far corners move: up to half of this fraction of their coordinates; defaults to 1.
        scale: f64,
        /// `bilinear` (the default) or `nearest`.
        interpolation: impl Into<ByName<Interpolation>>,
        /// The value of pixels outside of the image; defaults to 0.
        fill_value: f64,
        /// Ignored; kept for compatibility with Keras. The run's seed is used.
        seed: Option<i64>,
    }
}

impl Layer for RandomPerspective {
    keras_class!("RandomPerspective");

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        augment(self, cx, inputs)
    }
}

impl Augmentation for RandomPerspective {
    fn check(&self, cx: &LayerContext<'_>, dims: [usize; 3]) -> Result<()> {
        self.factor.within(cx, "factor", [0.0, 1.0])?;
        self.interpolation.get()?;
        check_finite(cx, "fill_value", self.fill_value)?;
        if dims[..2].iter().any(|n| *n < 2) {
            let received = format!("{:?}", &dims[..2]);
            return Err(cx.argument("input", "an image of at least 2 by 2 pixels", received));
        }
        if (0.0..=1.0).contains(&self.scale) {
            return Ok(());
        }
        Err(cx.argument("scale", "a number from 0 to 1", self.scale))
    }

    fn draw(&self, cx: &mut LayerContext<'_>, _: [usize; 3]) -> Result<Vec<NodeId>> {
        let applies = chance(cx, self.factor.span(0.0).ends())?;
        let far = self.scale / 2.0;
        Ok(vec![applies, uniform_between(cx, &[4, 2], [-far, far])?])
    }

    fn apply(&self, cx: &mut LayerContext<'_>, x: NodeId, drawn: &[NodeId]) -> Result<NodeId> {
        let linear = *self.interpolation.get()? == Interpolation::Bilinear;
        let [height, width, _] = image_dims(cx, x);
        let (right, bottom) = ((width - 1) as f64, (height - 1) as f64);
        let g = cx.graph();
        let mut point = |x: f64, y: f64| {
            let both = [g.fill(x, &[1, 1]), g.fill(y, &[1, 1])];
            concat(g, &both, 1)
        };
        let corners =
            [point(0.0, 0.0)?, point(right, 0.0)?, point(0.0, bottom)?, point(right, bottom)?];
        let start = concat(g, &corners, 0)?;
        let moved = g.mul(start, drawn[1])?;
        let end = g.add(start, moved)?;
        let fill = Extension::Constant(self.fill_value);
        let y = perspective(g, x, [start, end], fill, linear)?;
        Ok(g.select(drawn[0], y, x)?)
    }
}
