//! Legacy `.h5` files: weights by layer name, with or without the structure and the optimizer.

use super::keras::{self, ByLayer, Staged, Style, Variables, fault, layers_in_order, listed};
use super::training::Training;
use crate::error::{Error, Result};
use crate::layer::LayerHandle;
use crate::model::{Callee, Definition};
use crate::ops;
use phalanx_graph::Tensor;
use phalanx_hdf5::{File, Group, GroupBuilder};
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::io;
use std::path::Path;

/// Maximum number of strings per attribute. Longer lists continue in further attributes.
const MAX_STRINGS: usize = 2000;
/// Name of the group that holds the weights of a whole model.
const WEIGHTS: &str = "model_weights";
const OPTIMIZER: &str = "optimizer_weights";

/// The group of the weights, if the file has this layout.
pub(super) fn weights_group(file: &File) -> Option<Group<'_>> {
    let listed = |group: &Group<'_>| {
        ["layer_names", "layer_names0"].iter().any(|name| group.attribute(name).is_some())
    };
    let inner = file.root().group(WEIGHTS).ok();
    [Some(file.root()), inner].into_iter().flatten().find(listed)
}

/// A weight of a layer, by index.
type Weight = (LayerHandle, usize);

/// The weights that Keras saves under the name of a member: trainable ones, then the others.
fn member_weights(callee: &Callee) -> Vec<Weight> {
    let layers = match callee {
        Callee::Input(_) => vec![],
        Callee::Layer(layer) => vec![layer.clone()],
        Callee::Model(inner) => layers_in_order(inner),
    };
    let (mut training, mut still) = (vec![], vec![]);
    for layer in layers {
        for (i, weight) in layer.weights().iter().enumerate() {
            let trains = weight.spec.trainable && layer.trainable();
            if trains { &mut training } else { &mut still }.push((layer.clone(), i));
        }
    }
    training.extend(still);
    training
}

/// The members with weights, in Keras' order.
fn members(def: &Definition) -> Vec<(String, Vec<Weight>)> {
    let member = |(name, callee): (String, Option<&Callee>)| {
        (name, callee.map(member_weights).unwrap_or_default())
    };
    listed(def).into_iter().map(member).collect()
}

/// Fails if a model calls functions of `keras.ops`, as the masks of some of Keras' files do: the format names classes
/// without their modules, so Keras cannot read such a file either.
pub(super) fn check_has_no_ops(def: &Definition) -> Result<()> {
    for member in &def.members {
        match &member.callee {
            Callee::Layer(layer) if ops::is_op(layer.layer().module()) => {
                let (owner, class) = (format!("model '{}'", def.name), layer.layer().class_name());
                let expected =
                    "layers only in an .h5 file (a .keras file stores calls of keras.ops)";
                let received = format!("'{}', a call of keras.ops ({class})", member.name);
                return Err(Error::argument(owner, "save", expected, received));
            }
            Callee::Model(inner) => check_has_no_ops(inner)?,
            Callee::Layer(_) | Callee::Input(_) => {}
        }
    }
    Ok(())
}

/// The bytes of a file of weights, or of a whole model.
pub(super) fn write(
    def: &Definition,
    weights: &[(String, Tensor)],
    whole: bool,
    training: Option<&Training>,
) -> io::Result<Vec<u8>> {
    let weights = ByLayer::new(def, weights);
    let mut root = GroupBuilder::new();
    if whole {
        let config = keras::model_config(def, Style::Legacy);
        root.attribute("model_config", config.to_string());
        head(&mut root);
        if let Some(training) = training {
            let config = training_config(training);
            root.attribute("training_config", config.to_string());
            write_optimizer(root.group(OPTIMIZER), training);
        }
    }
    let group = root.group(if whole { WEIGHTS } else { "" });
    head(group);
    let members = members(def);
    texts(group, "layer_names", members.iter().map(|(name, _)| name.clone()).collect());
    let full: HashMap<_, _> =
        def.layers().into_iter().map(|(name, layer)| (key(&layer), name)).collect();
    for (member, of_member) in &members {
        let mut names = vec![];
        for (layer, index) in of_member {
            let Some(tensor) = weights.get(layer).get(*index) else { continue };
            let owner = full.get(&key(layer)).unwrap_or(member);
            let weight = layer.weights()[*index].spec.name.clone();
            let name = format!("{owner}/{weight}");
            let values = keras::values(layer, &weight, tensor.f32().unwrap_or_default());
            group.dataset(&format!("{member}/{name}"), tensor.dims(), values);
            names.push(name);
        }
        texts(group.group(member), "weight_names", names);
    }
    root.to_bytes().map_err(io::Error::other)
}

fn key(layer: &LayerHandle) -> *const crate::layer::LayerInstance {
    std::ptr::from_ref(&**layer)
}

/// Adds the attributes that identify the writer.
fn head(group: &mut GroupBuilder) {
    group.attribute("backend", "phalanx");
    group.attribute("keras_version", keras::KERAS_VERSION);
}

/// Stores a list of strings in as many attributes as necessary.
fn texts(group: &mut GroupBuilder, name: &str, mut list: Vec<String>) {
    if list.len() <= MAX_STRINGS {
        group.attribute(name, list);
        return;
    }
    let mut number = 0;
    while !list.is_empty() {
        let rest = list.split_off(list.len().min(MAX_STRINGS));
        group.attribute(&format!("{name}{number}"), list);
        (list, number) = (rest, number + 1);
    }
}

/// The compile arguments, with the optimizer under its legacy key.
fn training_config(training: &Training) -> Value {
    let mut config = training.config.clone();
    config.get_mut("loss").map(long_names);
    if let Some(mut optimizer) = config.remove("optimizer") {
        if let Some(object) = optimizer.as_object_mut() {
            object.remove("module");
            object.remove("registered_name");
        }
        config.insert("optimizer_config".into(), optimizer);
    }
    config.into()
}

/// Expands loss names: Python reads the losses of legacy files only by their long names.
fn long_names(loss: &mut Value) {
    match loss {
        Value::String(name) => {
            let long = match name.to_lowercase().as_str() {
                "mse" => "mean_squared_error",
                "mae" => "mean_absolute_error",
                "kld" => "kl_divergence",
                "bce" => "binary_crossentropy",
                _ => return,
            };
            *name = long.into();
        }
        Value::Array(list) => list.iter_mut().for_each(long_names),
        Value::Object(map) if !map.contains_key("class_name") => {
            map.values_mut().for_each(long_names);
        }
        _ => {}
    }
}

fn write_optimizer(group: &mut GroupBuilder, training: &Training) {
    let mut names = vec![];
    for (name, dims, values) in keras::variables(&training.state) {
        let name = format!("{}/{name}", training.optimizer);
        group.dataset(&name, &dims, values);
        names.push(name);
    }
    texts(group, "weight_names", names);
}

/// Reads a list of names from one or more attributes. Rejects duplicates, which could make a small file
/// cause unbounded reads.
fn read_texts(path: &Path, group: Group<'_>, name: &str) -> Result<Vec<String>> {
    let broken = |e: phalanx_hdf5::Error| fault(path, e);
    let mut out = vec![];
    if let Some(attribute) = group.attribute(name) {
        out = attribute.read_strings().map_err(broken)?;
    } else {
        let numbered = |number: usize| group.attribute(&format!("{name}{number}"));
        for attribute in (0..).map_while(numbered) {
            out.extend(attribute.read_strings().map_err(broken)?);
        }
    }
    let mut seen = HashSet::new();
    match out.iter().find(|text| !seen.insert(*text)) {
        None => Ok(out),
        Some(text) => Err(fault(path, format!("'{text}' twice in '{name}'"))),
    }
}

/// The names of the layers in a file.
pub(super) fn layer_names(path: &Path, file: &File) -> Result<Vec<String>> {
    let Some(group) = weights_group(file) else { return Ok(vec![]) };
    read_texts(path, group, "layer_names")
}

/// A layer in a file: its name and the paths of its weights.
struct SavedLayer {
    name: String,
    weights: Vec<String>,
}

/// The layers of a file that have weights, in order.
fn saved(path: &Path, group: Group<'_>) -> Result<Vec<SavedLayer>> {
    let mut out = vec![];
    for name in read_texts(path, group, "layer_names")? {
        let of_layer = group.group(&name).map_err(|e| fault(path, e))?;
        let weights = read_texts(path, of_layer, "weight_names")?;
        if !weights.is_empty() {
            out.push(SavedLayer { name, weights });
        }
    }
    Ok(out)
}

/// How to match the layers of a file with those of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Match {
    /// All layers must match: by name if the names agree, otherwise in order.
    Exactly,
    /// By name. Layers that exist only in the file or only in the model are skipped.
    ByName,
    /// As `Exactly`, except for the top of a network, which the file or the model may lack.
    Top(Top),
}

/// The classifier of a network: its last layers with weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Top {
    /// The number of layers with weights that only the network with top has.
    pub layers: usize,
    /// Whether to load them, if model and file have them. Otherwise the model has a top that keeps its weights.
    pub load: bool,
}

/// Reads weights. Also returns the names of members that received none.
pub(super) fn read(
    path: &Path,
    file: &File,
    def: &Definition,
    how: Match,
) -> Result<(Staged, Vec<String>)> {
    let broken = |e: phalanx_hdf5::Error| fault(path, e);
    let Some(group) = weights_group(file) else {
        return Err(fault(path, "a file without layer_names"));
    };
    let mut saved = saved(path, group)?;
    let members: Vec<(String, Vec<Weight>)> =
        members(def).into_iter().filter(|(_, weights)| !weights.is_empty()).collect();
    let mut matched = &members[..];
    if let Match::Top(Top { layers, load: false }) = how {
        matched = &members[..members.len().saturating_sub(layers)];
        saved.truncate(matched.len());
    }
    let pairs = pair(&saved, matched, how)
        .map_err(|(expected, received)| Error::file(path, expected, received))?;
    let mut staged: Vec<(LayerHandle, Vec<Option<Vec<f32>>>)> = vec![];
    let mut faults = vec![];
    for (of_file, of_model) in &pairs {
        let (name, weights) = &members[*of_model];
        let of_file = &saved[*of_file];
        if of_file.weights.len() != weights.len() {
            let (found, expected) = (of_file.weights.len(), weights.len());
            faults.push(format!("{found} weights of '{name}' where {expected} belong"));
            continue;
        }
        for ((layer, index), weight) in weights.iter().zip(&of_file.weights) {
            let location = format!("{}/{weight}", of_file.name);
            let dataset = group.dataset(&location).map_err(broken)?;
            let dims = layer.weights()[*index].spec.dims.clone();
            if dataset.shape() != dims {
                faults.push(format!("'{location}' {:?} for {dims:?}", dataset.shape()));
                continue;
            }
            let values = dataset.read_f32().map_err(broken)?;
            let at = match staged.iter().position(|(known, _)| known.same(layer)) {
                Some(at) => at,
                None => {
                    staged.push((layer.clone(), vec![None; layer.weights().len()]));
                    staged.len() - 1
                }
            };
            staged[at].1[*index] = Some(values);
        }
    }
    if !faults.is_empty() {
        let expected = format!("the weights of model '{}'", def.name);
        return Err(Error::file(path, expected, super::join_faults(&faults)));
    }
    let whole = |(layer, values): (LayerHandle, Vec<Option<Vec<f32>>>)| {
        Some((layer, values.into_iter().collect::<Option<Vec<_>>>()?))
    };
    let left = (0..members.len()).filter(|i| !pairs.iter().any(|(_, m)| m == i));
    let left = left.map(|i| members[i].0.clone()).collect();
    Ok((staged.into_iter().filter_map(whole).collect(), left))
}

/// Pairs the layers of the file with those of the model.
fn pair(
    saved: &[SavedLayer],
    members: &[(String, Vec<Weight>)],
    how: Match,
) -> std::result::Result<Vec<(usize, usize)>, (String, String)> {
    let index_by_name: HashMap<&str, usize> =
        members.iter().enumerate().map(|(i, (name, _))| (name.as_str(), i)).collect();
    let by = |rename: fn(&str) -> String| -> Vec<(usize, usize)> {
        let find =
            |(i, s): (usize, &SavedLayer)| Some((i, *index_by_name.get(rename(&s.name).as_str())?));
        saved.iter().enumerate().filter_map(find).collect()
    };
    let (more, fewer) = (saved.len().max(members.len()), saved.len().min(members.len()));
    let with_top = matches!(how, Match::Top(top) if more - fewer <= top.layers);
    let complete = |pairs: &Vec<_>| pairs.len() == fewer && (more == fewer || with_top);
    let (named, renamed) = (by(str::to_string), by(super::resnet::current_name));
    if complete(&named) || how == Match::ByName && named.len() >= renamed.len() {
        return Ok(named);
    }
    if complete(&renamed) || how == Match::ByName {
        return Ok(renamed);
    }
    if more == fewer || with_top {
        return Ok((0..fewer).map(|i| (i, i)).collect());
    }
    let expected = format!("{} layers with weights", members.len());
    Err((expected, format!("{}", saved.len())))
}

/// The structure and the compile arguments, if the file has them.
pub(super) fn configs(path: &Path, file: &File) -> Result<(Option<Value>, Option<Value>)> {
    let read = |name: &str| -> Result<Option<Value>> {
        let Some(attribute) = file.root().attribute(name) else { return Ok(None) };
        let text = attribute.read_string().map_err(|e| fault(path, e))?;
        let value = super::json::parse(text.as_bytes());
        value.map(Some).map_err(|e| Error::file(path, format!("JSON in '{name}'"), e))
    };
    Ok((read("model_config")?, read("training_config")?))
}

/// Reads the variables of the optimizer.
pub(super) fn read_variables(path: &Path, file: &File) -> Result<Variables> {
    let Ok(group) = file.root().group(OPTIMIZER) else { return Ok(None) };
    let names = read_texts(path, group, "weight_names")?;
    keras::variables_at(path, group, &names)
}
