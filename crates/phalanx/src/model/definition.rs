//! The structure of a model: its calls in topological order, its layers by name, and their lowering to a graph.

use super::caller::Caller;
use super::feeds::{Fed, Feeds};
use super::host_stage::HostStage;
use super::naming::name_members;
use super::shape::ValueType;
use super::structure::IoStructure;
use super::symbol::{Call, Callee, Input, Symbol};
use crate::error::{Error, Result};
use crate::layer::{Argument, Arguments, LayerHandle, Lowering, Operand};
use phalanx_graph::program::Policy;
use phalanx_graph::{DType, FeedId, NodeId, Type};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The kind of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelKind {
    /// A chain of layers.
    Sequential,
    /// An arbitrary graph of layers.
    Functional,
}

/// A named member of a model: an input, a layer or a nested model.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub name: String,
    pub callee: Callee,
}

/// One call in a model, with the member it calls and its output type.
#[derive(Clone, Debug)]
pub(crate) struct ModelCall {
    pub call: Arc<Call>,
    /// Index of the called member.
    pub member: usize,
    /// Types of the outputs.
    pub types: Vec<ValueType>,
}

/// The structure of a model, shared by everything that uses it.
#[derive(Debug)]
pub struct Definition {
    pub(crate) name: String,
    pub(crate) kind: ModelKind,
    pub(crate) inputs: Vec<Symbol>,
    pub(crate) outputs: Vec<Symbol>,
    pub(crate) output_types: Vec<ValueType>,
    pub(crate) members: Vec<Member>,
    pub(crate) calls: Vec<ModelCall>,
    /// Metadata written to the weights files.
    notes: Mutex<BTreeMap<String, String>>,
    pub(crate) input_structure: IoStructure,
    pub(crate) output_structure: IoStructure,
    /// What runs on the host before a step, if anything does.
    pub(crate) host: Option<HostStage>,
    /// What a step is fed with: the inputs, or the results of the host stage.
    pub(crate) fed: Feeds,
}

impl Definition {
    /// Orders the calls between inputs and outputs, names the layers and checks all shapes.
    pub(crate) fn new(
        name: &str,
        kind: ModelKind,
        inputs: Vec<Symbol>,
        outputs: Vec<Symbol>,
    ) -> Result<Definition> {
        let owner = format!("model '{name}'");
        if inputs.is_empty() || outputs.is_empty() {
            return Err(Error::argument(owner, "inputs and outputs", "at least one each", "none"));
        }
        let order = topological(&outputs);
        let mut model_inputs: HashSet<*const Call> = HashSet::new();
        for (i, symbol) in inputs.iter().enumerate() {
            let Callee::Input(input) = &symbol.call.callee else {
                let received = "the output of a layer";
                return Err(Error::argument(owner, "inputs", "symbols of Input", received));
            };
            if !model_inputs.insert(symbol.id()) {
                let received = format!("input {i} twice");
                return Err(Error::argument(owner, "inputs", "each Input once", received));
            }
            let shape = input.known_shape();
            if shape.sizes().contains(&Some(0)) {
                let received = shape.to_string();
                return Err(Error::argument(owner, "input shape", "sizes above zero", received));
            }
            let ty = input.ty(&shape.with_open(1));
            ty.check_limits().map_err(|e| e.in_layer(&input_name(input, i)))?;
        }
        for call in &order {
            let Callee::Input(input) = &call.callee else { continue };
            if !model_inputs.contains(&Arc::as_ptr(call)) {
                let name = input.name.as_deref().map_or(String::new(), |n| format!(" '{n}'"));
                let received =
                    format!("outputs that also depend on an Input{name} {}", input.known_shape());
                return Err(Error::argument(owner, "inputs", "every Input in use", received));
            }
        }
        let (members, index) = name_members(name, &inputs, &order)?;
        let mut def = Definition {
            name: name.into(),
            kind,
            input_structure: IoStructure::for_symbols(&inputs),
            output_structure: IoStructure::for_symbols(&outputs),
            inputs,
            outputs,
            output_types: vec![],
            members,
            calls: order
                .into_iter()
                .zip(index)
                .map(|(call, member)| ModelCall { call, member, types: vec![] })
                .collect(),
            notes: Mutex::default(),
            host: None,
            fed: Feeds::default(),
        };
        def.host = HostStage::split(&def)?;
        let fed = match &def.host {
            Some(stage) => stage.fed(),
            None => (0..def.inputs.len()).map(|i| Fed::input(&def, i)).collect(),
        };
        def.fed = Feeds::new(fed);
        def.infer_types()?;
        Ok(def)
    }

    /// The structure of a training step: its inputs and what has weights. It has no outputs.
    pub(crate) fn of_step(
        name: &str,
        inputs: Vec<Input>,
        members: Vec<(String, Callee)>,
    ) -> Definition {
        let member = |(name, callee)| Member { name, callee };
        let mut def = Definition {
            name: name.into(),
            kind: ModelKind::Functional,
            inputs: inputs.into_iter().map(Input::symbol).collect(),
            outputs: vec![],
            output_types: vec![],
            members: members.into_iter().map(member).collect(),
            calls: vec![],
            notes: Mutex::default(),
            input_structure: IoStructure::List,
            output_structure: IoStructure::List,
            host: None,
            fed: Feeds::default(),
        };
        let fed = (0..def.inputs.len()).map(|i| Fed::input(&def, i)).collect();
        def.fed = Feeds::new(fed);
        def
    }

    /// The models of a training step by their names; none for a model.
    pub(crate) fn models_of_step(&self) -> Vec<(&str, &Arc<Definition>)> {
        let members = self.members.iter().filter(|_| self.outputs.is_empty());
        let mut models = vec![];
        for member in members {
            if let Callee::Model(def) = &member.callee {
                models.push((member.name.as_str(), def));
            }
        }
        models
    }

    /// Metadata written to the weights files.
    pub(crate) fn notes(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the model is sequential or functional.
    pub fn kind(&self) -> ModelKind {
        self.kind
    }

    /// Declares the feeds of a step, of these shapes.
    fn feeds(&self, low: &mut Lowering, shapes: &[Vec<usize>]) -> Vec<FeedId> {
        let feed = |(fed, sizes): (&Fed, &Vec<usize>)| low.graph.add_feed(&fed.name, fed.ty(sizes));
        self.fed.iter().zip(shapes).map(feed).collect()
    }

    /// Returns the name of input `i`.
    pub(crate) fn input_name(&self, i: usize) -> String {
        input_name(self.input(i), i)
    }

    /// Returns the element type of each input.
    pub(crate) fn input_dtypes(&self) -> Vec<DType> {
        (0..self.inputs.len()).map(|i| self.input(i).dtype).collect()
    }

    /// Returns the shape and type of input `i`.
    pub(crate) fn input(&self, i: usize) -> &Input {
        match &self.inputs[i].call.callee {
            Callee::Input(input) => input,
            _ => unreachable!("inputs were checked when the model was built"),
        }
    }

    /// Declares feeds of these shapes, without batch, appends the model's nodes for them and returns its outputs.
    ///
    /// # Errors
    /// If a layer refuses its inputs.
    pub fn lower_on_feeds(
        &self,
        low: &mut Lowering,
        shapes: &[Vec<usize>],
    ) -> Result<Vec<Operand>> {
        self.lower_on_feeds_with(low, shapes, |_| {})
    }

    pub(super) fn lower_on_feeds_with(
        &self,
        low: &mut Lowering,
        shapes: &[Vec<usize>],
        on_call: impl FnMut(Vec<Type>),
    ) -> Result<Vec<Operand>> {
        let feeds = self.feeds(low, shapes);
        let inputs: Vec<Operand> = feeds.iter().map(|f| low.graph.feed(*f).into()).collect();
        let outputs = match &self.host {
            Some(stage) => {
                let (outputs, types) = stage.lower(low, &inputs)?;
                types.into_iter().for_each(on_call);
                outputs
            }
            None => self.lower_with(low, &inputs, "", on_call)?,
        };
        if outputs.iter().any(|output| low.is_batch_second(output.node)) {
            let (expected, received) = ("the batch as first axis", "one whose second axis it is");
            return Err(Error::argument(
                format!("model '{}'", self.name),
                "output",
                expected,
                received,
            ));
        }
        Ok(outputs)
    }

    /// Appends the model's nodes for `inputs` and returns its outputs. Layer names start with `prefix`
    /// inside another model.
    pub(crate) fn lower(
        &self,
        caller: &mut dyn Caller,
        inputs: &[Operand],
        prefix: &str,
    ) -> Result<Vec<Operand>> {
        // Other models expand one with a host stage.
        self.lower_with(caller, inputs, prefix, |_| {})
    }

    fn lower_with(
        &self,
        caller: &mut dyn Caller,
        inputs: &[Operand],
        prefix: &str,
        mut on_call: impl FnMut(Vec<Type>),
    ) -> Result<Vec<Operand>> {
        if inputs.len() != self.inputs.len() {
            let owner = format!("model '{}'", self.name);
            return Err(Error::argument(
                owner,
                "inputs",
                self.inputs.len().to_string(),
                inputs.len(),
            ));
        }
        let mut values: HashMap<*const Call, Vec<Operand>> = HashMap::new();
        for (symbol, operand) in self.inputs.iter().zip(inputs) {
            values.insert(symbol.id(), vec![*operand]);
        }
        for model_call in &self.calls {
            let id = Arc::as_ptr(&model_call.call);
            let name = format!("{prefix}{}", self.members[model_call.member].name);
            let operands = self.operands(caller, &values, &model_call.call.inputs)?;
            let arguments = model_call.call.arguments.map(|i| operands[*i]);
            let out = match &model_call.call.callee {
                Callee::Input(_) => values[&id].clone(),
                Callee::Layer(layer) => caller.call(layer, &name, &arguments)?,
                Callee::Model(inner) => {
                    let inputs = inner.masked_inputs_of(caller.lowering(), &arguments);
                    inner.lower(caller, &inputs, &format!("{name}/"))?
                }
            };
            let graph = &caller.lowering().graph;
            on_call(out.iter().map(|operand| graph.ty(operand.node).clone()).collect());
            values.insert(id, out);
        }
        self.operands(caller, &values, &self.outputs)
    }

    /// The inputs of this model, with the masks that its call passes. As in Keras, these stay with the values.
    pub(super) fn masked_inputs_of(
        &self,
        lowering: &mut Lowering,
        arguments: &Arguments<Operand>,
    ) -> Vec<Operand> {
        let inputs = self.inputs_of(arguments);
        let masks: Vec<Option<NodeId>> = match arguments.named("mask") {
            Some(Argument::List(masks)) => masks.iter().map(Argument::tensor_node).collect(),
            Some(mask) => vec![mask.tensor_node()],
            None => vec![],
        };
        for (input, mask) in inputs.iter().zip(masks) {
            if mask.is_some() {
                lowering.set_mask(input.node, mask);
            }
        }
        inputs.into_iter().map(|input| lowering.with_present_mask(input)).collect()
    }

    /// Returns the inputs of this model in its order, from the arguments of its call.
    pub(super) fn inputs_of<T: Copy>(&self, arguments: &Arguments<T>) -> Vec<T> {
        let (IoStructure::Dict(names), [Argument::Dict(entries)]) =
            (&self.input_structure, &arguments.positional[..])
        else {
            return arguments.positional_tensors().into_iter().copied().collect();
        };
        let mut inputs = vec![];
        let entry = |name| entries.iter().find(|(known, _)| known == name);
        for (_, argument) in names.iter().filter_map(entry) {
            argument.for_each_tensor(&mut |operand| inputs.push(*operand));
        }
        inputs
    }

    /// Returns the values of symbols, with the masks that they have now.
    fn operands(
        &self,
        caller: &mut dyn Caller,
        values: &HashMap<*const Call, Vec<Operand>>,
        symbols: &[Symbol],
    ) -> Result<Vec<Operand>> {
        let lowering = caller.lowering();
        let present = |symbol| Ok(lowering.with_present_mask(self.operand(values, symbol)?));
        symbols.iter().map(present).collect()
    }

    /// Returns the value of a symbol.
    fn operand(
        &self,
        values: &HashMap<*const Call, Vec<Operand>>,
        symbol: &Symbol,
    ) -> Result<Operand> {
        let outputs = &values[&symbol.id()];
        outputs.get(symbol.output).copied().ok_or_else(|| {
            let member = self.calls.iter().find(|c| Arc::as_ptr(&c.call) == symbol.id());
            let name = member.map_or("", |c| &self.members[c.member].name);
            let expected = format!("one of its {} outputs", outputs.len());
            Error::argument(format!("layer '{name}'"), "output", expected, symbol.output)
        })
    }

    /// Returns the mixed precision of the layers, if any layer has it.
    pub(crate) fn dtype_policy(&self) -> Policy {
        mixed_policies(self).into_iter().next().map_or(Policy::Float32, |(_, policy)| policy)
    }

    /// Checks that all layers with mixed precision have the same one.
    pub(crate) fn check_policies(&self) -> Result<()> {
        let all = mixed_policies(self);
        let Some((_, first)) = all.first() else { return Ok(()) };
        match all.iter().find(|(_, policy)| policy != first) {
            Some((name, other)) => {
                let expected = format!("{}, as other layers have, or float32", first.name());
                Err(Error::argument(format!("layer '{name}'"), "dtype", expected, other.name()))
            }
            None => Ok(()),
        }
    }

    /// Returns every layer once with its full name, including layers of nested models.
    pub(crate) fn layers(&self) -> Vec<(String, LayerHandle)> {
        let mut out: Vec<(String, LayerHandle)> = vec![];
        for member in &self.members {
            let found = match &member.callee {
                Callee::Input(_) => vec![],
                Callee::Layer(layer) => vec![(member.name.clone(), layer.clone())],
                Callee::Model(inner) => {
                    let nested = inner.layers().into_iter();
                    nested.map(|(n, l)| (format!("{}/{n}", member.name), l)).collect()
                }
            };
            // A layer may be used both in a nested model and outside it.
            for (name, layer) in found {
                if !out.iter().any(|(_, known)| known.same(&layer)) {
                    out.push((name, layer));
                }
            }
        }
        out
    }
}

/// The layers with mixed precision.
fn mixed_policies(def: &Definition) -> Vec<(String, Policy)> {
    let layers = def.layers().into_iter();
    let policies = layers.filter_map(|(name, layer)| Some((name, layer.dtype_policy()?)));
    policies.filter(|(_, policy)| *policy != Policy::Float32).collect()
}

/// Returns the given name, or `input_{i}`.
fn input_name(input: &Input, i: usize) -> String {
    input.name.clone().unwrap_or_else(|| format!("input_{i}"))
}

/// Returns the calls in topological order: operands first, the inputs of a call in their order.
fn topological(outputs: &[Symbol]) -> Vec<Arc<Call>> {
    let mut order = vec![];
    let mut done: HashSet<*const Call> = HashSet::new();
    // (call, next operand to visit). The stack is explicit because models may be very deep.
    let mut stack: Vec<(Arc<Call>, usize)> = vec![];
    for output in outputs {
        if !done.contains(&output.id()) {
            stack.push((output.call.clone(), 0));
        }
        while let Some((call, next)) = stack.pop() {
            if done.contains(&Arc::as_ptr(&call)) {
                continue;
            }
            match call.inputs.get(next) {
                Some(operand) => {
                    let operand = operand.call.clone();
                    stack.push((call, next + 1));
                    if !done.contains(&Arc::as_ptr(&operand)) {
                        stack.push((operand, 0));
                    }
                }
                None => {
                    done.insert(Arc::as_ptr(&call));
                    order.push(call);
                }
            }
        }
    }
    order
}
