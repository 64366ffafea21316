//! Signal handling. SIGINT (Ctrl-C), SIGTERM and SIGUSR1 stop a run early; mpirun forwards SIGUSR1 to its workers without
//! killing them. SIGPIPE stops a run whose output was closed. SIGXFSZ is caught, so that the write fails instead.

use anyhow::{Context, Result};
use phalanx::model::Interrupt;
use signal_hook::consts::{SIGINT, SIGPIPE, SIGTERM, SIGUSR1, SIGXFSZ};
use signal_hook::flag;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// Exit code after a second signal, which does not wait for the step to end.
const EXIT_SECOND_SIGNAL: i32 = 130;

/// Turns a write beyond `ulimit -f` into an I/O error. Unless caught, SIGXFSZ kills the process silently.
pub fn catch_file_size_limit() -> Result<()> {
    flag::register(SIGXFSZ, Arc::default()).context("SIGXFSZ cannot be caught")?;
    Ok(())
}

/// Set when a write finds the output closed.
static OUTPUT_CLOSED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Registers the signal handlers. The first signal requests the interrupt, as does a closed output; the second signal
/// ends the process at once.
pub fn interrupt() -> Result<Interrupt> {
    let interrupt = Interrupt::new();
    let failed = "signals cannot be caught";
    for signal in [SIGINT, SIGTERM, SIGUSR1] {
        // The order matters: a signal that finds the flag set is the second.
        flag::register_conditional_shutdown(signal, EXIT_SECOND_SIGNAL, interrupt.flag())
            .and_then(|_| flag::register(signal, interrupt.flag()))
            .context(failed)?;
    }
    // With several workers, SIGPIPE may come from a broken connection between them.
    if phalanx::launch::worker_name().is_none() {
        let closed = OUTPUT_CLOSED.get_or_init(Arc::default).clone();
        flag::register(SIGPIPE, closed)
            .and_then(|_| flag::register(SIGPIPE, interrupt.flag()))
            .context(failed)?;
    }
    Ok(interrupt)
}

/// Whether the run was stopped because its output was closed.
pub fn output_closed() -> bool {
    OUTPUT_CLOSED.get().is_some_and(|closed| closed.load(Ordering::Relaxed))
}
