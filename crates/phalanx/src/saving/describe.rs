//! Descriptions of model files, including files that Phalanx cannot load.

use super::{Format, open_stored, safetensors, truncate};
use crate::error::Result;
use phalanx_graph::text::shown;
use phalanx_hdf5::{Dataset, File};
use serde_json::Value;
use std::fmt;
use std::path::Path;

/// Maximum depth of nested models that are listed.
const MAX_DEPTH: usize = 32;
/// Maximum number of layers that are listed.
const MAX_LAYERS: usize = 20_000;

/// The content of a model file.
#[derive(Clone, Debug, PartialEq)]
pub struct Description {
    /// The file format.
    pub format: &'static str,
    /// Facts by name: model, versions, compile arguments.
    pub facts: Vec<(String, String)>,
    /// The layers in file order, if the file has a structure.
    pub layers: Vec<LayerEntry>,
    /// The arrays, by path.
    pub tensors: Vec<TensorEntry>,
}

/// A layer of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerEntry {
    /// Name of the layer, prefixed with the names of the enclosing models.
    pub name: String,
    /// Class of the layer.
    pub class_name: String,
}

/// An array of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorEntry {
    /// Path of the array.
    pub name: String,
    /// Element type, for example `f32`.
    pub dtype: String,
    /// Shape.
    pub dims: Vec<usize>,
}

/// Describes a `.keras`, `.h5` or `.safetensors` file. Layers that Phalanx does not support are listed
/// as well.
///
/// # Errors
/// A file that cannot be read or is damaged.
pub fn describe(path: impl AsRef<Path>) -> Result<Description> {
    let path = path.as_ref();
    let format = Format::of(path)?;
    if format == Format::SafeTensors {
        let file = safetensors::open(path)?;
        let mut out = Description::new("safetensors", file.config()?.as_ref());
        let entry =
            |(name, e): (String, super::Entry)| TensorEntry { name, dtype: e.dtype, dims: e.dims };
        out.tensors = file.entries().into_iter().map(entry).collect();
        out.tensors.sort_by(|a, b| a.name.cmp(&b.name));
        return Ok(out);
    }
    let stored = open_stored(path, format)?;
    let name = match (format, super::legacy::weights_group(&stored.file)) {
        (Format::Keras, _) => "Keras 3 model (.keras)",
        (_, Some(_)) if stored.config.is_some() => "legacy Keras model (.h5)",
        (_, Some(_)) => "legacy Keras weights (.h5)",
        (_, None) => "Keras 3 weights (.weights.h5)",
    };
    let mut out = Description::new(name, stored.config.as_ref());
    if let Some(Value::Object(metadata)) = &stored.metadata {
        out.facts.extend(metadata.iter().map(|(key, value)| (key.clone(), plain(value))));
    }
    for (name, attribute) in stored.file.root().attributes() {
        if !name.ends_with("_config") && !name.starts_with("layer_names") {
            out.facts.push((name.into(), attribute.to_string()));
        }
    }
    out.tensors = tensors(&stored.file);
    Ok(out)
}

fn tensors(file: &File) -> Vec<TensorEntry> {
    let entry = |(name, dataset): (String, Dataset<'_>)| TensorEntry {
        name,
        dtype: dataset.element_type().to_string(),
        dims: dataset.shape().to_vec(),
    };
    file.root().datasets().into_iter().map(entry).collect()
}

/// Text without quotes, other values as JSON.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_string)
}

/// The name or class of an object.
fn name_or_class(value: &Value) -> String {
    match value {
        Value::Array(list) => list.iter().map(name_or_class).collect::<Vec<_>>().join(", "),
        Value::Object(map) => match map.get("class_name") {
            Some(class) => plain(class),
            None => {
                let entry =
                    |(key, value): (&String, &Value)| format!("{key}: {}", name_or_class(value));
                map.iter().map(entry).collect::<Vec<_>>().join(", ")
            }
        },
        other => plain(other),
    }
}

impl Description {
    fn new(format: &'static str, config: Option<&Value>) -> Description {
        let mut out = Description { format, facts: vec![], layers: vec![], tensors: vec![] };
        let Some(config) = config else { return out };
        let name = config.get("config").and_then(|c| c.get("name")).map(plain).unwrap_or_default();
        let class = config.get("class_name").map(plain).unwrap_or_default();
        out.facts.push(("model".into(), format!("{class} '{name}'")));
        if let Some(compiled) = config.get("compile_config").and_then(Value::as_object) {
            for (key, fact) in [
                ("optimizer", "optimizer"),
                ("optimizer_config", "optimizer"),
                ("loss", "loss"),
                ("metrics", "metrics"),
                ("weighted_metrics", "weighted metrics"),
            ] {
                if let Some(value) = compiled.get(key).filter(|value| !value.is_null()) {
                    out.facts.push((fact.into(), name_or_class(value)));
                }
            }
        }
        collect(config, "", 0, &mut out.layers);
        if out.layers.len() == MAX_LAYERS {
            out.facts.push(("layers listed".into(), format!("the first {MAX_LAYERS}")));
        }
        out
    }
}

fn collect(model: &Value, prefix: &str, depth: usize, out: &mut Vec<LayerEntry>) {
    let layers = model.get("config").and_then(|c| c.get("layers")).and_then(Value::as_array);
    for layer in layers.into_iter().flatten().filter(|_| depth < MAX_DEPTH) {
        if out.len() == MAX_LAYERS {
            return;
        }
        let name = layer.get("config").and_then(|c| c.get("name")).map(plain);
        // Bounds the length of accumulated prefixes.
        let name = truncate(&format!("{prefix}{}", name.unwrap_or_default()));
        let class_name = layer.get("class_name").map(plain).unwrap_or_default();
        out.push(LayerEntry { name: name.clone(), class_name });
        collect(layer, &format!("{name}/"), depth + 1, out);
    }
}

impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.format)?;
        for (name, value) in &self.facts {
            writeln!(f, "{}: {}", shown(name), shown(value))?;
        }
        if !self.layers.is_empty() {
            writeln!(f, "layers: {}", self.layers.len())?;
        }
        for layer in &self.layers {
            writeln!(f, "  {} ({})", shown(&layer.name), shown(&layer.class_name))?;
        }
        writeln!(f, "arrays: {}", self.tensors.len())?;
        for tensor in &self.tensors {
            writeln!(f, "  {} {} {:?}", shown(&tensor.name), tensor.dtype, tensor.dims)?;
        }
        Ok(())
    }
}
