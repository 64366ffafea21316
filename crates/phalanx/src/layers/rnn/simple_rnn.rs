//! A fully connected recurrent layer: `h' = activation(x · kernel + h · recurrent_kernel + bias)`.
//!
//! Weights: `kernel` `[features, units]`, `recurrent_kernel` `[units, units]`, `bias` `[units]`. State: `h`.

use super::cell::{Cell, DeclaredCell, Step, VectorCell};
use super::recurrent;
use crate::activations::ActivationFn;
use crate::error::Result;
use crate::layer::LayerContext;
use phalanx_graph::NodeId;

recurrent! {
    /// A fully connected recurrent layer.
    layer SimpleRNN;
    /// The cell of [`SimpleRNN`], for [`RNN`](crate::layers::RNN).
    cell SimpleRNNCell;
    gates 1;
    ones none;
}

struct Declared<'a> {
    cell: VectorCell<'a>,
    activation: &'a ActivationFn,
}

super::cell::cell_layer!(SimpleRNNCell, "SimpleRNNCell");

impl Cell for SimpleRNNCell {
    fn states(&self) -> usize {
        1
    }

    fn declare(
        &self,
        cx: &mut LayerContext<'_>,
        input: &[usize],
    ) -> Result<Box<dyn DeclaredCell + '_>> {
        let activation = self.activation.get()?;
        let cell = self.options(1).declare(cx, input)?;
        Ok(Box::new(Declared { cell, activation }))
    }
}

impl DeclaredCell for Declared<'_> {
    fn output(&self) -> Vec<usize> {
        vec![self.cell.units()]
    }

    fn state_dims(&self, _: &mut LayerContext<'_>, _: NodeId) -> Result<Vec<Vec<usize>>> {
        Ok(vec![self.output()])
    }

    fn project(&self, cx: &mut LayerContext<'_>, x: NodeId) -> Result<NodeId> {
        self.cell.project(cx, x, self.cell.bias)
    }

    fn step(
        &self,
        cx: &mut LayerContext<'_>,
        x: NodeId,
        states: &[Option<NodeId>],
    ) -> Result<Step> {
        let [h] = *states else { return Err(cx.argument("states", "1", states.len())) };
        let z = match h {
            Some(h) => {
                let recurrent = self.cell.recur(cx, h)?;
                cx.graph().add(x, recurrent)?
            }
            None => x,
        };
        let output = self.activation.apply(cx.graph(), z)?;
        Ok(Step { output, states: vec![output] })
    }
}
