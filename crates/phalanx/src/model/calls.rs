//! The calls of a model's layers: where a model is cut, and new layers are put on.

use super::Model;
use super::definition::Definition;
use super::symbol::{Call, Callee, Symbol};
use crate::error::{Error, Result};
use std::collections::HashMap;
use std::sync::Arc;

/// One call of a layer (or of a model in another one, or an input): what it was applied to and what
/// came of it.
#[derive(Clone, Debug)]
pub struct LayerCall {
    /// What the layer was applied to.
    pub inputs: Vec<Symbol>,
    /// Its outputs: one, unless it is a model with several.
    pub outputs: Vec<Symbol>,
}

impl Model {
    /// The output of a layer by name, to cut the model there or to put a new head on it; the layers on
    /// the way, and their weights, are shared. Keras' `get_layer(name).output`.
    ///
    /// Layers of nested models are named `model/layer`, as [`Model::layers`] lists them; the new model
    /// then has them as its own.
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
    /// A name that no layer has; a layer that is called several times, or a model with several outputs:
    /// [`Model::layer_calls`] has them all.
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

    /// What a layer by name was applied to, as Keras' `get_layer(name).input`; an input to nothing.
    ///
    /// # Errors
    /// A name that no layer has, or a layer that is called several times.
    pub fn layer_inputs(&self, name: &str) -> Result<Vec<Symbol>> {
        Ok(self.only_call(name)?.inputs)
    }

    /// Every call of a layer by name, in the order in which the model makes them.
    ///
    /// # Errors
    /// A name that no layer has.
    pub fn layer_calls(&self, name: &str) -> Result<Vec<LayerCall>> {
        let own = |symbol: &Symbol| symbol.clone();
        if let Some(calls) = calls(&self.def, name, &own) {
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

/// The calls of a member by name, `None` where there is no such member; `place` says what a symbol of
/// this definition is where the search began.
fn calls(
    def: &Definition,
    name: &str,
    place: &dyn Fn(&Symbol) -> Symbol,
) -> Option<Vec<LayerCall>> {
    let member = def.members.iter().position(|m| m.name == name);
    if let Some(member) = member {
        let made = def.calls.iter().filter(|placed| placed.member == member);
        let call = |call: &Arc<Call>| LayerCall {
            inputs: call.inputs.iter().map(place).collect(),
            outputs: (0..outputs(&call.callee))
                .map(|output| place(&Symbol { call: call.clone(), output }))
                .collect(),
        };
        return Some(made.map(|placed| call(&placed.call)).collect());
    }
    // A layer of a nested model: its calls in each call of the model.
    let mut found: Option<Vec<LayerCall>> = None;
    for placed in &def.calls {
        let Callee::Model(inner) = &placed.call.callee else { continue };
        let rest = name.strip_prefix(&*def.members[placed.member].name);
        let Some(rest) = rest.and_then(|rest| rest.strip_prefix('/')) else { continue };
        // Where the model was called within another, by the copy of that call.
        let call = place(&Symbol { call: placed.call.clone(), output: 0 }).call;
        let inlined = call.inlined.get_or_init(|| inline(inner, &call.inputs));
        let within = |symbol: &Symbol| moved(inlined, symbol);
        if let Some(more) = calls(inner, rest, &within) {
            found.get_or_insert_default().extend(more);
        }
    }
    found
}

fn outputs(callee: &Callee) -> usize {
    match callee {
        Callee::Input(_) | Callee::Layer(_) => 1,
        Callee::Model(def) => def.outputs.len(),
    }
}

/// A nested model's calls once more, applied to what the model was applied to.
fn inline(def: &Definition, inputs: &[Symbol]) -> HashMap<u64, Symbol> {
    let mut made: HashMap<u64, Symbol> = HashMap::new();
    for (own, given) in def.inputs.iter().zip(inputs) {
        made.insert(own.call.sequence, given.clone());
    }
    for Call { callee, inputs, sequence, .. } in def.calls.iter().map(|placed| &*placed.call) {
        if !made.contains_key(sequence) {
            let inputs = inputs.iter().map(|s| moved(&made, s)).collect();
            made.insert(*sequence, Symbol::new(callee.clone(), inputs));
        }
    }
    made
}

/// Where a symbol of a nested model is now; an input is whatever output it was given.
fn moved(made: &HashMap<u64, Symbol>, symbol: &Symbol) -> Symbol {
    let there = &made[&symbol.call.sequence];
    match symbol.call.callee {
        Callee::Input(_) => there.clone(),
        _ => Symbol { output: symbol.output, ..there.clone() },
    }
}
