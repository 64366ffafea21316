//! Progress and speed of a pass.

use super::line::short_time;
use std::time::Duration;

/// The progress of an epoch, an evaluation or a prediction.
#[derive(Default)]
pub(super) struct Rate {
    pub start: Duration,
    pub steps: Option<usize>,
    /// The first step and its time. It is slower than the others, so these are timed from there.
    pub first: Option<(usize, Duration)>,
    pub done: usize,
    pub last: Duration,
}

impl Rate {
    /// Steps done and, if known or at the end, the total.
    pub fn count(&self, last: bool) -> String {
        match self.steps.or(last.then_some(self.done)) {
            Some(steps) => {
                let digits = steps.checked_ilog10().unwrap_or(0) as usize + 1;
                format!("{:>digits$}/{steps}", self.done)
            }
            None => format!("{:>7}/Unknown", self.done),
        }
    }

    fn step_seconds(&self) -> f64 {
        let (since, steps) = match self.first {
            Some((first, at)) if self.done > first => (at, self.done - first),
            _ => (self.start, self.done),
        };
        self.last.saturating_sub(since).as_secs_f64() / steps.max(1) as f64
    }

    pub fn per_step(&self) -> String {
        format!("{}/step", short_time(self.step_seconds()))
    }

    pub fn elapsed(&self, now: Duration) -> String {
        format!("{:.0}s", now.saturating_sub(self.start).as_secs_f64())
    }

    pub fn remaining(&self, steps: usize) -> String {
        let seconds = (self.step_seconds() * steps.saturating_sub(self.done) as f64) as u64;
        let (hours, minutes) = (seconds / 3600, seconds % 3600 / 60);
        match seconds {
            0..=60 => format!("{seconds}s"),
            61..=3600 => format!("{}:{:02}", seconds / 60, seconds % 60),
            _ => format!("{hours}:{minutes:02}:{:02}", seconds % 60),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remaining_time_is_in_hours_minutes_and_seconds() {
        let rate =
            |seconds| Rate { last: Duration::from_secs(seconds), done: 1, ..Rate::default() };
        assert_eq!(rate(6).remaining(2), "6s");
        assert_eq!(rate(65).remaining(2), "1:05");
        assert_eq!(rate(3723).remaining(2), "1:02:03");
    }
}
