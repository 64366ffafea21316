//! Callbacks of an evaluation or a prediction.

use super::Logs;
use super::session::Session;
use crate::callbacks::{Action, Callback, View};
use crate::error::{Error, Result};
use crate::history::History;

/// Calls a hook of a callback.
pub(super) type Hook = fn(&mut dyn Callback, &View<'_>) -> Result<Action>;

/// The callbacks of a pass over data, and what they see of the run it belongs to.
pub(super) struct PassEvents<'a> {
    pub callbacks: &'a mut [Box<dyn Callback>],
    /// The epoch of a validation, and the epoch before which its run ends.
    pub epoch: usize,
    pub epochs: usize,
    /// The number of batches, if known.
    pub steps: Option<usize>,
    pub metrics: &'a Logs,
    pub history: &'a History,
    /// Whether a callback asked to stop.
    pub stopped: bool,
}

impl<'a> PassEvents<'a> {
    /// The events of a pass that belongs to no run.
    pub fn new(
        callbacks: &'a mut [Box<dyn Callback>],
        steps: Option<usize>,
        (history, metrics): (&'a History, &'a Logs),
    ) -> PassEvents<'a> {
        let (epoch, epochs, stopped) = (0, 0, false);
        PassEvents { callbacks, epoch, epochs, steps, metrics, history, stopped }
    }

    /// Whether a callback wants to see every batch.
    pub fn wants_batches(&self) -> bool {
        self.callbacks.iter().any(|c| c.wants_batch_events())
    }

    /// Calls a hook of every callback and applies their actions. `batch` is the number of batches that are done.
    pub fn call(
        &mut self,
        session: &mut Session,
        batch: usize,
        logs: &Logs,
        hook: Hook,
    ) -> Result<()> {
        for callback in self.callbacks.iter_mut() {
            let view = View {
                epoch: self.epoch,
                epochs: self.epochs,
                step: session.state.steps,
                iterations: session.state.iterations(),
                batch,
                steps_per_epoch: self.steps,
                logs,
                metrics: self.metrics,
                learning_rate: session.objective.learning_rate(&session.state),
                history: self.history,
                model: &session.def,
                weights: session,
            };
            let action = hook(&mut **callback, &view)?;
            if action.saves_run() {
                let (owner, argument) = ("callback", "action of an evaluation or prediction");
                let expected = "one that does not save the run";
                return Err(Error::argument(owner, argument, expected, "SaveRun"));
            }
            self.stopped |= session.act(action)?;
        }
        Ok(())
    }
}

impl Session {
    /// Applies the action of a callback to the model. Returns whether the callback asks to stop.
    pub(super) fn act(&mut self, action: Action) -> Result<bool> {
        match action {
            Action::Continue | Action::SaveRun => {}
            Action::Stop => return Ok(true),
            Action::SetLearningRate(rate) => {
                let Session { def, objective, state, .. } = self;
                objective.set_learning_rate(state, &def.name, rate)?;
            }
            Action::RestoreWeights(weights) => self.weights.write(&weights)?,
            Action::SetOptimizer { iteration, variables } => {
                self.set_training_state(iteration, &variables)?;
            }
            Action::Several(actions) => {
                let mut stops = false;
                for action in actions {
                    stops |= self.act(action)?;
                }
                return Ok(stops);
            }
        }
        Ok(false)
    }
}
