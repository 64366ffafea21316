//! Progress output of `fit`, `evaluate` and `predict`, as in Keras: a live bar on a terminal, otherwise
//! a line per epoch.
//!
//! The bar is not drawn by a library, because Keras' line combines bar, times and metrics. Writer and
//! clock are injected, which makes the output testable to the byte.

mod line;
mod rate;

pub use line::number;

use crate::error::{Error, Result};
use crate::launch;
use line::{BOLD, GREEN, GREY, Line, metric};
use phalanx_graph::text::shown;
use rate::Rate;
use std::io::Write;
use std::time::{Duration, Instant};

/// Width of the bar in columns.
const BAR: usize = 20;
/// Minimum width of the bar. A shorter one is omitted.
const MIN_BAR: usize = 4;
/// Minimum time between redraws of the bar.
const REDRAW_INTERVAL: Duration = Duration::from_millis(50);
/// Disables wrapping, so that the terminal truncates long lines at its edge.
const NO_WRAP: &str = "\x1b[?7l";
const WRAP: &str = "\x1b[?7h";
const CLEAR_REST: &str = "\x1b[K";

/// How much to print.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verbose {
    /// Nothing: Keras' 0.
    Silent,
    /// A live bar on a terminal, otherwise a line per epoch: Keras' 1.
    #[default]
    Bar,
    /// A line per epoch: Keras' 2.
    Line,
}

impl TryFrom<u8> for Verbose {
    type Error = Error;

    fn try_from(level: u8) -> Result<Verbose> {
        match level {
            0 => Ok(Verbose::Silent),
            1 => Ok(Verbose::Bar),
            2 => Ok(Verbose::Line),
            _ => Err(Error::argument("progress", "verbose", "0, 1 or 2", level)),
        }
    }
}

/// Prints the progress of consecutive calls. A failed write, for example to a closed pipe, stops the
/// output but not the program.
pub struct Progress {
    verbose: Verbose,
    out: Box<dyn Write + Send>,
    clock: Box<dyn Fn() -> Duration + Send>,
    live: bool,
    color: bool,
    width: usize,
    /// Called before every pass, because the size of a terminal may change.
    measure: Option<fn() -> Option<usize>>,
    rate: Rate,
    drawn: Option<Duration>,
    closed: bool,
}

impl Progress {
    /// Prints plain lines to a writer.
    pub fn new(verbose: Verbose, out: impl Write + Send + 'static) -> Progress {
        let origin = Instant::now();
        Progress {
            verbose,
            out: Box::new(out),
            clock: Box::new(move || origin.elapsed()),
            live: false,
            color: false,
            width: usize::MAX,
            measure: None,
            rate: Rate::default(),
            drawn: None,
            closed: false,
        }
    }

    /// Prints to standard output: live on a terminal, in color unless `NO_COLOR` is set. Prints plain
    /// lines under a launcher that forwards the output, because its destination is unknown.
    pub fn stdout(verbose: Verbose) -> Progress {
        let variable = |name| std::env::var(name).ok().filter(|v| !v.is_empty());
        let out = std::io::stdout();
        let plain = !launch::is_terminal(&out) || variable("TERM").is_some_and(|t| t == "dumb");
        let mut progress = Progress::new(verbose, out);
        if !plain {
            progress = progress.live(variable("NO_COLOR").is_none(), None);
            progress.measure = Some(terminal_width);
        }
        progress
    }

    /// Redraws one line in place, truncated at `width` columns if given.
    pub fn live(mut self, color: bool, width: Option<usize>) -> Progress {
        (self.live, self.color, self.width) = (true, color, width.unwrap_or(usize::MAX));
        self
    }

    /// Replaces the clock.
    pub fn clock(mut self, clock: impl Fn() -> Duration + Send + 'static) -> Progress {
        self.clock = Box::new(clock);
        self
    }

    /// Starts epoch `epoch` (from 0) of `epochs`, with its number of steps if known.
    pub fn begin_epoch(&mut self, epoch: usize, epochs: usize, steps: Option<usize>) {
        if self.verbose != Verbose::Silent && epochs > 1 {
            self.print(&format!("Epoch {}/{epochs}\n", epoch + 1));
        }
        self.begin(steps);
    }

    /// Starts an evaluation.
    pub fn begin_evaluate(&mut self, steps: Option<usize>) {
        self.begin(steps);
    }

    /// Starts a prediction.
    pub fn begin_predict(&mut self, steps: Option<usize>) {
        self.begin(steps);
    }

    /// Reports that `done` steps are done, with the current metrics.
    pub fn step(&mut self, done: usize, logs: &[(String, f64)]) {
        let now = (self.clock)();
        self.rate.first.get_or_insert((done, now));
        (self.rate.done, self.rate.last) = (done, now);
        let due = self.drawn.is_none_or(|drawn| now.saturating_sub(drawn) >= REDRAW_INTERVAL);
        if self.live && self.verbose == Verbose::Bar && due {
            let line = self.bar(now, logs, false);
            self.drawn = Some(now);
            self.print(&format!("\r{NO_WRAP}{line}{CLEAR_REST}{WRAP}"));
        }
    }

    /// Ends an epoch with all its metrics, including those of the validation. Warns about metrics that
    /// are not finite.
    pub fn end_epoch(&mut self, logs: &[(String, f64)]) {
        self.end(logs);
        let not_finite = |(_, value): &&(String, f64)| !value.is_finite();
        let not_finite: Vec<String> = logs
            .iter()
            .filter(not_finite)
            .map(|(name, value)| format!("{} is {value}", shown(name)))
            .collect();
        if !not_finite.is_empty() && self.verbose != Verbose::Silent {
            let hint = "look for bad values in the data, or lower the learning rate";
            self.print(&format!("warning: {}: {hint}\n", not_finite.join(", ")));
        }
    }

    /// Ends an evaluation.
    pub fn end_evaluate(&mut self, logs: &[(String, f64)]) {
        self.end(logs);
    }

    /// Ends a prediction.
    pub fn end_predict(&mut self) {
        self.end(&[]);
    }

    fn begin(&mut self, steps: Option<usize>) {
        let start = (self.clock)();
        if let Some(measure) = self.measure {
            self.width = measure().unwrap_or(usize::MAX);
        }
        self.rate = Rate { start, steps, last: start, ..Rate::default() };
        self.drawn = None;
    }

    fn end(&mut self, logs: &[(String, f64)]) {
        let now = (self.clock)();
        match self.verbose {
            Verbose::Silent => {}
            Verbose::Bar if self.live => {
                let line = self.bar(now, logs, true);
                self.drawn = None;
                self.print(&format!("\r{line}{CLEAR_REST}\n"));
            }
            Verbose::Bar | Verbose::Line => {
                let mut line = Line::new(false, usize::MAX);
                let (count, total) = (self.rate.count(true), self.rate.elapsed(now));
                line.push("", &format!("{count} - {total} - {}", self.rate.per_step()));
                line.metrics(logs);
                self.print(&format!("{}\n", line.text));
            }
        }
    }

    /// The line of the bar. The last one is not truncated, because nothing is drawn over it.
    fn bar(&self, now: Duration, logs: &[(String, f64)], last: bool) -> String {
        let (rate, width) = (&self.rate, if last { usize::MAX } else { self.width });
        let (count, per_step) = (rate.count(last), rate.per_step());
        let time = match rate.steps {
            Some(steps) if !last => rate.remaining(steps),
            _ => rate.elapsed(now),
        };
        // If space is short, the first metric has priority over the times, and the times over the bar.
        let first = logs.first().map_or(0, |(name, value)| columns(&metric(name, *value)));
        let mut room = width.saturating_sub(columns(&count) + first);
        let mut fits = |text: &str| {
            let fits = columns(text) < room;
            room -= if fits { 1 + columns(text) } else { 0 };
            fits
        };
        let (show_time, show_rate) = (fits(&time), fits(&per_step));
        let bar = BAR.min(room.saturating_sub(1));

        let mut line = Line::new(self.color, width);
        line.push(BOLD, &count);
        let steps = rate.steps.or(last.then_some(rate.done)).filter(|_| bar >= MIN_BAR);
        if let Some(steps) = steps {
            let filled = (bar * rate.done.min(steps)).checked_div(steps).unwrap_or(bar);
            line.push("", " ");
            line.push(GREEN, &"━".repeat(filled));
            // Without color the remaining part must look different.
            line.push(GREY, &if self.color { "━" } else { "─" }.repeat(bar - filled));
        }
        if show_time {
            line.push("", " ");
            line.push(BOLD, &time);
        }
        if show_rate {
            line.push("", &format!(" {per_step}"));
        }
        line.metrics(logs);
        line.text
    }

    fn print(&mut self, text: &str) {
        if self.closed {
            return;
        }
        let written = self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush());
        self.closed = written.is_err();
    }
}

/// The number of columns of the terminal, or the value of `COLUMNS`.
fn terminal_width() -> Option<usize> {
    let from_env = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let from_terminal = || terminal_size::terminal_size().map(|(width, _)| usize::from(width.0));
    from_env.filter(|columns| *columns > 0).or_else(from_terminal)
}

fn columns(text: &str) -> usize {
    text.chars().count()
}

/// A pass that ends early leaves its line on the screen.
impl Drop for Progress {
    fn drop(&mut self) {
        if self.drawn.is_some() {
            self.print("\n");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::line::RESET;
    use super::*;
    use std::io;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Arc, Mutex};

    /// A progress with captured output and a manual clock.
    struct Bench {
        progress: Progress,
        written: Arc<Mutex<Vec<u8>>>,
        micros: Arc<AtomicU64>,
    }

    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Bench {
        fn new(verbose: Verbose) -> Bench {
            let (written, micros) = (Arc::default(), Arc::new(AtomicU64::new(0)));
            let time = Arc::clone(&micros);
            let progress = Progress::new(verbose, Shared(Arc::clone(&written)))
                .clock(move || Duration::from_micros(time.load(Ordering::Relaxed)));
            Bench { progress, written, micros }
        }

        fn live(verbose: Verbose, color: bool, width: Option<usize>) -> Bench {
            let bench = Bench::new(verbose);
            Bench { progress: bench.progress.live(color, width), ..bench }
        }

        fn pass_time(&self, micros: u64) {
            self.micros.fetch_add(micros, Ordering::Relaxed);
        }

        fn text(&self) -> String {
            String::from_utf8(std::mem::take(&mut self.written.lock().unwrap())).unwrap()
        }

        /// Runs an epoch of `steps` steps of 4 ms after a first one of 100 ms.
        fn run(&mut self, steps: usize, known: bool) {
            self.progress.begin_epoch(0, 2, known.then_some(steps));
            self.pass_time(100_000 - 4_000);
            for step in 1..=steps {
                self.pass_time(4_000);
                self.progress.step(step, &logs(&[("loss", 0.383), ("accuracy", 0.8884)]));
            }
            self.pass_time(900_000);
            let all = [("loss", 0.383), ("accuracy", 0.8884), ("val_loss", 1e-4)];
            self.progress.end_epoch(&logs(&all));
        }
    }

    fn logs(pairs: &[(&str, f64)]) -> Vec<(String, f64)> {
        pairs.iter().map(|(name, value)| (name.to_string(), *value)).collect()
    }

    #[test]
    fn without_a_terminal_there_is_a_line_per_epoch() {
        for verbose in [Verbose::Bar, Verbose::Line] {
            for known in [true, false] {
                let mut bench = Bench::new(verbose);
                bench.run(1563, known);
                let expected = "Epoch 1/2\n1563/1563 - 7s - 4ms/step - loss: 0.3830 - \
                                accuracy: 0.8884 - val_loss: 1.0000e-04\n";
                assert_eq!(bench.text(), expected);
            }
        }
    }

    #[test]
    fn verbose_2_is_plain_on_a_terminal_too_and_0_is_silent() {
        let mut bench = Bench::live(Verbose::Line, true, None);
        bench.run(10, true);
        assert!(bench.text().starts_with("Epoch 1/2\n10/10 - 1s - 4ms/step - loss"));
        let mut bench = Bench::live(Verbose::Silent, true, None);
        bench.run(10, true);
        assert_eq!(bench.text(), "");
        assert!(Verbose::try_from(3).is_err());
    }

    #[test]
    fn the_bar_grows_in_place() {
        let mut bench = Bench::live(Verbose::Bar, false, None);
        bench.progress.begin_epoch(0, 1, Some(1563));
        for step in [1, 12, 800] {
            bench.micros.store(4_000 * step, Ordering::Relaxed);
            bench.progress.step(step as usize, &logs(&[("loss", 2.5)]));
        }
        bench.micros.store(6_300_000, Ordering::Relaxed);
        bench.progress.step(1563, &logs(&[("loss", 0.383)]));
        bench.progress.end_epoch(&logs(&[("loss", 0.383), ("val_loss", 0.5)]));
        // Step 12 came too soon after step 1 to be drawn.
        let expected = [
            "",
            "\x1b[?7l   1/1563 ──────────────────── 6s 4ms/step - loss: 2.5000\x1b[K\x1b[?7h",
            "\x1b[?7l 800/1563 ━━━━━━━━━━────────── 3s 4ms/step - loss: 2.5000\x1b[K\x1b[?7h",
            "\x1b[?7l1563/1563 ━━━━━━━━━━━━━━━━━━━━ 0s 4ms/step - loss: 0.3830\x1b[K\x1b[?7h",
            "1563/1563 ━━━━━━━━━━━━━━━━━━━━ 6s 4ms/step - loss: 0.3830 - val_loss: 0.5000\x1b[K\n",
        ];
        assert_eq!(bench.text().split('\r').collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_nan_metric_gives_a_warning() {
        let mut bench = Bench::new(Verbose::Line);
        bench.progress.begin_epoch(0, 1, Some(1));
        bench.progress.end_epoch(&logs(&[("loss", 0.5), ("val_loss", f64::NAN)]));
        let text = bench.text();
        assert!(text.contains("\nwarning: val_loss is NaN: look for bad values"), "{text}");
    }

    #[test]
    fn control_characters_in_metric_names_are_escaped() {
        for mut bench in [Bench::new(Verbose::Line), Bench::live(Verbose::Bar, false, None)] {
            bench.progress.begin_epoch(0, 1, Some(1));
            bench.progress.end_epoch(&logs(&[("\u{1b}[2J\nx\u{202e}", f64::NAN)]));
            let text = bench.text();
            assert!(text.contains(r" - \u{1b}[2J\nx\u{202e}: nan"), "{text:?}");
            assert!(text.contains("warning: \\u{1b}[2J\\nx\\u{202e} is NaN"), "{text:?}");
            assert!(!text.contains("\u{1b}[2J") && !text.contains('\u{202e}'), "{text:?}");
        }
    }

    #[test]
    fn redraws_are_limited() {
        let mut bench = Bench::live(Verbose::Bar, true, None);
        bench.progress.begin_evaluate(Some(10_000));
        for step in 1..=10_000 {
            bench.pass_time(100);
            bench.progress.step(step, &[]);
        }
        assert_eq!(bench.text().matches('\r').count(), 20);
    }

    #[test]
    fn colors_are_those_of_keras() {
        let mut bench = Bench::live(Verbose::Bar, true, None);
        bench.progress.begin_predict(Some(2));
        bench.pass_time(2_000_000);
        bench.progress.step(1, &[]);
        let text = bench.text();
        let bar = "━━━━━━━━━━";
        let expected = format!(
            "\r{NO_WRAP}{BOLD}1/2{RESET} {GREEN}{bar}{RESET}{GREY}{bar}{RESET} {BOLD}2s{RESET} \
             2.0s/step{CLEAR_REST}{WRAP}"
        );
        assert_eq!(text, expected);
    }

    #[test]
    fn a_narrow_terminal_cuts_the_line_but_not_the_last_one() {
        let mut bench = Bench::live(Verbose::Bar, true, Some(16));
        bench.run(5, true);
        let text = bench.text();
        let (drawn, last) = text.rsplit_once('\r').unwrap();
        let visible = |s: &str| {
            [BOLD, GREEN, GREY, RESET, NO_WRAP, WRAP, CLEAR_REST]
                .iter()
                .fold(s.to_string(), |s, code| s.replace(code, ""))
        };
        for line in drawn.lines().skip(1).flat_map(|l| l.split('\r')) {
            assert!(visible(line).chars().count() <= 16, "{line:?}");
        }
        assert!(visible(last).ends_with(" - val_loss: 1.0000e-04\n"));
    }

    #[test]
    fn a_terminal_of_48_columns_shows_the_loss() {
        let drawn = |width: usize, steps: usize, millis: u64| {
            let mut bench = Bench::live(Verbose::Bar, false, Some(width));
            bench.progress.begin_epoch(0, 1, Some(steps));
            bench.pass_time(1000 * millis);
            bench.progress.step(1, &logs(&[("loss", 1.0e-4), ("accuracy", 0.9)]));
            let codes = [NO_WRAP, WRAP, CLEAR_REST, "\r"];
            let line = codes.iter().fold(bench.text(), |text, code| text.replace(code, ""));
            assert!(columns(&line) <= width, "{line:?}");
            line
        };
        let bar = "─".repeat(7);
        assert_eq!(drawn(48, 1563, 4), format!("   1/1563 {bar} 6s 4ms/step - loss: 1.0000e-04"));
        assert_eq!(drawn(40, 1563, 4), "   1/1563 6s 4ms/step - loss: 1.0000e-04");
        assert_eq!(drawn(33, 1563, 4), "   1/1563 6s - loss: 1.0000e-04 -");
        let bar = "─".repeat(8);
        let long = format!("    1/12345 {bar} 17:08:40 - loss: 1.0000e-04");
        assert_eq!(drawn(48, 12345, 5000), long);
        assert!(drawn(72, 1563, 4).contains(&"─".repeat(BAR)));
    }

    #[test]
    fn an_unknown_length_shows_what_is_done() {
        let mut bench = Bench::live(Verbose::Bar, false, None);
        bench.progress.begin_epoch(0, 1, None);
        bench.pass_time(3_000_000);
        bench.progress.step(1, &[]);
        assert!(bench.text().contains("      1/Unknown 3s 3.0s/step"));
        bench.progress.end_epoch(&[]);
        assert!(bench.text().contains("1/1 ━━━━━━━━━━━━━━━━━━━━ 3s 3.0s/step"));
    }

    #[test]
    fn a_pass_resumed_or_empty_or_ended_early_is_shown() {
        let mut bench = Bench::live(Verbose::Bar, false, None);
        bench.progress.begin_epoch(0, 1, Some(100));
        bench.progress.step(51, &[]);
        bench.pass_time(1_000_000);
        bench.progress.step(61, &[]);
        assert!(bench.text().contains("61/100 ━━━━━━━━━━━━──────── 3s 100ms/step"));
        drop(bench.progress);
        assert_eq!(bench.written.lock().unwrap().as_slice(), b"\n");

        let mut bench = Bench::new(Verbose::Bar);
        bench.progress.begin_evaluate(Some(0));
        bench.progress.end_evaluate(&[]);
        assert_eq!(bench.text(), "0/0 - 0s - 0s/step\n");
    }

    #[test]
    fn a_closed_output_is_ignored() {
        struct Closed(Arc<AtomicU64>);
        impl Write for Closed {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                self.0.fetch_add(1, Ordering::Relaxed);
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let tries = Arc::new(AtomicU64::new(0));
        let mut progress = Progress::new(Verbose::Bar, Closed(Arc::clone(&tries)));
        for epoch in 0..3 {
            progress.begin_epoch(epoch, 3, Some(1));
            progress.step(1, &[]);
            progress.end_epoch(&[]);
        }
        assert_eq!(tries.load(Ordering::Relaxed), 1);
    }
}
