//! Signals: what ends a run early, SIGINT (Ctrl-C), SIGTERM, and SIGUSR1, which mpirun hands on to its workers without ending
//! them; SIGPIPE, where nobody reads any more what it prints; and SIGXFSZ, which ends nothing.

use anyhow::{Context, Result};
use phalanx::model::Interrupt;
use signal_hook::consts::{SIGINT, SIGPIPE, SIGTERM, SIGUSR1, SIGXFSZ};
use signal_hook::flag;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// Exit code after a second signal, which does not wait for the step.
const AT_ONCE: i32 = 130;

/// Lets a file that would grow beyond `ulimit -f` be an error of who writes it: unless caught, the
/// signal ends the process without a word.
pub fn catch_file_size_limit() -> Result<()> {
    flag::register(SIGXFSZ, Arc::default()).context("SIGXFSZ cannot be caught")?;
    Ok(())
}

/// Whether a write found nobody to read it.
static CLOSED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// A first signal raises it; a second one ends the process at once. An output that nobody reads any
/// more raises it too.
pub fn interrupt() -> Result<Interrupt> {
    let interrupt = Interrupt::new();
    let failed = "signals cannot be caught";
    for signal in [SIGINT, SIGTERM, SIGUSR1] {
        // In this order: a signal that finds the flag raised is the second.
        flag::register_conditional_shutdown(signal, AT_ONCE, interrupt.flag())
            .and_then(|_| flag::register(signal, interrupt.flag()))
            .context(failed)?;
    }
    // Between workers a broken connection is not an output that nobody reads.
    if phalanx::workers::name().is_none() {
        let closed = CLOSED.get_or_init(Arc::default).clone();
        flag::register(SIGPIPE, closed)
            .and_then(|_| flag::register(SIGPIPE, interrupt.flag()))
            .context(failed)?;
    }
    Ok(interrupt)
}

/// Whether the run was ended because nobody reads its output.
pub fn output_closed() -> bool {
    CLOSED.get().is_some_and(|closed| closed.load(Ordering::Relaxed))
}
