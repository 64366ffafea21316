//! The host stage of a model: the calls between its inputs and the layers that run on the host only.
//!
//! Threads of the data compute these calls. Their results, and the inputs that other layers read, are the feeds of a step.

use super::definition::Definition;
use super::feeds::Fed;
use super::shape::ValueType;
use super::symbol::{Call, Callee, Input, Symbol};
use crate::data::{Samples, Text};
use crate::error::{Error, Result};
use crate::layer::{Arguments, Elements, HostLayer, LayerHandle, Lowering, Operand, RowType};
use phalanx_graph::{DType, Tensor, Type};
use std::collections::HashMap;
use std::sync::Arc;

/// An output of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ValueRef {
    node: usize,
    output: usize,
}

/// What a node calls. Models that have layers of the host are expanded.
#[derive(Clone, Debug)]
enum NodeKind {
    Input,
    Layer(LayerHandle),
    Model(Arc<Definition>),
}

/// A call.
#[derive(Clone, Debug)]
struct Node {
    kind: NodeKind,
    /// The name of the layer, with those of the models around it.
    name: String,
    inputs: Vec<ValueRef>,
    /// The arguments, whose tensors are positions in `inputs`.
    arguments: Arguments<usize>,
    /// The type of its output, if it runs on the host.
    host: Option<RowType>,
}

impl Node {
    fn host_layer(&self) -> Option<&dyn HostLayer> {
        match &self.kind {
            NodeKind::Layer(layer) => layer.layer().host(),
            NodeKind::Input | NodeKind::Model(_) => None,
        }
    }

    fn owner(&self) -> String {
        format!("layer '{}'", self.name)
    }
}

/// A model split into a host stage and the rest.
#[derive(Debug)]
pub(crate) struct HostStage {
    nodes: Vec<Node>,
    /// The nodes whose results are fed to the devices.
    feeds: Vec<(usize, Fed)>,
    outputs: Vec<ValueRef>,
    /// The outputs of each call of the model.
    calls: Vec<Vec<ValueRef>>,
}

/// Whether a model has inputs of strings or layers that run on the host only.
fn needs_host(def: &Definition) -> bool {
    def.members.iter().any(|member| match &member.callee {
        Callee::Input(input) => input.text,
        Callee::Layer(layer) => layer.layer().host().is_some_and(|host| !host.runs_on_devices()),
        Callee::Model(inner) => inner.host.is_some(),
    })
}

/// The type of an input's samples.
fn input_type(input: &Input) -> RowType {
    let elements = match (input.text, input.dtype) {
        (true, _) => Elements::Strings,
        (false, DType::I32) => Elements::Integers,
        (false, _) => Elements::Floats,
    };
    RowType::new(elements, input.known_shape())
}

impl HostStage {
    /// Splits a model; `None` if nothing of it needs the host.
    ///
    /// # Errors
    /// A layer of the host on a value that the devices compute, strings where numbers belong, or what the layers refuse.
    pub fn split(def: &Definition) -> Result<Option<HostStage>> {
        if !needs_host(def) {
            return Ok(None);
        }
        let mut nodes = vec![];
        let mut inputs = vec![];
        for i in 0..def.inputs.len() {
            let (kind, name) = (NodeKind::Input, def.input_name(i));
            let host = Some(input_type(def.input(i)));
            let arguments = Arguments::default();
            nodes.push(Node { kind, name, inputs: vec![], arguments, host });
            inputs.push(ValueRef { node: i, output: 0 });
        }
        let (outputs, calls) = expand(def, &inputs, "", &mut nodes)?;
        let mut stage = HostStage { nodes, feeds: vec![], outputs, calls };
        stage.place()?;
        stage.choose_feeds(def)?;
        Ok(Some(stage))
    }

    /// Finds the calls that run on the host: those that must, and those whose results they need.
    fn place(&mut self) -> Result<()> {
        let mut on_host = vec![false; self.nodes.len()];
        for at in (0..self.nodes.len()).rev() {
            let node = &self.nodes[at];
            let required = node.host_layer().is_some_and(|layer| !layer.runs_on_devices());
            on_host[at] |= required;
            if on_host[at] {
                node.inputs.iter().for_each(|input| on_host[input.node] = true);
            }
        }
        for at in 0..self.nodes.len() {
            if !on_host[at] || matches!(self.nodes[at].kind, NodeKind::Input) {
                continue;
            }
            let node = &self.nodes[at];
            let Some(layer) = node.host_layer() else {
                let user = (at + 1..self.nodes.len()).find(|user| {
                    on_host[*user] && self.nodes[*user].inputs.iter().any(|i| i.node == at)
                });
                let user = user.map_or(node, |user| &self.nodes[user]);
                let expected = "values that reach it from the model's inputs through preprocessing layers only, \
                                as it runs on the host";
                let received = format!("the output of '{}', which runs on the devices", node.name);
                return Err(Error::argument(user.owner(), "input", expected, received));
            };
            if !node.arguments.named.iter().all(|(_, argument)| argument.is_none()) {
                let names: Vec<&str> =
                    node.arguments.named.iter().map(|(name, _)| name.as_str()).collect();
                let expected = "none by name for a layer that runs on the host";
                return Err(Error::argument(node.owner(), "arguments", expected, names.join(", ")));
            }
            let inputs: Vec<RowType> =
                node.inputs.iter().filter_map(|i| self.nodes[i.node].host.clone()).collect();
            let ty = layer.output_type(&node.owner(), &inputs)?;
            ty.ty().check_limits().map_err(|e| e.in_layer(&node.name))?;
            self.nodes[at].host = Some(ty);
        }
        Ok(())
    }

    /// Finds the results of the host that the devices or the outputs need.
    fn choose_feeds(&mut self, def: &Definition) -> Result<()> {
        let on_devices = self.nodes.iter().filter(|node| node.host.is_none());
        let mut used: Vec<(usize, String)> = on_devices
            .flat_map(|node| node.inputs.iter().map(|input| (input.node, node.owner())))
            .collect();
        let owner = format!("model '{}'", def.name);
        used.extend(self.outputs.iter().map(|output| (output.node, owner.clone())));
        let mut fed = vec![false; self.nodes.len()];
        for (node, user) in used {
            let Some(ty) = &self.nodes[node].host else { continue };
            if ty.elements == Elements::Strings {
                let received = format!("strings from '{}'", self.nodes[node].name);
                return Err(Error::argument(user, "input", "numbers", received));
            }
            if !std::mem::replace(&mut fed[node], true) {
                let (name, dtype) = (self.nodes[node].name.clone(), ty.ty().dtype);
                self.feeds.push((node, Fed { name, dtype, shape: ty.shape.clone() }));
            }
        }
        self.feeds.sort_by_key(|(node, _)| *node);
        Ok(())
    }

    /// What a step is fed with.
    pub fn fed(&self) -> Vec<Fed> {
        self.feeds.iter().map(|(_, fed)| fed.clone()).collect()
    }

    /// Replaces the types of values of the host, whose sizes may be open, in those of the outputs of each call.
    pub fn set_host_types(&self, calls: &mut [Vec<ValueType>]) {
        for (call, types) in self.calls.iter().zip(calls) {
            for (value, ty) in call.iter().zip(types) {
                if let Some(row) = &self.nodes[value.node].host {
                    *ty = ValueType::of_host(row);
                }
            }
        }
    }

    /// Appends the rest of the model on its feeds. Returns its outputs, and the types of every call's outputs.
    pub fn lower(
        &self,
        low: &mut Lowering,
        feeds: &[Operand],
    ) -> Result<(Vec<Operand>, Vec<Vec<Type>>)> {
        let mut values: Vec<Option<Vec<Operand>>> = vec![None; self.nodes.len()];
        for ((at, _), operand) in self.feeds.iter().zip(feeds) {
            values[*at] = Some(vec![*operand]);
        }
        for (at, node) in self.nodes.iter().enumerate() {
            if node.host.is_some() {
                continue;
            }
            let operands = node.inputs.iter().map(|input| self.operand(&values, *input));
            let operands = operands.collect::<Result<Vec<Operand>>>()?;
            let arguments = node.arguments.map(|i| low.with_present_mask(operands[*i]));
            values[at] = Some(match &node.kind {
                NodeKind::Layer(layer) => low.call_with(layer, &node.name, &arguments)?,
                NodeKind::Model(inner) => {
                    let inputs = inner.masked_inputs_of(low, &arguments);
                    inner.lower(low, &inputs, &format!("{}/", node.name))?
                }
                NodeKind::Input => vec![],
            });
        }
        let ty = |value: &ValueRef| match &self.nodes[value.node].host {
            Some(ty) => Ok(ty.ty()),
            None => Ok(low.graph.ty(self.operand(&values, *value)?.node).clone()),
        };
        let types = self.calls.iter().map(|call| match &call[..] {
            // All outputs of a call that is not expanded.
            [first] if self.nodes[first.node].host.is_none() => {
                let outputs = values[first.node].as_deref().unwrap_or_default();
                Ok(outputs.iter().map(|o| low.graph.ty(o.node).clone()).collect())
            }
            outputs => outputs.iter().map(ty).collect::<Result<Vec<Type>>>(),
        });
        let types = types.collect::<Result<Vec<_>>>()?;
        let mut outputs = vec![];
        for output in &self.outputs {
            let mut operand = low.with_present_mask(self.operand(&values, *output)?);
            if self.nodes[output.node].host.is_some() {
                operand.node = low.graph.cast(operand.node, DType::F32)?;
            }
            outputs.push(operand);
        }
        Ok((outputs, types))
    }

    fn operand(&self, values: &[Option<Vec<Operand>>], value: ValueRef) -> Result<Operand> {
        let outputs = values[value.node].as_deref().unwrap_or_default();
        outputs.get(value.output).copied().ok_or_else(|| {
            let expected = format!("one of its {} outputs", outputs.len());
            Error::argument(self.nodes[value.node].owner(), "output", expected, value.output)
        })
    }

    /// Runs the stage on some rows of every input. Returns the feeds.
    pub fn run(&self, inputs: Vec<Samples>) -> Result<Vec<Tensor>> {
        let mut values: Vec<Option<Samples>> = inputs.into_iter().map(Some).collect();
        values.resize(self.nodes.len(), None);
        for (at, node) in self.nodes.iter().enumerate() {
            let Some(layer) = node.host_layer().filter(|_| node.host.is_some()) else { continue };
            let inputs: Vec<Samples> =
                node.inputs.iter().filter_map(|input| values[input.node].clone()).collect();
            let samples = layer.run(&node.owner(), &inputs)?;
            let rank = node.host.as_ref().map_or(0, |ty| ty.sizes().len());
            values[at] = Some(with_rank(samples, rank));
        }
        let feed = |(at, _): &(usize, Fed)| {
            let samples = values[*at].take();
            samples.map(|samples| Arc::unwrap_or_clone(samples.to_tensor()))
        };
        Ok(self.feeds.iter().filter_map(feed).collect())
    }
}

/// Samples of a rank. An encoding replaces an axis of one element, but not an open one, which has as many axes in all
/// batches.
fn with_rank(samples: Samples, rank: usize) -> Samples {
    let mut dims = samples.dims().to_vec();
    while dims.len() < rank + 1 {
        dims.insert(dims.len().saturating_sub(1).max(1), 1);
    }
    samples.clone().reshape(dims).unwrap_or(samples)
}

/// Outputs of a model and of each of its calls.
type Expanded = (Vec<ValueRef>, Vec<Vec<ValueRef>>);

/// Appends the calls of a model, with those of nested models that need the host in their place.
fn expand(
    def: &Definition,
    inputs: &[ValueRef],
    prefix: &str,
    nodes: &mut Vec<Node>,
) -> Result<Expanded> {
    let mut known: HashMap<*const Call, Vec<ValueRef>> = HashMap::new();
    for (symbol, value) in def.inputs.iter().zip(inputs) {
        known.insert(symbol.id(), vec![*value]);
    }
    let find = |known: &HashMap<*const Call, Vec<ValueRef>>, symbol: &Symbol| {
        let outputs = &known[&symbol.id()];
        match (outputs.get(symbol.output), &outputs[..]) {
            (Some(value), _) => Ok(*value),
            // How many outputs a layer has is known when it is called.
            (None, [first]) => Ok(ValueRef { node: first.node, output: symbol.output }),
            (None, all) => {
                let owner = format!("model '{}'", def.name);
                let expected = format!("one of {}", all.len());
                Err(Error::argument(owner, "output", expected, symbol.output))
            }
        }
    };
    let mut calls = vec![];
    for model_call in &def.calls {
        let call = &model_call.call;
        let name = format!("{prefix}{}", def.members[model_call.member].name);
        let operands = call.inputs.iter().map(|symbol| find(&known, symbol));
        let operands = operands.collect::<Result<Vec<ValueRef>>>()?;
        let kind = match &call.callee {
            Callee::Input(_) => {
                calls.push(known[&Arc::as_ptr(call)].clone());
                continue;
            }
            Callee::Model(inner) if inner.host.is_some() => {
                let arguments = call.arguments.map(|i| operands[*i]);
                let inputs = inner.inputs_of(&arguments);
                if inputs.len() != inner.inputs.len() {
                    let owner = format!("model '{}'", inner.name);
                    let expected = inner.inputs.len().to_string();
                    return Err(Error::argument(owner, "inputs", expected, inputs.len()));
                }
                let (outputs, _) = expand(inner, &inputs, &format!("{name}/"), nodes)?;
                known.insert(Arc::as_ptr(call), outputs.clone());
                calls.push(outputs);
                continue;
            }
            Callee::Model(inner) => NodeKind::Model(inner.clone()),
            Callee::Layer(layer) => NodeKind::Layer(layer.clone()),
        };
        let arguments = call.arguments.clone();
        let value = ValueRef { node: nodes.len(), output: 0 };
        nodes.push(Node { kind, name, inputs: operands, arguments, host: None });
        known.insert(Arc::as_ptr(call), vec![value]);
        calls.push(vec![value]);
    }
    let outputs = def.outputs.iter().map(|symbol| find(&known, symbol));
    Ok((outputs.collect::<Result<Vec<ValueRef>>>()?, calls))
}

/// The rows of an input as the host stage takes them: strings, or numbers of the input's type.
pub(super) fn input_rows(
    def: &Definition,
    input: usize,
    rows: Tensor,
    strings: Option<Arc<Vec<String>>>,
) -> Result<Samples> {
    let spec = def.input(input);
    let owner = || format!("model '{}'", def.name);
    let wanted = input_type(spec);
    let what = || format!("input '{}'", def.input_name(input));
    let samples: Samples = match (spec.text, strings) {
        (false, None) => {
            let fractions = || Error::argument(owner(), what(), "whole numbers", "fractions");
            super::source::as_dtype(&rows, spec.dtype).ok_or_else(fractions)?.into()
        }
        (true, Some(strings)) => {
            let numbers = || Error::argument(owner(), what(), "numbers of strings", "others");
            Text::from_numbers(rows, strings).ok_or_else(numbers)?.into()
        }
        (true, None) => {
            return Err(Error::argument(owner(), what(), "strings", "numbers"));
        }
        (false, Some(_)) => {
            return Err(Error::argument(owner(), what(), "numbers", "strings"));
        }
    };
    let received = RowType::of(&samples).to_string();
    let row = &samples.dims()[1..];
    let sizes = |dims: &[usize]| dims.iter().copied().filter(|d| *d != 1).collect::<Vec<_>>();
    let sized = match wanted.shape.known() {
        // Axes of size one are optional.
        Some(known) => Some(known).filter(|known| sizes(known) == sizes(row)),
        None => wanted.shape.sizes_of(row),
    };
    let dims = sized.map(|sized| [&[samples.rows()], &sized[..]].concat());
    let shaped = dims.and_then(|dims| samples.reshape(dims));
    shaped.ok_or_else(|| Error::argument(owner(), what(), wanted.to_string(), received))
}
