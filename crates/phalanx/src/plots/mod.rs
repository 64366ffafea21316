//! Plots of a training run: curves, a confusion matrix, samples with their predictions, and the model as
//! a graph. The extension of the path selects PNG or SVG, and the same input gives the same bytes.
//! Drawing needs no system font and no external library.
//!
//! Each plot is laid out as a `scene`, a list of shapes, which `raster` and `svg` convert to a file.
//! Files are written atomically. In a build without the feature `plots` every function fails.

mod axis;
mod confusion_matrix;
mod curves;
mod font;
mod graph;
mod layout;
mod raster;
mod samples;
mod scene;
mod svg;

pub use confusion_matrix::{MAX_CLASSES, confusion_matrix};
pub use curves::curves;
pub use graph::model;
pub use samples::samples;

use crate::error::{Error, Result};
use crate::saving::write_atomic;
use scene::Scene;
use std::path::Path;

/// The format of a plot file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Png,
    Svg,
}

/// Checks that a plot can be written in the format of a path, before the work whose result it shows.
///
/// # Errors
/// A path that ends neither in `.png` nor in `.svg`, or a build without the feature `plots`.
pub fn check(path: &Path) -> Result<()> {
    format(path).map(|_| ())
}

/// The format that the extension of a path selects. Checked before anything is drawn.
fn format(path: &Path) -> Result<Format> {
    let extension = path.extension().map(|e| e.to_string_lossy().to_lowercase());
    match extension.as_deref() {
        Some("png") => Ok(Format::Png),
        Some("svg") => Ok(Format::Svg),
        Some(other) => Err(Error::file(path, "the extension .png or .svg", other)),
        None => Err(Error::file(path, "the extension .png or .svg", "none")),
    }
}

fn save(scene: &Scene, format: Format, path: &Path) -> Result<()> {
    let bytes = match format {
        Format::Png => raster::png(scene).map_err(|e| Error::io(path, e))?,
        Format::Svg => svg::document(scene).into_bytes(),
    };
    write_atomic(path, |out| out.write_all(&bytes))
}
