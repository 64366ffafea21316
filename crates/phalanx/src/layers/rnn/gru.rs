//! Gated recurrent unit: `h' = z · h + (1 - z) · activation(x_h + r · (h · U_h + b_h))`, where `z` and `r` are the
//! recurrent activation of `x + h · U + b`. Without `reset_after`, `r` multiplies `h` before the product.
//!
//! Weights: `kernel` `[features, 3 units]`, `recurrent_kernel` `[units, 3 units]` and `bias` `[2, 3 units]`, or
//! `[3 units]` without `reset_after`, in the order update, reset, candidate. State: `h`.

use super::cell::{Cell, DeclaredCell, FusedCell, Step, VectorCell, dot};
use super::recurrent;
use crate::activations::ActivationFn;
use crate::error::Result;
use crate::layer::LayerContext;
use phalanx_graph::ops::RecurrentCell;
use phalanx_graph::{NodeId, Op};

recurrent! {
    /// A gated recurrent unit layer.
    layer GRU;
    /// The cell of [`GRU`], for [`RNN`](crate::layers::RNN).
    cell GRUCell;
    gates 3;
    ones none;
    /// Activation of the gates; defaults to the sigmoid.
    recurrent_activation: impl Into<ByName<ActivationFn>> => ByName<ActivationFn> = ActivationFn::Sigmoid.into(),
    /// Whether the reset gate applies after the product with the recurrent kernel; defaults to true.
    reset_after: bool => bool = true,
}

struct Declared<'a> {
    cell: VectorCell<'a>,
    activation: &'a ActivationFn,
    recurrent_activation: &'a ActivationFn,
    reset_after: bool,
}

super::cell::cell_layer!(GRUCell, "GRUCell");

impl Cell for GRUCell {
    fn states(&self) -> usize {
        1
    }

    fn declare(
        &self,
        cx: &mut LayerContext<'_>,
        input: &[usize],
    ) -> Result<Box<dyn DeclaredCell + '_>> {
        let activation = self.activation.get()?;
        let recurrent_activation = self.recurrent_activation.get()?;
        let cell = self.options(if self.reset_after { 2 } else { 1 }).declare(cx, input)?;
        let reset_after = self.reset_after;
        Ok(Box::new(Declared { cell, activation, recurrent_activation, reset_after }))
    }
}

impl Declared<'_> {
    /// The bias of the inputs (0) or of the states (1), if any.
    fn bias(&self, cx: &mut LayerContext<'_>, row: usize) -> Result<Option<NodeId>> {
        match (self.cell.bias, self.reset_after) {
            (Some(bias), true) => {
                let columns = cx.dims(bias)[1];
                let g = cx.graph();
                let bias = g.push(Op::Slice { axis: 0, start: row, len: 1 }, &[bias])?;
                Ok(Some(g.reshape(bias, &[columns])?))
            }
            (bias, _) => Ok(bias.filter(|_| row == 0)),
        }
    }

    /// The parts of the gates that depend on the state: update and reset together, and the candidate's if it does not
    /// depend on the reset gate.
    fn recur(
        &self,
        cx: &mut LayerContext<'_>,
        h: Option<NodeId>,
    ) -> Result<(Option<NodeId>, Option<NodeId>)> {
        if !self.reset_after {
            let Some(h) = h else { return Ok((None, None)) };
            let mut gates = vec![];
            for gate in 0..2 {
                let h = self.cell.dropped(cx, h, gate)?;
                let kernel = self.cell.gate(cx, self.cell.recurrent_kernel, gate)?;
                gates.push(dot(cx, h, kernel, None)?);
            }
            return Ok((Some(cx.graph().push(Op::Concat { axis: 0 }, &gates)?), None));
        }
        let bias = self.bias(cx, 1)?;
        let inner = match (h, bias) {
            (Some(h), Some(bias)) => {
                let inner = self.cell.recur(cx, h)?;
                Some(cx.graph().add(inner, bias)?)
            }
            (Some(h), None) => Some(self.cell.recur(cx, h)?),
            (None, bias) => bias,
        };
        let Some(inner) = inner else { return Ok((None, None)) };
        let gates = self.cell.columns(cx, inner, 0, 2)?;
        Ok((Some(gates), Some(self.cell.gate(cx, inner, 2)?)))
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
        let bias = self.bias(cx, 0)?;
        self.cell.project(cx, x, bias)
    }

    fn fused(&self, cx: &mut LayerContext<'_>) -> Result<Option<FusedCell>> {
        let functions = (self.activation, self.recurrent_activation);
        match self.cell.fused(cx, RecurrentCell::Gru, functions) {
            Some(fused) if self.reset_after => {
                Ok(Some(FusedCell { bias: self.bias(cx, 1)?, ..fused }))
            }
            _ => Ok(None),
        }
    }

    fn step(
        &self,
        cx: &mut LayerContext<'_>,
        x: NodeId,
        states: &[Option<NodeId>],
    ) -> Result<Step> {
        let [h] = *states else { return Err(cx.argument("states", "1", states.len())) };
        let (gates, candidate) = self.recur(cx, h)?;
        let mut both = self.cell.columns(cx, x, 0, 2)?;
        if let Some(gates) = gates {
            both = cx.graph().add(both, gates)?;
        }
        let both = self.recurrent_activation.apply(cx.graph(), both)?;
        let update = self.cell.gate(cx, both, 0)?;
        let reset = self.cell.gate(cx, both, 1)?;
        let recurrent = match (candidate, h) {
            (Some(candidate), _) => Some(cx.graph().mul(reset, candidate)?),
            (None, Some(h)) if !self.reset_after => {
                let h = self.cell.dropped(cx, h, 2)?;
                let h = cx.graph().mul(reset, h)?;
                let kernel = self.cell.gate(cx, self.cell.recurrent_kernel, 2)?;
                Some(dot(cx, h, kernel, None)?)
            }
            (None, _) => None,
        };
        let mut new = self.cell.gate(cx, x, 2)?;
        if let Some(recurrent) = recurrent {
            new = cx.graph().add(new, recurrent)?;
        }
        let new = self.activation.apply(cx.graph(), new)?;
        let g = cx.graph();
        let one = g.scalar(1.0);
        let rest = g.sub(one, update)?;
        let mut output = g.mul(rest, new)?;
        if let Some(h) = h {
            let kept = g.mul(update, h)?;
            output = g.add(kept, output)?;
        }
        Ok(Step { output, states: vec![output] })
    }
}
