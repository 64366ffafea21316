//! The caller of a model's layers while it is lowered: the lowering itself, or a wrapper that owns the weights.

use crate::error::Result;
use crate::layer::{Arguments, LayerHandle, Lowering, Operand};

/// What calls the layers of a model while it is lowered.
pub(crate) trait Caller {
    /// The lowering.
    fn lowering(&mut self) -> &mut Lowering;

    /// Calls a layer; `name` is its name in the model.
    fn call(
        &mut self,
        layer: &LayerHandle,
        name: &str,
        arguments: &Arguments<Operand>,
    ) -> Result<Vec<Operand>>;
}

impl Caller for Lowering {
    fn lowering(&mut self) -> &mut Lowering {
        self
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
