//! The library's warnings as Python's.

use pyo3::prelude::*;
use std::fmt::{self, Write};
use std::sync::Once;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Lets Python show the library's warnings from now on, unless the program has another subscriber.
pub fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| drop(tracing::subscriber::set_global_default(PythonWarnings)));
}

/// Gives every warning to `phalanx._warnings.warn`.
struct PythonWarnings;

impl Subscriber for PythonWarnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN && metadata.target().starts_with("phalanx")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut message = Message::default();
        event.record(&mut message);
        let shown = Python::try_attach(|py| {
            let warn = || py.import("phalanx._warnings")?.call_method1("warn", (&message.0,));
            if let Err(error) = warn() {
                // A filter turned the warning into an exception, which no caller could receive.
                error.write_unraisable(py, None);
            }
        });
        if shown.is_none() {
            eprintln!("warning: {}", message.0);
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The text of an event.
#[derive(Default)]
struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            // Writing to a string does not fail.
            let _ = write!(self.0, "{value:?}");
        }
    }
}
