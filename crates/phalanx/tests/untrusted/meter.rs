//! How much memory is held at once, and how long a thread has worked.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

struct Meter;

static HELD: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

fn grown(bytes: usize) {
    let held = HELD.fetch_add(bytes, Relaxed) + bytes;
    MOST.fetch_max(held, Relaxed);
}

// SAFETY: hands everything to the system's allocator unchanged.
unsafe impl GlobalAlloc for Meter {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grown(layout.size());
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        grown(layout.size());
        // SAFETY: the caller's contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static METER: Meter = Meter;

/// Keeps other tests from running: the memory of all threads is counted together.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Begins to watch; what is held now.
pub fn start() -> usize {
    let held = HELD.load(Relaxed);
    MOST.store(held, Relaxed);
    held
}

/// How long this thread has worked so far, apart from what other programs took of the processor; the time of day
/// where the system does not tell.
pub fn worked() -> Duration {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanoseconds = told.as_deref().and_then(|text| text.split(' ').next()?.parse().ok());
    let of_day = || SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    nanoseconds.map_or_else(of_day, Duration::from_nanos)
}

/// The most held since, beyond what was held before.
pub fn peak(before: usize) -> usize {
    MOST.load(Relaxed).saturating_sub(before)
}
