//! One format into another.

use super::{Format, Load, Parts, save};
use crate::error::Result;
use std::path::Path;

/// Writes the model of one file to another, in the format of the other's name: whole models as `.keras` or
/// `.h5`, weights as `.weights.h5` or `.safetensors` (which keeps the structure in its metadata).
///
/// # Errors
/// A file that cannot be read or has no structure, and what the system reports on writing.
pub fn convert(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
    let (from, to) = (from.as_ref(), to.as_ref());
    let format = Format::of(to)?;
    // Files of weights have no place for an optimizer.
    let whole = format != Format::WeightsH5;
    let model = Load::new().compile(whole).model(from)?;
    let training = model.training();
    save(to, model.definition(), &model.own_weights()?, Parts { whole, training })
}
