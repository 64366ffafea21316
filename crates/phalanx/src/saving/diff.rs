//! Differences between two model files.

use super::{Format, Load, keras, open_stored, safetensors};
use crate::error::{Error, Result};
use phalanx_graph::Tensor;
use phalanx_graph::text::{self, shown};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

/// Keys that describe how a file was written, not its content.
const IGNORED_KEYS: [&str; 4] = ["shared_object_id", "build_config", "registered_name", "module"];

/// One difference between two files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Path into the config, or name of an array.
    pub location: String,
    /// Value in the first file.
    pub left: String,
    /// Value in the second file.
    pub right: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} | {}", shown(&self.location), shown(&self.left), shown(&self.right))
    }
}

/// The contents to compare.
struct Contents {
    config: Option<Value>,
    tensors: BTreeMap<String, Tensor>,
}

/// Compares the models or weights of two files in any format: structure, compile arguments, every array.
/// Arrays of models are compared by layer and weight.
///
/// # Errors
/// A file that cannot be read or is damaged.
pub fn diff(left: impl AsRef<Path>, right: impl AsRef<Path>) -> Result<Vec<Difference>> {
    let (left, right) = (contents(left.as_ref())?, contents(right.as_ref())?);
    let mut out = vec![];
    if let (Some(left), Some(right)) = (&left.config, &right.config) {
        configs("config", left, right, &mut out);
    }
    let names = left.tensors.keys().chain(right.tensors.keys());
    let mut names: Vec<&String> = names.collect();
    names.sort();
    names.dedup();
    for name in names {
        let (l, r) = (left.tensors.get(name), right.tensors.get(name));
        if let Some((left, right)) = tensors(l, r) {
            out.push(Difference { location: name.clone(), left, right });
        }
    }
    Ok(out)
}

/// The structure and weights of a model or, if Phalanx cannot load it, all arrays of the file.
fn contents(path: &Path) -> Result<Contents> {
    let format = Format::of(path)?;
    let model = match Load::new().compile(false).model(path) {
        Err(error @ Error::Io { .. }) => return Err(error),
        model => model.ok(),
    };
    if let Some(model) = model {
        let mut config = keras::model_config(model.definition(), keras::Style::Version3);
        let compiled = match format {
            Format::SafeTensors => safetensors::open(path)?.config()?,
            _ => open_stored(path, format)?.config,
        };
        let mut compiled = compiled.and_then(|c| c.get("compile_config").cloned());
        if let Some(Value::Object(map)) = &mut compiled
            && let Some(optimizer) = map.remove("optimizer_config")
        {
            map.insert("optimizer".into(), optimizer);
        }
        let trained = |c: &Value| c.as_object().is_some_and(|map| !map.is_empty());
        config["compile_config"] = compiled.filter(trained).unwrap_or_default();
        let tensors = model.weights()?.into_iter().collect();
        return Ok(Contents { config: Some(config), tensors });
    }
    if format == Format::SafeTensors {
        let mut file = safetensors::open(path)?;
        let mut tensors = BTreeMap::new();
        for (name, entry) in file.entries() {
            let tensor = Tensor::new(entry.dims, file.read(&name)?)?;
            tensors.insert(name, tensor);
        }
        return Ok(Contents { config: file.config()?, tensors });
    }
    let stored = open_stored(path, format)?;
    let mut tensors = BTreeMap::new();
    for (name, dataset) in stored.file.root().datasets() {
        let values = dataset.read_f32().map_err(|e| keras::fault(path, e))?;
        tensors.insert(name, Tensor::new(dataset.shape().to_vec(), values)?);
    }
    Ok(Contents { config: stored.config, tensors })
}

/// Collects the differing leaves of two configs.
fn configs(location: &str, left: &Value, right: &Value, out: &mut Vec<Difference>) {
    match (left, right) {
        (Value::Object(l), Value::Object(r)) => {
            let mut keys: Vec<&String> = l.keys().chain(r.keys()).collect();
            keys.sort();
            keys.dedup();
            for key in keys.into_iter().filter(|key| !IGNORED_KEYS.contains(&key.as_str())) {
                let get = |map: &serde_json::Map<String, Value>| {
                    map.get(key).cloned().unwrap_or_default()
                };
                configs(&format!("{location}/{key}"), &get(l), &get(r), out);
            }
        }
        (Value::Array(l), Value::Array(r)) if l.len() == r.len() => {
            for (i, (l, r)) in l.iter().zip(r).enumerate() {
                let name = l.get("config").and_then(|c| c.get("name")).and_then(Value::as_str);
                let name = name.map_or_else(|| i.to_string(), str::to_string);
                configs(&format!("{location}/{name}"), l, r, out);
            }
        }
        _ if left == right => {}
        _ => {
            let (left, right) = (brief(left), brief(right));
            out.push(Difference { location: location.into(), left, right });
        }
    }
}

fn brief(value: &Value) -> String {
    text::brief(&value.to_string()).into_owned()
}

/// Describes how two arrays differ.
fn tensors(left: Option<&Tensor>, right: Option<&Tensor>) -> Option<(String, String)> {
    let shape = |t: Option<&Tensor>| t.map_or("missing".into(), |t| format!("{:?}", t.dims()));
    let (Some(l), Some(r)) = (left, right) else { return Some((shape(left), shape(right))) };
    if l.dims() != r.dims() {
        return Some((shape(left), shape(right)));
    }
    let (l, r) = (l.f32()?, r.f32()?);
    let differ = |(a, b): &(&f32, &f32)| a.to_bits() != b.to_bits();
    let pairs: Vec<(&f32, &f32)> = l.iter().zip(r).filter(differ).collect();
    let far = |(a, b): &(&f32, &f32)| f64::from((*a - *b).abs());
    let worst = pairs.iter().max_by(|a, b| far(a).total_cmp(&far(b)))?;
    let count = format!("{} of {} values differ, most {}", pairs.len(), l.len(), worst.0);
    Some((count, worst.1.to_string()))
}
