//! `y = (x - mean) / max(√variance, 1e-7)` with the mean and variance of a dataset, computed over all axes
//! except `axis`; inverted, `y = x · max(√variance, 1e-7) + mean`.
//!
//! The output is float and has the shape of the input. If mean and variance are given, or computed by
//! [`Normalization::adapt`], the layer has no weights and its config holds the numbers. Otherwise it has the
//! weights `mean`, `variance` and `count` of an adapted layer in a Keras file.

use super::numbers::Numbers;
use super::support::{row_axis, single};
use crate::config::{self, setters};
use crate::constraints::Axes;
use crate::error::{Error, Result};
use crate::initializers::Initializer;
use crate::layer::{Layer, LayerContext, MaskRule, Outputs, WeightSpec};
use phalanx_graph::ops::{Binary, Unary};
use phalanx_graph::{DType, Data, NodeId, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Keras' epsilon: the minimum standard deviation.
const EPSILON: f64 = 1e-7;

/// Normalisation by the mean and variance of a dataset.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::Normalization;
/// use phalanx_graph::Tensor;
///
/// let data = Tensor::new([4, 2], vec![0.0f32, 7.0, 2.0, 9.0, 0.0, 7.0, 2.0, 9.0]).unwrap();
/// let norm = Normalization::new().adapt(&data).unwrap();
/// assert_eq!(norm.config()["mean"], serde_json::json!([1.0, 8.0]));
/// assert_eq!(norm.config()["variance"], serde_json::json!([1.0, 1.0]));
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Normalization {
    axis: Axes,
    invert: bool,
    mean: Option<Numbers>,
    variance: Option<Numbers>,
}

impl Default for Normalization {
    fn default() -> Normalization {
        Normalization { axis: Axes::One(-1), invert: false, mean: None, variance: None }
    }
}

impl Normalization {
    /// Separate statistics for each index of the last axis.
    pub fn new() -> Normalization {
        Normalization::default()
    }

    setters! {
        /// The axes with separate statistics for each index; `[]` for a single mean and variance.
        axis: impl Into<Axes>,
        /// Whether to invert the normalisation.
        invert: bool,
    }

    /// The mean, with [`variance`](Normalization::variance).
    #[must_use]
    pub fn mean(mut self, mean: impl Into<Numbers>) -> Normalization {
        self.mean = Some(mean.into());
        self
    }

    /// The variance, with [`mean`](Normalization::mean).
    #[must_use]
    pub fn variance(mut self, variance: impl Into<Numbers>) -> Normalization {
        self.variance = Some(variance.into());
        self
    }

    /// Computes mean and variance from data whose first axis is the batch.
    ///
    /// # Errors
    /// There is no data, or it does not have the axes.
    pub fn adapt(self, data: &Tensor) -> Result<Normalization> {
        let dims = data.dims();
        let rank = dims.len() as i64;
        let owner = "Normalization";
        if data.is_empty() || rank == 0 {
            return Err(Error::argument(owner, "data", "samples", format!("shape {dims:?}")));
        }
        let mut keep = vec![];
        for axis in self.axis.as_slice() {
            let positive = if *axis < 0 { axis.saturating_add(rank) } else { *axis };
            if !(1..rank).contains(&positive) {
                let expected = format!("an axis of {dims:?} other than the batch");
                return Err(Error::argument(owner, "axis", expected, axis));
            }
            keep.push(positive as usize);
        }
        keep.sort_unstable();
        keep.dedup();
        let stat_dims: Vec<usize> = keep.iter().map(|a| dims[*a]).collect();
        let values: Vec<f64> = match data.data() {
            Data::F32(v) => v.iter().map(|x| f64::from(*x)).collect(),
            Data::I32(v) => v.iter().map(|x| f64::from(*x)).collect(),
        };

        let stat_indices = stat_indices(dims, &keep);
        let places = stat_dims.iter().product::<usize>();
        let count = (values.len() / places) as f64;
        let mut mean = vec![0.0; places];
        stat_indices.iter().zip(&values).for_each(|(s, x)| mean[*s] += x / count);
        let mut variance = vec![0.0; places];
        stat_indices
            .iter()
            .zip(&values)
            .for_each(|(s, x)| variance[*s] += (x - mean[*s]).powi(2) / count);
        let (mean, variance) =
            (Numbers::nested(&stat_dims, &mean), Numbers::nested(&stat_dims, &variance));
        Ok(self.mean(mean).variance(variance))
    }
}

/// For each element of a tensor, its index in the statistics along the kept axes.
fn stat_indices(dims: &[usize], keep: &[usize]) -> Vec<usize> {
    let len: usize = dims.iter().product();
    let slot = |element: usize| {
        let (mut rest, mut slot, mut stride) = (element, 0, 1);
        for (axis, d) in dims.iter().enumerate().rev() {
            if keep.contains(&axis) {
                slot += rest % d * stride;
                stride *= d;
            }
            rest /= d;
        }
        slot
    };
    (0..len).map(slot).collect()
}

impl Normalization {
    /// Mean and standard deviation as constants.
    fn constant_stats(
        &self,
        cx: &mut LayerContext<'_>,
        x: NodeId,
        axes: &[usize],
        mean: &Numbers,
        variance: &Numbers,
    ) -> Result<(NodeId, NodeId)> {
        if mean.shape() != variance.shape() {
            let (expected, received) = (format!("{:?}", mean.shape()), variance.shape());
            let expected = format!("the shape of mean, {expected}");
            return Err(cx.argument("variance", &expected, format!("{received:?}")));
        }
        if let Some(bad) = variance.flat().iter().find(|v| **v < 0.0) {
            return Err(cx.argument("variance", "0 or more", bad));
        }
        let stddev = variance.map(|v| v.sqrt().max(EPSILON));
        Ok((mean.constant(cx, "mean", x, axes)?, stddev.constant(cx, "variance", x, axes)?))
    }

    /// Mean and standard deviation from the weights of an adapted layer.
    fn weight_stats(
        &self,
        cx: &mut LayerContext<'_>,
        x: NodeId,
        axes: &[usize],
    ) -> Result<(NodeId, NodeId)> {
        let dims = cx.dims(x);
        let stat_dims: Vec<usize> = axes.iter().map(|a| dims[*a]).collect();
        let mut aligned = vec![1; dims.len()];
        axes.iter().for_each(|a| aligned[*a] = dims[*a]);
        let (zeros, ones) = (Initializer::Zeros {}, Initializer::Ones {});
        let mean = cx.weight(WeightSpec::new("mean", &stat_dims, zeros.clone()).non_trainable())?;
        let variance = cx.weight(WeightSpec::new("variance", &stat_dims, ones).non_trainable())?;
        cx.weight(WeightSpec::new("count", &[], zeros).non_trainable())?;
        let g = cx.graph();
        let mean = g.reshape(mean, &aligned)?;
        let variance = g.reshape(variance, &aligned)?;
        let stddev = g.unary(Unary::Sqrt, variance)?;
        let epsilon = g.scalar(EPSILON);
        Ok((mean, g.binary(Binary::Max, stddev, epsilon)?))
    }
}

impl Layer for Normalization {
    fn class_name(&self) -> &'static str {
        "Normalization"
    }

    fn config(&self) -> Map<String, Value> {
        // Keras writes a list even for a single axis.
        let axis = self.axis.as_slice().into();
        config::write(&Normalization { axis, ..self.clone() })
    }

    fn mask_rule(&self) -> MaskRule {
        MaskRule::Pass
    }

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        let x = single(cx, inputs)?;
        let x = cx.graph().cast(x, DType::F32)?;
        let constant_stats = self.axis.as_slice();
        let mut axes =
            constant_stats.iter().map(|a| row_axis(cx, x, *a)).collect::<Result<Vec<_>>>()?;
        axes.sort_unstable();
        axes.dedup();
        let (mean, stddev) = match (&self.mean, &self.variance) {
            (Some(mean), Some(variance)) => self.constant_stats(cx, x, &axes, mean, variance)?,
            (None, None) => self.weight_stats(cx, x, &axes)?,
            (Some(_), None) => return Err(cx.argument("variance", "one, as mean has", "none")),
            (None, Some(_)) => return Err(cx.argument("mean", "one, as variance has", "none")),
        };
        let g = cx.graph();
        if self.invert {
            let y = g.mul(x, stddev)?;
            return Ok(g.add(y, mean)?.into());
        }
        let y = g.sub(x, mean)?;
        Ok(g.div(y, stddev)?.into())
    }
}
