//! Peak memory, and CPU time of a thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

struct Meter;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn count_allocation(bytes: usize) {
    let allocated = ALLOCATED.fetch_add(bytes, Relaxed) + bytes;
    PEAK.fetch_max(allocated, Relaxed);
}

// SAFETY: forwards all calls unchanged to the system allocator.
unsafe impl GlobalAlloc for Meter {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count_allocation(layout.size());
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count_allocation(layout.size());
        // SAFETY: the caller's contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static METER: Meter = Meter;

/// Prevents other tests from running at the same time, because memory is counted over all threads.
pub fn exclusive() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Resets the peak and returns the bytes allocated now.
pub fn start() -> usize {
    let allocated = ALLOCATED.load(Relaxed);
    PEAK.store(allocated, Relaxed);
    allocated
}

/// CPU time of this thread, or wall-clock time if the system does not report it.
pub fn cpu_time() -> Duration {
    let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanoseconds = schedstat.as_deref().and_then(|text| text.split(' ').next()?.parse().ok());
    let wall_clock = || SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    nanoseconds.map_or_else(wall_clock, Duration::from_nanos)
}

/// The peak since `start`, minus the bytes allocated before.
pub fn peak(before: usize) -> usize {
    PEAK.load(Relaxed).saturating_sub(before)
}
