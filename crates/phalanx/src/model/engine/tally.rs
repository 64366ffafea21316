//! Losses and metrics of many batches, merged in f64.

use super::{Engine, Tracked};
use crate::model::Logs;

/// Sums of losses and metrics over batches, merged in f64.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    rows: f64,
    total: f64,
    outputs: Vec<f64>,
    states: Vec<Vec<f64>>,
}

impl Tally {
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
