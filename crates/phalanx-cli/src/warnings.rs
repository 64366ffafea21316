//! What goes wrong, as lines on standard error; those of several workers say whose they are.

use phalanx::workers;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::fmt;
use std::io::Write;
use std::panic::PanicHookInfo;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::{FmtContext, Subscriber as Printer};
use tracing_subscriber::registry::LookupSpan;

/// `warning: …`, or `warning: rank 1 (host): …`, and nothing else.
struct Plain;

impl<S, N> FormatEvent<S, N> for Plain
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
        write!(writer, "{}: {}", if error { "error" } else { "warning" }, place())?;
        context.field_format().format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}

/// Who says something, where there are several workers: `rank 1 (host): `.
pub fn place() -> String {
    workers::name().map(|(_, name)| name + ": ").unwrap_or_default()
}

/// Writes a line in one piece: those of several workers meet on one terminal.
pub fn say(words: fmt::Arguments<'_>) {
    // Nobody is there to hear that nothing can be said.
    let _ = std::io::stderr().write_all(format!("{words}\n").as_bytes());
}

/// A panic of one of several workers, on whatever thread.
fn panicked(panic: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("without a name");
    let (payload, none) = (panic.payload(), "no reason given");
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let text = text.unwrap_or(none).replace('\n', " ");
    let at = panic.location().map(|at| format!(" at {at}")).unwrap_or_default();
    say(format_args!("error: {}thread {thread} panicked{at}: {text}", place()));
    let trace = Backtrace::capture();
    if trace.status() == BacktraceStatus::Captured {
        say(format_args!("{trace}"));
    }
}

/// Shows warnings from now on, and whose panics are.
pub fn show() {
    if workers::name().is_some() {
        std::panic::set_hook(Box::new(panicked));
    }
    let printer = Printer::builder().with_max_level(Level::WARN).with_writer(std::io::stderr);
    // A second subscriber cannot be: this is the first thing the command does.
    let _ = tracing::subscriber::set_global_default(printer.event_format(Plain).finish());
}
