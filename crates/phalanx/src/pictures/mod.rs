//! Pictures of a training run: its curves, a confusion matrix, samples with their predictions, and
//! the model as a graph. The extension of the path chooses between PNG and SVG, and the same input
//! gives the same bytes. Everything is drawn by the program itself: no system font, no library.
//!
//! Each picture is laid out as a `scene`, a list of shapes, which `raster` and `svg` turn into
//! a file; a file appears under its name only when it is complete.

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

pub use confusion_matrix::confusion_matrix;
pub use curves::curves;
pub use graph::model;
pub use samples::samples;

use crate::error::{Error, Result};
use scene::Scene;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The format of a picture file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Png,
    Svg,
}

/// The format that a path's extension names; asked before anything is drawn.
fn format(path: &Path) -> Result<Format> {
    let extension = path.extension().map(|e| e.to_string_lossy().to_lowercase());
    match extension.as_deref() {
        Some("png") => Ok(Format::Png),
        Some("svg") => Ok(Format::Svg),
        Some(other) => Err(Error::file(path, "a picture's extension, .png or .svg", other)),
        None => Err(Error::file(path, "a picture's extension, .png or .svg", "none")),
    }
}

fn save(scene: &Scene, format: Format, path: &Path) -> Result<()> {
    let bytes = match format {
        Format::Png => raster::png(scene).map_err(|e| Error::io(path, e))?,
        Format::Svg => svg::document(scene).into_bytes(),
    };
    write(path, &bytes).map_err(|e| Error::io(path, e))
}

/// Writes under a temporary name in the same directory, then renames: a reader never sees a part,
/// and the old picture stays if the new one cannot be written.
fn write(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    name.push(format!(".{}-{count}.tmp", std::process::id()));
    let temporary = path.with_file_name(name);
    let written = fs::write(&temporary, bytes).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        // what went wrong is reported; a temporary file that cannot be removed adds nothing
        let _ = fs::remove_file(&temporary);
    }
    written
}
