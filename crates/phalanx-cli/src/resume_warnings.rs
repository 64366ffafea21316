//! Warnings about flags that differ from those of a resumed run. Checkpoints record flags that model files do not hold.

use crate::args::{Schedule, Train};
use crate::terminal;
use clap::ValueEnum;
use phalanx::callbacks::CallbackState;
use phalanx::prelude::*;
use serde_json::{Map, Value};
use std::io::Write;

/// A callback that saves flags with a run. On resume, it reports the position and warns about changed flags.
pub struct RecordedFlags {
    flags: Map<String, Value>,
    verbose: bool,
}

impl RecordedFlags {
    /// Records the flags of these arguments that are saved with a run.
    pub fn new(args: &Train, verbose: bool) -> RecordedFlags {
        let schedule = describe_schedule(args).unwrap_or_else(|| value_name(&Schedule::Constant));
        let augment = describe_augment(args).unwrap_or_else(|| "none".into());
        let flags = [("--schedule", schedule), ("--augment", augment)];
        let flags = flags.map(|(flag, value)| (flag.into(), value.into())).into_iter().collect();
        RecordedFlags { flags, verbose }
    }
}

/// The learning rate schedule, unless it is constant.
pub fn describe_schedule(args: &Train) -> Option<String> {
    let schedule = args.schedule.filter(|s| *s != Schedule::Constant)?;
    Some(match schedule {
        Schedule::Poly => format!("{} over {} epochs", value_name(&schedule), args.epochs),
        _ => value_name(&schedule),
    })
}

/// The augmentations of training images, if any.
pub fn describe_augment(args: &Train) -> Option<String> {
    let kinds: Vec<String> = args.augment.iter().map(value_name).collect();
    (!kinds.is_empty()).then(|| kinds.join(","))
}

/// The name of a value on the command line.
fn value_name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_string()).unwrap_or_default()
}

impl Callback for RecordedFlags {
    /// Checkpoints identify the state by this name: it is the type's original path and must not change.
    fn name(&self) -> &'static str {
        "phalanx::told::Told"
    }

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
