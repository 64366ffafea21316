//! Access to the calls of a model's layers, to extract features or attach new layers.

use super::Model;
use super::definition::{Definition, ModelCall};
use super::shape::Shape;
use super::symbol::{Call, Callee, Symbol};
use crate::error::{Error, Result};
use std::collections::HashMap;

/// One call of a layer, a nested model or an input, with its input and output symbols.
#[derive(Clone, Debug)]
pub struct LayerCall {
    /// The symbols the layer was applied to.
    pub inputs: Vec<Symbol>,
    /// The outputs: one, unless the callee has several.
    pub outputs: Vec<Symbol>,
}

impl Model {
    /// Returns the output of a layer by name, to truncate the model there or to attach a new head. A model
    /// built from it shares the layers up to that point, with their weights. This is Keras'
    /// `get_layer(name).output`.
    ///
    /// Layers of nested models are named `model/layer`, as [`Model::layers`] lists them. They become
    /// top-level layers of the new model.
    ///
    /// ```
    /// use phalanx::prelude::*;
    ///
    /// let model = Sequential::new()
    ///     .add(Input::new([784]))
    ///     .add(Dense::new(64).activation("relu").named("features"))
    ///     .add(Dense::new(10).activation("softmax"))
    ///     .build()?;
    /// let features = model.layer_output("features")?;
    /// let extractor = Model::new(model.inputs(), &features)?;
    /// let finetuned = Model::new(model.inputs(), Dense::new(3).apply(&features))?;
    /// assert_eq!(extractor.predict(Tensor::zeros([1, 784]))?.dims(), [1, 64]);
    /// assert_eq!(finetuned.output_shapes(), [[3]]);
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    ///
    /// # Errors
    /// If no layer has this name, if the layer is called several times, or if it is a model with several
    /// outputs. [`Model::layer_calls`] returns all calls and outputs.
    pub fn layer_output(&self, name: &str) -> Result<Symbol> {
        let mut outputs = self.only_call(name)?.outputs;
        match outputs.len() {
            1 => Ok(outputs.remove(0)),
            n => {
                let expected =
                    format!("one output (choose: layer_calls(\"{name}\")?[0].outputs[i])");
                Err(Error::argument(self.owner(), format!("layer '{name}'"), expected, n))
            }
        }
    }

    /// Returns the symbols a layer was applied to, as Keras' `get_layer(name).input`; empty for an input.
    ///
    /// # Errors
    /// If no layer has this name or the layer is called several times.
    pub fn layer_inputs(&self, name: &str) -> Result<Vec<Symbol>> {
        Ok(self.only_call(name)?.inputs)
    }

    /// Returns all calls of a layer by name, in the order the model makes them.
    ///
    /// # Errors
    /// If no layer has this name.
    pub fn layer_calls(&self, name: &str) -> Result<Vec<LayerCall>> {
        let identity = |symbol: &Symbol| symbol.clone();
        if let Some(calls) = calls(&self.def, name, &identity) {
            return Ok(calls);
        }
        let known = self.layers().into_iter().map(|(name, _)| name).collect();
        Err(Error::Unknown { kind: "layer", name: name.into(), known })
    }

    fn only_call(&self, name: &str) -> Result<LayerCall> {
        let mut calls = self.layer_calls(name)?;
        match calls.len() {
            1 => Ok(calls.remove(0)),
            n => {
                let expected =
                    format!("a layer that is called once (choose: layer_calls(\"{name}\")?[i])");
                let received = format!("{n} calls");
                Err(Error::argument(self.owner(), format!("layer '{name}'"), expected, received))
            }
        }
    }

    fn owner(&self) -> String {
        format!("model '{}'", self.name())
    }
}

/// Returns the calls of a member by name, or `None` if there is no such member. `map` translates a symbol
/// of this definition to a symbol of the outermost model.
fn calls(def: &Definition, name: &str, map: &dyn Fn(&Symbol) -> Symbol) -> Option<Vec<LayerCall>> {
    let member = def.members.iter().position(|m| m.name == name);
    if let Some(member) = member {
        let matching = def.calls.iter().filter(|model_call| model_call.member == member);
        let layer_call = |model_call: &ModelCall| LayerCall {
            inputs: model_call.call.inputs.iter().map(map).collect(),
            outputs: (0..model_call.types.len())
                .map(|output| map(&Symbol { call: model_call.call.clone(), output }))
                .collect(),
        };
        return Some(matching.map(layer_call).collect());
    }
    // A layer of a nested model: its calls within every call of that model.
    let mut found: Option<Vec<LayerCall>> = None;
    for model_call in &def.calls {
        let Callee::Model(inner) = &model_call.call.callee else { continue };
        let rest = name.strip_prefix(&*def.members[model_call.member].name);
        let Some(rest) = rest.and_then(|rest| rest.strip_prefix('/')) else { continue };
        // If the model's call is itself nested, use the inlined copy of that call.
        let call = map(&Symbol { call: model_call.call.clone(), output: 0 }).call;
        let inlined = call.inlined.get_or_init(|| inline(inner, &call.inputs));
        let map_nested = |symbol: &Symbol| inlined_symbol(inlined, symbol);
        if let Some(more) = calls(inner, rest, &map_nested) {
            found.get_or_insert_default().extend(more);
        }
    }
    found
}

impl Definition {
    /// Returns the same model on inputs of these shapes, without the batch.
    pub(crate) fn with_input_shapes(&self, shapes: &[Vec<usize>]) -> Result<Definition> {
        let owner = format!("model '{}'", self.name);
        if shapes.len() != self.inputs.len() {
            let expected = format!("{}, one per input", self.inputs.len());
            return Err(Error::argument(owner, "input shapes", expected, shapes.len()));
        }
        let mut symbols = vec![];
        for (i, shape) in shapes.iter().enumerate() {
            let mut input = self.input(i).clone();
            if !input.shape.accepts(shape) {
                let (expected, received) = (input.shape.to_string(), Shape::from(&shape[..]));
                return Err(Error::argument(owner, "input shape", expected, received));
            }
            input.given = Some(shape.clone());
            input.name = Some(self.input_name(i));
            symbols.push(input.symbol());
        }
        let inlined = inline(self, &symbols);
        let outputs = self.outputs.iter().map(|s| inlined_symbol(&inlined, s)).collect();
        let mut def = Definition::new(&self.name, self.kind, symbols, outputs)?;
        def.input_structure.clone_from(&self.input_structure);
        def.output_structure.clone_from(&self.output_structure);
        def.notes().clone_from(&self.notes());
        Ok(def)
    }
}

/// Repeats a nested model's calls on the inputs the model was applied to, keyed by sequence number.
fn inline(def: &Definition, inputs: &[Symbol]) -> HashMap<u64, Symbol> {
    let mut inlined: HashMap<u64, Symbol> = HashMap::new();
    for (input, argument) in def.inputs.iter().zip(inputs) {
        inlined.insert(input.call.sequence, argument.clone());
    }
    for Call { callee, inputs, arguments, sequence, .. } in
        def.calls.iter().map(|model_call| &*model_call.call)
    {
        if !inlined.contains_key(sequence) {
            let inputs = inputs.iter().map(|s| inlined_symbol(&inlined, s)).collect();
            let symbol = Symbol::with_arguments(callee.clone(), inputs, arguments.clone());
            inlined.insert(*sequence, symbol);
        }
    }
    inlined
}

/// Returns the inlined copy of a nested model's symbol; for an input, the argument passed for it.
fn inlined_symbol(inlined: &HashMap<u64, Symbol>, symbol: &Symbol) -> Symbol {
    let copy = &inlined[&symbol.call.sequence];
    match symbol.call.callee {
        Callee::Input(_) => copy.clone(),
        _ => Symbol { output: symbol.output, ..copy.clone() },
    }
}
