//! Warnings: events of `tracing` where somebody listens, else lines on standard error.

use crate::workers;
use phalanx_graph::text::escape;
use std::fmt;
use std::io::Write;
use std::sync::Once;
use tracing::subscriber::NoSubscriber;

/// Warns as `tracing::warn!` does; a program without a subscriber gets a line on standard error.
macro_rules! warning {
    ($($words:tt)*) => {
        match $crate::warnings::heard() {
            true => tracing::warn!($($words)*),
            false => $crate::warnings::print(format_args!($($words)*)),
        }
    };
}
pub(crate) use warning;

/// Whether the program has a subscriber for events.
pub(crate) fn heard() -> bool {
    tracing::dispatcher::get_default(|dispatch| !dispatch.is::<NoSubscriber>())
}

/// `warning: …`, in one piece: lines of several workers meet on one terminal.
pub(crate) fn print(words: fmt::Arguments<'_>) {
    let place = workers::name().map(|(_, name)| name + ": ").unwrap_or_default();
    // Nobody is there to hear that nothing can be said.
    let line = format!("warning: {place}{words}");
    let _ = std::io::stderr().write_all(format!("{}\n", escape(&line)).as_bytes());
}

/// Says once, on the first of several workers, that the kernels are slow as they were compiled.
pub(crate) fn warn_if_slow(optimized: bool) {
    static SAID: Once = Once::new();
    if !optimized && workers::name().is_none_or(|(rank, _)| rank == 0) {
        SAID.call_once(|| {
            warning!(
                "phalanx-cpu was compiled without optimisation, which makes training some 40 times slower: \
                 build with --release, or add [profile.dev.package.\"*\"] opt-level = 3 to Cargo.toml"
            );
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    /// Keeps what is said.
    struct Listener(Arc<Mutex<Vec<String>>>, AtomicUsize);

    impl Subscriber for Listener {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1 + self.1.fetch_add(1, Ordering::Relaxed) as u64)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, event: &Event<'_>) {
            struct Words(String);
            impl tracing::field::Visit for Words {
                fn record_debug(&mut self, _: &tracing::field::Field, value: &dyn fmt::Debug) {
                    self.0 += &format!("{value:?}");
                }
            }
            let mut words = Words(String::new());
            event.record(&mut words);
            self.0.lock().unwrap().push(words.0);
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn an_unoptimised_build_is_warned_of_once_and_whoever_listens_hears_it() {
        assert!(!heard());
        let said = Arc::new(Mutex::new(vec![]));
        let listener = Listener(said.clone(), AtomicUsize::new(0));
        tracing::subscriber::with_default(listener, || {
            assert!(heard());
            warn_if_slow(true);
            assert!(said.lock().unwrap().is_empty());
            warn_if_slow(false);
            warn_if_slow(false);
        });
        let said = said.lock().unwrap();
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].contains("[profile.dev.package.\"*\"] opt-level = 3"), "{said:?}");
    }
}
