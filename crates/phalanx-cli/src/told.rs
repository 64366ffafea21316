//! What a run was told on the command line that no file of a model holds, remembered with the run.

use crate::args::{Schedule, Train};
use crate::terminal;
use clap::ValueEnum;
use phalanx::callbacks::CallbackState;
use phalanx::prelude::*;
use serde_json::{Map, Value};
use std::io::Write;

/// Says where a run resumes and what is different from the saved run.
pub struct Told {
    flags: Map<String, Value>,
    verbose: bool,
}

impl Told {
    /// The flags among these arguments that are saved with a run.
    pub fn new(args: &Train, verbose: bool) -> Told {
        let schedule = schedule(args).unwrap_or_else(|| word(&Schedule::Constant));
        let augment = augment(args).unwrap_or_else(|| "none".into());
        let told = [("--schedule", schedule), ("--augment", augment)];
        let flags = told.map(|(flag, words)| (flag.into(), words.into())).into_iter().collect();
        Told { flags, verbose }
    }
}

/// How the learning rate changes, if it does.
pub fn schedule(args: &Train) -> Option<String> {
    let schedule = args.schedule.filter(|s| *s != Schedule::Constant)?;
    Some(match schedule {
        Schedule::Poly => format!("{} over {} epochs", word(&schedule), args.epochs),
        _ => word(&schedule),
    })
}

/// How images are distorted, if they are.
pub fn augment(args: &Train) -> Option<String> {
    let words: Vec<String> = args.augment.iter().map(word).collect();
    (!words.is_empty()).then(|| words.join(","))
}

/// A choice as it stands on the command line.
fn word(choice: &impl ValueEnum) -> String {
    choice.to_possible_value().map(|value| value.get_name().to_string()).unwrap_or_default()
}

impl Callback for Told {
    fn wants_batch_events(&self) -> bool {
        false
    }

    fn state(&mut self) -> Result<CallbackState> {
        Ok(CallbackState { values: Value::Object(self.flags.clone()), tensors: vec![] })
    }

    fn on_train_resume(&mut self, view: &View<'_>, state: &CallbackState) -> Result<Action> {
        if self.verbose && view.epoch < view.epochs {
            let (epoch, epochs, step) = (view.epoch + 1, view.epochs, view.step);
            writeln!(
                terminal::stdout(),
                "resuming at epoch {epoch} of {epochs}, after step {step}"
            )?;
        }
        for (flag, now) in &self.flags {
            if let (Some(before), Some(now)) = (state.values[flag].as_str(), now.as_str())
                && before != now
            {
                tracing::warn!("resume: {flag} was {before}, is {now}");
            }
        }
        Ok(Action::Continue)
    }
}
