//! Strings and integers to bins, by a hash: FarmHash's fingerprint, or SipHash with a salt.
//!
//! Input `(batch, ..)`, output as `output_mode` says. Runs on the host.

use super::encode::{AlwaysFalse, OutputMode};
use super::hash::{Salt, bucket};
use super::integers;
use crate::config::setters;
use crate::data::Samples;
use crate::error::{Error, Result};
use crate::layer::{
    Elements, HostLayer, Layer, LayerContext, Outputs, RowType, host_only, one_input,
};
use crate::registry::keras_class;
use phalanx_graph::{Data, NodeId};
use serde::{Deserialize, Serialize};

/// The value of padding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a string or a number")]
pub enum MaskValue {
    /// An integer.
    Integer(i64),
    /// A float.
    Float(f64),
    /// A string.
    String(String),
}

impl From<&str> for MaskValue {
    fn from(value: &str) -> MaskValue {
        MaskValue::String(value.into())
    }
}

impl From<i64> for MaskValue {
    fn from(value: i64) -> MaskValue {
        MaskValue::Integer(value)
    }
}

/// Puts values into bins by a hash.
///
/// ```
/// use phalanx::prelude::*;
///
/// let layer = Hashing::new(3);
/// let bins = layer.preprocess(Text::from(["A", "B", "C", "D", "E"]))?;
/// assert_eq!(bins.to_tensor().i32().unwrap(), [1, 0, 1, 1, 2]);
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default = "defaults", deny_unknown_fields)]
pub struct Hashing {
    num_bins: usize,
    mask_value: Option<MaskValue>,
    salt: Option<Salt>,
    output_mode: OutputMode,
    sparse: AlwaysFalse,
}

fn defaults() -> Hashing {
    Hashing::new(0)
}

impl Hashing {
    /// Hashes to `num_bins` bins.
    pub fn new(num_bins: usize) -> Hashing {
        Hashing {
            num_bins,
            mask_value: None,
            salt: None,
            output_mode: OutputMode::Int,
            sparse: AlwaysFalse,
        }
    }

    setters! {
        /// The form of the output; defaults to the number of the bin.
        output_mode: OutputMode,
    }

    /// The value that has the first bin for itself.
    #[must_use]
    pub fn mask_value(mut self, mask_value: impl Into<MaskValue>) -> Hashing {
        self.mask_value = Some(mask_value.into());
        self
    }

    /// The key of a strong hash.
    #[must_use]
    pub fn salt(mut self, salt: impl Into<Salt>) -> Hashing {
        self.salt = Some(salt.into());
        self
    }

    /// Which elements are padding.
    fn is_masked(&self, owner: &str, samples: &Samples) -> Result<Vec<bool>> {
        let wrong = |received: &MaskValue| {
            let expected = format!("one of the {}", RowType::of(samples));
            Err(Error::argument(owner, "mask_value", expected, format!("{received:?}")))
        };
        let none = || vec![false; samples.dims().iter().product()];
        let Some(mask) = &self.mask_value else { return Ok(none()) };
        if let Some(text) = samples.text() {
            let MaskValue::String(mask) = mask else { return wrong(mask) };
            return Ok(text.iter().map(|string| string == mask).collect());
        }
        let mask = match mask {
            MaskValue::Integer(mask) => *mask as f64,
            MaskValue::Float(mask) => *mask,
            MaskValue::String(_) => return wrong(mask),
        };
        Ok(match samples.to_tensor().data() {
            Data::I32(values) => values.iter().map(|v| f64::from(*v) == mask).collect(),
            Data::F32(values) => values.iter().map(|v| *v == mask as f32).collect(),
        })
    }
}

impl Layer for Hashing {
    keras_class!("Hashing");

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

impl HostLayer for Hashing {
    fn output_type(&self, owner: &str, inputs: &[RowType]) -> Result<RowType> {
        let input = one_input(owner, inputs)?;
        let known = [OutputMode::Int, OutputMode::OneHot, OutputMode::MultiHot, OutputMode::Count];
        self.output_mode.check(owner, &known)?;
        if self.num_bins == 0 || i32::try_from(self.num_bins).is_err() {
            return Err(Error::argument(owner, "num_bins", "1 to 2³¹ - 1", self.num_bins));
        }
        let sizes = match (self.output_mode, input.sizes()) {
            // Keras removes an axis of one element, and the encoding another.
            (OutputMode::OneHot, [lead @ .., Some(1)]) => lead,
            (_, sizes) => sizes,
        };
        self.output_mode.output_type(owner, sizes, || Ok(self.num_bins))
    }

    fn run(&self, owner: &str, inputs: &[Samples]) -> Result<Samples> {
        let samples = one_input(owner, inputs)?;
        let input = RowType::of(samples);
        let ty = self.output_type(owner, std::slice::from_ref(&input))?;
        let masked = self.is_masked(owner, samples)?;
        // A single bin cannot be kept for padding.
        let keeps = self.mask_value.is_some() && self.num_bins > 1;
        let bins = (self.num_bins - usize::from(keeps)) as u64;
        let bin = |(bytes, masked): (&[u8], &bool)| match (keeps, masked) {
            (true, true) => 0,
            _ => bucket(bytes, self.salt, bins) as i64 + i64::from(keeps),
        };
        let each: Vec<i64> = match (samples.text(), input.elements) {
            (Some(text), _) => text.iter().map(str::as_bytes).zip(&masked).map(bin).collect(),
            (None, Elements::Floats | Elements::Integers | Elements::Strings) => {
                let numbers = integers(owner, samples)?;
                let decimal = numbers.iter().zip(&masked);
                decimal.map(|(n, masked)| bin((n.to_string().as_bytes(), masked))).collect()
            }
        };
        let rows = each.chunks_exact(samples.row_len().max(1)).map(|row| Ok(row.iter().copied()));
        Ok(self.output_mode.encode(owner, &ty, rows)?.into())
    }
}
