//! The metrics of a training run, by epoch.

use crate::model::Logs;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The metrics of every epoch. Each series has one value per epoch, NaN if missing.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct History {
    /// Indices of the epochs, from 0.
    pub epochs: Vec<usize>,
    /// Values by name: `loss`, `accuracy`, `val_loss`, `val_accuracy`, `lr`, ….
    #[serde(with = "crate::json_float::series")]
    pub values: BTreeMap<String, Vec<f64>>,
    /// The numbers of metrics whose result is a vector, by name: one vector per epoch, empty if missing. `values` has
    /// their means.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        with = "crate::json_float::vectors"
    )]
    pub vectors: BTreeMap<String, Vec<Vec<f64>>>,
    /// Duration of each epoch in seconds.
    pub seconds: Vec<f64>,
    /// Training throughput of each epoch in samples per second.
    pub images_per_second: Vec<f64>,
    /// Training time of this run in seconds, and the part in which the devices waited for batches.
    /// Excludes the run that it resumes.
    #[serde(skip)]
    run: f64,
    #[serde(skip)]
    input_wait: f64,
}

impl History {
    /// Adds an epoch that trained on `samples` samples in `seconds` seconds.
    pub fn push(&mut self, epoch: usize, logs: &Logs, seconds: f64, samples: usize) {
        let before = self.epochs.len();
        self.epochs.push(epoch);
        self.seconds.push(seconds);
        self.images_per_second.push(samples as f64 / seconds.max(1e-9));
        for (name, value) in logs.iter() {
            let series = self.values.entry(name.clone()).or_default();
            series.resize(before, f64::NAN);
            series.push(*value);
            if let Some(vector) = logs.vector(name) {
                let series = self.vectors.entry(name.clone()).or_default();
                series.resize(before, vec![]);
                series.push(vector.to_vec());
            }
        }
        for series in self.values.values_mut() {
            series.resize(before + 1, f64::NAN);
        }
        for series in self.vectors.values_mut() {
            series.resize(before + 1, vec![]);
        }
    }

    /// Adds time in which the devices waited for a batch.
    pub(crate) fn add_input_wait(&mut self, seconds: f64) {
        self.input_wait += seconds;
    }

    /// Adds training time.
    pub(crate) fn add_run_time(&mut self, seconds: f64) {
        self.run += seconds;
    }

    /// Training time of this run in seconds. In contrast to `seconds`, this excludes the run that it
    /// resumes.
    pub fn run_seconds(&self) -> f64 {
        self.run
    }

    /// Time of this run in seconds in which the devices waited for batches: what a faster disk, more
    /// prefetching or less augmentation could save.
    pub fn input_wait_seconds(&self) -> f64 {
        self.input_wait
    }

    /// The values of a metric, one per epoch; the means of vectors. `None` for an unknown name.
    pub fn get(&self, name: &str) -> Option<&[f64]> {
        self.values.get(name).map(Vec::as_slice)
    }

    /// The numbers of a metric whose result is a vector, one vector per epoch; `None` for every other name.
    pub fn vectors(&self, name: &str) -> Option<&[Vec<f64>]> {
        self.vectors.get(name).map(Vec::as_slice)
    }

    /// The value of a metric in the last epoch that has one.
    pub fn last(&self, name: &str) -> Option<f64> {
        self.get(name)?.iter().rev().copied().find(|v| !v.is_nan())
    }

    /// The names of all metrics.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logs(pairs: &[(&str, f64)]) -> Logs {
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
    fn vectors_have_an_entry_per_epoch_and_survive_json() {
        let mut history = History::default();
        history.push(0, &logs(&[("loss", 0.5)]), 1.0, 2);
        let mut scored = logs(&[("loss", 0.25)]);
        scored.push_vector("f1_score", vec![0.5, f64::NAN, 1.0]);
        history.push(1, &scored, 1.0, 2);
        history.push(2, &logs(&[("loss", 0.25)]), 1.0, 2);
        let text = serde_json::to_string(&history).unwrap();
        let back: History = serde_json::from_str(&text).unwrap();
        for history in [&history, &back] {
            let [none, scores, after] = history.vectors("f1_score").unwrap() else { panic!() };
            assert!(none.is_empty() && after.is_empty(), "{none:?} {after:?}");
            assert!(scores[0] == 0.5 && scores[1].is_nan() && scores[2] == 1.0, "{scores:?}");
            assert!(history.get("f1_score").unwrap()[1].is_nan(), "the mean");
            assert!(history.vectors("loss").is_none());
        }
        // Files of runs without vectors do not have the key.
        history.vectors.clear();
        let text = serde_json::to_string(&history).unwrap();
        assert!(!text.contains("vectors"), "{text}");
        assert!(serde_json::from_str::<History>(&text).unwrap().vectors.is_empty());
    }

    #[test]
    fn nan_and_infinity_survive_json() {
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
