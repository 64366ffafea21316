//! The configuration of a run. A resumed run must match some of it; other differences only cause warnings.

use crate::data::same_scheme;
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The prefix of errors and warnings about a saved run that differs from the run that resumes it.
pub(crate) const OWNER: &str = "resume";

/// The configuration of a training run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RunConfig {
    pub model: String,
    /// Samples of a global batch.
    pub batch_size: usize,
    /// Samples and batches of an epoch, if known.
    pub samples: Option<usize>,
    pub steps: Option<usize>,
    /// Whether the data is shuffled, if known.
    #[serde(default)]
    pub shuffle: Option<bool>,
    /// The optimizer's options with Keras' keys.
    #[serde(default)]
    pub optimizer: Map<String, Value>,
    /// Batches that `fit` accumulates for each update.
    #[serde(default)]
    pub accumulate: Option<u64>,
    /// Fingerprint of the samples in order, with labels and weights. All fingerprints are `None` if the dataset
    /// has none, and in states of earlier versions.
    #[serde(default)]
    pub data: Option<String>,
    /// Fingerprint of the augmentation.
    #[serde(default)]
    pub augmentation: Option<String>,
    /// Fingerprint of the validation data.
    #[serde(default)]
    pub validation: Option<String>,
}

/// Returns both fingerprints if they are known, same_scheme and differ.
fn differing<'a>(
    now: &'a Option<String>,
    before: &'a Option<String>,
) -> Option<(&'a str, &'a str)> {
    let (now, before) = (now.as_deref()?, before.as_deref()?);
    (same_scheme(now, before) && now != before).then_some((now, before))
}

impl RunConfig {
    /// Fails if the saved run had a different model or different data.
    pub(crate) fn check(&self, saved: &RunConfig) -> Result<()> {
        let shown = |n: Option<usize>| n.map_or("unknown".into(), |n| n.to_string());
        let shuffle = |config: &RunConfig| config.shuffle.map(|shuffle| shuffle.to_string());
        // Whether a run shuffles is compared only if both runs know.
        let (shuffle_saved, shuffle_now) = shuffle(saved).zip(shuffle(self)).unwrap_or_default();
        for (what, expected, received) in [
            ("model", saved.model.clone(), self.model.clone()),
            ("global batch size", saved.batch_size.to_string(), self.batch_size.to_string()),
            ("samples", shown(saved.samples), shown(self.samples)),
            ("steps per epoch", shown(saved.steps), shown(self.steps)),
            ("shuffle", shuffle_saved, shuffle_now),
        ] {
            if expected == received {
                continue;
            }
            let hint = match what {
                "global batch size" => format!(" (--global-batch-size {expected})"),
                _ => String::new(),
            };
            let expected = format!("{expected} as in the saved run{hint}");
            return Err(Error::argument(OWNER, what, expected, received));
        }
        let Some((now, before)) = differing(&self.data, &saved.data) else { return Ok(()) };
        let expected = format!("the data of the saved run (fingerprint {before})");
        let received =
            format!("other samples, labels or weights, or another order (fingerprint {now})");
        Err(Error::argument(OWNER, "data", expected, received))
    }

    /// Returns a warning for each permitted difference from the saved run: optimizer options, accumulated
    /// batches, augmentation and validation data.
    pub(crate) fn changes(&self, saved: &RunConfig) -> Vec<String> {
        let change = |(option, now): (&String, &Value)| {
            let before = saved.optimizer.get(option).filter(|before| *before != now)?;
            let text = format!("{OWNER}: {option} was {}, is {}", shown(before), shown(now));
            (option != "name").then_some(text)
        };
        let mut changes: Vec<String> = self.optimizer.iter().filter_map(change).collect();
        if let (Some(now), Some(before)) = (self.accumulate, saved.accumulate)
            && now != before
        {
            changes.push(format!("{OWNER}: accumulated batches were {before}, are {now}"));
        }
        for (what, now, before) in [
            ("augmentation", &self.augmentation, &saved.augmentation),
            ("validation data", &self.validation, &saved.validation),
        ] {
            if let Some((now, before)) = differing(now, before) {
                changes.push(format!("{OWNER}: {what}: fingerprint was {before}, is {now}"));
            }
        }
        changes
    }
}

/// Formats an option on one line.
fn shown(value: &Value) -> String {
    match (value, value.get("class_name").and_then(Value::as_str), value.get("config")) {
        (_, Some(class), Some(config)) => format!("{class} {config}"),
        (Value::Null, ..) => "none".into(),
        _ => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimizers::{Optimizer, OptimizerExt, SGD};
    use crate::schedules::CosineDecay;

    fn config(optimizer: &SGD) -> RunConfig {
        let optimizer = optimizer.config();
        let (samples, steps, shuffle) = (Some(90), None, Some(true));
        let (model, batch_size, accumulate) = ("net".into(), 15, Some(1));
        let (data, augmentation) = (Some("1-00".into()), Some("1-77".into()));
        let validation = Some("1-ff".into());
        RunConfig {
            model,
            batch_size,
            samples,
            steps,
            shuffle,
            optimizer,
            accumulate,
            data,
            augmentation,
            validation,
        }
    }

    #[test]
    fn different_data_is_rejected() {
        let one = config(&SGD::default());
        one.check(&one).unwrap();
        one.check(&RunConfig { shuffle: None, ..one.clone() }).unwrap();
        for (other, what) in [
            (
                RunConfig { model: "web".into(), ..one.clone() },
                "model: expected web as in the saved run, received net",
            ),
            (
                RunConfig { samples: None, ..one.clone() },
                "samples: expected unknown as in the saved run, received 90",
            ),
            (
                RunConfig { steps: Some(6), ..one.clone() },
                "steps per epoch: expected 6 as in the saved run, received unknown",
            ),
            (
                RunConfig { shuffle: Some(false), ..one.clone() },
                "shuffle: expected false as in the saved run, received true",
            ),
            (
                RunConfig { data: Some("1-01".into()), ..one.clone() },
                "data: expected the data of the saved run (fingerprint 1-01), received other samples, labels or weights, or another order (fingerprint 1-00)",
            ),
        ] {
            let error = one.check(&other).unwrap_err().to_string();
            assert!(error.starts_with("resume: ") && error.contains(what), "{error}");
        }
    }

    #[test]
    fn a_state_without_data_fingerprints_is_accepted() {
        let one = config(&SGD::default());
        one.check(&RunConfig { data: None, ..one.clone() }).unwrap();
        RunConfig { data: None, ..one.clone() }.check(&one).unwrap();
        // Fingerprints of different versions are not same_scheme.
        one.check(&RunConfig { data: Some("0-01".into()), ..one.clone() }).unwrap();
        let text = serde_json::to_string(&one).unwrap();
        let mut old: Map<String, Value> = serde_json::from_str(&text).unwrap();
        ["data", "augmentation", "validation", "accumulate"]
            .iter()
            .for_each(|key| drop(old.remove(*key)));
        let old: RunConfig = serde_json::from_value(old.into()).unwrap();
        one.check(&old).unwrap();
        assert_eq!(one.changes(&old), [] as [&str; 0]);
    }

    #[test]
    fn changes_name_validation_data_augmentation_and_accumulation() {
        let one = config(&SGD::default());
        let (validation, augmentation) = (Some("1-aa".into()), Some("1-bb".into()));
        let other = RunConfig { validation, augmentation, accumulate: Some(4), ..one.clone() };
        other.check(&one).unwrap();
        let changes = [
            "accumulated batches were 4, are 1",
            "augmentation: fingerprint was 1-bb, is 1-77",
            "validation data: fingerprint was 1-aa, is 1-ff",
        ];
        assert_eq!(one.changes(&other), changes.map(|text| format!("resume: {text}")));
    }

    #[test]
    fn changes_name_optimizer_options_that_differ() {
        let one = config(&SGD::new(0.1).clipnorm(1.0));
        let text = serde_json::to_string(&one).unwrap();
        let stored: RunConfig = serde_json::from_str(&text).unwrap();
        assert_eq!(one.changes(&stored), [] as [&str; 0]);
        let other = config(&SGD::new(CosineDecay::new(0.5, 9)).momentum(0.9));
        let changes = other.changes(&stored);
        assert_eq!(changes.len(), 3, "{changes:?}");
        assert_eq!(changes[0], "resume: clipnorm was 1.0, is none");
        assert!(changes[1].starts_with("resume: learning_rate was 0.1, is CosineDecay {"));
        assert!(changes[1].contains("\"decay_steps\":9"), "{}", changes[1]);
        assert_eq!(changes[2], "resume: momentum was 0.0, is 0.9");
        let unknown = RunConfig { optimizer: Map::new(), ..stored };
        assert_eq!(other.changes(&unknown), [] as [&str; 0]);
    }
}
