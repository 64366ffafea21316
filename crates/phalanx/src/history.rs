//! What a training run was like, epoch by epoch.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The metrics of every epoch. Each series has one value per epoch, NaN where there was none.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct History {
    /// The epochs run, from 0.
    pub epochs: Vec<usize>,
    /// By name: `loss`, `accuracy`, `val_loss`, `val_accuracy`, `lr`, ….
    #[serde(with = "crate::exact::series")]
    pub values: BTreeMap<String, Vec<f64>>,
    /// How long each epoch took.
    pub seconds: Vec<f64>,
    /// Samples trained on in a second of each epoch.
    pub images_per_second: Vec<f64>,
    /// Seconds of training in this run, and those in which the devices waited for batches: not what a
    /// run that it continues took.
    #[serde(skip)]
    run: f64,
    #[serde(skip)]
    input_wait: f64,
}

impl History {
    /// Adds an epoch that trained on so many samples in so many seconds.
    pub fn push(&mut self, epoch: usize, logs: &[(String, f64)], seconds: f64, samples: usize) {
        let before = self.epochs.len();
        self.epochs.push(epoch);
        self.seconds.push(seconds);
        self.images_per_second.push(samples as f64 / seconds.max(1e-9));
        for (name, value) in logs {
            let series = self.values.entry(name.clone()).or_default();
            series.resize(before, f64::NAN);
            series.push(*value);
        }
        for series in self.values.values_mut() {
            series.resize(before + 1, f64::NAN);
        }
    }

    /// Adds time in which the devices waited for a batch.
    pub(crate) fn waited(&mut self, seconds: f64) {
        self.input_wait += seconds;
    }

    /// Adds time of training.
    pub(crate) fn ran(&mut self, seconds: f64) {
        self.run += seconds;
    }

    /// Seconds of this run's epochs, without what a run that it continues took: `seconds` has those
    /// too.
    pub fn run_seconds(&self) -> f64 {
        self.run
    }

    /// Seconds of this run's epochs in which the devices waited for batches: what a faster disk, more
    /// prefetching or less augmentation could save.
    pub fn input_wait_seconds(&self) -> f64 {
        self.input_wait
    }

    /// A metric's values, one per epoch; none for a name that never occurred.
    pub fn get(&self, name: &str) -> Option<&[f64]> {
        self.values.get(name).map(Vec::as_slice)
    }

    /// A metric's value in the last epoch that had one.
    pub fn last(&self, name: &str) -> Option<f64> {
        self.get(name)?.iter().rev().copied().find(|v| !v.is_nan())
    }

    /// The names there are.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logs(pairs: &[(&str, f64)]) -> Vec<(String, f64)> {
        pairs.iter().map(|(name, value)| (name.to_string(), *value)).collect()
    }

    #[test]
    fn every_series_has_a_value_per_epoch() {
        let mut history = History::default();
        history.push(2, &logs(&[("loss", 0.5)]), 2.0, 300);
        history.push(3, &logs(&[("loss", 0.25), ("val_loss", 0.75)]), 1.0, 300);
        history.push(4, &logs(&[("loss", 0.125)]), 1.0, 300);
        assert_eq!(history.epochs, [2, 3, 4]);
        assert_eq!(history.images_per_second, [150.0, 300.0, 300.0]);
        assert_eq!(history.get("loss"), Some(&[0.5, 0.25, 0.125][..]));
        let val = history.get("val_loss").unwrap();
        assert!(val[0].is_nan() && val[1] == 0.75 && val[2].is_nan());
        assert_eq!((history.last("val_loss"), history.last("loss")), (Some(0.75), Some(0.125)));
        assert_eq!((history.get("accuracy"), history.last("accuracy")), (None, None));
        assert!(history.names().eq(["loss", "val_loss"]));
    }

    #[test]
    fn numbers_that_json_lacks_survive() {
        let mut history = History::default();
        history.push(0, &logs(&[("a", f64::NAN), ("b", f64::NEG_INFINITY), ("c", 0.1)]), 1.0, 2);
        let text = serde_json::to_string(&history).unwrap();
        let back: History = serde_json::from_str(&text).unwrap();
        assert!(back.get("a").unwrap()[0].is_nan());
        assert_eq!(back.get("b"), Some(&[f64::NEG_INFINITY][..]));
        assert_eq!(back.get("c"), Some(&[0.1][..]));
        assert!(serde_json::from_str::<History>(&text.replace("\"NaN\"", "\"many\"")).is_err());
    }
}
