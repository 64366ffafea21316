//! States that outlive a batch, such as those of a stateful LSTM. They are the weights of a layer of their own beside the
//! layer that has them, so that devices, runs and shared layers treat them as weights, and files do not see them.

use super::{Layer, LayerContext, LayerHandle, LayerInstance, Outputs, WeightSpec};
use crate::error::Result;
use crate::initializers::Initializer;
use crate::registry::Config;
use phalanx_graph::functions::batch::{own_rows, row_table};
use phalanx_graph::{NodeId, ParamId};

/// A state of every sample that outlives the batch.
pub(crate) struct RowState {
    /// Its value before the step.
    pub value: NodeId,
    param: ParamId,
    batch: usize,
}

/// The layer that holds the states of another one between batches.
#[derive(Debug)]
struct States;

impl Layer for States {
    fn class_name(&self) -> &'static str {
        "States"
    }

    fn config(&self) -> Config {
        Config::new()
    }

    fn call(&self, cx: &mut LayerContext<'_>, _: &[NodeId]) -> Result<Outputs> {
        Err(cx.argument("call", "none", "one"))
    }
}

impl LayerInstance {
    /// Whether this layer holds the states of another one.
    pub(crate) fn holds_states(&self) -> bool {
        self.layer.class_name() == States.class_name()
    }

    /// Whether this layer has states that outlive a batch. Known once a model has called it.
    pub(crate) fn is_stateful(&self) -> bool {
        self.states.get().is_some()
    }

    /// Sets the states that outlive a batch to zero. They are an LSTM's or GRU's if it is `stateful`; other layers have
    /// none.
    pub fn reset_states(&self) {
        let Some(states) = self.states.get() else { return };
        let sizes: Vec<usize> =
            states.weights().iter().map(|w| w.spec.dims.iter().product()).collect();
        states.set_values(sizes.into_iter().map(|n| vec![0.0; n]));
    }

    /// The layer that holds the states of this layer. They are weights for devices and runs, but not for files.
    pub(crate) fn states(&self) -> &LayerHandle {
        self.states.get_or_init(|| LayerHandle::new(Box::new(States), None, false))
    }
}

impl LayerContext<'_> {
    /// Declares a state of every sample that outlives the batch, and returns what the last call left in it; zeros at
    /// first. Sample `i` of a batch continues sample `i` of the batch before.
    ///
    /// # Errors
    /// If the size of the batches is not fixed.
    pub(crate) fn state(&mut self, name: &str, dims: &[usize]) -> Result<RowState> {
        let Some(batch) = self.lowering.sizes.batch else {
            let expected = "inputs with a fixed batch size (Input::batch_size)";
            return Err(self.argument("stateful", expected, "an open batch size"));
        };
        let separator = if self.sublayer.is_empty() { "" } else { "/" };
        let name = format!("{}{separator}{name}", self.sublayer);
        let table = [&[batch], dims].concat();
        self.check_weight_size(&name, &table)?;
        let spec = WeightSpec::new(&name, &table, Initializer::Zeros {}).non_trainable();
        let states = self.layer.states();
        let known = states.weights().iter().position(|w| w.spec.name == name);
        let index = known.unwrap_or_else(|| states.weights().len());
        // Runs keep it under a name that is that of no weight.
        let owner = format!("@state/{}", self.name);
        let declared = self.lowering.declare(states, &owner, index, spec);
        let all = declared
            .map_err(|(what, expected, received)| self.argument(&what, &expected, received))?;
        let declared =
            self.lowering.weights.iter().find(|w| w.layer.same(states) && w.index == index);
        let param = declared.expect("the state was declared").param;
        let value = own_rows(self.graph(), all)?;
        Ok(RowState { value, param, batch })
    }

    /// Sets a state at the end of the step.
    pub(crate) fn set_state(&mut self, state: &RowState, value: NodeId) -> Result<()> {
        let all = row_table(self.graph(), value, state.batch)?;
        self.lowering.assign(state.param, all);
        Ok(())
    }
}
