//! What the library warns of, as lines on standard error.

use std::fmt;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::{FmtContext, Subscriber as Printer};
use tracing_subscriber::registry::LookupSpan;

/// `warning: …`, and nothing else.
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
        write!(
            writer,
            "{}: ",
            if *event.metadata().level() == Level::ERROR { "error" } else { "warning" }
        )?;
        context.field_format().format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}

/// Shows warnings from now on.
pub fn show() {
    let printer = Printer::builder().with_max_level(Level::WARN).with_writer(std::io::stderr);
    // A second subscriber cannot be: this is the first thing the command does.
    let _ = tracing::subscriber::set_global_default(printer.event_format(Plain).finish());
}
