//! One format into another.

use super::load::stored_iterations;
use super::{Format, Load, Parts, optimizer_state, runs, safetensors, save, warn_of_unkept};
use crate::error::Result;
use std::path::Path;

/// Writes the model of one file to another, in the format of the other's name: whole models as `.keras` or
/// `.h5`, weights as `.weights.h5` or `.safetensors` (which keeps the structure in its metadata). What the
/// other file does not keep is said in a warning.
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
    let mut unkept = vec![];
    let is_state =
        Format::of(from)? == Format::SafeTensors && runs::is_state(&safetensors::open(from)?);
    if is_state {
        let kept = "BackupAndRestore goes on with it";
        unkept
            .push(format!("the state of its run: optimizer, counters, place in the data ({kept})"));
    }
    if !whole {
        unkept.push("structure, losses and metrics".to_string());
        unkept.extend(optimizer_state(stored_iterations(from)?));
    }
    unkept.extend(save(to, model.definition(), &model.own_weights()?, Parts { whole, training })?);
    warn_of_unkept(to, &unkept);
    Ok(())
}
