//! What a run is set up with: what must be the same when it is continued, and what had better be.

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Who speaks of a run that does not fit.
const OWNER: &str = "run to continue";

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
}

impl Setup {
    /// Fails where an earlier run had another model or other data.
    pub(crate) fn check(&self, earlier: &Setup) -> Result<()> {
        let shown = |n: Option<usize>| n.map_or("unknown".into(), |n| n.to_string());
        for (what, expected, received) in [
            ("model", self.model.clone(), earlier.model.clone()),
            ("global batch size", self.batch_size.to_string(), earlier.batch_size.to_string()),
            ("samples", shown(self.samples), shown(earlier.samples)),
            ("steps per epoch", shown(self.steps), shown(earlier.steps)),
        ] {
            if expected != received {
                let received = match what {
                    "global batch size" => {
                        format!("{received} (it goes on with --global-batch-size {received})")
                    }
                    _ => received,
                };
                return Err(Error::argument(OWNER, what, expected, received));
            }
        }
        match (self.shuffle, earlier.shuffle) {
            (Some(now), Some(before)) if now != before => {
                Err(Error::argument(OWNER, "shuffle", now.to_string(), before))
            }
            _ => Ok(()),
        }
    }

    /// The options of the optimizer that an earlier run had otherwise.
    pub(crate) fn changes(&self, earlier: &Setup) -> Vec<String> {
        let change = |(option, now): (&String, &Value)| {
            let before = earlier.optimizer.get(option).filter(|before| *before != now)?;
            let words = format!("{OWNER}: {option} was {}, is {}", shown(before), shown(now));
            (option != "name").then_some(words)
        };
        self.optimizer.iter().filter_map(change).collect()
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
        Setup { model: "net".into(), batch_size: 15, samples, steps, shuffle, optimizer }
    }

    #[test]
    fn other_data_is_refused() {
        let one = setup(&SGD::default());
        one.check(&one).unwrap();
        one.check(&Setup { shuffle: None, ..one.clone() }).unwrap();
        for (other, what) in [
            (Setup { model: "web".into(), ..one.clone() }, "model: expected net, received web"),
            (Setup { samples: None, ..one.clone() }, "samples: expected 90, received unknown"),
            (Setup { steps: Some(6), ..one.clone() }, "steps per epoch: expected unknown, rec"),
            (Setup { shuffle: Some(false), ..one.clone() }, "shuffle: expected true, received fal"),
        ] {
            let error = one.check(&other).unwrap_err().to_string();
            assert!(error.starts_with("run to continue: ") && error.contains(what), "{error}");
        }
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
        assert_eq!(changes[0], "run to continue: clipnorm was 1.0, is none");
        assert!(changes[1].starts_with("run to continue: learning_rate was 0.1, is CosineDecay {"));
        assert!(changes[1].contains("\"decay_steps\":9"), "{}", changes[1]);
        assert_eq!(changes[2], "run to continue: momentum was 0.0, is 0.9");
        let unknown = Setup { optimizer: Map::new(), ..stored };
        assert_eq!(other.changes(&unknown), [] as [&str; 0]);
    }
}
