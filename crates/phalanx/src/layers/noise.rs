//! Noise in training; otherwise the identity. The output has the shape of the input.
//!
//! The noise is determined by the run's seed, the step and the sample, so it does not depend on the number of
//! replicas. Keras' `seed` is kept in the config but not used.

use super::dropout::{check_rate, noise_dims};
use super::support::single;
use crate::error::Result;
use crate::layer::{Layer, LayerContext, MaskRule, Outputs};
use crate::registry::keras_class;
use phalanx_graph::ops::{Binary, Unary};
use phalanx_graph::{Graph, NodeId, Op};
use serde::{Deserialize, Serialize};
use std::f64::consts::{FRAC_PI_2, TAU};

/// Uniform random numbers in `[0, 1)`.
fn uniform(cx: &mut LayerContext<'_>, dims: &[usize]) -> Result<NodeId> {
    let key = cx.stream();
    Ok(cx.graph().push(Op::Uniform { key, dims: dims.to_vec() }, &[])?)
}

/// Normal random numbers with mean zero.
pub(crate) fn normal(cx: &mut LayerContext<'_>, dims: &[usize], stddev: f64) -> Result<NodeId> {
    let (u, v) = (uniform(cx, dims)?, uniform(cx, dims)?);
    box_muller(cx.graph(), u, v, stddev)
}

/// Normal random numbers from two uniform ones, by the Box-Muller transform: `√(-2 ln(1 - u)) · cos(2π v)`.
pub(crate) fn box_muller(g: &mut Graph, u: NodeId, v: NodeId, stddev: f64) -> Result<NodeId> {
    // `1 - u` is never zero.
    let one = g.scalar(1.0);
    let rest = g.sub(one, u)?;
    let log = g.unary(Unary::Log, rest)?;
    let square = g.scale(log, -2.0)?;
    let radius = g.unary(Unary::Sqrt, square)?;
    let angle = g.scale(v, TAU)?;
    let angle = g.offset(angle, FRAC_PI_2)?;
    let cos = g.unary(Unary::Sin, angle)?;
    let x = g.mul(radius, cos)?;
    Ok(g.scale(x, stddev)?)
}

/// Adds normal noise.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::GaussianNoise;
///
/// assert_eq!(GaussianNoise::new(0.1).config()["stddev"], 0.1);
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GaussianNoise {
    stddev: f64,
    seed: Option<i64>,
}

impl GaussianNoise {
    /// Noise with a standard deviation between 0 and 1.
    pub fn new(stddev: f64) -> GaussianNoise {
        GaussianNoise { stddev, seed: None }
    }
}

impl Layer for GaussianNoise {
    keras_class!("GaussianNoise");

    fn mask_rule(&self) -> MaskRule {
        MaskRule::Pass
    }

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        if !(0.0..=1.0).contains(&self.stddev) {
            return Err(cx.argument("stddev", "0 or more and at most 1", self.stddev));
        }
        let x = single(cx, inputs)?;
        if !cx.training() || self.stddev == 0.0 {
            return Ok(x.into());
        }
        let noise = normal(cx, &cx.dims(x), self.stddev)?;
        Ok(cx.graph().add(x, noise)?.into())
    }
}

/// Multiplies by normal noise with mean one and standard deviation `√(rate / (1 - rate))`.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::GaussianDropout;
///
/// assert_eq!(GaussianDropout::new(0.5).config()["rate"], 0.5);
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GaussianDropout {
    rate: f64,
    seed: Option<i64>,
}

impl GaussianDropout {
    /// The noise of a dropout of a fraction `rate`.
    pub fn new(rate: f64) -> GaussianDropout {
        GaussianDropout { rate, seed: None }
    }
}

impl Layer for GaussianDropout {
    keras_class!("GaussianDropout");

    fn mask_rule(&self) -> MaskRule {
        MaskRule::Pass
    }

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        check_rate(cx, "rate", self.rate)?;
        let x = single(cx, inputs)?;
        if !cx.training() || self.rate == 0.0 {
            return Ok(x.into());
        }
        let noise = normal(cx, &cx.dims(x), (self.rate / (1.0 - self.rate)).sqrt())?;
        let noise = cx.graph().offset(noise, 1.0)?;
        Ok(cx.graph().mul(x, noise)?.into())
    }
}

/// The limit of SELU for large negative inputs.
const SELU_LIMIT: f64 = -1.7580993408473766;

/// Dropout that keeps the mean and variance of self-normalising networks: dropped elements get the lowest value of SELU,
/// and all elements are scaled and shifted.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::AlphaDropout;
///
/// assert_eq!(AlphaDropout::new(0.1).config()["rate"], 0.1);
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AlphaDropout {
    rate: f64,
    seed: Option<i64>,
    noise_shape: Option<Vec<Option<usize>>>,
}

impl AlphaDropout {
    /// Drops a fraction `rate`.
    pub fn new(rate: f64) -> AlphaDropout {
        AlphaDropout { rate, seed: None, noise_shape: None }
    }

    /// The shape of the mask, starting with the batch (`None`). An axis of `Some(1)` is dropped as a whole; the
    /// elements of a `None` axis are dropped independently.
    #[must_use]
    pub fn noise_shape(mut self, noise_shape: impl Into<Vec<Option<usize>>>) -> AlphaDropout {
        self.noise_shape = Some(noise_shape.into());
        self
    }
}

impl Layer for AlphaDropout {
    keras_class!("AlphaDropout");

    fn mask_rule(&self) -> MaskRule {
        MaskRule::Pass
    }

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        check_rate(cx, "rate", self.rate)?;
        let x = single(cx, inputs)?;
        let noise = noise_dims(cx, self.noise_shape.as_deref(), &cx.dims(x))?;
        if !cx.training() || self.rate == 0.0 {
            return Ok(x.into());
        }
        let drawn = uniform(cx, &noise)?;
        let g = cx.graph();
        let (rate, limit) = (g.scalar(self.rate), g.scalar(SELU_LIMIT));
        let kept = g.binary(Binary::Ge, drawn, rate)?;
        let y = g.select(kept, x, limit)?;
        let variance = (1.0 - self.rate) * (1.0 + self.rate * SELU_LIMIT * SELU_LIMIT);
        let scale = variance.sqrt().recip();
        let y = g.scale(y, scale)?;
        Ok(g.offset(y, -scale * SELU_LIMIT * self.rate)?.into())
    }
}
