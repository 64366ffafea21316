//! Access to a model from Python: between calls through the model itself, inside hooks through the view of the run.

use crate::errors;
use phalanx::callbacks::View;
use phalanx::model::Model;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use std::mem::ManuallyDrop;
use std::process;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::{self, ThreadId};

/// The view of a hook that runs, and the thread it runs on.
struct ActiveView {
    view: NonNull<View<'static>>,
    thread: ThreadId,
}

// SAFETY: only the thread that set the view reads it, as `SharedModel::with` checks.
unsafe impl Send for ActiveView {}

/// A model, and the view of the hook that runs, if any.
pub struct SharedModel {
    model: ManuallyDrop<Mutex<Model>>,
    active: Mutex<Option<ActiveView>>,
    /// The process whose threads run the model. A forked child has the model without its threads.
    process: u32,
}

impl SharedModel {
    pub fn new(model: Model) -> SharedModel {
        let model = ManuallyDrop::new(Mutex::new(model));
        SharedModel { model, active: Mutex::new(None), process: process::id() }
    }

    /// The model. A thread that waited for it could wait for itself, so a model in use is an error.
    pub fn lock(&self) -> PyResult<MutexGuard<'_, Model>> {
        if process::id() != self.process {
            return Err(PyRuntimeError::new_err(
                "this process was forked from the one that compiled the model and has none of its threads: \
                 use multiprocessing's start method 'spawn', and compile the model in the new process",
            ));
        }
        match self.model.try_lock() {
            Ok(model) => Ok(model),
            Err(TryLockError::Poisoned(model)) => Ok(model.into_inner()),
            Err(TryLockError::WouldBlock) => Err(PyRuntimeError::new_err(
                "the model is in use: it trains, evaluates or predicts (callbacks may read it, data may not)",
            )),
        }
    }

    /// Calls `in_hook` inside a hook on this thread, else `outside`.
    pub fn with<T>(
        &self,
        in_hook: impl FnOnce(&View<'_>) -> phalanx::Result<T>,
        outside: impl FnOnce(&mut Model) -> phalanx::Result<T>,
    ) -> PyResult<T> {
        let view = {
            let active = self.active.lock().unwrap_or_else(PoisonError::into_inner);
            active.as_ref().filter(|a| a.thread == thread::current().id()).map(|a| a.view)
        };
        let done = match view {
            // SAFETY: `enter` set it on this thread, and its caller holds the view until the hook returns, which has not
            // happened: this code runs inside the hook, on the same thread.
            Some(view) => in_hook(unsafe { view.as_ref() }),
            None => outside(&mut *self.lock()?),
        };
        done.map_err(errors::to_python)
    }

    /// Makes a view readable from Python on this thread until the guard is dropped.
    pub fn enter<'a>(&'a self, view: &'a View<'_>) -> ViewGuard<'a> {
        let (view, thread) = (NonNull::from(view).cast(), thread::current().id());
        let mut active = self.active.lock().unwrap_or_else(PoisonError::into_inner);
        ViewGuard { shared: self, before: active.replace(ActiveView { view, thread }) }
    }
}

impl Drop for SharedModel {
    fn drop(&mut self) {
        if process::id() == self.process {
            // SAFETY: the model is not used after this. A forked child leaves it alone: dropping it would wait for threads
            // that do not exist there.
            unsafe { ManuallyDrop::drop(&mut self.model) }
        }
    }
}

/// Ends the access to a view.
pub struct ViewGuard<'a> {
    shared: &'a SharedModel,
    /// The view of an outer hook.
    before: Option<ActiveView>,
}

impl Drop for ViewGuard<'_> {
    fn drop(&mut self) {
        let mut active = self.shared.active.lock().unwrap_or_else(PoisonError::into_inner);
        *active = self.before.take();
    }
}
