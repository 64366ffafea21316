//! Conversion between file formats.

use super::load::stored_iterations;
use super::{
    Format, Load, SaveOptions, optimizer_state, run_checkpoints, safetensors, save, warn_not_saved,
};
use crate::error::Result;
use std::path::Path;

/// Converts a model file to the format that the extension of `to` selects: whole models as `.keras` or
/// `.h5`, weights as `.weights.h5` or `.safetensors` (which stores the structure in its metadata). A
/// warning lists what the target format cannot store.
///
/// # Errors
/// A file that cannot be read or has no structure, and errors on writing.
pub fn convert(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
    let (from, to) = (from.as_ref(), to.as_ref());
    let format = Format::of(to)?;
    // Weights files cannot store an optimizer.
    let whole = format != Format::WeightsH5;
    let model = Load::new().compile(whole).model(from)?;
    let training = model.training()?;
    let mut not_saved = vec![];
    let is_state = Format::of(from)? == Format::SafeTensors
        && run_checkpoints::is_state(&safetensors::open(from)?);
    if is_state {
        let hint = "BackupAndRestore can resume it";
        not_saved
            .push(format!("the state of its run: optimizer, counters, place in the data ({hint})"));
    }
    if !whole {
        not_saved.push("structure, losses and metrics".to_string());
        not_saved.extend(optimizer_state(stored_iterations(from)?));
    }
    not_saved.extend(save(
        to,
        model.definition(),
        &model.unique_weights()?,
        SaveOptions { structure: whole, training },
    )?);
    warn_not_saved(to, &not_saved);
    Ok(())
}
