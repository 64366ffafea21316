//! The graph of a functional model: the layers and their calls.

use super::read::brief;
use crate::error::{Error, Result};
use crate::model::{Callee, IoStructure, ModelKind, Symbol};
use serde_json::{Map, Value};
use std::collections::HashMap;

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
                let operands = self.operands(layer, value)?;
                let missing = operands.iter().find(|(l, n, _)| self.layers[*l].made.len() <= *n);
                if let Some((of, number, _)) = missing {
                    waiting.entry((*of, *number)).or_default().push(layer);
                    break;
                }
                let inputs =
                    operands.iter().map(|t| self.symbol(*t)).collect::<Result<Vec<_>>>()?;
                let node = &mut self.layers[layer];
                node.made.push(Symbol::new(node.callee.clone(), inputs));
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
            Callee::Model(inner) => inner.outputs.len(),
            _ => 1,
        };
        match node.made.get(number) {
            Some(symbol) if output < outputs => Ok(Symbol { output, ..symbol.clone() }),
            _ => {
                let received = format!("output {output} of call {number}");
                let owner = format!("layer '{}'", node.name);
                Err(Error::argument(owner, "keras_history", "an output it has", received))
            }
        }
    }

    /// The operands of a call.
    fn operands(&self, layer: usize, value: &Value) -> Result<Vec<Tensor>> {
        let owner = format!("layer '{}'", self.layers[layer].name);
        let mut out = vec![];
        // Keras 2: [["name", 0, 0, {}], ..]
        if let Some(list) = value.as_array() {
            for item in list {
                let options = item.get(3).and_then(Value::as_object);
                options.map_or(Ok(()), |options| check_options(&owner, options))?;
                out.push(self.parse_tensor(&owner, item)?);
            }
            return Ok(out);
        }
        let args = value.get("args").unwrap_or(&Value::Null);
        self.tensors(&owner, args, 0, &mut out)?;
        if let Some(options) = value.get("kwargs").and_then(Value::as_object) {
            check_options(&owner, options)?;
        }
        Ok(out)
    }

    /// The tensors in the arguments of a call, in order.
    fn tensors(
        &self,
        owner: &str,
        args: &Value,
        depth: usize,
        out: &mut Vec<Tensor>,
    ) -> Result<()> {
        if let Some(list) = args.as_array().filter(|_| depth < 3) {
            return list.iter().try_for_each(|item| self.tensors(owner, item, depth + 1, out));
        }
        let tensor = args.get("class_name").and_then(Value::as_str) == Some("__keras_tensor__");
        let history = args.get("config").and_then(|config| config.get("keras_history"));
        match history.filter(|_| tensor) {
            Some(history) => {
                out.push(self.parse_tensor(owner, history)?);
                Ok(())
            }
            None => Err(Error::argument(owner, "args", "tensors of the model", brief(args))),
        }
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

    /// The inputs or outputs of the model: one, a list, or a map.
    pub fn ends(&self, key: &str, value: &Value) -> Result<(Vec<Symbol>, IoStructure)> {
        let single = |v: &Value| v.get(0).is_some_and(Value::is_string);
        let (list, form): (Vec<&Value>, IoStructure) = match value {
            Value::Array(_) if single(value) => (vec![value], IoStructure::Single),
            Value::Array(list) => (list.iter().collect(), IoStructure::List),
            Value::Object(map) => {
                (map.values().collect(), IoStructure::Dict(map.keys().cloned().collect()))
            }
            _ => {
                let expected = "[layer, call, output] or several of them";
                return Err(Error::argument(self.owner, key, expected, brief(value)));
            }
        };
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
