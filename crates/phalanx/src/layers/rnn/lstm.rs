//! Long short-term memory: `c' = f · c + i · activation(z_c)`, `h' = o · activation(c')`, where `i`, `f`, `o` are
//! the recurrent activation of `z_i`, `z_f`, `z_o`, and `z = x · kernel + h · recurrent_kernel + bias`.
//!
//! Weights: `kernel` `[features, 4 units]`, `recurrent_kernel` `[units, 4 units]`, `bias` `[4 units]`, in the order
//! input, forget, cell, output. States: `h` and `c`.

use super::cell::{Cell, DeclaredCell, FusedCell, Step, VectorCell};
use super::recurrent;
use crate::activations::ActivationFn;
use crate::error::Result;
use crate::layer::LayerContext;
use phalanx_graph::NodeId;
use phalanx_graph::ops::RecurrentCell;

recurrent! {
    /// A long short-term memory layer.
    layer LSTM;
    /// The cell of [`LSTM`], for [`RNN`](crate::layers::RNN).
    cell LSTMCell;
    gates 4;
    ones unit_forget_bias;
    /// Activation of the gates; defaults to the sigmoid.
    recurrent_activation: impl Into<ByName<ActivationFn>> => ByName<ActivationFn> = ActivationFn::Sigmoid.into(),
    /// Whether the bias of the forget gate starts at one; defaults to true.
    unit_forget_bias: bool => bool = true,
}

struct Declared<'a> {
    cell: VectorCell<'a>,
    activation: &'a ActivationFn,
    recurrent_activation: &'a ActivationFn,
}

super::cell::cell_layer!(LSTMCell, "LSTMCell");

impl Cell for LSTMCell {
    fn states(&self) -> usize {
        2
    }

    fn declare(
        &self,
        cx: &mut LayerContext<'_>,
        input: &[usize],
    ) -> Result<Box<dyn DeclaredCell + '_>> {
        let activation = self.activation.get()?;
        let recurrent_activation = self.recurrent_activation.get()?;
        let cell = self.options(1).declare(cx, input)?;
        Ok(Box::new(Declared { cell, activation, recurrent_activation }))
    }
}

impl DeclaredCell for Declared<'_> {
    fn output(&self) -> Vec<usize> {
        vec![self.cell.units()]
    }

    fn state_dims(&self, _: &mut LayerContext<'_>, _: NodeId) -> Result<Vec<Vec<usize>>> {
        Ok(vec![self.output(); 2])
    }

    fn project(&self, cx: &mut LayerContext<'_>, x: NodeId) -> Result<NodeId> {
        self.cell.project(cx, x, self.cell.bias)
    }

    fn fused(&self, cx: &mut LayerContext<'_>) -> Result<Option<FusedCell>> {
        let functions = (self.activation, self.recurrent_activation);
        Ok(self.cell.fused(cx, RecurrentCell::Lstm, functions))
    }

    fn step(
        &self,
        cx: &mut LayerContext<'_>,
        x: NodeId,
        states: &[Option<NodeId>],
    ) -> Result<Step> {
        let [h, c] = *states else { return Err(cx.argument("states", "2", states.len())) };
        let z = match h {
            Some(h) => {
                let recurrent = self.cell.recur(cx, h)?;
                cx.graph().add(x, recurrent)?
            }
            None => x,
        };
        let mut gates = [z; 4];
        for (number, gate) in gates.iter_mut().enumerate() {
            let z = self.cell.gate(cx, *gate, number)?;
            let function = if number == 2 { self.activation } else { self.recurrent_activation };
            *gate = function.apply(cx.graph(), z)?;
        }
        let [input, forget, candidate, output] = gates;
        let g = cx.graph();
        let mut new = g.mul(input, candidate)?;
        if let Some(c) = c {
            let kept = g.mul(forget, c)?;
            new = g.add(kept, new)?;
        }
        let shown = self.activation.apply(g, new)?;
        let h = g.mul(output, shown)?;
        Ok(Step { output: h, states: vec![h, new] })
    }
}
