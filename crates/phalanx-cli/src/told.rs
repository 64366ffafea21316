//! What a run was told on the command line that no file of a model holds, remembered with the run.

use crate::args::{Schedule, Train};
use clap::ValueEnum;
use phalanx::callbacks::CallbackState;
use phalanx::prelude::*;
use serde_json::{Map, Value};

/// Says what is different when a run is continued.
pub struct Told(Map<String, Value>);

impl Told {
    /// What these arguments tell.
    pub fn new(args: &Train) -> Told {
        let schedule = args.schedule.unwrap_or(Schedule::Constant);
        let schedule = match schedule {
            Schedule::Poly => format!("{} over {} epochs", word(&schedule), args.epochs),
            _ => word(&schedule),
        };
        let augment: Vec<String> = args.augment.iter().map(word).collect();
        let augment = if augment.is_empty() { "none".into() } else { augment.join(",") };
        let told = [("--schedule", schedule), ("--augment", augment)];
        Told(told.map(|(flag, words)| (flag.into(), words.into())).into_iter().collect())
    }
}

/// A choice as it stands on the command line.
fn word(choice: &impl ValueEnum) -> String {
    choice.to_possible_value().map(|value| value.get_name().to_string()).unwrap_or_default()
}

impl Callback for Told {
    fn sees_batches(&self) -> bool {
        false
    }

    fn state(&mut self) -> Result<CallbackState> {
        Ok(CallbackState { values: Value::Object(self.0.clone()), tensors: vec![] })
    }

    fn on_train_resume(&mut self, _view: &View<'_>, state: &CallbackState) -> Result<Action> {
        for (flag, now) in &self.0 {
            if let (Some(before), Some(now)) = (state.values[flag].as_str(), now.as_str())
                && before != now
            {
                tracing::warn!("run to continue: {flag} was {before}, is {now}");
            }
        }
        Ok(Action::Continue)
    }
}
