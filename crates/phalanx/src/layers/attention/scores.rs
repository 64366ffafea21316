//! The parts that attention layers share: masks, the softmax of scores, and the arguments of a call.

use crate::error::Result;
use crate::layer::{Argument, LayerContext, Operand};
use crate::layers::dropout::{self, check_rate};
use crate::layers::support::masked_scores;
use phalanx_graph::functions::{layout, math};
use phalanx_graph::ops::Unary;
use phalanx_graph::{DType, NodeId, Op};
use serde_json::Value;

/// The call arguments of multi-head attention.
pub(super) const SIGNATURE: &[&str] = &[
    "query",
    "value",
    "key",
    "query_mask",
    "value_mask",
    "key_mask",
    "attention_mask",
    "return_attention_scores",
    "training",
    "use_causal_mask",
];

/// The arguments of a call of multi-head attention.
pub(super) struct Call {
    pub query: Operand,
    pub value: Operand,
    pub key: Operand,
    pub return_scores: bool,
    /// Keys that a query may attend to, `[T | 1, S]` for each sample or for all.
    pub mask: Option<NodeId>,
}

/// A flag of a call.
pub(super) fn flag(cx: &LayerContext<'_>, signature: &[&str], name: &str) -> Result<bool> {
    match cx.passed(signature, name) {
        None | Some(Argument::Plain(Value::Bool(false))) => Ok(false),
        Some(Argument::Plain(Value::Bool(true))) => Ok(true),
        Some(_) => Err(cx.argument(name, "true or false", "something else")),
    }
}

/// A tensor of a call.
fn tensor(cx: &LayerContext<'_>, name: &str) -> Result<Option<Operand>> {
    match cx.passed(SIGNATURE, name) {
        None => Ok(None),
        Some(Argument::Tensor(operand)) => Ok(Some(*operand)),
        Some(_) => Err(cx.argument(name, "a tensor", "something else")),
    }
}

impl Call {
    /// Reads the arguments. `window` restricts how far apart query and key may be.
    pub fn read(cx: &mut LayerContext<'_>, window: Option<usize>) -> Result<Call> {
        let (query, value) = (tensor(cx, "query")?, tensor(cx, "value")?);
        let (Some(query), Some(value)) = (query, value) else {
            return Err(cx.argument("inputs", "query and value", "one tensor"));
        };
        let given = tensor(cx, "key")?;
        let key = given.unwrap_or(value);
        let causal = flag(cx, SIGNATURE, "use_causal_mask")?;
        let return_scores = flag(cx, SIGNATURE, "return_attention_scores")?;
        let mut masks = vec![];
        let explicit = |cx: &LayerContext<'_>, name: &str, own: Option<NodeId>| {
            Ok::<_, crate::error::Error>(tensor(cx, name)?.map(|mask| mask.node).or(own))
        };
        if let Some(mask) = explicit(cx, "query_mask", query.mask)? {
            masks.push(with_axis(cx, mask, 1)?);
        }
        if let Some(mask) = explicit(cx, "value_mask", value.mask)? {
            masks.push(with_axis(cx, mask, 0)?);
        }
        if let Some(mask) = explicit(cx, "key_mask", given.and_then(|key| key.mask))? {
            masks.push(with_axis(cx, mask, 0)?);
        }
        let (steps, keys) = (length(cx, query.node)?, length(cx, key.node)?);
        if causal {
            masks.push(band(cx, steps, keys, Band::Causal)?);
        }
        if let Some(window) = window {
            masks.push(band(cx, steps, keys, Band::Window(window))?);
        }
        if let Some(mask) = tensor(cx, "attention_mask")? {
            masks.push(cx.graph().cast(mask.node, DType::F32)?);
        }
        let mask = all(cx, &masks)?;
        Ok(Call { query, value, key, return_scores, mask })
    }
}

fn length(cx: &LayerContext<'_>, x: NodeId) -> Result<usize> {
    match cx.dims(x)[..] {
        [steps, _, ..] => Ok(steps),
        _ => Err(cx.argument("input", "shape (batch, steps, .., features)", "fewer axes")),
    }
}

/// A mask of steps with a new axis of size one.
pub(super) fn with_axis(cx: &mut LayerContext<'_>, mask: NodeId, axis: usize) -> Result<NodeId> {
    let mut dims = cx.dims(mask);
    dims.insert(axis.min(dims.len()), 1);
    Ok(cx.graph().reshape(mask, &dims)?)
}

/// 1 where every mask is; `None` if there are none.
pub(super) fn all(cx: &mut LayerContext<'_>, masks: &[NodeId]) -> Result<Option<NodeId>> {
    let mut masks = masks.iter().copied();
    let Some(mut all) = masks.next() else { return Ok(None) };
    for mask in masks {
        all = cx.graph().mul(all, mask)?;
    }
    Ok(Some(all))
}

/// Which keys a query may attend to, by their positions.
pub(super) enum Band {
    /// Keys up to the query's position.
    Causal,
    /// Keys less than this far away.
    Window(usize),
}

/// The mask `[steps, keys]` of a band.
pub(super) fn band(
    cx: &mut LayerContext<'_>,
    steps: usize,
    keys: usize,
    band: Band,
) -> Result<NodeId> {
    let g = cx.graph();
    let apart = layout::offsets(g, steps, keys)?;
    Ok(match band {
        Band::Causal => {
            let zero = g.scalar(0.0);
            math::less_equal(g, apart, zero)?
        }
        Band::Window(size) => {
            let apart = g.unary(Unary::Abs, apart)?;
            let size = g.scalar(size as f64);
            math::less(g, apart, size)?
        }
    })
}

/// The weights of a query that may attend to no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WithoutKeys {
    /// All keys have the same weight.
    Uniform,
    /// All weights are zero.
    Zero,
}

impl WithoutKeys {
    /// What Keras' multi-head attention does. It has two implementations, one of which applies a layer `Softmax`.
    /// `rank` is that of the projected queries.
    pub(super) fn of_heads(dropout: f64, return_scores: bool, rank: usize) -> WithoutKeys {
        match dropout > 0.0 || return_scores || rank != 4 {
            true => WithoutKeys::Zero,
            false => WithoutKeys::Uniform,
        }
    }
}

/// The softmax of scores over their last axis. Entries whose mask is zero get no weight.
pub(super) fn masked_softmax(
    cx: &mut LayerContext<'_>,
    scores: NodeId,
    mask: Option<NodeId>,
    without_keys: WithoutKeys,
) -> Result<NodeId> {
    let scores = masked_scores(cx, scores, mask)?;
    let weights = cx.graph().push(Op::Softmax, &[scores])?;
    match mask.filter(|_| without_keys == WithoutKeys::Zero) {
        Some(mask) => {
            let zero = cx.graph().scalar(0.0);
            Ok(cx.graph().select(mask, weights, zero)?)
        }
        None => Ok(weights),
    }
}

/// Dropout of attention weights in training.
pub(super) fn drop(cx: &mut LayerContext<'_>, weights: NodeId, rate: f64) -> Result<NodeId> {
    check_rate(cx, "dropout", rate)?;
    let noise = cx.dims(weights);
    dropout::drop(cx, weights, rate, noise)
}
