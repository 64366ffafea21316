//! Weights in `.weights.h5`: `layers/<class>[_k]/vars/<i>`, numbered by class in Keras' order, and the
//! variables of the optimizer.

use super::assets::{read_idf_weights, write_idf_weights};
use super::order::{identity, is_chain, listed};
use crate::custom::short_class;
use crate::error::{Error, Result};
use crate::layer::LayerHandle;
use crate::model::{Callee, Definition, snake_case};
use crate::ops;
use crate::saving::training::{Training, TrainingState, Variable};
use phalanx_graph::Tensor;
use phalanx_hdf5::{File, Group, GroupBuilder, Values};
use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::path::Path;

/// The location of the variables of a layer or model in a file.
pub(super) struct Slot {
    /// Path of the group.
    pub path: String,
    pub name: String,
    pub layer: Option<LayerHandle>,
}

/// All layers and models with their locations in the file, in order. A layer shared by several models of
/// the file has several locations, because Python does not always know that it is shared.
pub(super) fn slots(def: &Definition) -> Vec<Slot> {
    fn collect(def: &Definition, path: &str, name: &str, out: &mut Vec<Slot>) {
        out.push(Slot { path: path.into(), name: name.into(), layer: None });
        let mut counts: HashMap<String, usize> = HashMap::new();
        // Ops have no variables and no number.
        let is_op = |callee: &Option<&Callee>| matches!(callee, Some(Callee::Layer(l)) if ops::is_op(l.layer().module()));
        for (name, callee) in listed(def).into_iter().filter(|(_, callee)| !is_op(callee)) {
            let class = match callee {
                None | Some(Callee::Input(_)) => "InputLayer",
                Some(Callee::Layer(layer)) => short_class(layer.layer().class_name()),
                Some(Callee::Model(inner)) if is_chain(inner) => "Sequential",
                Some(Callee::Model(_)) => "Functional",
            };
            // Files have the name of the class in Python, not the exported one.
            let class = match class {
                "GroupQueryAttention" => "GroupedQueryAttention",
                class => class,
            };
            let base = snake_case(class);
            let n = counts.entry(base.clone()).or_default();
            let unique = if *n == 0 { base } else { format!("{base}_{n}") };
            *n += 1;
            let path = format!("{path}layers/{unique}/");
            match callee {
                Some(Callee::Model(inner)) => collect(inner, &path, &name, out),
                Some(Callee::Layer(layer)) => {
                    out.push(Slot { path, name, layer: Some(layer.clone()) });
                }
                _ => out.push(Slot { path, name, layer: None }),
            }
        }
    }
    let mut out = vec![];
    collect(def, "", &def.name, &mut out);
    out
}

/// The layers of a model with the paths of their groups, in order.
pub(in crate::saving) fn layer_paths(def: &Definition) -> Vec<(String, LayerHandle)> {
    let path = |slot: Slot| Some((slot.path.trim_end_matches('/').to_string(), slot.layer?));
    slots(def).into_iter().filter_map(path).collect()
}

/// Every weight of a model with its path in files and its name, `layer/weight`. A shared layer is listed where it first
/// occurs, and a weight that files list twice has two paths.
pub(in crate::saving) fn weight_paths(def: &Definition) -> Vec<(String, String)> {
    let names: HashMap<*const (), String> =
        def.layers().into_iter().rev().map(|(name, layer)| (identity(&layer), name)).collect();
    let (mut seen, mut out) = (HashSet::new(), vec![]);
    for slot in slots(def) {
        let Some(layer) = slot.layer.filter(|layer| seen.insert(identity(layer))) else { continue };
        let Some(name) = names.get(&identity(&layer)) else { continue };
        for Location { group, number, weight, own_number, .. } in locations(&layer) {
            let name = format!("{name}/{weight}");
            out.extend(own_number.map(|n| (format!("{}vars/{n}", slot.path), name.clone())));
            out.push((format!("{}{group}/{number}", slot.path), name));
        }
    }
    out
}

/// The location of a weight below its layer's group.
struct Location {
    /// `vars`, or `cell/vars` for a weight of the sublayer `cell`.
    group: String,
    /// Its number among the weights of the group.
    number: usize,
    /// The last attribute of the sublayer's path, or nothing.
    owner: String,
    /// The weight's name in the layer.
    weight: String,
    /// Its number among the layer's own weights, if it is listed there too.
    own_number: Option<usize>,
}

/// The locations of a layer's weights, in order.
fn locations(layer: &LayerHandle) -> Vec<Location> {
    let mut counts: HashMap<String, usize> = HashMap::new();
    let weights = layer.weights();
    let location = |w: &crate::layer::Weight| {
        let sublayer = &w.spec.sublayer;
        let count = counts.entry(sublayer.clone()).or_default();
        let number = *count;
        *count += 1;
        let mut own_number = None;
        if w.spec.listed_twice {
            let own = counts.entry(String::new()).or_default();
            own_number = Some(*own);
            *own += 1;
        }
        Location {
            own_number,
            group: if sublayer.is_empty() { "vars".into() } else { format!("{sublayer}/vars") },
            number,
            owner: sublayer.rsplit('/').next().unwrap_or_default().into(),
            weight: w.spec.name.clone(),
        }
    };
    weights.iter().map(location).collect()
}

/// The values of a weight as HDF5 stores them. The count of an adapted normalization is an integer.
pub(in crate::saving) fn values(layer: &LayerHandle, weight: &str, values: &[f32]) -> Values {
    if (layer.layer().class_name(), weight) == ("Normalization", "count") {
        return Values::I32(values.iter().map(|v| *v as i32).collect());
    }
    Values::F32(values.to_vec())
}

/// Weights grouped by layer.
pub(in crate::saving) struct ByLayer<'a>(HashMap<*const (), Vec<&'a Tensor>>);

impl<'a> ByLayer<'a> {
    /// Groups named weights. The weights of a shared layer have its first name.
    pub fn new(def: &Definition, weights: &'a [(String, Tensor)]) -> ByLayer<'a> {
        let named: HashMap<&str, &Tensor> =
            weights.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
        let mut out = HashMap::new();
        for (name, layer) in def.layers() {
            let full = |w: &crate::layer::Weight| format!("{name}/{}", w.spec.name);
            let tensors = layer.weights().iter().map(full).collect::<Vec<_>>();
            let tensors = tensors.iter().filter_map(|n| named.get(n.as_str()).copied()).collect();
            out.insert(identity(&layer), tensors);
        }
        ByLayer(out)
    }

    /// The weights of a layer, in order.
    pub fn get(&self, layer: &LayerHandle) -> &[&'a Tensor] {
        self.0.get(&identity(layer)).map_or(&[], Vec::as_slice)
    }
}

/// The content of a file: weights and, if given, the variables of the optimizer.
pub(in crate::saving) fn content(
    def: &Definition,
    weights: &ByLayer<'_>,
    training: Option<&Training>,
) -> GroupBuilder {
    let mut root = GroupBuilder::new();
    for slot in slots(def) {
        let vars = format!("{}vars", slot.path);
        root.group(&vars).attribute("name", slot.name);
        let Some(layer) = slot.layer else { continue };
        write_idf_weights(layer.layer(), &slot.path, &mut root);
        for (tensor, location) in weights.get(&layer).iter().zip(locations(&layer)) {
            let data = tensor.f32().unwrap_or_default();
            let group = format!("{}{}", slot.path, location.group);
            if location.number == 0 && !location.owner.is_empty() {
                root.group(&group).attribute("name", location.owner);
            }
            let dataset = format!("{group}/{}", location.number);
            root.dataset(&dataset, tensor.dims(), values(&layer, &location.weight, data));
            if let Some(number) = location.own_number {
                let dataset = format!("{vars}/{number}");
                root.dataset(&dataset, tensor.dims(), values(&layer, &location.weight, data));
            }
        }
    }
    if let Some(Training { optimizer, state, .. }) = training {
        let mut put = |vars: &str, name: &str, list: Vec<Entry>| {
            root.group(vars).attribute("name", name);
            for (i, (_, dims, values)) in list.into_iter().enumerate() {
                root.dataset(&format!("{vars}/{i}"), &dims, values);
            }
        };
        let inner = match state.scale {
            Some(_) => "optimizer/inner_optimizer/",
            None => "optimizer/",
        };
        if state.scale.is_some() {
            put(&format!("{inner}vars"), optimizer, inner_variables(state));
        }
        let mut taken: HashMap<String, usize> = HashMap::new();
        for (class, range) in &state.members {
            let name = snake_case(class);
            let count = taken.entry(name.clone()).or_default();
            let path = if *count == 0 { name.clone() } else { format!("{name}_{count}") };
            *count += 1;
            let own = state.variables[range.clone()].iter().map(entry).collect();
            put(&format!("{inner}optimizers/{path}/vars"), &name, own);
        }
        let name = if state.scale.is_some() { "loss_scale_optimizer" } else { optimizer };
        put("optimizer/vars", name, variables(state));
    }
    root
}

/// Name, dimensions and values of a variable.
type Entry = (String, Vec<usize>, Values);

/// The variables of the optimizer with their names, in Keras' order.
pub(in crate::saving) fn variables(state: &TrainingState) -> Vec<Entry> {
    let mut out = vec![];
    if let Some([scale, steps, _]) = state.scale {
        // Iteration and learning rate of the wrapper; the inner optimizer has its own.
        let own = [
            ("loss_scale_iteration", Values::I32(vec![0])),
            ("loss_scale_learning_rate", Values::F32(vec![0.0])),
            ("step_counter", Values::I32(vec![steps as i32])),
            ("dynamic_scale", Values::F32(vec![scale])),
        ];
        out.extend(own.map(|(name, values)| (name.to_string(), vec![], values)));
    }
    out.extend(inner_variables(state));
    out
}

/// The same without those of the loss scale.
fn inner_variables(state: &TrainingState) -> Vec<Entry> {
    let steps = i32::try_from(state.iterations).unwrap_or(i32::MAX);
    let mut out = vec![("iteration".to_string(), vec![], Values::I32(vec![steps]))];
    if let Some(rate) = state.learning_rate {
        out.push(("learning_rate".into(), vec![], Values::F32(vec![rate as f32])));
    }
    out.extend(state.variables.iter().map(entry));
    out
}

fn entry(v: &Variable) -> Entry {
    let values = match v.integer {
        true => Values::I32(v.values.iter().map(|v| *v as i32).collect()),
        false => Values::F32(v.values.clone()),
    };
    (v.name.clone(), v.dims.clone(), values)
}

/// New values of layers, validated but not yet set.
pub(in crate::saving) type Staged = Vec<(LayerHandle, Vec<Vec<f32>>)>;

/// An error that names the file and says what is wrong with it.
pub(in crate::saving) fn fault(path: &Path, received: impl Display) -> Error {
    let received = crate::saving::truncate(&received.to_string());
    Error::file(path, "an HDF5 file with a model's weights", received)
}

/// The arrays of a model's variables by their paths: those of a file, or of memory.
pub(in crate::saving) trait StoredArrays {
    /// The number of arrays in a group; 0 if there is no such group.
    fn count(&self, group: &str) -> usize;

    /// The shape of an array; `None` if there is no such array.
    fn shape(&self, path: &str) -> Option<Vec<usize>>;

    /// The values of an array.
    fn values(&self, path: &str) -> Result<Vec<f32>>;
}

/// The arrays of an HDF5 file.
pub(in crate::saving) struct FileArrays<'a> {
    pub path: &'a Path,
    pub file: &'a File,
}

impl StoredArrays for FileArrays<'_> {
    fn count(&self, group: &str) -> usize {
        self.file.root().group(group).map_or(0, |group| group.members().len())
    }

    fn shape(&self, path: &str) -> Option<Vec<usize>> {
        self.file.root().dataset(path).ok().map(|dataset| dataset.shape().to_vec())
    }

    fn values(&self, path: &str) -> Result<Vec<f32>> {
        let dataset = self.file.root().dataset(path).map_err(|e| fault(self.path, e))?;
        dataset.read_f32().map_err(|e| fault(self.path, e))
    }
}

/// Reads all weights of a model. `path` names their origin in errors.
pub(in crate::saving) fn read(
    path: &Path,
    stored: &dyn StoredArrays,
    def: &Definition,
) -> Result<Staged> {
    let (mut staged, mut idf_weights) = (vec![], vec![]);
    let mut faults = vec![];
    let mut seen = HashSet::new();
    for slot in slots(def) {
        // Keras writes a shared layer only where it first occurs.
        let Some(layer) = slot.layer.filter(|layer| seen.insert(identity(layer))) else { continue };
        let specs: Vec<Vec<usize>> = layer.weights().iter().map(|w| w.spec.dims.clone()).collect();
        let mut locations = locations(&layer);
        // Keras makes the weights of activations when the model is first called. They keep their initial values if the file
        // was written before.
        let is_missing = |location: &mut Location| {
            let of_activation = location.group.split('/').any(|part| part == "activation");
            of_activation && stored.count(&format!("{}{}", slot.path, location.group)) == 0
        };
        while locations.pop_if(is_missing).is_some() {}
        let mut groups: Vec<&str> = locations.iter().map(|l| l.group.as_str()).collect();
        groups.push("vars");
        groups.sort_unstable();
        groups.dedup();
        // Sequential models of some versions omit layers without weights.
        let found: usize = groups.iter().map(|g| stored.count(&format!("{}{g}", slot.path))).sum();
        let idf = read_idf_weights(stored, layer.layer(), &slot.path)?;
        let expected =
            locations.len() + locations.iter().filter(|l| l.own_number.is_some()).count();
        if found != expected + usize::from(idf.is_some()) {
            faults.push(format!("{found} weights of '{}' where {expected} belong", slot.name));
            continue;
        }
        let mut tensors = vec![];
        for (location, dims) in locations.iter().zip(&specs) {
            let location = format!("{}{}/{}", slot.path, location.group, location.number);
            if let Some(shape) = stored.shape(&location).filter(|shape| shape != dims) {
                let what = format!("{location} of '{}'", slot.name);
                faults.push(format!("{what} {shape:?} for {dims:?}"));
                continue;
            }
            tensors.push(stored.values(&location)?);
        }
        idf_weights.extend(idf.map(|weights| (layer.clone(), weights)));
        staged.push((layer, tensors));
    }
    if faults.is_empty() {
        for (layer, weights) in idf_weights {
            layer.layer().vocabulary().into_iter().for_each(|v| v.set_idf_weights(weights.clone()));
        }
        return Ok(staged);
    }
    let expected = format!("the weights of model '{}'", def.name);
    Err(Error::file(path, expected, crate::saving::join_faults(&faults)))
}

/// The variables of the optimizer in a file: the iteration, then the others in order.
pub(in crate::saving) type Variables = Option<(u64, Vec<Tensor>)>;

/// Reads the variables of the optimizer at these paths of a group.
pub(in crate::saving) fn variables_at(
    path: &Path,
    group: Group<'_>,
    names: &[String],
) -> Result<Variables> {
    let find = |name: &String| group.dataset(name).map_err(|e| fault(path, e));
    let Some((first, rest)) = names.split_first() else { return Ok(None) };
    let iteration = find(first)?.read_f64().map_err(|e| fault(path, e))?;
    let [iteration] = iteration[..] else {
        let received = format!("{} numbers", iteration.len());
        return Err(Error::file(path, "one number for the optimizer's iteration", received));
    };
    let read = |name: &String| {
        let dataset = find(name)?;
        let values = dataset.read_f32().map_err(|e| fault(path, e))?;
        Ok(Tensor::new(dataset.shape().to_vec(), values)?)
    };
    Ok(Some((iteration.max(0.0) as u64, rest.iter().map(read).collect::<Result<_>>()?)))
}

/// Reads the variables of the optimizer.
pub(in crate::saving) fn read_variables(path: &Path, file: &File) -> Result<Variables> {
    let Ok(group) = file.root().group("optimizer/vars") else { return Ok(None) };
    let names: Vec<String> = (0..group.members().len()).map(|i| i.to_string()).collect();
    variables_at(path, group, &names)
}
