//! Connectionist temporal classification: minus the logarithm of the probability that a sequence of predictions, with
//! repetitions merged and blanks removed, spells the labels.
//!
//! Predictions are logits `[time, classes]`; in the loss, class 0 is the blank. Targets are labels `[length]`; those of
//! the loss go from 1 up and are followed by zeros. The probability of all paths is a recurrence over time of two vectors of logarithms: paths that end in a blank
//! after `n` labels (`phi`), and paths that end in label `n` (`emit`). As for recurrent layers, the graph has one copy of the
//! recurrence for every time step.

use super::{Common, Loss, mismatch};
use crate::config::options;
use crate::error::{Error, Result};
use crate::registry::keras_class;
use phalanx_graph::ops::{Binary, Unary};
use phalanx_graph::{DType, Graph, NodeId, Op, Type};

/// The logarithm of a probability that counts as none, as in Keras.
const LOG_EPSILON: f64 = -1e5;

/// The largest number of time steps: the graph grows with it.
const MAX_STEPS: usize = 4096;

options! {
    /// Connectionist temporal classification. Labels may be shorter than the sequence of predictions: arrays of labels are
    /// padded with zeros. Datasets that make their own batches must pad them.
    pub struct CTC {
        common: Common::named("ctc");
    }
}

impl Loss for CTC {
    keras_class!("CTC", common);

    fn target(&self, prediction: &Type) -> Result<Type> {
        match prediction.dims[..] {
            [time, classes] if time > 0 && classes > 1 && prediction.is_rows() => {
                Sequences::check_time(time, |expected| {
                    Error::argument(self.owner(), "y_pred", expected, time)
                })?;
                Ok(Type { dtype: DType::I32, dims: vec![time], ..prediction.clone() })
            }
            _ => Err(mismatch(self.name(), "y_pred", "(batch, time, classes)", prediction)),
        }
    }

    fn pads_targets(&self) -> bool {
        true
    }

    fn values(&self, g: &mut Graph, y_true: NodeId, y_pred: NodeId) -> Result<NodeId> {
        let length = g.ty(y_true).dims.first().copied().unwrap_or(0);
        let labels = g.cast(y_true, DType::F32)?;
        let zero = g.scalar(0.0);
        let padding = g.binary(Binary::Eq, labels, zero)?;
        let padding = g.sum_axes(padding, &[0])?;
        let total = g.scalar(length as f64);
        let count = g.sub(total, padding)?;
        let count = g.reshape(count, &[])?;
        let sequences = Sequences { labels: y_true, count, logits: y_pred, steps: None, blank: 0 };
        sequences.minus_log_probability(g)
    }
}

/// Predictions and the labels that they should spell.
pub(crate) struct Sequences {
    /// The labels, integers `[length]`.
    pub labels: NodeId,
    /// How many of them count, one number per sample, at most `length`.
    pub count: NodeId,
    /// The predictions, `[time, classes]`.
    pub logits: NodeId,
    /// How many time steps count, one number per sample; without it, all.
    pub steps: Option<NodeId>,
    /// The class that stands between labels.
    pub blank: usize,
}

impl Sequences {
    /// Fails if the graph of this many time steps would be too large.
    pub fn check_time(time: usize, error: impl FnOnce(&str) -> Error) -> Result<()> {
        if time > MAX_STEPS {
            return Err(error(&format!("at most {MAX_STEPS} time steps")));
        }
        Ok(())
    }

    /// Minus the logarithm of the probability of the labels.
    pub fn minus_log_probability(&self, g: &mut Graph) -> Result<NodeId> {
        let ([time, classes], [length]) =
            (&g.ty(self.logits).dims[..], &g.ty(self.labels).dims[..])
        else {
            return Err(mismatch("ctc", "y_pred", "(batch, time, classes)", g.ty(self.logits)));
        };
        let (time, classes, length) = (*time, *classes, *length);
        let log = g.push(Op::LogSoftmax, &[self.logits])?;
        let hot = g.push(Op::OneHot { depth: classes }, &[self.labels])?;
        let emitted = g.einsum("btk,bnk->btn", &[log, hot])?;
        let blank = slice(g, log, 1, self.blank, 1)?;
        let labels = g.cast(self.labels, DType::F32)?;
        let repeats = Repeats::of(g, labels, length)?;

        let zero = zeros_like(g, labels, 0, 1)?;
        let zeros = zeros_like(g, labels, 0, length)?;
        let none = g.offset(zeros, LOG_EPSILON)?;
        let mut paths = Paths { empty: zero, blank: none, label: none };
        for t in 0..time {
            let label = slice(g, emitted, 0, t, 1)?;
            let label = g.reshape(label, &[length])?;
            let blank = slice(g, blank, 0, t, 1)?;
            let blank = g.reshape(blank, &[1])?;
            let next = paths.next(g, &repeats, label, blank)?;
            paths = match self.steps {
                None => next,
                Some(steps) => {
                    let now = g.scalar(t as f64);
                    let counts = g.binary(Binary::Gt, steps, now)?;
                    let counts = g.reshape(counts, &[1])?;
                    next.where_it(g, counts, paths)?
                }
            };
        }
        let last = log_add(g, paths.blank, paths.label)?;
        let last = g.push(Op::Concat { axis: 0 }, &[paths.empty, last])?;
        let count = g.cast(self.count, DType::I32)?;
        let at = g.push(Op::OneHot { depth: length + 1 }, &[count])?;
        let hit = g.mul(at, last)?;
        let hit = g.sum_axes(hit, &[0])?;
        let hit = g.reshape(hit, &[])?;
        Ok(g.neg(hit)?)
    }
}

/// What keeps a label from following an equal one without a blank, and a blank from standing between others twice.
struct Repeats {
    /// `LOG_EPSILON` where the next label is the same, else 0.
    same: NodeId,
    /// The opposite.
    different: NodeId,
}

impl Repeats {
    fn of(g: &mut Graph, labels: NodeId, length: usize) -> Result<Repeats> {
        let end = zeros_like(g, labels, 0, 1)?;
        let repeat = match length {
            1 => end,
            _ => {
                let (first, next) =
                    (slice(g, labels, 0, 0, length - 1)?, slice(g, labels, 0, 1, length - 1)?);
                let repeat = g.binary(Binary::Eq, first, next)?;
                g.push(Op::Concat { axis: 0 }, &[repeat, end])?
            }
        };
        let one = g.scalar(1.0);
        let other = g.sub(one, repeat)?;
        Ok(Repeats { same: g.scale(repeat, LOG_EPSILON)?, different: g.scale(other, LOG_EPSILON)? })
    }
}

/// The logarithms of the probabilities of all paths up to a time step.
#[derive(Clone, Copy)]
struct Paths {
    /// Paths of blanks only.
    empty: NodeId,
    /// Paths that end in a blank after each label.
    blank: NodeId,
    /// Paths that end in each label.
    label: NodeId,
}

impl Paths {
    /// The paths after one more step; `label` and `blank` are the logarithms of its probabilities.
    fn next(self, g: &mut Graph, r: &Repeats, label: NodeId, blank: NodeId) -> Result<Paths> {
        let length = g.ty(self.label).dims[0];
        // A label may follow a different one without a blank between them.
        let open = g.add(self.label, r.same)?;
        let open = log_add(g, self.blank, open)?;
        let before = match length {
            1 => self.empty,
            _ => {
                let earlier = slice(g, open, 0, 0, length - 1)?;
                g.push(Op::Concat { axis: 0 }, &[self.empty, earlier])?
            }
        };
        let (new, again) = (g.add(before, label)?, g.add(self.label, label)?);
        let labelled = log_add(g, new, again)?;
        let stayed = g.add(open, blank)?;
        let closed = g.add(self.label, blank)?;
        let closed = g.add(closed, r.different)?;
        let blanked = log_add(g, stayed, closed)?;
        Ok(Paths { empty: g.add(self.empty, blank)?, blank: blanked, label: labelled })
    }

    /// These paths where `chosen` is 1, else the others.
    fn where_it(self, g: &mut Graph, chosen: NodeId, others: Paths) -> Result<Paths> {
        Ok(Paths {
            empty: g.select(chosen, self.empty, others.empty)?,
            blank: g.select(chosen, self.blank, others.blank)?,
            label: g.select(chosen, self.label, others.label)?,
        })
    }
}

/// `ln(eᵃ + eᵇ)`
fn log_add(g: &mut Graph, a: NodeId, b: NodeId) -> Result<NodeId> {
    let larger = g.binary(Binary::Max, a, b)?;
    let larger = g.stop_gradient(larger)?;
    let (a, b) = (g.sub(a, larger)?, g.sub(b, larger)?);
    let (a, b) = (g.unary(Unary::Exp, a)?, g.unary(Unary::Exp, b)?);
    let sum = g.add(a, b)?;
    let log = g.unary(Unary::Log, sum)?;
    Ok(g.add(log, larger)?)
}

fn slice(g: &mut Graph, x: NodeId, axis: usize, start: usize, len: usize) -> Result<NodeId> {
    Ok(g.push(Op::Slice { axis, start, len }, &[x])?)
}

/// Zeros in the place of some elements of each sample.
fn zeros_like(g: &mut Graph, x: NodeId, start: usize, len: usize) -> Result<NodeId> {
    let part = slice(g, x, 0, start, len)?;
    Ok(g.scale(part, 0.0)?)
}
