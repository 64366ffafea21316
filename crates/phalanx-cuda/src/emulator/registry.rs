//! Objects that the emulated GPUs of several processes share.

use crate::process_group::NcclId;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

/// Objects that processes share, by id.
pub(super) struct Registry<T>(OnceLock<Mutex<HashMap<NcclId, Weak<T>>>>);

impl<T> Registry<T> {
    pub const fn new() -> Registry<T> {
        Registry(OnceLock::new())
    }

    /// The object with this id. The first caller creates it.
    pub fn find(&self, id: NcclId, make: impl FnOnce() -> T) -> Arc<T> {
        let held = self.0.get_or_init(Mutex::default).lock();
        let mut held = held.unwrap_or_else(PoisonError::into_inner);
        held.retain(|_, one| one.strong_count() > 0);
        held.get(&id).and_then(Weak::upgrade).unwrap_or_else(|| {
            let one = Arc::new(make());
            held.insert(id, Arc::downgrade(&one));
            one
        })
    }
}

/// Creates a unique id by which the emulated GPUs of several processes find each other.
pub(crate) fn make_id() -> NcclId {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let mut id = [0; 128];
    id[..8].copy_from_slice(&NEXT.fetch_add(1, Ordering::Relaxed).to_le_bytes());
    id
}
