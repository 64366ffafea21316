//! The callbacks of Keras as one callback of the library.

use crate::array;
use crate::errors::{foreign, to_python};
use crate::logs::pairs;
use crate::shared::SharedModel;
use phalanx::callbacks::{Action, Callback, CallbackState, View};
use phalanx::model::{Interrupt, Logs};
use phalanx::{Error, Result};
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often a signal, such as Ctrl-C, is looked for.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(50);

/// Which batches of a kind of pass Python sees.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    /// Whether hooks before batches are called.
    begin: bool,
    /// Whether hooks after batches are called.
    end: bool,
    /// After every n-th batch; 0 means that the number does not matter.
    every: usize,
    /// After this time; zero means that the time does not matter.
    interval: Duration,
}

impl Pace {
    fn read(hooks: &Bound<'_, PyAny>, kind: &str) -> PyResult<Pace> {
        let paces = hooks.getattr("batch_interval")?;
        let (begin, end, every, seconds): (bool, bool, usize, f64) =
            paces.get_item(kind)?.extract()?;
        let interval = Duration::try_from_secs_f64(seconds).unwrap_or_default();
        let active = end && (every > 0 || !interval.is_zero());
        Ok(Pace { begin, end: active, every, interval })
    }
}

/// The exception of a signal that interrupted a run.
pub type Pending = Arc<Mutex<Option<PyErr>>>;

/// Calls the hooks of a Python object.
pub struct PythonHooks {
    hooks: Py<PyAny>,
    shared: Arc<SharedModel>,
    /// The weights' names by their number.
    names: Arc<Vec<String>>,
    train: Pace,
    test: Pace,
    predict: Pace,
    /// When Python last saw the end of a batch.
    shown_at: Instant,
    /// The last batch that ended and that Python has not seen, with its logs.
    unseen: Option<(usize, Logs)>,
    signals_at: Instant,
    /// Whether a hook before an epoch asked to stop. As in Keras, the epoch's first batch is still trained.
    stops_after_batch: bool,
    /// Ends a run after its step; without one, an exception ends a pass at once.
    interrupt: Option<(Interrupt, Pending)>,
}

impl PythonHooks {
    pub fn new(
        hooks: &Bound<'_, PyAny>,
        shared: &Arc<SharedModel>,
        names: &Arc<Vec<String>>,
        interrupt: Option<(Interrupt, Pending)>,
    ) -> PyResult<PythonHooks> {
        Ok(PythonHooks {
            train: Pace::read(hooks, "train")?,
            test: Pace::read(hooks, "test")?,
            predict: Pace::read(hooks, "predict")?,
            hooks: hooks.clone().unbind(),
            shared: shared.clone(),
            names: names.clone(),
            shown_at: Instant::now(),
            unseen: None,
            signals_at: Instant::now(),
            stops_after_batch: false,
            interrupt,
        })
    }

    /// Calls a hook.
    fn call(&mut self, hook: &str, index: usize, view: &View<'_>) -> Result<Action> {
        self.call_with(hook, index, view.logs, view)
    }

    fn call_with(
        &mut self,
        hook: &str,
        index: usize,
        logs: &Logs,
        view: &View<'_>,
    ) -> Result<Action> {
        Python::attach(|py| {
            // A signal that arrived before the hook must not break it off: the run stops after it.
            if let Err(error) = py.check_signals() {
                self.interrupt(py, error)?;
            }
            let _guard = self.shared.enter(view);
            let call = || -> PyResult<Action> {
                let given = PyDict::new(py);
                for (name, value) in pairs(py, logs)? {
                    given.set_item(name, value)?;
                }
                let method = pyo3::intern!(py, "call");
                let done = self.hooks.bind(py).call_method1(method, (hook, index, given))?;
                match done.cast::<PyDict>() {
                    Ok(changes) => self.action(changes),
                    Err(_) => Ok(Action::Continue),
                }
            };
            call().map_err(foreign)
        })
    }

    /// What changed in a hook.
    fn action(&self, changes: &Bound<'_, PyDict>) -> PyResult<Action> {
        let mut actions = vec![];
        if let Some(weights) = changes.get_item("weights")? {
            let mut written = vec![];
            for entry in weights.try_iter()? {
                let (index, value): (usize, Bound<'_, PyAny>) = entry?.extract()?;
                let values = array::floats(&value)?.f32().unwrap_or_default().to_vec();
                let name = self.names.get(index).cloned();
                written.push((name.unwrap_or_else(|| format!("weight {index}")), values));
            }
            actions.push(Action::RestoreWeights(written));
        }
        if let Some(variables) = changes.get_item("optimizer")? {
            let (iteration, variables) = optimizer_variables(&variables)?;
            actions.push(Action::SetOptimizer { iteration, variables });
        }
        if let Some(rate) = changes.get_item("learning_rate")? {
            actions.push(Action::SetLearningRate(rate.extract()?));
        }
        if changes.get_item("stop")?.is_some_and(|stop| stop.is_truthy().unwrap_or(false)) {
            actions.push(Action::Stop);
        }
        Ok(Action::Several(actions))
    }

    /// An exception of a signal's handler: Ctrl-C ends a run after its step, anything else at once.
    fn interrupt(&self, py: Python<'_>, error: PyErr) -> Result<()> {
        match &self.interrupt {
            Some((interrupt, pending)) if error.is_instance_of::<PyKeyboardInterrupt>(py) => {
                *pending.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                interrupt.request();
                Ok(())
            }
            _ => Err(foreign(error)),
        }
    }

    /// Whether a signal interrupted the run.
    fn is_interrupted(&self) -> bool {
        self.interrupt.as_ref().is_some_and(|(interrupt, _)| interrupt.is_requested())
    }

    /// Lets Python handle signals, now and then.
    fn check_signals(&mut self) -> Result<()> {
        if self.signals_at.elapsed() < SIGNAL_INTERVAL {
            return Ok(());
        }
        self.signals_at = Instant::now();
        Python::attach(|py| match py.check_signals() {
            Ok(()) => Ok(()),
            Err(error) => self.interrupt(py, error),
        })
    }

    /// The end of a batch, if it is due.
    fn batch_end(&mut self, hook: &str, pace: Pace, view: &View<'_>) -> Result<Action> {
        self.check_signals()?;
        if !pace.end {
            return Ok(Action::Continue);
        }
        let counted = pace.every > 0 && view.batch.is_multiple_of(pace.every);
        let timed = !pace.interval.is_zero() && self.shown_at.elapsed() >= pace.interval;
        if counted || timed || view.steps_per_epoch == Some(view.batch) {
            self.unseen = None;
            self.shown_at = Instant::now();
            return self.call(hook, view.batch.saturating_sub(1), view);
        }
        if view.steps_per_epoch.is_none() {
            self.unseen = Some((view.batch.saturating_sub(1), view.logs.clone()));
        }
        Ok(Action::Continue)
    }

    /// The end of the last batch of a pass whose length was not known.
    fn last_batch_end(&mut self, hook: &str, view: &View<'_>) -> Result<Action> {
        match self.unseen.take() {
            Some((batch, logs)) => self.call_with(hook, batch, &logs, view),
            None => Ok(Action::Continue),
        }
    }

    /// A hook before the first batch of an epoch.
    fn before_batches(&mut self, hook: &str, index: usize, view: &View<'_>) -> Result<Action> {
        match self.call(hook, index, view)? {
            Action::Several(mut actions) => {
                let all = actions.len();
                actions.retain(|action| *action != Action::Stop);
                self.stops_after_batch |= actions.len() < all;
                Ok(Action::Several(actions))
            }
            other => Ok(other),
        }
    }

    /// Two hooks in a row.
    fn after(
        &mut self,
        first: Action,
        hook: &str,
        index: usize,
        view: &View<'_>,
    ) -> Result<Action> {
        let second = self.call(hook, index, view)?;
        Ok(Action::Several(vec![first, second]))
    }
}

/// The number of steps, and the optimizer's variables after it.
pub fn optimizer_variables(values: &Bound<'_, PyAny>) -> PyResult<(u64, Vec<phalanx::Tensor>)> {
    let mut values = values.try_iter()?;
    let iteration = match values.next() {
        Some(value) => value?.call_method0("item")?.extract::<f64>()?.max(0.0) as u64,
        None => 0,
    };
    let rest = values.map(|value| array::floats(&value?)).collect::<PyResult<_>>()?;
    Ok((iteration, rest))
}

impl Callback for PythonHooks {
    fn name(&self) -> &'static str {
        "phalanx.python.PythonHooks"
    }

    fn wants_batch_events(&self) -> bool {
        let paces = [self.train, self.test, self.predict];
        self.stops_after_batch || paces.iter().any(|p| p.begin || (p.end && p.every > 0))
    }

    fn on_train_begin(&mut self, view: &View<'_>) -> Result<Action> {
        self.before_batches("on_train_begin", 0, view)
    }

    fn on_train_resume(&mut self, view: &View<'_>, state: &CallbackState) -> Result<Action> {
        let state = state.values.as_str().unwrap_or_default();
        Python::attach(|py| {
            let _guard = self.shared.enter(view);
            let hooks = self.hooks.bind(py);
            hooks.call_method1("set_state", (state,))?;
            hooks.call_method1("resumed", (view.epoch, view.batch)).map(drop)
        })
        .map_err(foreign)?;
        Ok(Action::Continue)
    }

    fn state(&mut self) -> Result<CallbackState> {
        let text: Option<String> =
            Python::attach(|py| self.hooks.bind(py).call_method0("state")?.extract())
                .map_err(foreign)?;
        Ok(CallbackState {
            values: text.map_or(serde_json::Value::Null, Into::into),
            tensors: vec![],
        })
    }

    fn on_train_end(&mut self, view: &View<'_>) -> Result<Action> {
        self.call("on_train_end", 0, view)
    }

    fn on_epoch_begin(&mut self, view: &View<'_>) -> Result<Action> {
        self.shown_at = Instant::now();
        self.before_batches("on_epoch_begin", view.epoch, view)
    }

    fn on_epoch_end(&mut self, view: &View<'_>) -> Result<Action> {
        let first = self.last_batch_end("on_train_batch_end", view)?;
        self.after(first, "on_epoch_end", view.epoch, view)
    }

    fn on_batch_begin(&mut self, view: &View<'_>) -> Result<Action> {
        match self.train.begin {
            true => self.call("on_train_batch_begin", view.batch, view),
            false => Ok(Action::Continue),
        }
    }

    fn on_batch_end(&mut self, view: &View<'_>) -> Result<Action> {
        let action = self.batch_end("on_train_batch_end", self.train, view)?;
        match std::mem::take(&mut self.stops_after_batch) {
            true => Ok(Action::Several(vec![action, Action::Stop])),
            false => Ok(action),
        }
    }

    fn on_test_begin(&mut self, view: &View<'_>) -> Result<Action> {
        let first = self.last_batch_end("on_train_batch_end", view)?;
        self.after(first, "on_test_begin", 0, view)
    }

    fn on_test_end(&mut self, view: &View<'_>) -> Result<Action> {
        if self.is_interrupted() {
            // The validation is not complete. A resumed run repeats it.
            return Ok(Action::Continue);
        }
        let first = self.last_batch_end("on_test_batch_end", view)?;
        self.after(first, "on_test_end", 0, view)
    }

    fn on_test_batch_begin(&mut self, view: &View<'_>) -> Result<Action> {
        match self.test.begin {
            true => self.call("on_test_batch_begin", view.batch, view),
            false => Ok(Action::Continue),
        }
    }

    fn on_test_batch_end(&mut self, view: &View<'_>) -> Result<Action> {
        self.batch_end("on_test_batch_end", self.test, view)
    }

    fn on_predict_begin(&mut self, view: &View<'_>) -> Result<Action> {
        self.call("on_predict_begin", 0, view)
    }

    fn on_predict_end(&mut self, view: &View<'_>) -> Result<Action> {
        let first = self.last_batch_end("on_predict_batch_end", view)?;
        self.after(first, "on_predict_end", 0, view)
    }

    fn on_predict_batch_begin(&mut self, view: &View<'_>) -> Result<Action> {
        match self.predict.begin {
            true => self.call("on_predict_batch_begin", view.batch, view),
            false => Ok(Action::Continue),
        }
    }

    fn on_predict_batch_end(&mut self, view: &View<'_>) -> Result<Action> {
        self.batch_end("on_predict_batch_end", self.predict, view)
    }
}

/// The result of a run: the exception that interrupted it, also if it ended by itself after that, or that of its error.
pub fn result_of_run(result: Result<()>, pending: &Pending) -> PyResult<()> {
    let raised = pending.lock().unwrap_or_else(PoisonError::into_inner).take();
    match (result, raised) {
        (Ok(()) | Err(Error::Interrupted { .. }), Some(raised)) => Err(raised),
        (result, _) => result.map_err(to_python),
    }
}
