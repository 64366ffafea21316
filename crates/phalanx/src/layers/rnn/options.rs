//! The parts that recurrent layers share: their options, and the loop over the steps of a sequence.

use super::cell::{Cell, DeclaredCell, FusedCell, Step};
use crate::by_name::OptionalByName;
use crate::config;
use crate::error::Result;
use crate::layer::{Argument, LayerContext, Operand, Outputs};
use crate::layers::support::shape_text;
use crate::registry::Config;
use crate::regularizers::Regularizer;
use phalanx_graph::functions::layout::flip;
use phalanx_graph::ops::RecurrentAttrs;
use phalanx_graph::{DType, Graph, NodeId, Op};
use serde::de::{self, DeserializeOwned};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// The call arguments of a recurrent layer.
pub(super) const SIGNATURE: &[&str] = &["sequences", "initial_state"];

/// The options that all recurrent layers share, with Keras' keys.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RnnOptions {
    pub return_sequences: bool,
    pub return_state: bool,
    pub go_backwards: bool,
    pub stateful: bool,
    pub unroll: bool,
    pub zero_output_for_mask: bool,
    #[serde(skip_serializing_if = "OptionalByName::is_none")]
    pub activity_regularizer: OptionalByName<Regularizer>,
}

impl RnnOptions {
    /// The keys of a config that belong to these options.
    pub const KEYS: [&'static str; 7] = [
        "return_sequences",
        "return_state",
        "go_backwards",
        "stateful",
        "unroll",
        "zero_output_for_mask",
        "activity_regularizer",
    ];
}

/// The config of a recurrent layer: the options, and those of its cell.
pub(super) fn config(options: &RnnOptions, cell: &dyn Cell) -> Config {
    let mut config = config::write(options);
    config.extend(cell.config());
    config.entry("activity_regularizer").or_insert(Value::Null);
    if cell.class_name() == "SimpleRNNCell" {
        // Keras does not write it.
        config.remove("seed");
    }
    config
}

/// Reads the options of a recurrent layer, and its cell from the other keys.
pub(super) fn read<'de, C, D>(d: D) -> Result<(RnnOptions, C), D::Error>
where
    C: DeserializeOwned,
    D: Deserializer<'de>,
{
    let mut cell = Config::deserialize(d)?;
    let mut options = Config::new();
    for key in RnnOptions::KEYS {
        options.extend(cell.remove_entry(key));
    }
    // Keras 2 writes these; they have no effect at these values.
    for (key, idle) in [
        ("implementation", [1, 2].map(Value::from)),
        ("time_major", [false, false].map(Value::from)),
    ] {
        if cell.get(key).is_some_and(|value| idle.contains(value)) {
            cell.remove(key);
        }
    }
    let options = RnnOptions::deserialize(Value::Object(options)).map_err(de::Error::custom)?;
    Ok((options, C::deserialize(Value::Object(cell)).map_err(de::Error::custom)?))
}

/// The results of a recurrent layer.
pub(crate) struct RnnResult {
    /// The last output, or the outputs of all steps in the order of computation.
    pub output: NodeId,
    pub states: Vec<NodeId>,
}

/// A sequence and what it starts with.
pub(crate) struct Sequence {
    pub x: NodeId,
    /// One state for each state of the cell, or none for zeros.
    pub initial: Vec<NodeId>,
    pub mask: Option<NodeId>,
}

impl Sequence {
    /// A sequence and its mask. As in Keras, initial states leave the mask unused: a layer finds the mask of its only
    /// tensor argument. The mask still passes to the output.
    pub fn new(x: NodeId, initial: Vec<NodeId>, mask: Option<NodeId>) -> Sequence {
        let mask = mask.filter(|_| initial.is_empty());
        Sequence { x, initial, mask }
    }
}

/// The states among the arguments of a call.
pub(super) fn initial_state(cx: &LayerContext<'_>) -> Result<Vec<NodeId>> {
    let mut states = vec![];
    match cx.passed(SIGNATURE, "initial_state") {
        None => {}
        Some(argument @ (Argument::Tensor(_) | Argument::List(_))) => {
            argument.for_each_tensor(&mut |operand: &Operand| states.push(operand.node));
        }
        Some(_) => return Err(cx.argument("initial_state", "tensors", "other values")),
    }
    Ok(states)
}

/// Calls a recurrent layer on the arguments of the context.
pub(super) fn call(
    cx: &mut LayerContext<'_>,
    options: &RnnOptions,
    cell: &dyn Cell,
    inputs: &[NodeId],
) -> Result<Outputs> {
    let Some(x) = inputs.first().copied() else {
        return Err(cx.argument("inputs", "1 or more", 0));
    };
    let (initial, mask) = (initial_state(cx)?, cx.mask(0));
    let run = run(cx, options, cell, &Sequence::new(x, initial, mask))?;
    let mut outputs = vec![run.output];
    if options.return_state {
        outputs.extend(run.states);
    }
    let mask = mask.filter(|_| options.return_sequences);
    Ok(Outputs::from(outputs).masked(mask))
}

/// Runs a cell over a sequence. The weights of the cell belong to the sublayer `cell`.
pub(crate) fn run(
    cx: &mut LayerContext<'_>,
    options: &RnnOptions,
    cell: &dyn Cell,
    sequence: &Sequence,
) -> Result<RnnResult> {
    let dims = cx.dims(sequence.x);
    let [steps, input @ ..] = &dims[..] else {
        let received = shape_text(cx, sequence.x);
        return Err(cx.argument("input", "shape (batch, steps, ..)", received));
    };
    if *steps == 0 || input.is_empty() {
        let received = shape_text(cx, sequence.x);
        return Err(cx.argument("input", "shape (batch, steps, features) with steps", received));
    }
    let (count, given) = (cell.states(), sequence.initial.len());
    if given != 0 && given != count {
        return Err(cx.argument("initial_state", &format!("{count} states"), given));
    }
    let declared = cx.in_sublayer("cell", true, |cx| cell.declare(cx, input))?;
    let projected = declared.project(cx, sequence.x)?;
    let mut kept = vec![];
    if options.stateful {
        let first = at_step(cx, projected, 0)?;
        for (i, dims) in declared.state_dims(cx, first)?.iter().enumerate() {
            kept.push(cx.state(&i.to_string(), dims)?);
        }
    }
    let initial = match given {
        0 => kept.iter().map(|state| state.value).collect(),
        _ => sequence.initial.clone(),
    };
    let sequence = Sequence { initial, ..*sequence };
    let run = match fused(cx, options, &*declared, projected, &sequence)? {
        Some(run) => run,
        None => {
            let mut states: Vec<_> = sequence.initial.iter().copied().map(Some).collect();
            states.resize(count, None);
            step_by_step(cx, options, &*declared, (projected, sequence.mask), states)?
        }
    };
    for (state, value) in kept.iter().zip(&run.states) {
        cx.set_state(state, *value)?;
    }
    Ok(run)
}

/// Runs a cell over a sequence, one step after the other.
fn step_by_step(
    cx: &mut LayerContext<'_>,
    options: &RnnOptions,
    declared: &dyn DeclaredCell,
    (projected, mask): (NodeId, Option<NodeId>),
    mut states: Vec<Option<NodeId>>,
) -> Result<RnnResult> {
    let steps = cx.dims(projected)[0];
    let order: Vec<usize> = match options.go_backwards {
        false => (0..steps).collect(),
        true => (0..steps).rev().collect(),
    };
    let mut outputs: Vec<NodeId> = vec![];
    for t in order {
        let x = at_step(cx, projected, t)?;
        let mut step = declared.step(cx, x, &states)?;
        if let Some(mask) = mask {
            let valid = at_step(cx, mask, t)?;
            let kept = outputs.last().copied().filter(|_| !options.zero_output_for_mask);
            step = masked(cx, valid, step, kept, &states)?;
        }
        if !options.return_sequences {
            outputs.clear();
        }
        outputs.push(step.output);
        states = step.states.into_iter().map(Some).collect();
    }
    let output = match options.return_sequences {
        true => stack(cx, &outputs)?,
        false => outputs[0],
    };
    Ok(RnnResult { output, states: states.into_iter().flatten().collect() })
}

/// Runs a cell over a sequence as one op; `None` if it must be done step by step.
fn fused(
    cx: &mut LayerContext<'_>,
    options: &RnnOptions,
    declared: &dyn DeclaredCell,
    projected: NodeId,
    sequence: &Sequence,
) -> Result<Option<RnnResult>> {
    // The op takes sequences, states and masks of samples; those that all samples share are rare.
    let given = sequence.initial.iter().chain(&sequence.mask).chain([&projected]);
    let of_samples = given.into_iter().all(|x| cx.graph().ty(*x).is_rows());
    let Some(FusedCell { cell, recurrent_kernel, bias }) =
        declared.fused(cx)?.filter(|_| of_samples)
    else {
        return Ok(None);
    };
    let keep = cx.training();
    let units = cx.dims(recurrent_kernel)[0];
    let states: Vec<Vec<usize>> = sequence.initial.iter().map(|s| cx.dims(*s)).collect();
    if let Some(wrong) = states.iter().find(|dims| **dims != [units]) {
        return Err(cx.argument(
            "initial_state",
            &format!("vectors of {units}"),
            format!("{wrong:?}"),
        ));
    }
    let attrs = RecurrentAttrs {
        cell,
        reverse: options.go_backwards,
        keep,
        bias: bias.is_some(),
        initial: !sequence.initial.is_empty(),
        masked: sequence.mask.is_some(),
    };
    let g = cx.graph();
    let mut operands = vec![projected, recurrent_kernel];
    operands.extend(bias);
    operands.extend(&sequence.initial);
    let mask = sequence.mask.map(|mask| g.cast(mask, DType::F32)).transpose()?;
    operands.extend(mask);
    let y = g.push(Op::Recurrent(attrs), &operands)?;
    let steps = g.ty(y).dims[0];
    let last = if options.go_backwards { 0 } else { steps - 1 };
    let all = |g: &mut Graph, state: usize| {
        g.push(Op::Slice { axis: 1, start: state * units, len: units }, &[y])
    };
    let end = |g: &mut Graph, x: NodeId| {
        let x = g.push(Op::Slice { axis: 0, start: last, len: 1 }, &[x])?;
        g.reshape(x, &[units])
    };
    let h = all(g, 0)?;
    let mut shown = h;
    if let Some(mask) = mask.filter(|_| options.zero_output_for_mask) {
        let (shows, zero) = (g.reshape(mask, &[steps, 1])?, g.scalar(0.0));
        shown = g.select(shows, h, zero)?;
    }
    let output = match (options.return_sequences, options.go_backwards) {
        (false, _) => end(g, shown)?,
        (true, false) => shown,
        (true, true) => flip(g, shown, 0)?,
    };
    let mut ends = vec![end(g, h)?];
    for state in 1..cell.states() {
        let all = all(g, state)?;
        ends.push(end(g, all)?);
    }
    Ok(Some(RnnResult { output, states: ends }))
}

/// Keeps the states of samples whose step is masked. Their output is `kept`, or zero.
fn masked(
    cx: &mut LayerContext<'_>,
    valid: NodeId,
    step: Step,
    kept: Option<NodeId>,
    states: &[Option<NodeId>],
) -> Result<Step> {
    let choose = |cx: &mut LayerContext<'_>, new: NodeId, old: Option<NodeId>| {
        let rank = cx.dims(new).len();
        let g = cx.graph();
        let valid = g.reshape(valid, &vec![1; rank])?;
        let old = old.unwrap_or_else(|| g.scalar(0.0));
        Ok(g.select(valid, new, old)?)
    };
    let output = choose(cx, step.output, kept)?;
    let states = step.states.into_iter().zip(states).map(|(new, old)| choose(cx, new, *old));
    Ok(Step { output, states: states.collect::<Result<_>>()? })
}

/// Step `t` of a sequence.
pub(super) fn at_step(cx: &mut LayerContext<'_>, x: NodeId, t: usize) -> Result<NodeId> {
    let dims = cx.dims(x);
    let g = cx.graph();
    let x = g.push(Op::Slice { axis: 0, start: t, len: 1 }, &[x])?;
    Ok(g.reshape(x, &dims[1..])?)
}

/// The sequence of these steps.
pub(super) fn stack(cx: &mut LayerContext<'_>, steps: &[NodeId]) -> Result<NodeId> {
    let mut parts = vec![];
    for step in steps {
        let dims = [&[1], &cx.dims(*step)[..]].concat();
        parts.push(cx.graph().reshape(*step, &dims)?);
    }
    Ok(cx.graph().push(Op::Concat { axis: 0 }, &parts)?)
}
