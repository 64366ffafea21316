//! The combination of several categories, put into bins by a hash.
//!
//! Inputs `(batch,)` or `(batch, 1)` of strings or integers, output of the same shape or one-hot. Runs on the host.

use super::encode::{AlwaysFalse, OutputMode};
use super::hash::{combine, fingerprint};
use super::integers;
use crate::config::setters;
use crate::data::Samples;
use crate::error::{Error, Result};
use crate::layer::{
    Elements, HostLayer, InputsForm, Layer, LayerContext, Outputs, RowType, host_only,
};
use crate::registry::keras_class;
use phalanx_graph::NodeId;
use serde::{Deserialize, Serialize};

/// The key that TensorFlow's hash of crossed features starts with.
const HASH_KEY: u64 = 0x00DE_CAFC_AFFE;

/// Crosses categories.
///
/// ```
/// use phalanx::prelude::*;
///
/// let layer = HashedCrossing::new(5);
/// let left = Text::from(["A", "B", "A", "B", "A"]);
/// let right = Tensor::new([5], vec![101, 101, 101, 102, 102])?;
/// let bins = layer.preprocess((left, right))?;
/// assert_eq!(bins.to_tensor().i32().unwrap(), [1, 4, 1, 1, 3]);
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default = "defaults", deny_unknown_fields)]
pub struct HashedCrossing {
    num_bins: usize,
    output_mode: OutputMode,
    sparse: AlwaysFalse,
}

fn defaults() -> HashedCrossing {
    HashedCrossing::new(0)
}

impl HashedCrossing {
    /// Hashes to `num_bins` bins.
    pub fn new(num_bins: usize) -> HashedCrossing {
        HashedCrossing { num_bins, output_mode: OutputMode::Int, sparse: AlwaysFalse }
    }

    setters! {
        /// The form of the output, an index or one-hot; defaults to an index.
        output_mode: OutputMode,
    }
}

impl Layer for HashedCrossing {
    keras_class!("HashedCrossing");

    fn inputs_form(&self) -> InputsForm {
        InputsForm::List
    }

    fn call(&self, cx: &mut LayerContext<'_>, _: &[NodeId]) -> Result<Outputs> {
        Err(host_only(&format!("layer '{}'", cx.name())))
    }

    fn host(&self) -> Option<&dyn HostLayer> {
        Some(self)
    }

    fn dtype(&self) -> &'static str {
        if self.output_mode == OutputMode::Int { "int64" } else { "float32" }
    }
}

impl HostLayer for HashedCrossing {
    fn output_type(&self, owner: &str, inputs: &[RowType]) -> Result<RowType> {
        let fail = |argument: &str, expected: &str, received: String| {
            Err(Error::argument(owner, argument, expected, received))
        };
        self.output_mode.check(owner, &[OutputMode::Int, OutputMode::OneHot])?;
        if self.num_bins == 0 || i32::try_from(self.num_bins).is_err() {
            return fail("num_bins", "1 to 2³¹ - 1", self.num_bins.to_string());
        }
        let [first, _, ..] = inputs else {
            return fail("inputs", "two or more", inputs.len().to_string());
        };
        for input in inputs {
            let single = matches!(input.sizes(), [] | [Some(1)]) && input.shape == first.shape;
            if !single || input.elements == Elements::Floats {
                let expected = "strings or integers of equal shape, (batch,) or (batch, 1)";
                return fail("inputs", expected, input.to_string());
            }
        }
        self.output_mode.output_type(owner, first.sizes(), || Ok(self.num_bins))
    }

    fn run(&self, owner: &str, inputs: &[Samples]) -> Result<Samples> {
        let types: Vec<RowType> = inputs.iter().map(RowType::of).collect();
        let ty = self.output_type(owner, &types)?;
        let rows = inputs[0].rows();
        let mut hashes = vec![HASH_KEY; rows];
        for samples in inputs {
            if samples.rows() != rows {
                let (expected, received) = (format!("{rows} rows in each"), samples.rows());
                return Err(Error::argument(owner, "inputs", expected, received));
            }
            let features: Vec<u64> = match samples.text() {
                Some(text) => text.iter().map(|string| fingerprint(string.as_bytes())).collect(),
                None => integers(owner, samples)?.into_iter().map(|n| n as u64).collect(),
            };
            let each = hashes.iter_mut().zip(features);
            each.for_each(|(hash, feature)| *hash = combine(*hash, feature));
        }
        let bins = hashes.into_iter().map(|hash| Ok([(hash % self.num_bins as u64) as i64]));
        Ok(self.output_mode.encode(owner, &ty, bins)?.into())
    }
}
