//! Signals: what ends a run early, SIGINT (Ctrl-C), SIGTERM, and SIGUSR1, which mpirun hands on to its workers without ending them; and
//! SIGXFSZ, which does not.

use anyhow::{Context, Result};
use phalanx::model::Interrupt;
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1, SIGXFSZ};
use signal_hook::flag;
use std::sync::Arc;

/// Exit code after a second signal, which does not wait for the step.
const AT_ONCE: i32 = 130;

/// Lets a file that would grow beyond `ulimit -f` be an error of who writes it: unless caught, the
/// signal ends the process without a word.
pub fn catch_file_size_limit() -> Result<()> {
    flag::register(SIGXFSZ, Arc::default()).context("SIGXFSZ cannot be caught")?;
    Ok(())
}

/// A first signal raises it; a second one ends the process at once.
pub fn interrupt() -> Result<Interrupt> {
    let interrupt = Interrupt::new();
    for signal in [SIGINT, SIGTERM, SIGUSR1] {
        // In this order: a signal that finds the flag raised is the second.
        flag::register_conditional_shutdown(signal, AT_ONCE, interrupt.flag())
            .and_then(|_| flag::register(signal, interrupt.flag()))
            .context("signals cannot be caught")?;
    }
    Ok(interrupt)
}
