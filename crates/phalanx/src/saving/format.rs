//! File formats, selected by extension.

use crate::error::{Error, Result};
use std::path::Path;

/// A file format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// `.keras`: a whole model.
    Keras,
    /// `.weights.h5`: weights, by class and index.
    WeightsH5,
    /// Other `.h5`: weights by name, or a whole model.
    LegacyH5,
    /// `.safetensors`: weights, with the structure in the metadata.
    SafeTensors,
}

impl Format {
    /// Longer suffixes first.
    const SUFFIXES: [(&'static str, Format); 5] = [
        (".weights.h5", Format::WeightsH5),
        (".keras", Format::Keras),
        (".h5", Format::LegacyH5),
        (".hdf5", Format::LegacyH5),
        (".safetensors", Format::SafeTensors),
    ];

    /// The format that the extension of a path selects.
    pub(crate) fn of(path: &Path) -> Result<Format> {
        let name = path.file_name().map(|n| n.to_string_lossy().to_lowercase()).unwrap_or_default();
        let known =
            |(ending, _): &&(&str, Format)| name.len() > ending.len() && name.ends_with(*ending);
        Format::SUFFIXES.iter().find(known).map(|(_, format)| *format).ok_or_else(|| {
            let suffixes: Vec<&str> = Format::SUFFIXES.iter().map(|(ending, _)| *ending).collect();
            let expected = format!("a name ending in {}", suffixes.join(", "));
            let extension = path.extension().map(|e| format!(".{}", e.to_string_lossy()));
            Error::file(path, expected, extension.unwrap_or("no extension".into()))
        })
    }

    /// Whether the format stores only weights; `None` if it may be either.
    pub(crate) fn weights_only(self) -> Option<bool> {
        match self {
            Format::Keras => Some(false),
            Format::WeightsH5 | Format::SafeTensors => Some(true),
            Format::LegacyH5 => None,
        }
    }
}
