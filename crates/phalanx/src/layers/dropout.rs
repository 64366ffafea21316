//! Dropout. In training it sets a fraction `rate` of the elements to zero and multiplies the rest by
//! `1 / (1 - rate)`; otherwise it is the identity. The output has the shape of the input.
//!
//! The mask is determined by the run's seed, the step and the sample, so it does not depend on the number of
//! replicas. Keras' `seed` is kept in the config but not used.

use super::spatial::{ImageDataFormat, restore, spatial};
use super::support::single;
use crate::by_name::ByName;
use crate::config::setters;
use crate::error::Result;
use crate::layer::{Layer, LayerContext, MaskRule, Outputs};
use crate::registry::keras_class;
use phalanx_graph::{NodeId, Op};
use serde::{Deserialize, Serialize};

/// Fails unless the argument is a rate at which something remains.
pub(super) fn check_rate(cx: &LayerContext<'_>, argument: &str, rate: f64) -> Result<()> {
    if (0.0..1.0).contains(&rate) {
        Ok(())
    } else {
        Err(cx.argument(argument, "0 or more and less than 1", rate))
    }
}

/// The dimensions of the mask of one sample, from Keras' `noise_shape`.
pub(super) fn noise_dims(
    cx: &LayerContext<'_>,
    shape: Option<&[Option<usize>]>,
    dims: &[usize],
) -> Result<Vec<usize>> {
    let Some(shape) = shape else { return Ok(dims.to_vec()) };
    let fits = |(n, d): (&Option<usize>, &usize)| n.is_none_or(|n| n == 1 || n == *d);
    match shape {
        [None, rest @ ..] if rest.len() == dims.len() && rest.iter().zip(dims).all(fits) => {
            Ok(rest.iter().zip(dims).map(|(n, d)| n.unwrap_or(*d)).collect())
        }
        _ => {
            let expected = format!("None for the batch, then None, 1 or the size for {dims:?}");
            Err(cx.argument("noise_shape", &expected, format!("{shape:?}")))
        }
    }
}

/// Dropout in training. `noise` has size one on axes that share their mask.
pub(super) fn drop(
    cx: &mut LayerContext<'_>,
    x: NodeId,
    rate: f64,
    noise: Vec<usize>,
) -> Result<NodeId> {
    if !cx.training() || rate == 0.0 {
        return Ok(x);
    }
    let key = cx.stream();
    Ok(cx.graph().push(Op::Dropout { rate: rate.into(), key, noise }, &[x])?)
}

/// Dropout of individual elements.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::Dropout;
///
/// assert_eq!(Dropout::new(0.5).config()["rate"], 0.5);
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dropout {
    rate: f64,
    seed: Option<i64>,
    noise_shape: Option<Vec<Option<usize>>>,
}

impl Dropout {
    /// Drops a fraction `rate`.
    pub fn new(rate: f64) -> Dropout {
        Dropout { rate, seed: None, noise_shape: None }
    }

    /// The shape of the mask, starting with the batch (`None`). An axis of `Some(1)` is dropped as a whole; the
    /// elements of a `None` axis are dropped independently.
    #[must_use]
    pub fn noise_shape(mut self, noise_shape: impl Into<Vec<Option<usize>>>) -> Dropout {
        self.noise_shape = Some(noise_shape.into());
        self
    }
}

impl Layer for Dropout {
    keras_class!("Dropout");

    fn mask_rule(&self) -> MaskRule {
        MaskRule::Pass
    }

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        check_rate(cx, "rate", self.rate)?;
        let x = single(cx, inputs)?;
        let noise = noise_dims(cx, self.noise_shape.as_deref(), &cx.dims(x))?;
        Ok(drop(cx, x, self.rate, noise)?.into())
    }
}

/// Dropout of whole channels of a sequence.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::SpatialDropout1D;
///
/// assert_eq!(SpatialDropout1D::new(0.2).config()["rate"], 0.2);
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpatialDropout1D {
    rate: f64,
    seed: Option<i64>,
}

impl SpatialDropout1D {
    /// Drops a fraction `rate` of the channels.
    pub fn new(rate: f64) -> SpatialDropout1D {
        SpatialDropout1D { rate, seed: None }
    }
}

impl Layer for SpatialDropout1D {
    keras_class!("SpatialDropout1D");

    fn mask_rule(&self) -> MaskRule {
        MaskRule::Pass
    }

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        check_rate(cx, "rate", self.rate)?;
        let x = spatial::<1>(cx, inputs, &ImageDataFormat::ChannelsLast.into())?;
        Ok(drop(cx, x.x, self.rate, vec![1, x.channels])?.into())
    }
}

/// Dropout of whole channels of an image.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::SpatialDropout2D;
///
/// assert_eq!(SpatialDropout2D::new(0.2).config()["rate"], 0.2);
/// ```
pub type SpatialDropout2D = SpatialDropout<2>;

/// Dropout of whole channels of a volume.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::SpatialDropout3D;
///
/// assert_eq!(SpatialDropout3D::new(0.2).config()["rate"], 0.2);
/// ```
pub type SpatialDropout3D = SpatialDropout<3>;

/// Dropout of whole channels with `N` spatial axes.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpatialDropout<const N: usize> {
    rate: f64,
    seed: Option<i64>,
    #[serde(default)]
    data_format: ByName<ImageDataFormat>,
}

impl<const N: usize> SpatialDropout<N> {
    const NAME: &'static str = ["SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D"][N - 1];

    /// Drops a fraction `rate` of the channels.
    pub fn new(rate: f64) -> SpatialDropout<N> {
        SpatialDropout { rate, seed: None, data_format: ImageDataFormat::ChannelsLast.into() }
    }

    setters! {
        /// `channels_last` (the default) or `channels_first`.
        data_format: impl Into<ByName<ImageDataFormat>>,
    }
}

impl<const N: usize> Layer for SpatialDropout<N> {
    keras_class!(SpatialDropout::<N>::NAME);

    fn mask_rule(&self) -> MaskRule {
        MaskRule::Pass
    }

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        check_rate(cx, "rate", self.rate)?;
        let x = spatial::<N>(cx, inputs, &self.data_format)?;
        let noise = [1; N].into_iter().chain([x.channels]).collect();
        let y = drop(cx, x.x, self.rate, noise)?;
        Ok(restore(cx, y, &self.data_format)?.into())
    }
}
