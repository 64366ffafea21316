//! Numbers to bins: the number of boundaries that are not above them.
//!
//! Input `(batch, ..)`, output as `output_mode` says.

use super::category_encoding::{encode, row_type};
use super::encode::{AlwaysFalse, OutputMode};
use super::quantiles::Summary;
use crate::config::setters;
use crate::data::Samples;
use crate::error::{Error, Result};
use crate::layer::{Elements, HostLayer, Layer, LayerContext, Outputs, RowType, one_input};
use crate::layers::support::single;
use crate::registry::keras_class;
use phalanx_graph::ops::Binary;
use phalanx_graph::{DType, Data, NodeId, Tensor};
use serde::{Deserialize, Serialize};

/// Puts numbers into bins.
///
/// ```
/// use phalanx::prelude::*;
///
/// let layer = Discretization::new([0.0, 1.0, 2.0]);
/// let bins = layer.preprocess(Tensor::new([2, 2], vec![-1.5f32, 1.0, 3.4, 0.5])?)?;
/// assert_eq!(bins.to_tensor().i32().unwrap(), [0, 2, 3, 1]);
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Discretization {
    bin_boundaries: Option<Vec<f64>>,
    num_bins: Option<usize>,
    epsilon: f64,
    output_mode: OutputMode,
    sparse: AlwaysFalse,
}

impl Default for Discretization {
    fn default() -> Discretization {
        Discretization {
            bin_boundaries: None,
            num_bins: None,
            epsilon: 0.01,
            output_mode: OutputMode::Int,
            sparse: AlwaysFalse,
        }
    }
}

/// Maximum number of bins that are learned.
const MAX_BINS: usize = 1 << 24;

impl Discretization {
    /// Bins between these boundaries, which ascend.
    pub fn new(bin_boundaries: impl Into<Vec<f64>>) -> Discretization {
        Discretization { bin_boundaries: Some(bin_boundaries.into()), ..Discretization::default() }
    }

    /// Bins whose boundaries [`adapt`](Self::adapt) learns.
    pub fn with_bins(num_bins: usize) -> Discretization {
        Discretization { num_bins: Some(num_bins), ..Discretization::default() }
    }

    setters! {
        /// The precision of learned boundaries; defaults to 0.01.
        epsilon: f64,
        /// The form of the output; defaults to the number of the bin.
        output_mode: OutputMode,
    }

    /// Learns the boundaries from data, so that the bins have about as many values each.
    ///
    /// # Errors
    /// Given boundaries, a precision out of range, or values that are not finite.
    pub fn adapt(self, data: &Tensor) -> Result<Discretization> {
        self.adapt_batches([Ok(data.clone())])
    }

    /// Like [`adapt`](Self::adapt), batch by batch.
    ///
    /// # Errors
    /// Those of the batches, and as for [`adapt`](Self::adapt).
    pub fn adapt_batches(
        mut self,
        batches: impl IntoIterator<Item = Result<Tensor>>,
    ) -> Result<Discretization> {
        let owner = "Discretization";
        let Some(bins @ 1..=MAX_BINS) = self.num_bins else {
            let received = self.num_bins.map_or("none".into(), |n| n.to_string());
            let expected = format!("1 to {MAX_BINS}, to learn the boundaries");
            return Err(Error::argument(owner, "num_bins", expected, received));
        };
        if !(self.epsilon > 1e-7 && self.epsilon <= 1.0) {
            return Err(Error::argument(owner, "epsilon", "a number from 1e-7 to 1", self.epsilon));
        }
        let mut summary = Summary::default();
        for batch in batches {
            let values = floats(&batch?.into());
            if let Some(bad) = values.iter().find(|v| !v.is_finite()) {
                return Err(Error::argument(owner, "data", "finite numbers", bad));
            }
            if !values.is_empty() {
                summary.add(values, self.epsilon);
            }
        }
        let boundaries = summary.boundaries(bins);
        self.bin_boundaries = Some(boundaries.into_iter().map(f64::from).collect());
        Ok(self)
    }

    /// The boundaries of the bins, if they are known.
    pub fn bin_boundaries(&self) -> Option<&[f64]> {
        self.bin_boundaries.as_deref()
    }

    /// The boundaries as floats of 32 bits.
    fn boundaries(&self, owner: &str) -> Result<Vec<f32>> {
        let Some(boundaries) = &self.bin_boundaries else {
            let expected = "given ones, or those that adapt() learns";
            return Err(Error::argument(owner, "bin_boundaries", expected, "none"));
        };
        let ascend = boundaries.windows(2).all(|pair| pair[0] <= pair[1]);
        if !ascend || boundaries.iter().any(|b| !b.is_finite()) {
            let received = format!("{boundaries:?}");
            let received = phalanx_graph::text::brief(&received).into_owned();
            return Err(Error::argument(owner, "bin_boundaries", "ascending numbers", received));
        }
        Ok(boundaries.iter().map(|b| *b as f32).collect())
    }
}

/// All numbers as floats.
fn floats(samples: &Samples) -> Vec<f32> {
    match samples.to_tensor().data() {
        Data::F32(values) => values.clone(),
        Data::I32(values) => values.iter().map(|v| *v as f32).collect(),
    }
}

impl Layer for Discretization {
    keras_class!("Discretization");

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        let x = single(cx, inputs)?;
        let owner = format!("layer '{}'", cx.name());
        let ty = self.output_type(&owner, &[row_type(cx, x)])?;
        let boundaries = self.boundaries(&owner)?;
        let dims = cx.dims(x);
        let x = cx.graph().cast(x, DType::F32)?;
        let bins = match boundaries.len() {
            0 => cx.graph().scale(x, 0.0)?,
            n => {
                let boundaries = cx.constant("bin_boundaries", &[n], boundaries);
                let g = cx.graph();
                let x = g.reshape(x, &[&dims[..], &[1]].concat())?;
                // A NaN is not below any boundary, as in Keras.
                let below = g.binary(Binary::Gt, boundaries, x)?;
                let below = g.sum_axes(below, &[dims.len()])?;
                let above = g.scale(below, -1.0)?;
                let above = g.offset(above, n as f64)?;
                g.reshape(above, &dims)?
            }
        };
        let bins = cx.graph().cast(bins, DType::I32)?;
        match self.output_mode {
            OutputMode::Int => Ok(bins.into()),
            mode => Ok(encode(cx, bins, mode, &ty, None)?.into()),
        }
    }

    fn host(&self) -> Option<&dyn HostLayer> {
        Some(self)
    }
}

impl HostLayer for Discretization {
    fn output_type(&self, owner: &str, inputs: &[RowType]) -> Result<RowType> {
        let input = one_input(owner, inputs)?;
        let known = [OutputMode::Int, OutputMode::OneHot, OutputMode::MultiHot, OutputMode::Count];
        self.output_mode.check(owner, &known)?;
        let bins = self.boundaries(owner)?.len() + 1;
        if input.elements == Elements::Strings {
            return Err(Error::argument(owner, "input", "numbers", input));
        }
        self.output_mode.output_type(owner, input.sizes(), || Ok(bins))
    }

    fn run(&self, owner: &str, inputs: &[Samples]) -> Result<Samples> {
        let samples = one_input(owner, inputs)?;
        let ty = self.output_type(owner, &[RowType::of(samples)])?;
        let boundaries = self.boundaries(owner)?;
        // A NaN is not below any boundary.
        let bin = |x: &f32| boundaries.partition_point(|b| x.is_nan() || x >= b) as i64;
        let each: Vec<i64> = floats(samples).iter().map(bin).collect();
        let rows = each.chunks_exact(samples.row_len().max(1)).map(|row| Ok(row.iter().copied()));
        Ok(self.output_mode.encode(owner, &ty, rows)?.into())
    }

    fn runs_on_devices(&self) -> bool {
        true
    }
}
