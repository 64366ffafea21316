//! Losses and metrics of many batches, merged in f64.

use crate::json_float::JsonFloat;
use serde::{Deserialize, Serialize};

/// Sums of losses and metrics over batches, merged in f64.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(into = "Written", from = "Written")]
pub(crate) struct Tally {
    rows: f64,
    total: f64,
    outputs: Vec<f64>,
    states: Vec<Vec<f64>>,
}

/// As in files, which keep every bit.
#[derive(Serialize, Deserialize)]
struct Written {
    rows: JsonFloat,
    total: JsonFloat,
    outputs: Vec<JsonFloat>,
    states: Vec<Vec<JsonFloat>>,
}

impl From<Tally> for Written {
    fn from(tally: Tally) -> Written {
        let exact = |v: Vec<f64>| v.into_iter().map(JsonFloat).collect::<Vec<_>>();
        Written {
            rows: JsonFloat(tally.rows),
            total: JsonFloat(tally.total),
            outputs: exact(tally.outputs),
            states: tally.states.into_iter().map(exact).collect(),
        }
    }
}

impl From<Written> for Tally {
    fn from(written: Written) -> Tally {
        let plain = |v: Vec<JsonFloat>| v.into_iter().map(|e| e.0).collect::<Vec<_>>();
        Tally {
            rows: written.rows.0,
            total: written.total.0,
            outputs: plain(written.outputs),
            states: written.states.into_iter().map(plain).collect(),
        }
    }
}

impl Tally {
    /// An empty tally for `outputs` outputs and metrics with states of these lengths.
    pub(super) fn new(outputs: usize, states: impl Iterator<Item = usize>) -> Tally {
        let states = states.map(|len| vec![0.0; len]).collect();
        Tally { rows: 0.0, total: 0.0, outputs: vec![0.0; outputs], states }
    }

    /// Whether another tally counts the same losses and metrics.
    pub(crate) fn alike(&self, other: &Tally) -> bool {
        let lengths = |t: &Tally| t.states.iter().map(Vec::len).collect::<Vec<_>>();
        self.outputs.len() == other.outputs.len() && lengths(self) == lengths(other)
    }

    /// Whether no batch was added yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows == 0.0
    }

    /// Adds another tally of the same losses and metrics.
    pub(crate) fn merge(&mut self, other: &Tally) {
        self.rows += other.rows;
        self.total += other.total;
        self.outputs.iter_mut().zip(&other.outputs).for_each(|(a, b)| *a += b);
        let states = self.states.iter_mut().flatten().zip(other.states.iter().flatten());
        states.for_each(|(a, b)| *a += b);
    }

    fn mean(&self, sum: f64) -> f64 {
        if self.rows > 0.0 { sum / self.rows } else { 0.0 }
    }

    /// The mean total loss.
    pub(super) fn loss(&self) -> f64 {
        self.mean(self.total)
    }

    /// The mean loss of an output.
    pub(super) fn output_loss(&self, output: usize) -> f64 {
        self.mean(self.outputs[output])
    }

    /// The summed states of the metrics.
    pub(super) fn metric_states(&self) -> impl Iterator<Item = &[f64]> {
        self.states.iter().map(Vec::as_slice)
    }

    /// Adds the sums that a step fetched: a loss per output, the penalty, the metrics. Returns the
    /// total loss of the step.
    pub(super) fn add(
        &mut self,
        fetched: &[Vec<f32>],
        loss_weights: &[f64],
        rows: usize,
        divisors: &[f64],
    ) -> f64 {
        let rows = rows as f64;
        let outputs = loss_weights.len();
        let mut loss = f64::from(fetched[outputs][0]);
        for (i, divisor) in divisors.iter().enumerate() {
            let sum = f64::from(fetched[i][0]);
            let mean = if *divisor == 0.0 { 0.0 } else { sum / divisor };
            self.outputs[i] += mean * rows;
            loss += loss_weights[i] * mean;
        }
        self.rows += rows;
        self.total += loss * rows;
        for (state, delta) in self.states.iter_mut().zip(&fetched[outputs + 1..]) {
            state.iter_mut().zip(delta).for_each(|(s, d)| *s += f64::from(*d));
        }
        loss
    }
}
