//! Keras 3 files: `.keras` (structure, weights, compile arguments, optimizer) and `.weights.h5`.

mod archive;
mod assets;
mod compile;
mod config;
mod feature_space;
mod graph;
mod optimizer_order;
mod order;
mod per_output;
mod read;
mod unsupported;
mod weights;

pub(super) use assets::{Assets, set_vocabularies};
pub(super) use compile::{compile, compile_for_evaluation};
pub(crate) use compile::{object, optimizer as optimizer_object};
pub(super) use config::{Style, model as model_config};
pub(super) use feature_space::{load as load_feature_space, write as write_feature_space};
pub(crate) use order::layers as layers_in_order;
pub(super) use order::listed;
pub(super) use per_output::Outputs;
pub(crate) use per_output::in_structure;
pub(super) use read::{PLAIN_NAME, is_plain_name, model as read_structure};
pub(super) use unsupported::unsupported_parts;
pub(super) use weights::{
    ByLayer, FileArrays, Staged, StoredArrays, Variables, content, fault, layer_paths,
    read as read_weights, read_variables, values, variables, variables_at, weight_paths,
};

use super::{Stored, Training, json, with_path};
use crate::error::{Error, Result};
use crate::model::Definition;
use feature_space::SpaceFile;
use phalanx_graph::Tensor;
use phalanx_hdf5::File;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

/// Key of the model's metadata in `metadata.json`.
const NOTES: &str = "phalanx_notes";

/// The Keras version whose file format is written.
pub(super) const KERAS_VERSION: &str = "3.15.0";

/// Structure and compile arguments, as in `config.json`.
pub(super) fn whole_config(
    def: &Definition,
    style: Style,
    compiled: Option<&Map<String, Value>>,
) -> Value {
    let mut model = model_config(def, style);
    model["compile_config"] = compiled.map_or(json!({}), |config| config.clone().into());
    model
}

/// Writes a `.keras` file.
pub(super) fn write(
    out: &mut dyn Write,
    def: &Definition,
    weights: &[(String, Tensor)],
    training: Option<&Training>,
) -> io::Result<()> {
    let config = whole_config(def, Style::Archive, training.map(|t| &t.config)).to_string();
    let weights = content(def, &ByLayer::new(def, weights), training).to_bytes();
    let weights = weights.map_err(io::Error::other)?;
    archive::write(out, &def.notes(), &config, &weights, &assets::files(def))
}

/// The metadata set by the user.
pub(super) fn user_metadata(stored: &Stored) -> BTreeMap<String, String> {
    let written = stored.metadata.as_ref().and_then(|m| m.get(NOTES)).and_then(Value::as_object);
    let text = |(key, value): (&String, &Value)| Some((key.clone(), value.as_str()?.to_string()));
    written.into_iter().flatten().filter_map(text).collect()
}

/// The metadata of a model from `metadata.json`, and its name.
pub(super) fn notes(stored: &Stored) -> BTreeMap<String, String> {
    let mut notes = user_metadata(stored);
    let name = stored.config.as_ref().and_then(|c| c.pointer("/config/name")?.as_str());
    notes.extend(name.map(|name| ("model".to_string(), name.to_string())));
    notes
}

/// Parses a `config.json`.
pub(super) fn parse_config(path: &Path, text: &[u8]) -> Result<Value> {
    let mut config = json::parse(text).map_err(|e| Error::file(path, "JSON in config.json", e))?;
    optimizer_order::keep(text, &mut config);
    Ok(config)
}

/// Opens a `.keras` file. A feature space in it is replaced by its model.
pub(super) fn open(path: &Path) -> Result<Stored> {
    let archive = archive::read(path)?;
    let mut config = parse_config(path, &archive.config)?;
    let metadata = archive.metadata.map(|bytes| json::parse(&bytes)).transpose();
    let metadata = metadata.map_err(|e| Error::file(path, "JSON in metadata.json", e))?;
    let mut file = File::from_bytes(archive.weights).map_err(|e| fault(path, e))?;
    let mut assets = archive.assets;
    if feature_space::is_space(&config) {
        let space = SpaceFile { path, config: &config, file: &file, assets: &assets };
        let space = space.read(&archive.config);
        let functional = space.and_then(|space| feature_space::as_functional(&space));
        let (model, weights, files) = functional.map_err(|error| with_path(path, error))?;
        file = File::from_bytes(weights).map_err(|e| fault(path, e))?;
        (config, assets) = (model, files);
    }
    Ok(Stored { config: Some(config), metadata, file, assets })
}
