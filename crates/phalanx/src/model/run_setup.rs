//! What a run is set up with: what must be the same when it is continued, and what had better be.

use crate::data::same_scheme;
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The prefix of errors and warnings about a saved run that differs from the run that resumes it.
pub(crate) const OWNER: &str = "resume";

/// What a run is set up with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Setup {
    pub model: String,
    /// Samples of a global batch, and of an epoch and its batches where known.
    pub batch_size: usize,
    pub samples: Option<usize>,
    pub steps: Option<usize>,
    /// Whether the data is shuffled, where known.
    #[serde(default)]
    pub shuffle: Option<bool>,
    /// The optimizer's options under Keras' keys.
    #[serde(default)]
    pub optimizer: Map<String, Value>,
    /// Batches that `fit` makes an update of.
    #[serde(default)]
    pub accumulate: Option<u64>,
    /// Fingerprints of the samples in their order, with labels and weights, of what is done to them in every
    /// epoch, and of those to validate on; none where the data make none, and in states of earlier versions.
    #[serde(default)]
    pub data: Option<String>,
    #[serde(default)]
    pub augmentation: Option<String>,
    #[serde(default)]
    pub validation: Option<String>,
}

/// Two fingerprints that say that the data are others.
fn others<'a>(now: &'a Option<String>, before: &'a Option<String>) -> Option<(&'a str, &'a str)> {
    let (now, before) = (now.as_deref()?, before.as_deref()?);
    (same_scheme(now, before) && now != before).then_some((now, before))
}

impl Setup {
    /// Fails if the saved run had another model or other data.
    pub(crate) fn check(&self, saved: &Setup) -> Result<()> {
        let shown = |n: Option<usize>| n.map_or("unknown".into(), |n| n.to_string());
        let shuffle = |setup: &Setup| setup.shuffle.map(|shuffle| shuffle.to_string());
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
        let Some((now, before)) = others(&self.data, &saved.data) else { return Ok(()) };
        let expected = format!("the data of the saved run (fingerprint {before})");
        let received =
            format!("other samples, labels or weights, or another order (fingerprint {now})");
        Err(Error::argument(OWNER, "data", expected, received))
    }

    /// What an earlier run had otherwise and may be: options of the optimizer, how many batches make an
    /// update, augmentation, what is validated on.
    pub(crate) fn changes(&self, earlier: &Setup) -> Vec<String> {
        let change = |(option, now): (&String, &Value)| {
            let before = earlier.optimizer.get(option).filter(|before| *before != now)?;
            let words = format!("{OWNER}: {option} was {}, is {}", shown(before), shown(now));
            (option != "name").then_some(words)
        };
        let mut changes: Vec<String> = self.optimizer.iter().filter_map(change).collect();
        if let (Some(now), Some(before)) = (self.accumulate, earlier.accumulate)
            && now != before
        {
            changes.push(format!("{OWNER}: accumulated batches were {before}, are {now}"));
        }
        for (what, now, before) in [
            ("augmentation", &self.augmentation, &earlier.augmentation),
            ("validation data", &self.validation, &earlier.validation),
        ] {
            if let Some((now, before)) = others(now, before) {
                changes.push(format!("{OWNER}: {what}: fingerprint was {before}, is {now}"));
            }
        }
        changes
    }
}

/// An option in a line.
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

    fn setup(optimizer: &SGD) -> Setup {
        let optimizer = optimizer.config();
        let (samples, steps, shuffle) = (Some(90), None, Some(true));
        let (model, batch_size, accumulate) = ("net".into(), 15, Some(1));
        let (data, augmentation) = (Some("1-00".into()), Some("1-77".into()));
        let validation = Some("1-ff".into());
        Setup {
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
    fn other_data_is_refused() {
        let one = setup(&SGD::default());
        one.check(&one).unwrap();
        one.check(&Setup { shuffle: None, ..one.clone() }).unwrap();
        for (other, what) in [
            (
                Setup { model: "web".into(), ..one.clone() },
                "model: expected web as in the saved run, received net",
            ),
            (
                Setup { samples: None, ..one.clone() },
                "samples: expected unknown as in the saved run, received 90",
            ),
            (
                Setup { steps: Some(6), ..one.clone() },
                "steps per epoch: expected 6 as in the saved run, received unknown",
            ),
            (
                Setup { shuffle: Some(false), ..one.clone() },
                "shuffle: expected false as in the saved run, received true",
            ),
            (
                Setup { data: Some("1-01".into()), ..one.clone() },
                "data: expected the data of the saved run (fingerprint 1-01), received other samples, labels or weights, or another order (fingerprint 1-00)",
            ),
        ] {
            let error = one.check(&other).unwrap_err().to_string();
            assert!(error.starts_with("resume: ") && error.contains(what), "{error}");
        }
    }

    #[test]
    fn a_state_that_says_nothing_of_its_data_is_accepted() {
        let one = setup(&SGD::default());
        one.check(&Setup { data: None, ..one.clone() }).unwrap();
        Setup { data: None, ..one.clone() }.check(&one).unwrap();
        // A fingerprint that was made in another way says nothing either.
        one.check(&Setup { data: Some("0-01".into()), ..one.clone() }).unwrap();
        let text = serde_json::to_string(&one).unwrap();
        let mut old: Map<String, Value> = serde_json::from_str(&text).unwrap();
        ["data", "augmentation", "validation", "accumulate"]
            .iter()
            .for_each(|key| drop(old.remove(*key)));
        let old: Setup = serde_json::from_value(old.into()).unwrap();
        one.check(&old).unwrap();
        assert_eq!(one.changes(&old), [] as [&str; 0]);
    }

    #[test]
    fn other_validation_data_augmentation_and_accumulation_are_named() {
        let one = setup(&SGD::default());
        let (validation, augmentation) = (Some("1-aa".into()), Some("1-bb".into()));
        let other = Setup { validation, augmentation, accumulate: Some(4), ..one.clone() };
        other.check(&one).unwrap();
        let changes = [
            "accumulated batches were 4, are 1",
            "augmentation: fingerprint was 1-bb, is 1-77",
            "validation data: fingerprint was 1-aa, is 1-ff",
        ];
        assert_eq!(one.changes(&other), changes.map(|words| format!("resume: {words}")));
    }

    #[test]
    fn options_of_the_optimizer_that_differ_are_named() {
        let one = setup(&SGD::new(0.1).clipnorm(1.0));
        let text = serde_json::to_string(&one).unwrap();
        let stored: Setup = serde_json::from_str(&text).unwrap();
        assert_eq!(one.changes(&stored), [] as [&str; 0]);
        let other = setup(&SGD::new(CosineDecay::new(0.5, 9)).momentum(0.9));
        let changes = other.changes(&stored);
        assert_eq!(changes.len(), 3, "{changes:?}");
        assert_eq!(changes[0], "resume: clipnorm was 1.0, is none");
        assert!(changes[1].starts_with("resume: learning_rate was 0.1, is CosineDecay {"));
        assert!(changes[1].contains("\"decay_steps\":9"), "{}", changes[1]);
        assert_eq!(changes[2], "resume: momentum was 0.0, is 0.9");
        let unknown = Setup { optimizer: Map::new(), ..stored };
        assert_eq!(other.changes(&unknown), [] as [&str; 0]);
    }
}
