//! Warnings, errors and panics as lines on standard error, prefixed with the rank if there are several workers.

use crate::terminal::Escaping;
use phalanx::launch::worker_name;
use phalanx::text::shown;
use std::any::Any;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::fmt;
use std::io::Write;
use std::panic::PanicHookInfo;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::{FmtContext, Subscriber as Printer};
use tracing_subscriber::registry::LookupSpan;

/// `warning: …`, or `warning: rank 1 (host): …`, and nothing else.
struct WarningFormat;

impl<S, N> FormatEvent<S, N> for WarningFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let error = *event.metadata().level() == Level::ERROR;
        write!(writer, "{}: {}", if error { "error" } else { "warning" }, rank_prefix())?;
        let mut text = String::new();
        context.field_format().format_fields(Writer::new(&mut text), event)?;
        writeln!(writer, "{}", shown(text))
    }
}

/// The prefix of this worker's lines, such as `rank 1 (host): `; empty if there is only one worker.
pub fn rank_prefix() -> String {
    worker_name().map(|(_, name)| format!("{}: ", shown(name))).unwrap_or_default()
}

/// Writes a line to standard error in one call, so that lines of several workers do not interleave.
pub fn eprint_line(line: fmt::Arguments<'_>) {
    // A failure to write to standard error cannot be reported.
    let _ = Escaping(std::io::stderr()).write_all(format!("{line}\n").as_bytes());
}

/// Prints a panic of any thread, and its backtrace if enabled.
fn panic_hook(panic: &PanicHookInfo<'_>) {
    let at = panic.location().map(ToString::to_string).unwrap_or_default();
    eprint_line(format_args!("{}", panic_line(&rank_prefix(), &at, panic.payload())));
    let trace = Backtrace::capture();
    if trace.status() == BacktraceStatus::Captured {
        eprint_line(format_args!("{trace}"));
    }
}

/// Formats a panic on one line.
fn panic_line(rank_prefix: &str, at: &str, payload: &(dyn Any + Send)) -> String {
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("without a name");
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let text = shown(text.unwrap_or("no reason given"));
    format!("error: {rank_prefix}thread {thread} panicked at {at}: {text}")
}

/// Installs the printers of warnings and panics.
pub fn install() {
    std::panic::set_hook(Box::new(panic_hook));
    let printer = Printer::builder().with_max_level(Level::WARN).with_writer(std::io::stderr);
    // Otherwise a failed write to standard error would be reported there, and panic.
    let printer = printer.log_internal_errors(false);
    // This cannot fail: it runs first, so there is no other subscriber.
    let _ = tracing::subscriber::set_global_default(printer.event_format(WarningFormat).finish());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_one_line_with_rank_and_thread() {
        let named = |payload: &(dyn Any + Send)| panic_line("rank 1 (here): ", "x.rs:3:7", payload);
        let thread = std::thread::Builder::new().name("phalanx-data-0".into());
        let lines =
            thread.spawn(move || [named(&"lost\nit"), named(&String::from("so")), named(&7)]);
        let start = "error: rank 1 (here): thread phalanx-data-0 panicked at x.rs:3:7: ";
        let expected =
            [r"lost\nit", "so", "no reason given"].map(|words| format!("{start}{words}"));
        assert_eq!(lines.unwrap().join().unwrap(), expected);
    }
}
