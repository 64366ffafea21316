//! The formats of files, told by their names.

use crate::error::{Error, Result};
use std::path::Path;

/// What a file can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// `.keras`: a whole model.
    Keras,
    /// `.weights.h5`: the weights, by class and number.
    WeightsH5,
    /// Other `.h5`: the weights by name, or a whole model.
    LegacyH5,
    /// `.safetensors`: the weights, with the structure in the metadata.
    SafeTensors,
}

impl Format {
    /// Longer endings first.
    const ENDINGS: [(&'static str, Format); 5] = [
        (".weights.h5", Format::WeightsH5),
        (".keras", Format::Keras),
        (".h5", Format::LegacyH5),
        (".hdf5", Format::LegacyH5),
        (".safetensors", Format::SafeTensors),
    ];

    /// The format that a path's name asks for.
    pub(crate) fn of(path: &Path) -> Result<Format> {
        let name = path.file_name().map(|n| n.to_string_lossy().to_lowercase()).unwrap_or_default();
        let known =
            |(ending, _): &&(&str, Format)| name.len() > ending.len() && name.ends_with(*ending);
        Format::ENDINGS.iter().find(known).map(|(_, format)| *format).ok_or_else(|| {
            let endings: Vec<&str> = Format::ENDINGS.iter().map(|(ending, _)| *ending).collect();
            let expected = format!("a name ending in {}", endings.join(", "));
            let extension = path.extension().map(|e| format!(".{}", e.to_string_lossy()));
            Error::file(path, expected, extension.unwrap_or("no extension".into()))
        })
    }

    /// Whether it holds weights and nothing else; `None` where it may be either.
    pub(crate) fn weights_only(self) -> Option<bool> {
        match self {
            Format::Keras => Some(false),
            Format::WeightsH5 | Format::SafeTensors => Some(true),
            Format::LegacyH5 => None,
        }
    }
}
