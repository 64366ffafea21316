//! Who calls the layers of a model while it is lowered: the lowering itself, or a wrapper that owns the weights.

use crate::error::Result;
use crate::layer::{Arguments, LayerHandle, Lowering, Operand};
use phalanx_graph::Graph;

/// What calls the layers of a model while it is lowered.
pub(crate) trait Caller {
    /// The graph so far.
    fn graph(&self) -> &Graph;

    /// Calls a layer; `name` is its name in the model.
    fn call(
        &mut self,
        layer: &LayerHandle,
        name: &str,
        arguments: &Arguments<Operand>,
    ) -> Result<Vec<Operand>>;
}

impl Caller for Lowering {
    fn graph(&self) -> &Graph {
        &self.graph
    }

    fn call(
        &mut self,
        layer: &LayerHandle,
        name: &str,
        arguments: &Arguments<Operand>,
    ) -> Result<Vec<Operand>> {
        self.call_with(layer, name, arguments)
    }
}
