//! The names of a model's members: given ones, or numbered ones by class.

use super::Model;
use super::definition::Member;
use super::structure::{IoStructure, PathStep, path_text};
use super::symbol::{Call, Callee, Symbol};
use crate::custom::short_class;
use crate::error::{Error, Result};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

fn same(a: &Callee, b: &Callee) -> bool {
    match (a, b) {
        (Callee::Layer(a), Callee::Layer(b)) => a.same(b),
        (Callee::Model(a), Callee::Model(b)) => Arc::ptr_eq(a, b),
        _ => false,
    }
}

/// Converts a class name to Keras' snake case: `Conv2D` is `conv2d`, `MaxPooling2D` `max_pooling2d`.
pub(crate) fn snake_case(class: &str) -> String {
    let chars: Vec<char> = class.chars().collect();
    let mut out = String::new();
    for (i, c) in chars.iter().enumerate() {
        let next_lower = chars.get(i + 1).is_some_and(|n| n.is_lowercase());
        let before_lower = i > 0 && chars[i - 1].is_lowercase();
        if c.is_uppercase() && i > 0 && (before_lower || next_lower) {
            out.push('_');
        }
        out.extend(c.to_lowercase());
    }
    out
}

/// Names every member, numbering unnamed ones by class. Returns the members and the member index of each call.
pub(super) fn name_members(
    model: &str,
    inputs: &[Symbol],
    order: &[Arc<Call>],
) -> Result<(Vec<Member>, Vec<usize>)> {
    let mut members: Vec<Member> = vec![];
    let mut index = vec![];
    let mut taken: HashSet<String> = order.iter().filter_map(|c| given_name(&c.callee)).collect();
    let mut counts: HashMap<String, usize> = HashMap::new();
    for call in order {
        if let Some(i) = members.iter().position(|m| same(&m.callee, &call.callee)) {
            index.push(i);
            continue;
        }
        let name = match given_name(&call.callee) {
            Some(name) => {
                if members.iter().any(|m| m.name == name) {
                    let owner = format!("model '{model}'");
                    return Err(Error::argument(owner, "layer names", "each once", name));
                }
                name
            }
            None => loop {
                let base = base_name(&call.callee, inputs, call);
                let n = counts.entry(base.clone()).or_default();
                let name = if *n == 0 { base } else { format!("{base}_{n}") };
                *n += 1;
                if taken.insert(name.clone()) {
                    break name;
                }
            },
        };
        index.push(members.len());
        members.push(Member { name, callee: call.callee.clone() });
    }
    Ok((members, index))
}

/// Default names of unnamed models.
const DEFAULT_MODEL_NAMES: [&str; 2] = ["functional", "sequential"];

fn given_name(callee: &Callee) -> Option<String> {
    match callee {
        Callee::Input(input) => input.name.clone(),
        Callee::Layer(layer) => layer.given_name().map(str::to_string),
        Callee::Model(def) => {
            Some(def.name.clone()).filter(|n| !DEFAULT_MODEL_NAMES.contains(&n.as_str()))
        }
    }
}

fn base_name(callee: &Callee, inputs: &[Symbol], call: &Arc<Call>) -> String {
    match callee {
        Callee::Input(_) => {
            let position = inputs.iter().position(|s| s.id() == Arc::as_ptr(call));
            position.map_or("input".into(), |i| format!("input_{i}"))
        }
        Callee::Layer(layer) => snake_case(short_class(layer.layer().class_name())),
        Callee::Model(def) => def.name.clone(),
    }
}

impl Model {
    /// Returns the names of the inputs.
    pub fn input_names(&self) -> Vec<String> {
        (0..self.def.inputs.len()).map(|i| self.def.input_name(i)).collect()
    }

    /// Returns the paths of the inputs in the structure that Keras takes them in, in the order of
    /// [`input_names`](Model::input_names): the keys of a dict, or paths as `left/0` in nested dicts and lists. `None` if the
    /// model takes one tensor or a list.
    pub fn input_paths(&self) -> Option<Vec<String>> {
        let paths = self.def.input_structure.paths()?;
        Some(paths.iter().map(|path| path_text(path)).collect())
    }

    /// Returns the names of the outputs' losses in logs. In nested outputs they begin with the path, as in Keras.
    pub(crate) fn loss_names(&self) -> Vec<String> {
        let names = self.log_names();
        let (IoStructure::Nested(_), Some(paths)) =
            (&self.def.output_structure, self.def.output_structure.paths())
        else {
            return names;
        };
        let name = |(mut path, name): (Vec<PathStep>, String)| {
            if let Some(last @ PathStep::Position(_)) = path.last_mut() {
                *last = PathStep::Key(name);
            }
            path_text(&path)
        };
        paths.into_iter().zip(names).map(name).collect()
    }

    /// Returns the names of the outputs in logs: the keys of a dict of outputs, else the names of the layers that produce
    /// them.
    pub(crate) fn log_names(&self) -> Vec<String> {
        if let IoStructure::Dict(keys) = &self.def.output_structure {
            return keys.clone();
        }
        let name = |s: &Symbol| {
            let model_call = self.def.calls.iter().find(|p| Arc::as_ptr(&p.call) == s.id());
            model_call.map_or("output", |p| &self.def.members[p.member].name).to_string()
        };
        self.def.outputs.iter().map(name).collect()
    }

    /// Returns the names of the outputs: the keys of a dict of outputs, else the names of the layers that produce them.
    /// Further outputs of a layer are numbered, as `gru_1`. Logs do not number losses, as in Keras.
    pub fn output_names(&self) -> Vec<String> {
        let mut taken = HashSet::new();
        let names = self.log_names().into_iter().map(|base| {
            let mut name = base.clone();
            let mut n = 0;
            while !taken.insert(name.clone()) {
                n += 1;
                name = format!("{base}_{n}");
            }
            name
        });
        names.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::snake_case;

    #[test]
    fn class_names_become_keras_names() {
        for (class, name) in [
            ("Dense", "dense"),
            ("Conv2D", "conv2d"),
            ("DepthwiseConv2D", "depthwise_conv2d"),
            ("BatchNormalization", "batch_normalization"),
            ("MaxPooling2D", "max_pooling2d"),
            ("GlobalAveragePooling2D", "global_average_pooling2d"),
            ("ReLU", "re_lu"),
            ("LeakyReLU", "leaky_re_lu"),
            ("ZeroPadding2D", "zero_padding2d"),
            ("UpSampling2D", "up_sampling2d"),
            ("SpatialDropout2D", "spatial_dropout2d"),
        ] {
            assert_eq!(snake_case(class), name);
        }
    }
}
