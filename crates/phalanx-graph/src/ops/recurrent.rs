//! A recurrent cell over a whole sequence: one op instead of a copy of the cell for every step.
//!
//! The products of the inputs with their kernel come before the op, and the gradients of all weights are products over
//! all steps after it, so that only what depends on the previous step is computed step by step.

use super::{Backward, Binary, Cotangents, Op, need_reduced, need_rows, operand};
use crate::error::{GraphError, Result};
use crate::graph::{Graph, NodeId};
use crate::types::Type;
use std::fmt;

/// What one step computes from the projected input `x`, the state `h` and the recurrent kernel `U`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecurrentCell {
    /// `[i, f, g, o] = x + h · U`; `c' = σ(f) · c + σ(i) · tanh(g)`; `h' = σ(o) · tanh(c')`.
    Lstm,
    /// `[a, b, d] = h · U + bias`; `z = σ(x_z + a)`; `r = σ(x_r + b)`; `n = tanh(x_n + r · d)`;
    /// `h' = z · h + (1 - z) · n`.
    Gru,
}

impl RecurrentCell {
    /// The number of gates: the width of `x` and `U` in units.
    pub fn gates(self) -> usize {
        match self {
            RecurrentCell::Lstm => 4,
            RecurrentCell::Gru => 3,
        }
    }

    /// The number of states.
    pub fn states(self) -> usize {
        match self {
            RecurrentCell::Lstm => 2,
            RecurrentCell::Gru => 1,
        }
    }
}

/// Vectors of a step that the derivative needs besides the states: the four activated gates (of a GRU: `z, r, n, d`),
/// and the output of the previous step.
pub const SAVED_PER_UNIT: usize = 5;

/// The attributes of a recurrent op.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecurrentAttrs {
    /// The cell.
    pub cell: RecurrentCell,
    /// Whether it starts at the last step. Results stay in the order of the sequence.
    pub reverse: bool,
    /// Whether the result has what the derivative needs.
    pub keep: bool,
    /// Whether there is a bias of the states.
    pub bias: bool,
    /// Whether initial states are given; they are zero otherwise.
    pub initial: bool,
    /// Whether steps are masked: where the mask is 0, the states stay as they are.
    pub masked: bool,
}

impl RecurrentAttrs {
    /// Vectors per step of the result.
    pub fn width(&self) -> usize {
        self.cell.states() + if self.keep { SAVED_PER_UNIT } else { 0 }
    }

    /// Where the optional operands are.
    pub fn operands(&self) -> Operands {
        let mut next = 2;
        let mut some = |present: bool, count: usize| {
            let at = next;
            next += if present { count } else { 0 };
            present.then_some(at)
        };
        let states = self.cell.states();
        let bias = some(self.bias, 1);
        let initial = some(self.initial, states);
        let mask = some(self.masked, 1);
        Operands { bias, initial, mask, count: next }
    }

    /// Where the operands of the derivative are. `more` says whether there is a second cotangent.
    pub fn grad_operands(&self, more: bool) -> GradOperands {
        let initial = self.initial.then_some(2);
        let mut next = 2 + if self.initial { self.cell.states() } else { 0 };
        let mask = self.masked.then_some(next);
        next += usize::from(self.masked);
        let second = more.then_some(next + 1);
        GradOperands { initial, mask, first: next, second, count: next + 1 + usize::from(more) }
    }
}

impl fmt::Display for RecurrentAttrs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.cell {
            RecurrentCell::Lstm => " lstm",
            RecurrentCell::Gru => " gru",
        })?;
        for (is, text) in
            [(self.reverse, " reversed"), (self.keep, " +gates"), (self.masked, " +mask")]
        {
            if is {
                f.write_str(text)?;
            }
        }
        Ok(())
    }
}

/// The positions of the optional operands of [`Op::Recurrent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operands {
    /// The bias of the states.
    pub bias: Option<usize>,
    /// The first initial state.
    pub initial: Option<usize>,
    /// The mask.
    pub mask: Option<usize>,
    /// The number of all operands.
    pub count: usize,
}

/// The positions of the operands of [`Op::RecurrentGrad`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GradOperands {
    /// The first initial state.
    pub initial: Option<usize>,
    /// The mask.
    pub mask: Option<usize>,
    /// The cotangent of `h`.
    pub first: usize,
    /// The cotangent of `c`.
    pub second: Option<usize>,
    /// The number of all operands.
    pub count: usize,
}

/// The steps and units of rows `[steps, vectors · units]`.
fn sizes(op: &str, x: &Type, vectors: usize) -> Result<(usize, usize)> {
    need_rows(op, x)?;
    match x.dims[..] {
        [steps, n] if steps > 0 && n > 0 && n % vectors == 0 => Ok((steps, n / vectors)),
        _ => Err(operand(op, format!("steps of {vectors} vectors"), x)),
    }
}

/// Fails unless the operand is float rows of these dimensions.
fn need_dims(op: &str, dims: &[usize], x: &Type) -> Result<()> {
    need_rows(op, x)?;
    if x.dims == dims { Ok(()) } else { Err(operand(op, format!("rows f32{dims:?}"), x)) }
}

/// Shape rule.
pub fn infer(attrs: &RecurrentAttrs, x: &[&Type]) -> Result<Type> {
    let at = attrs.operands();
    let (steps, units) = sizes("recurrent", x[0], attrs.cell.gates())?;
    need_reduced("recurrent kernel", &[units, x[0].last()], x[1])?;
    if let Some(bias) = at.bias {
        if attrs.cell == RecurrentCell::Lstm {
            return Err(operand("recurrent lstm", "no bias of the states", x[bias]));
        }
        need_reduced("recurrent bias", &[x[0].last()], x[bias])?;
    }
    if let Some(first) = at.initial {
        for state in &x[first..first + attrs.cell.states()] {
            need_dims("recurrent state", &[units], state)?;
        }
    }
    if let Some(mask) = at.mask {
        need_dims("recurrent mask", &[steps], x[mask])?;
    }
    Ok(Type::rows([steps, units.saturating_mul(attrs.width())]))
}

/// Shape rule of the derivative: the cotangents of the gates at every step, and after them of the initial states.
pub fn infer_grad(attrs: &RecurrentAttrs, more: bool, x: &[&Type]) -> Result<Type> {
    let at = attrs.grad_operands(more);
    let kept = RecurrentAttrs { keep: true, ..*attrs };
    let (steps, units) = sizes("recurrent_grad", x[0], kept.width())?;
    let columns = units.saturating_mul(attrs.cell.gates());
    need_reduced("recurrent_grad kernel", &[units, columns], x[1])?;
    if let Some(first) = at.initial {
        for state in &x[first..first + attrs.cell.states()] {
            need_dims("recurrent_grad state", &[units], state)?;
        }
    }
    if let Some(mask) = at.mask {
        need_dims("recurrent_grad mask", &[steps], x[mask])?;
    }
    for dy in &x[at.first..] {
        need_dims("recurrent_grad", &[steps, units], dy)?;
    }
    Ok(Type::rows([steps + usize::from(attrs.initial), units.saturating_mul(4)]))
}

/// Columns `start..start + len` of a cotangent; `None` if they are zero. Sums, zero padding and concatenations are looked
/// through, so that a cotangent of a few columns is never written out with zeros for the others.
fn columns(g: &mut Graph, x: NodeId, start: usize, len: usize) -> Result<Option<NodeId>> {
    let node = g.node(x).clone();
    let axis = node.ty.dims.len() - 1;
    if (start, len) == (0, node.ty.last()) {
        return Ok(Some(x));
    }
    match &node.op {
        Op::Pad { before, after }
            if before[..axis].iter().chain(&after[..axis]).all(|n| *n == 0) =>
        {
            let (first, inner) = (before[axis], node.inputs[0]);
            let end = first + g.ty(inner).last();
            if start + len <= first || start >= end {
                return Ok(None);
            }
            if first <= start && start + len <= end {
                return columns(g, inner, start - first, len);
            }
        }
        Op::Concat { axis: joined } if *joined == axis => {
            let mut first = 0;
            for part in &node.inputs {
                let end = first + g.ty(*part).last();
                if first <= start && start + len <= end {
                    return columns(g, *part, start - first, len);
                }
                first = end;
            }
        }
        Op::Binary(Binary::Add) if node.inputs.iter().all(|i| g.ty(*i).dims == node.ty.dims) => {
            let a = columns(g, node.inputs[0], start, len)?;
            let b = columns(g, node.inputs[1], start, len)?;
            return match (a, b) {
                (Some(a), Some(b)) => Ok(Some(g.add(a, b)?)),
                (a, b) => Ok(a.or(b)),
            };
        }
        _ => {}
    }
    Ok(Some(g.push(Op::Slice { axis, start, len }, &[x])?))
}

/// `d = recurrent_grad(..)` runs the steps backwards and gives the cotangents of the gates. Those of the input are among
/// them; `dU = Σ hᵀ · d` over all steps, with the `h` before each step; `dbias = Σ d`.
pub fn derivative(attrs: &RecurrentAttrs, g: &mut Graph, b: &Backward<'_>) -> Cotangents {
    let (cell, at) = (attrs.cell, attrs.operands());
    let units = g.ty(b.inputs[1]).dims[0];
    let states = units * cell.states();
    let y = match attrs.keep {
        true => b.y,
        false => g.push(Op::Recurrent(RecurrentAttrs { keep: true, ..*attrs }), b.inputs)?,
    };
    let steps = g.ty(y).dims[0];
    if attrs.keep && columns(g, b.dy, states, units * SAVED_PER_UNIT)?.is_some() {
        let (layer, op) = (g.layer_name(b.y).into(), "recurrent, its gates".into());
        return Err(GraphError::NotDifferentiable { layer, op });
    }
    let dh = match columns(g, b.dy, 0, units)? {
        Some(dh) => dh,
        None => {
            // Only `c` is used.
            let zero = g.scalar(0.0);
            let h = g.push(Op::Slice { axis: 1, start: 0, len: units }, &[y])?;
            g.mul(h, zero)?
        }
    };
    let dc = match cell {
        RecurrentCell::Lstm => columns(g, b.dy, units, units)?,
        RecurrentCell::Gru => None,
    };
    let mut operands = vec![y, b.inputs[1]];
    if let Some(first) = at.initial {
        operands.extend(&b.inputs[first..first + cell.states()]);
    }
    operands.extend(at.mask.map(|mask| b.inputs[mask]));
    operands.push(dh);
    operands.extend(dc);
    let d = g.push(Op::RecurrentGrad(*attrs, dc.is_some()), &operands)?;
    let all = match attrs.initial {
        true => g.push(Op::Slice { axis: 0, start: 0, len: steps }, &[d])?,
        false => d,
    };
    let mut out = vec![None; at.count];
    let gates = cell.gates() * units;
    out[0] = columns(g, all, 0, gates)?;
    // The columns of the cotangents that belong to those of the kernel.
    let parts: &[(usize, usize)] = match cell {
        RecurrentCell::Lstm => &[(0, 4)],
        RecurrentCell::Gru => &[(0, 2), (3, 1)],
    };
    if b.wanted[1] {
        let (start, len) = (states + (SAVED_PER_UNIT - 1) * units, units);
        let h = g.push(Op::Slice { axis: 1, start, len }, &[y])?;
        out[1] = Some(join(g, all, parts, units, |g, d| g.push(Op::DotGradKernel, &[h, d]))?);
    }
    if let Some(bias) = at.bias.filter(|bias| b.wanted[*bias]) {
        let sum = |g: &mut Graph, d: NodeId| {
            let ty = Type { dims: vec![g.ty(d).last()], ..g.ty(b.inputs[bias]).clone() };
            g.reduce_to(d, &ty)
        };
        out[bias] = Some(join(g, all, parts, units, sum)?);
    }
    if let Some(first) = at.initial {
        let last = g.push(Op::Slice { axis: 0, start: steps, len: 1 }, &[d])?;
        for state in 0..cell.states() {
            let len = units;
            let d = g.push(Op::Slice { axis: 1, start: state * units, len }, &[last])?;
            out[first + state] = Some(g.reshape(d, &[units])?);
        }
    }
    Ok(out)
}

/// What `make` gives for some columns of `d`, side by side.
fn join(
    g: &mut Graph,
    d: NodeId,
    parts: &[(usize, usize)],
    units: usize,
    make: impl Fn(&mut Graph, NodeId) -> Result<NodeId>,
) -> Result<NodeId> {
    let mut made = vec![];
    for (first, count) in parts {
        if let Some(d) = columns(g, d, first * units, count * units)? {
            made.push(make(g, d)?);
        }
    }
    match made[..] {
        [one] => Ok(one),
        _ => {
            let axis = g.ty(made[0]).dims.len() - 1;
            g.push(Op::Concat { axis }, &made)
        }
    }
}

/// Whether the op takes states from a recurrent op. They add up over steps, so they are not stored in 16 bits.
pub fn is_state(g: &Graph, op: &Op, inputs: &[NodeId]) -> bool {
    let recurrent = |id: &NodeId| matches!(g.node(*id).op, Op::Recurrent(_));
    matches!(op, Op::Slice { .. }) && inputs.iter().any(recurrent)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(g: &mut Graph, dims: &[usize]) -> NodeId {
        let feed = g.add_feed("x", Type::rows(dims));
        g.feed(feed)
    }

    #[test]
    fn columns_of_a_cotangent_are_found_behind_padding_and_sums() {
        let mut g = Graph::new();
        let (a, b) = (rows(&mut g, &[2, 3]), rows(&mut g, &[2, 3]));
        let pad = |before: usize, after: usize| Op::Pad {
            before: vec![0, before],
            after: vec![0, after],
        };
        let first = g.push(pad(0, 6), &[a]).unwrap();
        let second = g.push(pad(3, 3), &[b]).unwrap();
        let sum = g.add(first, second).unwrap();
        assert_eq!(columns(&mut g, sum, 0, 3).unwrap(), Some(a));
        assert_eq!(columns(&mut g, sum, 3, 3).unwrap(), Some(b));
        assert_eq!(columns(&mut g, sum, 6, 3).unwrap(), None);
        let tail = g.push(pad(0, 3), &[b]).unwrap();
        let joined = g.push(Op::Concat { axis: 1 }, &[a, tail]).unwrap();
        assert_eq!(columns(&mut g, joined, 0, 3).unwrap(), Some(a));
        assert_eq!(columns(&mut g, joined, 3, 3).unwrap(), Some(b));
        assert_eq!(columns(&mut g, joined, 6, 3).unwrap(), None);
        let part = columns(&mut g, joined, 2, 3).unwrap().unwrap();
        assert_eq!(g.node(part).op, Op::Slice { axis: 1, start: 2, len: 3 });
    }
}
