//! Objects that the emulated GPUs of several processes share.

use phalanx_distributed::NcclId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Objects that processes share, by id.
pub(super) struct Registry<T>(Mutex<HashMap<NcclId, Weak<T>>>);

impl<T> Default for Registry<T> {
    fn default() -> Registry<T> {
        Registry(Mutex::default())
    }
}

impl<T> Registry<T> {
    /// The object with this id. The first caller creates it.
    pub fn find(&self, id: NcclId, make: impl FnOnce() -> T) -> Arc<T> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.retain(|_, one| one.strong_count() > 0);
        held.get(&id).and_then(Weak::upgrade).unwrap_or_else(|| {
            let one = Arc::new(make());
            held.insert(id, Arc::downgrade(&one));
            one
        })
    }
}
