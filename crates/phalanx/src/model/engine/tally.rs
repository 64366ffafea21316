//! Losses and metrics of many batches, merged in f64.

use super::{Engine, Tracked};
use crate::json_float::JsonFloat;
use crate::model::Logs;
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
    /// Whether another tally counts the same losses and metrics.
    pub(crate) fn alike(&self, other: &Tally) -> bool {
        let lengths = |t: &Tally| t.states.iter().map(Vec::len).collect::<Vec<_>>();
        self.outputs.len() == other.outputs.len() && lengths(self) == lengths(other)
    }

    /// Whether nothing was added yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows == 0.0
    }

    /// Adds the sums a step fetched; returns that step's total loss.
    pub(super) fn add(&mut self, engine: &Engine, rows: usize, denominators: &[f64]) -> f64 {
        let rows = rows as f64;
        let outputs = engine.losses.len();
        let mut loss = f64::from(engine.fetched[outputs][0]);
        for (i, denominator) in denominators.iter().enumerate() {
            let sum = f64::from(engine.fetched[i][0]);
            let mean = if *denominator == 0.0 { 0.0 } else { sum / denominator };
            self.outputs[i] += mean * rows;
            loss += engine.loss_weights[i] * mean;
        }
        self.rows += rows;
        self.total += loss * rows;
        for (state, delta) in self.states.iter_mut().zip(&engine.fetched[outputs + 1..]) {
            state.iter_mut().zip(delta).for_each(|(s, d)| *s += f64::from(*d));
        }
        loss
    }
}

impl Engine {
    /// Nothing added yet.
    pub(crate) fn tally(&self) -> Tally {
        Tally {
            rows: 0.0,
            total: 0.0,
            outputs: vec![0.0; self.losses.len()],
            states: self
                .metrics
                .iter()
                .flatten()
                .map(|m| vec![0.0; m.metric.state_len()])
                .collect(),
        }
    }

    /// Loss and metrics under the names Keras reports.
    pub(crate) fn logs(&self, tally: &Tally) -> Logs {
        let mean = |sum: f64| if tally.rows > 0.0 { sum / tally.rows } else { 0.0 };
        let mut logs = Logs::default();
        logs.push("loss", mean(tally.total));
        let several = self.losses.len() > 1;
        if several {
            for (name, sum) in self.output_names.iter().zip(&tally.outputs) {
                logs.push(format!("{name}_loss"), mean(*sum));
            }
        }
        let mut states = tally.states.iter();
        for (output, metrics) in self.output_names.iter().zip(&self.metrics) {
            for Tracked { metric, .. } in metrics {
                let Some(state) = states.next() else { break };
                let name = match several {
                    true => format!("{output}_{}", metric.name()),
                    false => metric.name().to_string(),
                };
                logs.push(name, metric.result(state));
            }
        }
        logs
    }
}
