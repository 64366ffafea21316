//! One line of text: styles, columns, numbers and times as in Keras.

use phalanx_graph::text::escape;
use std::fmt::Write as _;

pub(super) const BOLD: &str = "\x1b[1m";
pub(super) const GREEN: &str = "\x1b[32m";
pub(super) const GREY: &str = "\x1b[37m";
pub(super) const RESET: &str = "\x1b[0m";

/// A line under construction, with the number of columns left.
pub(super) struct Line {
    pub text: String,
    color: bool,
    left: usize,
}

impl Line {
    pub fn new(color: bool, width: usize) -> Line {
        Line { text: String::new(), color, left: width }
    }

    pub fn push(&mut self, style: &str, text: &str) {
        let styled = self.color && !style.is_empty() && !text.is_empty() && self.left > 0;
        self.text.push_str(if styled { style } else { "" });
        for c in escape(text).chars().take(self.left) {
            self.text.push(c);
            self.left -= 1;
        }
        self.text.push_str(if styled { RESET } else { "" });
    }

    pub fn metrics(&mut self, logs: &[(String, f64)]) {
        for (name, value) in logs {
            self.push("", &metric(name, *value));
        }
    }
}

/// A metric with its separator.
pub(super) fn metric(name: &str, value: f64) -> String {
    format!(" - {name}: {}", number(value))
}

/// Formats the duration of a step as Keras does: `387us`, `4ms`, `1.2s`, `64s`.
pub(super) fn short_time(seconds: f64) -> String {
    match seconds {
        0.0 => "0s".into(),
        s if s >= 10.0 => format!("{s:.0}s"),
        s if s >= 1.0 => format!("{s:.1}s"),
        s if s >= 1e-3 => format!("{:.0}ms", s * 1e3),
        s => format!("{:.0}us", s * 1e6),
    }
}

/// Formats a metric as Keras does: four decimals, or `1.0000e-05` for small values.
pub fn number(value: f64) -> String {
    if value.is_nan() {
        return "nan".into();
    }
    if value.abs() > 1e-3 {
        return format!("{value:.4}");
    }
    let mut text = format!("{value:.4e}");
    // Rust writes the shortest exponent; C and Python write a sign and two digits.
    if let Some((mantissa, exponent)) = text.clone().split_once('e') {
        let exponent: i32 = exponent.parse().unwrap_or(0);
        text = mantissa.into();
        let sign = if exponent < 0 { '-' } else { '+' };
        let _ = write!(text, "e{sign}{:02}", exponent.abs());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_times_look_as_in_keras() {
        let numbers = [
            (0.38299, "0.3830"),
            (-12.5, "-12.5000"),
            (1e-5, "1.0000e-05"),
            (1e-3, "1.0000e-03"),
            (0.0, "0.0000e+00"),
            (1.23456e-120, "1.2346e-120"),
            (f64::NAN, "nan"),
            (f64::INFINITY, "inf"),
        ];
        for (value, expected) in numbers {
            assert_eq!(number(value), expected);
        }
        for (seconds, expected) in
            [(0.0, "0s"), (387e-6, "387us"), (0.0042, "4ms"), (1.23, "1.2s"), (64.4, "64s")]
        {
            assert_eq!(short_time(seconds), expected);
        }
    }
}
