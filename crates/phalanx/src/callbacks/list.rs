//! Several callbacks in one value.

use super::Callback;

/// Callbacks in the order in which they are called, for [`Fit::callbacks`](crate::model::Fit::callbacks).
///
/// ```
/// use phalanx::callbacks::{CSVLogger, CallbackList, EarlyStopping};
///
/// let callbacks = CallbackList::new().append(CSVLogger::new("log.csv")).append(EarlyStopping::new("loss"));
/// assert_eq!(callbacks.len(), 2);
/// ```
#[derive(Default)]
pub struct CallbackList(Vec<Box<dyn Callback>>);

impl CallbackList {
    /// An empty list.
    pub fn new() -> CallbackList {
        CallbackList::default()
    }

    /// Adds a callback.
    #[must_use]
    pub fn append(mut self, callback: impl Callback + 'static) -> CallbackList {
        self.0.push(Box::new(callback));
        self
    }

    /// The number of callbacks.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<Vec<Box<dyn Callback>>> for CallbackList {
    fn from(callbacks: Vec<Box<dyn Callback>>) -> CallbackList {
        CallbackList(callbacks)
    }
}

impl From<CallbackList> for Vec<Box<dyn Callback>> {
    fn from(list: CallbackList) -> Vec<Box<dyn Callback>> {
        list.0
    }
}
