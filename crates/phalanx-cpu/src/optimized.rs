//! A check that the kernels were compiled with optimisation.

use phalanx_distributed::launch::is_first_worker;
use phalanx_distributed::warnings::warning;
use std::sync::Once;

/// Whether the kernels are compiled with optimisation. Without it they are about forty times slower.
pub const OPTIMIZED: bool = !matches!(env!("PHALANX_CPU_OPT_LEVEL").as_bytes(), b"0");

/// Warns once, on the first of several workers, if the kernels were compiled without optimization.
pub(crate) fn warn_if_slow(optimized: bool) {
    static WARNED: Once = Once::new();
    if !optimized && is_first_worker() {
        WARNED.call_once(|| {
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
    use phalanx_distributed::warnings::has_subscriber;
    use std::fmt;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    /// Records events.
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
    fn an_unoptimized_build_warns_once_and_subscribers_receive_it() {
        assert!(!has_subscriber());
        let said = Arc::new(Mutex::new(vec![]));
        let listener = Listener(said.clone(), AtomicUsize::new(0));
        tracing::subscriber::with_default(listener, || {
            assert!(has_subscriber());
            warn_if_slow(true);
            assert!(said.lock().unwrap().is_empty());
            warn_if_slow(false);
            warn_if_slow(false);
        });
        let said = said.lock().unwrap();
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].contains("[profile.dev.package.\"*\"] opt-level = 3"), "{said:?}");
    }

    /// The workspace's tests and programs run at full speed and without a warning.
    #[test]
    fn a_development_build_of_the_workspace_has_optimised_kernels() {
        assert!(std::hint::black_box(OPTIMIZED), "{}", env!("PHALANX_CPU_OPT_LEVEL"));
    }
}
