//! What goes wrong, as lines on standard error; those of several workers say whose they are.

use crate::terminal::Escaping;
use phalanx::text::shown;
use phalanx::workers;
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
        let mut text = String::new();
        context.field_format().format_fields(Writer::new(&mut text), event)?;
        writeln!(writer, "{}", shown(text))
    }
}

/// Who says something, where there are several workers: `rank 1 (host): `.
pub fn place() -> String {
    workers::name().map(|(_, name)| format!("{}: ", shown(name))).unwrap_or_default()
}

/// Writes a line in one piece: those of several workers meet on one terminal.
pub fn say(words: fmt::Arguments<'_>) {
    // Nobody is there to hear that nothing can be said.
    let _ = Escaping(std::io::stderr()).write_all(format!("{words}\n").as_bytes());
}

/// A panic on whatever thread, of one of several workers or of the only one.
fn panicked(panic: &PanicHookInfo<'_>) {
    let at = panic.location().map(ToString::to_string).unwrap_or_default();
    say(format_args!("{}", panic_line(&place(), &at, panic.payload())));
    let trace = Backtrace::capture();
    if trace.status() == BacktraceStatus::Captured {
        say(format_args!("{trace}"));
    }
}

fn panic_line(place: &str, at: &str, payload: &(dyn Any + Send)) -> String {
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("without a name");
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let text = shown(text.unwrap_or("no reason given"));
    format!("error: {place}thread {thread} panicked at {at}: {text}")
}

/// Shows warnings from now on, and panics.
pub fn show() {
    std::panic::set_hook(Box::new(panicked));
    let printer = Printer::builder().with_max_level(Level::WARN).with_writer(std::io::stderr);
    // It would say on standard error that nothing can be said there, and panic.
    let printer = printer.log_internal_errors(false);
    // A second subscriber cannot be: this is the first thing the command does.
    let _ = tracing::subscriber::set_global_default(printer.event_format(Plain).finish());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_one_line_that_says_whose_it_is() {
        let named = |payload: &(dyn Any + Send)| panic_line("rank 1 (here): ", "x.rs:3:7", payload);
        let thread = std::thread::Builder::new().name("phalanx-data-0".into());
        let lines =
            thread.spawn(move || [named(&"lost\nit"), named(&String::from("so")), named(&7)]);
        let start = "error: rank 1 (here): thread phalanx-data-0 panicked at x.rs:3:7: ";
        let said = [r"lost\nit", "so", "no reason given"].map(|words| format!("{start}{words}"));
        assert_eq!(lines.unwrap().join().unwrap(), said);
    }
}
