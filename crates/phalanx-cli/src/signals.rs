//! What ends a run early: SIGINT (Ctrl-C), SIGTERM, and SIGUSR1, which mpirun hands on to its workers without ending them.

use anyhow::{Context, Result};
use phalanx::model::Interrupt;
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use signal_hook::flag;

/// Exit code after a second signal, which does not wait for the step.
const AT_ONCE: i32 = 130;

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
