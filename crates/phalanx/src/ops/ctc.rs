//! Connectionist temporal classification: the loss, and the labels of the most probable path.

use super::context::{OpCall, OpContext};
use super::ops;
use crate::error::Result;
use crate::layer::Outputs;
use crate::losses::Sequences;
use phalanx_graph::functions::index::{arg_max, arg_sort, max_axes, take_along};
use phalanx_graph::functions::layout::{concat, iota};
use phalanx_graph::functions::math;
use phalanx_graph::ops::Binary;
use phalanx_graph::{DType, NodeId, Op};
use serde_json::Value;

/// A value with samples and `rank` other axes.
fn samples(cx: OpCall<'_, '_, '_>, name: &str, rank: usize) -> Result<NodeId> {
    let x = cx.any_tensor(name)?;
    if !cx.is_rows(x) || cx.dims(x).len() != rank || cx.dims(x).contains(&0) {
        let expected = format!("a batch and {rank} more axes");
        return Err(cx.argument(name, &expected, format!("{:?}", cx.dims(x))));
    }
    Ok(x)
}

/// The time steps and classes of predictions.
fn predictions(cx: OpCall<'_, '_, '_>, name: &str) -> Result<(NodeId, [usize; 2])> {
    let x = samples(cx, name, 2)?;
    let x = cx.graph().cast(x, DType::F32)?;
    Ok((x, [cx.dims(x)[0], cx.dims(x)[1]]))
}

/// The class that stands between labels; without one, the last.
fn blank(cx: &OpContext<'_, '_>, classes: usize) -> Result<usize> {
    let value = cx.option("mask_index");
    let index = match &value {
        Value::Null if cx.config_has("mask_index") => Some(classes - 1),
        Value::Null => Some(0),
        value => value.as_u64().and_then(|n| usize::try_from(n).ok()),
    };
    let index = index.filter(|index| *index < classes);
    index.ok_or_else(|| cx.argument("mask_index", &format!("one of {classes} classes"), value))
}

fn ctc_loss(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let labels = samples(cx, "target", 1)?;
    let (logits, [time, classes]) = predictions(cx, "output")?;
    let (count, steps) = (samples(cx, "target_length", 0)?, samples(cx, "output_length", 0)?);
    Sequences::check_time(time, |expected| cx.argument("output", expected, time))?;
    let blank = blank(cx, classes)?;
    let length = cx.dims(labels)[0];
    let g = cx.graph();
    let (labels, steps) = (g.cast(labels, DType::I32)?, g.cast(steps, DType::F32)?);
    let count = g.cast(count, DType::F32)?;
    let count = g.clamp(count, 0.0, length as f64)?;
    let sequences = Sequences { labels, count, logits, steps: Some(steps), blank };
    Ok(sequences.minus_log_probability(g)?.into())
}

/// The most probable class of every step, without repetitions and blanks, filled up with -1; and minus the sum of their
/// scores.
fn ctc_decode(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    match cx.option("strategy") {
        Value::Null => {}
        strategy if strategy == "greedy" => {}
        other => {
            let expected = "greedy: a beam search keeps sets of paths, which are not tensors";
            return Err(cx.argument("strategy", expected, other));
        }
    }
    let (x, [time, classes]) = predictions(cx, "inputs")?;
    let lengths = samples(cx, "sequence_lengths", 0)?;
    let blank = blank(cx, classes)? as f64;
    let merge = cx.option("merge_repeated") != Value::Bool(false);
    let g = cx.graph();
    let lengths = g.cast(lengths, DType::F32)?;
    let lengths = g.reshape(lengths, &[1])?;
    let steps = iota(g, time)?;
    let after = g.binary(Binary::Ge, steps, lengths)?;
    let best = arg_max(g, x, 1)?;
    let best = g.cast(best, DType::F32)?;
    let (blank, none, zero) = (g.scalar(blank), g.scalar(-1.0), g.scalar(0.0));
    let mut labels = g.select(after, blank, best)?;
    if merge && time > 1 {
        let next = g.push(Op::Slice { axis: 0, start: 1, len: time - 1 }, &[labels])?;
        let last = g.push(Op::Slice { axis: 0, start: 0, len: time - 1 }, &[labels])?;
        let same = g.binary(Binary::Eq, next, last)?;
        let first = g.fill(0.0, &[1]);
        let repeated = concat(g, &[first, same], 0)?;
        labels = g.select(repeated, blank, labels)?;
    }
    let empty = g.binary(Binary::Eq, labels, blank)?;
    let labels = g.select(empty, none, labels)?;
    let end = g.scalar(time as f64);
    let order = g.select(empty, end, steps)?;
    let order = arg_sort(g, order, 0)?;
    let paths = take_along(g, labels, order, 0)?;
    let paths = g.cast(paths, DType::I32)?;
    let paths = g.reshape(paths, &[1, time])?;
    let scores = max_axes(g, x, &[1])?;
    let scores = g.reshape(scores, &[time])?;
    let counted = math::logical_not(g, after)?;
    let scores = g.select(counted, scores, zero)?;
    let total = g.sum_axes(scores, &[0])?;
    let total = g.neg(total)?;
    cx.layer().batch_second(paths);
    Ok(vec![paths, total].into())
}

ops! {
    NN, "nn";
    CTCDecode(inputs, sequence_lengths) => ctc_decode,
    CTCLoss(target, output, target_length, output_length) => ctc_loss,
}
