//! The graph of a functional model: the layers and their calls.

use super::read::brief;
use crate::error::{Error, Result};
use crate::layer::{Argument, Arguments};
use crate::model::{Callee, IoStructure, IoTree, ModelKind, Symbol};
use serde_json::{Map, Value};
use std::collections::HashMap;

/// Maximum nesting of a call's arguments.
const MAX_ARGUMENT_DEPTH: usize = 8;

/// A tensor reference in a file: layer, index of the call, index of the output.
type Tensor = (usize, usize, usize);

/// A functional model under construction.
pub(super) struct Graph<'a> {
    owner: &'a str,
    names: HashMap<String, usize>,
    layers: Vec<Node<'a>>,
}

/// A layer, the serialized calls, and the calls made so far.
struct Node<'a> {
    name: String,
    callee: Callee,
    inbound: &'a [Value],
    made: Vec<Symbol>,
}

impl<'a> Graph<'a> {
    /// Creates a graph without layers.
    pub fn new(owner: &'a str) -> Graph<'a> {
        Graph { owner, names: HashMap::new(), layers: vec![] }
    }

    /// The layers, each with its number of calls.
    pub fn calls(&self) -> impl Iterator<Item = (&Callee, usize)> {
        self.layers.iter().map(|node| (&node.callee, node.inbound.len()))
    }

    /// Adds a layer. `connect` makes its calls.
    pub fn add(&mut self, name: String, callee: Callee, value: &'a Value) -> Result<()> {
        if self.names.insert(name.clone(), self.layers.len()).is_some() {
            return Err(Error::argument(self.owner, "layer names", "each once", name));
        }
        let inbound = value.get("inbound_nodes").and_then(Value::as_array);
        let inbound = inbound.map_or(&[][..], Vec::as_slice);
        let made = match &callee {
            Callee::Input(input) => vec![input.clone().symbol()],
            _ => vec![],
        };
        self.layers.push(Node { name, callee, inbound, made });
        Ok(())
    }

    /// Makes the calls, each once its operands exist.
    pub fn connect(&mut self) -> Result<()> {
        let mut waiting: HashMap<(usize, usize), Vec<usize>> = HashMap::new();
        let mut ready: Vec<usize> = (0..self.layers.len()).rev().collect();
        while let Some(layer) = ready.pop() {
            while let Some(value) = self.next_call(layer) {
                let (operands, arguments) = self.arguments(layer, value)?;
                let missing = operands.iter().find(|(l, n, _)| self.layers[*l].made.len() <= *n);
                if let Some((of, number, _)) = missing {
                    waiting.entry((*of, *number)).or_default().push(layer);
                    break;
                }
                let inputs =
                    operands.iter().map(|t| self.symbol(*t)).collect::<Result<Vec<_>>>()?;
                let node = &mut self.layers[layer];
                let callee = node.callee.clone();
                node.made.push(match arguments {
                    Some(arguments) => Symbol::with_arguments(callee, inputs, arguments),
                    None => Symbol::new(callee, inputs),
                });
                let made = (layer, self.layers[layer].made.len() - 1);
                ready.extend(waiting.remove(&made).unwrap_or_default());
            }
        }
        match (0..self.layers.len()).find(|l| self.next_call(*l).is_some()) {
            None => Ok(()),
            Some(layer) => {
                let owner = format!("layer '{}'", self.layers[layer].name);
                let received = "a call that waits for itself or for one that is missing";
                Err(Error::argument(owner, "inbound_nodes", "calls in an order", received))
            }
        }
    }

    /// The serialized next call of a layer.
    fn next_call(&self, layer: usize) -> Option<&'a Value> {
        let node = &self.layers[layer];
        match node.callee {
            Callee::Input(_) => None,
            _ => node.inbound.get(node.made.len()),
        }
    }

    fn symbol(&self, (layer, number, output): Tensor) -> Result<Symbol> {
        let node = &self.layers[layer];
        let outputs = match &node.callee {
            Callee::Input(_) => 1,
            Callee::Model(inner) => inner.outputs.len(),
            // Known once the types are inferred.
            Callee::Layer(_) => usize::MAX,
        };
        match node.made.get(number) {
            Some(symbol) if output < outputs => Ok(symbol.output(output)),
            _ => {
                let received = format!("output {output} of call {number}");
                let owner = format!("layer '{}'", node.name);
                Err(Error::argument(owner, "keras_history", "an output it has", received))
            }
        }
    }

    /// The operands of a call, and its arguments in terms of them; `None` for Keras 2, which lists only the operands.
    fn arguments(
        &self,
        layer: usize,
        value: &Value,
    ) -> Result<(Vec<Tensor>, Option<Arguments<usize>>)> {
        let owner = format!("layer '{}'", self.layers[layer].name);
        let mut operands = vec![];
        // Keras 2: [["name", 0, 0, {}], ..]
        if let Some(list) = value.as_array() {
            for item in list {
                let options = item.get(3).and_then(Value::as_object);
                options.map_or(Ok(()), |options| check_options(&owner, options))?;
                operands.push(self.parse_tensor(&owner, item)?);
            }
            return Ok((operands, None));
        }
        let mut positional = vec![];
        for item in value.get("args").and_then(Value::as_array).into_iter().flatten() {
            positional.push(self.argument(&owner, item, 0)?);
        }
        let mut named = vec![];
        for (name, item) in value.get("kwargs").and_then(Value::as_object).into_iter().flatten() {
            named.push((name.clone(), self.argument(&owner, item, 0)?));
        }
        let arguments = Arguments { positional, named };
        arguments.for_each_tensor(&mut |tensor| operands.push(*tensor));
        if operands.is_empty() {
            return Err(Error::argument(owner, "args", "tensors of the model", brief(value)));
        }
        let position = |tensor: &Tensor| operands.iter().position(|t| t == tensor).unwrap_or(0);
        let arguments = arguments.map(position);
        Ok((operands, Some(arguments)))
    }

    /// Parses an argument: a tensor, a structure that contains tensors, or a plain value.
    fn argument(&self, owner: &str, value: &Value, depth: usize) -> Result<Argument<Tensor>> {
        if depth > MAX_ARGUMENT_DEPTH {
            let expected = format!("at most {MAX_ARGUMENT_DEPTH} levels");
            return Err(Error::argument(owner, "args", expected, brief(value)));
        }
        Ok(match value {
            Value::Array(items) => {
                let items = items.iter().map(|item| self.argument(owner, item, depth + 1));
                let items = items.collect::<Result<Vec<_>>>()?;
                match items.iter().all(|item| matches!(item, Argument::Plain(_))) {
                    true if !items.is_empty() => Argument::Plain(value.clone()),
                    _ => Argument::List(items),
                }
            }
            Value::Object(object) => match object.get("class_name").and_then(Value::as_str) {
                Some("__keras_tensor__") => {
                    let history = object.get("config").and_then(|c| c.get("keras_history"));
                    let history = history.unwrap_or(&Value::Null);
                    Argument::Tensor(self.parse_tensor(owner, history)?)
                }
                Some(_) => Argument::Plain(value.clone()),
                None => {
                    let entries = object.iter().map(|(name, item)| {
                        Ok((name.clone(), self.argument(owner, item, depth + 1)?))
                    });
                    Argument::Dict(entries.collect::<Result<_>>()?)
                }
            },
            _ => Argument::Plain(value.clone()),
        })
    }

    /// `["layer", call, output, ..]`
    fn parse_tensor(&self, owner: &str, value: &Value) -> Result<Tensor> {
        let wrong = || {
            let expected = "[layer, call, output] of a layer of the model";
            Error::argument(owner, "keras_history", expected, brief(value))
        };
        let number = |i: usize| {
            let number = value.get(i).and_then(Value::as_u64);
            number.and_then(|n| usize::try_from(n).ok()).ok_or_else(wrong)
        };
        let name = value.get(0).and_then(Value::as_str).ok_or_else(wrong)?;
        let layer = self.names.get(name).ok_or_else(wrong)?;
        Ok((*layer, number(1)?, number(2)?))
    }

    /// The inputs or outputs of the model: one, or lists and maps of them.
    pub fn ends(&self, key: &str, value: &Value) -> Result<(Vec<Symbol>, IoStructure)> {
        let mut list = vec![];
        let form = IoStructure::of_tree(self.tree(key, value, &mut list, 0)?);
        let end = |value: &&Value| {
            let (layer, number, output) = self.parse_tensor(self.owner, value)?;
            let node = &self.layers[layer];
            // Keras numbers the calls of functional models from 1 here; in older versions 0 was the
            // last.
            let functional =
                matches!(&node.callee, Callee::Model(m) if m.kind() == ModelKind::Functional);
            let number = match (functional, number) {
                (true, 0) => node.made.len().saturating_sub(1),
                (true, number) => number - 1,
                (false, number) => number,
            };
            self.symbol((layer, number, output))
        };
        Ok((list.iter().map(end).collect::<Result<_>>()?, form))
    }

    /// The structure of inputs or outputs, and the references to tensors in it.
    fn tree<'v>(
        &self,
        key: &str,
        value: &'v Value,
        list: &mut Vec<&'v Value>,
        depth: usize,
    ) -> Result<IoTree> {
        let is_reference = value.get(0).is_some_and(Value::is_string);
        match value {
            Value::Array(_) if is_reference => {
                list.push(value);
                Ok(IoTree::Tensor)
            }
            Value::Array(items) if depth < MAX_ARGUMENT_DEPTH => {
                let items = items.iter().map(|item| self.tree(key, item, list, depth + 1));
                Ok(IoTree::List(items.collect::<Result<_>>()?))
            }
            Value::Object(map) if depth < MAX_ARGUMENT_DEPTH => {
                let entry = |(name, item): (&String, &'v Value)| {
                    Ok((name.clone(), self.tree(key, item, list, depth + 1)?))
                };
                Ok(IoTree::Dict(map.iter().map(entry).collect::<Result<_>>()?))
            }
            _ => {
                let expected = "[layer, call, output], or lists and maps of them";
                Err(Error::argument(self.owner, key, expected, brief(value)))
            }
        }
    }
}

/// Checks the options of a call, and accepts only those without effect.
fn check_options(owner: &str, options: &Map<String, Value>) -> Result<()> {
    for (key, value) in options {
        let has_no_effect = match key.as_str() {
            // Keras itself decides by whether the model trains or predicts.
            "training" => value.is_null() || value.is_boolean(),
            // One for each operand.
            "mask" => {
                value.is_null() || value.as_array().is_some_and(|l| l.iter().all(Value::is_null))
            }
            _ => value.is_null(),
        };
        if !has_no_effect {
            let received = brief(value);
            return Err(Error::argument(owner, format!("call option '{key}'"), "null", received));
        }
    }
    Ok(())
}
