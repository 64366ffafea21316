//! Warnings: `tracing` events if there is a subscriber, otherwise lines on standard error that name the worker.

use crate::launch::worker_name;
use phalanx_graph::text::escape;
use std::fmt;
use std::io::Write;
use tracing::subscriber::NoSubscriber;

/// Warns like `tracing::warn!`. Without a subscriber it prints a line to standard error.
#[doc(hidden)]
#[macro_export]
macro_rules! warning {
    ($($words:tt)*) => {
        match $crate::warnings::has_subscriber() {
            true => $crate::tracing::warn!($($words)*),
            false => $crate::warnings::print(format_args!($($words)*)),
        }
    };
}
pub use crate::warning;

/// Whether the program has a `tracing` subscriber.
pub fn has_subscriber() -> bool {
    tracing::dispatcher::get_default(|dispatch| !dispatch.is::<NoSubscriber>())
}

/// Prints `warning: …` in a single write, because several workers may share a terminal.
pub fn print(message: fmt::Arguments<'_>) {
    let prefix = worker_name().map(|(_, name)| name + ": ").unwrap_or_default();
    // A failed write cannot be reported anywhere.
    let line = format!("warning: {prefix}{message}");
    let _ = std::io::stderr().write_all(format!("{}\n", escape(&line)).as_bytes());
}
