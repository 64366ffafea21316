//! Recurrent cells: what one step of a sequence computes.

use crate::activations::ActivationFn;
use crate::error::Result;
use crate::layer::{Argument, Layer, LayerContext, Operand, Outputs, WeightSpec};
use crate::layers::support::WeightOptions;
use phalanx_graph::ops::{Epilogue, RecurrentCell};
use phalanx_graph::{NodeId, Op};
use std::ops::Range;

/// A recurrent cell: the weights that all steps share. As a layer it computes one step.
pub(crate) trait Cell: Layer {
    /// The number of its states.
    fn states(&self) -> usize;

    /// Declares the weights for inputs whose steps have these dimensions.
    fn declare(
        &self,
        cx: &mut LayerContext<'_>,
        input: &[usize],
    ) -> Result<Box<dyn DeclaredCell + '_>>;
}

/// The call arguments of a cell.
pub(super) const SIGNATURE: &[&str] = &["inputs", "states"];

/// Calls a cell as a layer: one step, whose outputs are the output and the states.
pub(super) fn call(cx: &mut LayerContext<'_>, cell: &dyn Cell) -> Result<Outputs> {
    let x = match cx.passed(SIGNATURE, "inputs") {
        Some(Argument::Tensor(x)) => x.node,
        _ => return Err(cx.argument("inputs", "a tensor", "something else")),
    };
    let mut states = vec![];
    if let Some(argument) = cx.passed(SIGNATURE, "states") {
        argument.for_each_tensor(&mut |state: &Operand| states.push(state.node));
    }
    if states.len() != cell.states() {
        return Err(cx.argument("states", &format!("{} tensors", cell.states()), states.len()));
    }
    let declared = cell.declare(cx, &cx.dims(x))?;
    let projected = declared.project(cx, x)?;
    for (state, expected) in states.iter().zip(declared.state_dims(cx, projected)?) {
        if cx.dims(*state) != expected {
            let received = format!("{:?}", cx.dims(*state));
            return Err(cx.argument("states", &format!("shape {expected:?}"), received));
        }
    }
    let states: Vec<Option<NodeId>> = states.into_iter().map(Some).collect();
    let Step { output, states } = declared.step(cx, projected, &states)?;
    Ok([vec![output], states].concat().into())
}

/// Implements [`Layer`] for a cell.
macro_rules! cell_layer {
    ($cell:ty, $class:literal $(where [$($generics:tt)+])?) => {
        impl$(<$($generics)+>)? crate::layer::Layer for $cell {
            crate::registry::keras_class!($class);

            fn signature(&self) -> &'static [&'static str] {
                crate::layers::rnn::cell::SIGNATURE
            }

            fn call(
                &self,
                cx: &mut crate::layer::LayerContext<'_>,
                _: &[phalanx_graph::NodeId],
            ) -> crate::error::Result<crate::layer::Outputs> {
                crate::layers::rnn::cell::call(cx, self)
            }
        }
    };
}
pub(super) use cell_layer;

/// A cell whose weights are declared.
pub(crate) trait DeclaredCell {
    /// The dimensions of the output of a step.
    fn output(&self) -> Vec<usize>;

    /// The dimensions of the states, for steps like this projected one.
    fn state_dims(&self, cx: &mut LayerContext<'_>, x: NodeId) -> Result<Vec<Vec<usize>>>;

    /// Computes the part of a step that does not depend on the states, for one step or for a whole sequence, whose
    /// steps are the first axis.
    fn project(&self, cx: &mut LayerContext<'_>, x: NodeId) -> Result<NodeId>;

    /// The op that runs all steps, if there is one for this cell and its options.
    fn fused(&self, _cx: &mut LayerContext<'_>) -> Result<Option<FusedCell>> {
        Ok(None)
    }

    /// Computes one step from the projected input and the states. A state that is absent is zero.
    fn step(&self, cx: &mut LayerContext<'_>, x: NodeId, states: &[Option<NodeId>])
    -> Result<Step>;
}

/// A cell that one op runs over a sequence.
pub(crate) struct FusedCell {
    pub cell: RecurrentCell,
    pub recurrent_kernel: NodeId,
    /// The bias of the states.
    pub bias: Option<NodeId>,
}

/// The result of a step.
pub(crate) struct Step {
    pub output: NodeId,
    pub states: Vec<NodeId>,
}

/// The options that all cells on vectors share.
pub(crate) struct CellOptions<'a> {
    pub units: usize,
    pub gates: usize,
    /// Rows of the bias: two if inputs and states have one each.
    pub biases: usize,
    pub use_bias: bool,
    /// The elements of the bias that start at one.
    pub ones: Option<Range<usize>>,
    pub kernel: WeightOptions<'a>,
    pub recurrent: WeightOptions<'a>,
    pub bias: WeightOptions<'a>,
    pub dropout: f64,
    pub recurrent_dropout: f64,
}

impl<'a> CellOptions<'a> {
    /// Checks the options and declares the weights.
    pub fn declare(self, cx: &mut LayerContext<'_>, input: &[usize]) -> Result<VectorCell<'a>> {
        for (name, rate) in
            [("dropout", self.dropout), ("recurrent_dropout", self.recurrent_dropout)]
        {
            if !(0.0..=1.0).contains(&rate) {
                return Err(cx.argument(name, "0 to 1", rate));
            }
        }
        crate::layers::support::check_at_least_one(cx, "units", self.units)?;
        let [features] = *input else {
            return Err(cx.argument("input", "steps that are vectors", format!("{input:?}")));
        };
        let Some(columns) = self.units.checked_mul(self.gates) else {
            return Err(cx.argument("units", "a kernel that fits in memory", self.units));
        };
        let kernel = self.kernel.weight(cx, "kernel", &[features, columns])?;
        let recurrent = self.recurrent.weight(cx, "recurrent_kernel", &[self.units, columns])?;
        let bias = match (self.use_bias, self.biases) {
            (false, _) => None,
            (true, 1) => {
                let spec = self.bias.spec(cx, "bias", &[columns])?;
                Some(cx.weight(WeightSpec { ones: self.ones.clone(), ..spec })?)
            }
            (true, rows) => Some(self.bias.weight(cx, "bias", &[rows, columns])?),
        };
        let streams = [0, 1].map(|_| (0..self.gates).map(|_| cx.stream()).collect());
        Ok(VectorCell { options: self, kernel, recurrent_kernel: recurrent, bias, streams })
    }
}

/// The declared weights of a cell on vectors.
pub(crate) struct VectorCell<'a> {
    options: CellOptions<'a>,
    kernel: NodeId,
    pub recurrent_kernel: NodeId,
    pub bias: Option<NodeId>,
    /// Random streams of the dropout of inputs and of states, one for each gate.
    streams: [Vec<u32>; 2],
}

impl VectorCell<'_> {
    /// The number of units.
    pub fn units(&self) -> usize {
        self.options.units
    }

    /// This cell as one op, if it has the activations of its default and no dropout between steps.
    pub fn fused(
        &self,
        cx: &LayerContext<'_>,
        cell: RecurrentCell,
        (activation, recurrent): (&ActivationFn, &ActivationFn),
    ) -> Option<FusedCell> {
        let is_default = *activation == ActivationFn::Tanh && *recurrent == ActivationFn::Sigmoid;
        let fused = FusedCell { cell, recurrent_kernel: self.recurrent_kernel, bias: None };
        (is_default && !Self::drops(cx, self.options.recurrent_dropout)).then_some(fused)
    }

    /// Whether dropout of a rate applies. As in Keras, a rate of 1 drops nothing.
    fn drops(cx: &LayerContext<'_>, rate: f64) -> bool {
        cx.training() && rate > 0.0 && rate < 1.0
    }

    /// The input times the kernel, plus `bias`. Dropout uses the same mask at every step.
    pub fn project(
        &self,
        cx: &mut LayerContext<'_>,
        x: NodeId,
        bias: Option<NodeId>,
    ) -> Result<NodeId> {
        if !Self::drops(cx, self.options.dropout) {
            return dot(cx, x, self.kernel, bias);
        }
        if self.options.recurrent_dropout == 0.0 {
            let x = drop(cx, x, self.options.dropout, self.streams[0][0])?;
            return dot(cx, x, self.kernel, bias);
        }
        // With dropout of the states, Keras draws a mask for each gate.
        let mut gates = vec![];
        for (gate, stream) in self.streams[0].iter().enumerate() {
            let x = drop(cx, x, self.options.dropout, *stream)?;
            let kernel = self.gate(cx, self.kernel, gate)?;
            let bias = bias.map(|bias| self.gate(cx, bias, gate)).transpose()?;
            gates.push(dot(cx, x, kernel, bias)?);
        }
        let axis = cx.dims(x).len() - 1;
        Ok(cx.graph().push(Op::Concat { axis }, &gates)?)
    }

    /// The state times the recurrent kernel, for all gates.
    pub fn recur(&self, cx: &mut LayerContext<'_>, state: NodeId) -> Result<NodeId> {
        if !Self::drops(cx, self.options.recurrent_dropout) {
            return dot(cx, state, self.recurrent_kernel, None);
        }
        let mut gates = vec![];
        for gate in 0..self.options.gates {
            let state = self.dropped(cx, state, gate)?;
            let kernel = self.gate(cx, self.recurrent_kernel, gate)?;
            gates.push(dot(cx, state, kernel, None)?);
        }
        Ok(cx.graph().push(Op::Concat { axis: 0 }, &gates)?)
    }

    /// The state as a gate sees it in training.
    pub fn dropped(&self, cx: &mut LayerContext<'_>, state: NodeId, gate: usize) -> Result<NodeId> {
        match Self::drops(cx, self.options.recurrent_dropout) {
            true => drop(cx, state, self.options.recurrent_dropout, self.streams[1][gate]),
            false => Ok(state),
        }
    }

    /// The columns of one gate.
    pub fn gate(&self, cx: &mut LayerContext<'_>, x: NodeId, gate: usize) -> Result<NodeId> {
        self.columns(cx, x, gate, 1)
    }

    /// The columns of `count` gates from `first` on.
    pub fn columns(
        &self,
        cx: &mut LayerContext<'_>,
        x: NodeId,
        first: usize,
        count: usize,
    ) -> Result<NodeId> {
        let axis = cx.dims(x).len() - 1;
        let (start, len) = (first * self.options.units, count * self.options.units);
        Ok(cx.graph().push(Op::Slice { axis, start, len }, &[x])?)
    }
}

/// `x · kernel + bias`. A part of a kernel is a computed value, which only general products take.
pub(crate) fn dot(
    cx: &mut LayerContext<'_>,
    x: NodeId,
    kernel: NodeId,
    bias: Option<NodeId>,
) -> Result<NodeId> {
    let g = cx.graph();
    if !matches!(g.node(kernel).op, Op::Param { .. }) {
        let y = g.einsum("...k,kn->...n", &[x, kernel])?;
        return Ok(match bias {
            Some(bias) => g.add(y, bias)?,
            None => y,
        });
    }
    let mut operands = vec![x, kernel];
    operands.extend(bias);
    let epilogue = Epilogue { bias: bias.is_some(), relu: false };
    Ok(g.push(Op::Dot(epilogue), &operands)?)
}

/// Dropout whose mask is the same for all steps: along the first axis of a sequence, and for every call with the
/// same stream.
fn drop(cx: &mut LayerContext<'_>, x: NodeId, rate: f64, stream: u32) -> Result<NodeId> {
    let mut noise = cx.dims(x);
    if let [steps, _] = &mut noise[..] {
        *steps = 1;
    }
    drop_with_noise(cx, x, rate, stream, noise)
}

/// Dropout of one step, whose mask is the same for every call with the same stream.
pub(super) fn drop_steps(
    cx: &mut LayerContext<'_>,
    x: NodeId,
    rate: f64,
    stream: u32,
) -> Result<NodeId> {
    let noise = cx.dims(x);
    drop_with_noise(cx, x, rate, stream, noise)
}

fn drop_with_noise(
    cx: &mut LayerContext<'_>,
    x: NodeId,
    rate: f64,
    stream: u32,
    noise: Vec<usize>,
) -> Result<NodeId> {
    let op = Op::Dropout { rate: rate.into(), key: stream, noise };
    Ok(cx.graph().push(op, &[x])?)
}
