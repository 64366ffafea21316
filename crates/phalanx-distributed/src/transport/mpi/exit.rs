//! Exits for processes that the library would keep waiting.

use super::alarms::ALARM_GRACE;
use phalanx_graph::text::shown;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often a timer checks whether it was dropped.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Exits the process unless dropped in time. Blocking MPI calls that wait for all other processes have no
/// timeout of their own.
pub(super) struct ExitTimer(Arc<AtomicBool>);

impl ExitTimer {
    pub fn new(timeout: Duration, code: i32, message: String) -> ExitTimer {
        let done = Arc::new(AtomicBool::new(false));
        let seen = done.clone();
        std::thread::spawn(move || {
            let begin = Instant::now();
            while begin.elapsed() < timeout && !seen.load(Ordering::Relaxed) {
                std::thread::sleep(POLL_INTERVAL);
            }
            if !seen.load(Ordering::Relaxed) {
                eprint_line(format_args!("error: {message} for {} s", timeout.as_secs_f64()));
                // SAFETY: exits the process without running anything else.
                unsafe { libc::_exit(code) };
            }
        });
        ExitTimer(done)
    }
}

impl Drop for ExitTimer {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Writes a line with one call, because several workers write to the same terminal.
pub(super) fn eprint_line(text: std::fmt::Arguments<'_>) {
    // A failure to write to stderr cannot be reported.
    let _ = std::io::stderr().write_all(format!("{}\n", shown(text)).as_bytes());
}

/// Exits this process after a grace period, because the library blocks if the launcher cannot be reached.
pub(super) fn exit_after_grace(code: i32) {
    std::thread::spawn(move || {
        std::thread::sleep(ALARM_GRACE);
        // SAFETY: exits the process without running anything else.
        unsafe { libc::_exit(code) };
    });
}
