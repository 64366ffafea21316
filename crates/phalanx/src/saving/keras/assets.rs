//! Vocabularies in `.keras` files: `assets/<layer's path>/vocabulary.txt`, one term per line.

use super::weights::{Slot, StoredArrays, slots};
use crate::error::{Error, Result};
use crate::layer::Layer;
use crate::model::Definition;
use phalanx_hdf5::{GroupBuilder, Values};
use std::collections::HashMap;
use std::path::Path;

/// The name of a vocabulary's file.
pub(super) const VOCABULARY: &str = "vocabulary.txt";
/// The directory of the files beside config and weights.
pub(super) const ASSETS: &str = "assets/";
/// The variable of the weights of terms.
const IDF_WEIGHTS: &str = "idf_weights";

/// Files of an archive by path.
pub(in crate::saving) type Assets = HashMap<String, Vec<u8>>;

/// Whether Python ends a line at this character.
fn ends_line(c: char) -> bool {
    matches!(
        c,
        '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
    )
}

/// The content of a layer's vocabulary file; `None` if the config has the vocabulary, or if lines cannot hold its terms.
pub(super) fn vocabulary_file(layer: &dyn Layer) -> Option<String> {
    let terms = layer.vocabulary()?.terms()?;
    let broken = terms.iter().any(|term| term.contains(ends_line));
    // Empty lines at the end vanish.
    let vanishes = terms.last().is_none_or(String::is_empty);
    (!broken && !vanishes).then(|| terms.join("\n"))
}

/// The lines of a vocabulary file as Python's `splitlines` returns them, without empty ones at the end.
fn lines(text: &str) -> Vec<&str> {
    let mut lines = vec![];
    let mut rest = text;
    while let Some(at) = rest.find(ends_line) {
        lines.push(&rest[..at]);
        let end = if rest[at..].starts_with("\r\n") {
            2
        } else {
            rest[at..].chars().next().map_or(1, char::len_utf8)
        };
        rest = &rest[at + end..];
    }
    lines.push(rest);
    while lines.last().is_some_and(|line| line.is_empty()) {
        lines.pop();
    }
    lines
}

/// The vocabulary files of a model, with their paths.
pub(super) fn files(def: &Definition) -> Vec<(String, String)> {
    let of_slot = |slot: Slot| Some(layer_files(slot.layer?.layer(), &slot.path));
    slots(def).into_iter().filter_map(of_slot).flatten().collect()
}

/// The vocabulary files of the layer at a path.
pub(super) fn layer_files(layer: &dyn Layer, at: &str) -> Vec<(String, String)> {
    let (Some(content), Some(vocabulary)) = (vocabulary_file(layer), layer.vocabulary()) else {
        return vec![];
    };
    let sublayers = vocabulary.sublayers().iter().map(|sublayer| format!("{at}{sublayer}/"));
    let paths = sublayers.chain([at.to_string()]);
    paths.map(|path| (format!("{ASSETS}{path}{VOCABULARY}"), content.clone())).collect()
}

/// Sets the vocabularies of a model.
///
/// # Errors
/// A file that is not UTF-8, or terms that a layer refuses.
pub(in crate::saving) fn set_vocabularies(
    path: &Path,
    assets: &Assets,
    def: &Definition,
) -> Result<()> {
    for slot in slots(def) {
        let Some(layer) = slot.layer else { continue };
        set_vocabulary(path, assets, layer.layer(), (&slot.name, &slot.path))?;
    }
    Ok(())
}

/// Sets the vocabulary of the layer of a name and a path.
pub(super) fn set_vocabulary(
    path: &Path,
    assets: &Assets,
    layer: &dyn Layer,
    (name, at): (&str, &str),
) -> Result<()> {
    let Some(vocabulary) = layer.vocabulary() else { return Ok(()) };
    let Some(bytes) = assets.get(&format!("{ASSETS}{at}{VOCABULARY}")) else { return Ok(()) };
    let text = std::str::from_utf8(bytes).map_err(|_| {
        let expected = format!("UTF-8 in the vocabulary of '{name}'");
        Error::file(path, expected, "other bytes")
    })?;
    let given = layer.config().get("vocabulary").is_some_and(|v| !v.is_null());
    match given {
        true => Ok(()),
        false => vocabulary.set_terms(&format!("layer '{name}'"), &lines(text)),
    }
}

/// Adds the weights of terms to the content of a weights file.
pub(super) fn write_idf_weights(layer: &dyn Layer, path: &str, root: &mut GroupBuilder) {
    let Some(vocabulary) = layer.vocabulary().filter(|v| v.has_idf_weights()) else { return };
    let Some(weights) = vocabulary.idf_weights() else { return };
    let groups = vocabulary.sublayers().iter().map(|sublayer| format!("{path}{sublayer}/vars"));
    for group in groups.chain([format!("{path}vars")]) {
        let values = Values::F32(weights.clone());
        root.dataset(&format!("{group}/{IDF_WEIGHTS}"), &[weights.len()], values);
    }
}

/// Reads the weights of terms of a layer, if it has any.
pub(super) fn read_idf_weights(
    stored: &dyn StoredArrays,
    layer: &dyn Layer,
    at: &str,
) -> Result<Option<Vec<f32>>> {
    if !layer.vocabulary().is_some_and(|vocabulary| vocabulary.has_idf_weights()) {
        return Ok(None);
    }
    let path = format!("{at}vars/{IDF_WEIGHTS}");
    stored.shape(&path).map(|_| stored.values(&path)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::StringLookup;

    #[test]
    fn lines_are_those_of_python() {
        assert_eq!(lines("a\nb\r\nc\u{2028}\u{85}d\n\n"), ["a", "b", "c", "", "d"]);
        assert_eq!(lines("\n[UNK]\na"), ["", "[UNK]", "a"]);
        assert!(lines("").is_empty());
    }

    #[test]
    fn terms_that_lines_cannot_hold_are_not_written_as_lines() {
        let file = |terms: &[&str]| vocabulary_file(&StringLookup::new().adapt(terms).unwrap());
        assert_eq!(file(&["b", "a", "a"]).unwrap(), "[UNK]\na\nb");
        assert!(file(&["a\u{2028}b"]).is_none());
        assert!(file(&["", "b"]).is_none(), "the empty term comes last");
        assert!(vocabulary_file(&StringLookup::new()).is_none());
    }
}
