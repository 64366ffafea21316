//! Compile arguments of the outputs of a model: one for all, a list, a dict, or lists and dicts as those of the outputs.

use crate::error::{Error, Result};
use crate::model::{IoStructure, IoTree, Model};
use serde_json::{Map, Value};

/// The outputs of a model, as compile arguments name them.
pub(in crate::saving) struct Outputs {
    /// The names of the outputs, in order.
    pub names: Vec<String>,
    /// Lists and dicts in each other, if the outputs are.
    nested: Option<IoTree>,
}

impl Outputs {
    /// The outputs of a model.
    pub fn of(model: &Model) -> Outputs {
        let nested = match &model.definition().output_structure {
            IoStructure::Nested(tree) => Some(tree.clone()),
            _ => None,
        };
        Outputs { names: model.output_names(), nested }
    }

    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// The loss of every output; null is none.
    pub fn losses<'a>(&self, value: &'a Value) -> Result<Vec<Option<&'a Value>>> {
        let values = match (&self.nested, value) {
            (Some(tree), Value::Array(_) | Value::Object(_)) if !single(value) => {
                self.nested_losses("loss", value, tree)?
            }
            _ => self.per_output("loss", value)?,
        };
        Ok(values.into_iter().map(given).collect())
    }

    /// The weight of every loss; null is none. As in Keras, a structure of its own has a weight for each part of `losses`.
    pub fn loss_weights(&self, losses: &Value, weights: &Value) -> Result<Vec<Option<Value>>> {
        let owned = |values: Vec<Option<&Value>>| {
            values.into_iter().map(|value| given(value).cloned()).collect()
        };
        let Some(tree) = self.nested.as_ref().filter(|_| !weights.is_null()) else {
            return Ok(owned(self.per_output("loss_weights", weights)?));
        };
        let (mut of_losses, mut of_weights) = (vec![], vec![]);
        add_leaves(losses, &mut of_losses);
        add_leaves(weights, &mut of_weights);
        if of_losses.len() != of_weights.len() {
            let expected = format!("one for each of {} losses", of_losses.len());
            return Err(wrong("loss_weights", expected, format!("{} of them", of_weights.len())));
        }
        let packed = with_leaves(losses, &mut of_weights.into_iter());
        if single(&packed) {
            return Ok(vec![given(Some(&packed)).cloned(); self.len()]);
        }
        Ok(owned(self.nested_losses("loss_weights", &packed, tree)?))
    }

    /// The metrics of every output.
    pub fn metrics<'a>(&self, what: &str, value: &'a Value) -> Result<Vec<Option<&'a Value>>> {
        let is_empty = value.as_array().is_some_and(Vec::is_empty) || value.is_null();
        match &self.nested {
            Some(_) if is_empty => Ok(vec![None; self.len()]),
            Some(tree) => {
                let mut found = vec![];
                match add_exactly(value, tree, &mut found) {
                    true => Ok(found),
                    false => Err(self.wrong_structure(what, tree, value)),
                }
            }
            None => self.per_output(what, value),
        }
    }

    /// A value per output: one for all, a list, or a map by output name.
    fn per_output<'a>(&self, what: &str, value: &'a Value) -> Result<Vec<Option<&'a Value>>> {
        let fail = |received| {
            let expected = format!("one for each output: {}", self.names.join(", "));
            Err(wrong(what, expected, received))
        };
        match value {
            Value::Null => Ok(vec![None; self.len()]),
            value if single(value) => Ok(vec![Some(value); self.len()]),
            Value::Array(list) if list.len() == self.len() => Ok(list.iter().map(Some).collect()),
            Value::Array(list) => fail(format!("{} of them", list.len())),
            Value::Object(map) => match map.keys().find(|key| !self.names.contains(key)) {
                Some(key) => fail(format!("one for '{key}'")),
                None => Ok(self.names.iter().map(|name| map.get(name)).collect()),
            },
            _ => fail(value.to_string()),
        }
    }

    /// The values of nested outputs. Keras also takes a dict by the names of all outputs of a list, and a list of the
    /// values of all outputs in order.
    fn nested_losses<'a>(
        &self,
        what: &str,
        value: &'a Value,
        tree: &IoTree,
    ) -> Result<Vec<Option<&'a Value>>> {
        if let (Value::Object(map), IoTree::List(_)) = (value, tree)
            && map.len() == self.len()
            && self.names.iter().all(|name| map.contains_key(name))
        {
            return Ok(self.names.iter().map(|name| map.get(name)).collect());
        }
        let mut found = vec![];
        match add_losses(value, tree, &mut found) {
            true => Ok(found),
            false => Err(self.wrong_structure(what, tree, value)),
        }
    }

    fn wrong_structure(&self, what: &str, tree: &IoTree, received: &Value) -> Error {
        let mut names = self.names.iter().map(|name| Value::from(name.as_str()));
        let expected = format!("the structure of the outputs, {}", tree.with_values(&mut names));
        wrong(what, expected, crate::saving::truncate(&received.to_string()))
    }
}

/// Values of each output with the keys of Keras' arguments: in the structure of nested outputs, else a list.
pub(crate) fn in_structure(structure: &IoStructure, values: Vec<Value>) -> Value {
    match structure {
        IoStructure::Nested(tree) => tree.with_values(&mut values.into_iter()),
        _ => values.into(),
    }
}

fn wrong(what: &str, expected: String, received: String) -> Error {
    Error::argument("compile_config", what, expected, received)
}

fn given(value: Option<&Value>) -> Option<&Value> {
    value.filter(|value| !value.is_null())
}

/// Whether a value is a single object rather than a list or map.
pub(super) fn single(value: &Value) -> bool {
    !value.is_array() && (value.get("class_name").is_some() || !value.is_object())
}

/// Adds the loss of each output of a tree, or returns false. Outputs that a list or dict leaves out have none.
fn add_losses<'a>(value: &'a Value, tree: &IoTree, found: &mut Vec<Option<&'a Value>>) -> bool {
    let leaves = tree.len();
    match (value, tree) {
        (Value::Null, _) => found.extend(vec![None; leaves]),
        (Value::Array(list), _) if list.len() == leaves && list.iter().all(single) => {
            found.extend(list.iter().map(Some));
        }
        (value, IoTree::Tensor) if single(value) => found.push(Some(value)),
        (Value::Array(list), IoTree::List(items)) if list.len() <= items.len() => {
            let value = |at: usize| list.get(at).unwrap_or(&Value::Null);
            return items.iter().enumerate().all(|(at, tree)| add_losses(value(at), tree, found));
        }
        (Value::Object(map), IoTree::Dict(entries)) if !single(value) => {
            let is_known = |key: &String| entries.iter().any(|(known, _)| known == key);
            let value = |key: &String| map.get(key).unwrap_or(&Value::Null);
            return map.keys().all(is_known)
                && entries.iter().all(|(key, tree)| add_losses(value(key), tree, found));
        }
        _ => return false,
    }
    true
}

/// Adds the value of each output of a tree, whose structure the value has, or returns false.
fn add_exactly<'a>(value: &'a Value, tree: &IoTree, found: &mut Vec<Option<&'a Value>>) -> bool {
    match (value, tree) {
        (value, IoTree::Tensor) => {
            let is_metrics = |value: &Value| value.is_null() || single(value);
            found.push(Some(value));
            is_metrics(value) || value.as_array().is_some_and(|list| list.iter().all(is_metrics))
        }
        (Value::Array(list), IoTree::List(items)) => {
            list.len() == items.len()
                && list.iter().zip(items).all(|(value, tree)| add_exactly(value, tree, found))
        }
        (Value::Object(map), IoTree::Dict(entries)) => {
            let mut below = |(key, tree): &(String, IoTree)| {
                map.get(key).is_some_and(|value| add_exactly(value, tree, found))
            };
            map.len() == entries.len() && entries.iter().all(&mut below)
        }
        _ => false,
    }
}

/// The entries of a map in the order in which Keras lists them.
fn sorted(map: &Map<String, Value>) -> Vec<(&String, &Value)> {
    let mut entries: Vec<_> = map.iter().collect();
    entries.sort_by_key(|(key, _)| *key);
    entries
}

/// Adds the parts of lists and maps in Keras' order.
fn add_leaves(value: &Value, leaves: &mut Vec<Value>) {
    match value {
        value if single(value) => leaves.push(value.clone()),
        Value::Array(list) => list.iter().for_each(|value| add_leaves(value, leaves)),
        Value::Object(map) => sorted(map).into_iter().for_each(|(_, v)| add_leaves(v, leaves)),
        _ => {}
    }
}

/// Lists and maps with other parts, in Keras' order.
fn with_leaves(value: &Value, leaves: &mut impl Iterator<Item = Value>) -> Value {
    match value {
        Value::Array(list) => list.iter().map(|value| with_leaves(value, leaves)).collect(),
        Value::Object(map) if !single(value) => {
            let entry = |(key, value): (&String, &Value)| (key.clone(), with_leaves(value, leaves));
            sorted(map).into_iter().map(entry).collect::<Map<_, _>>().into()
        }
        _ => leaves.next().unwrap_or_default(),
    }
}
