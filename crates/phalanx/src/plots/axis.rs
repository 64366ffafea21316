//! Value axes: a range with a margin around the values, ticks at round numbers, and their labels.

/// Maps values to a fraction of the axis length, 0 at its start.
#[derive(Clone, Debug)]
pub struct Axis {
    low: f64,
    high: f64,
    log: bool,
    ticks: Vec<f64>,
}

impl Axis {
    /// An axis for finite values. It is logarithmic if the largest value would flatten the rest into a
    /// line, otherwise linear.
    pub fn fitting(values: &[f64]) -> Axis {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (Some(&min), Some(&max)) = (sorted.first(), sorted.last()) else {
            return Axis::linear(0.0, 1.0);
        };
        if min > 0.0 && max > 50.0 * sorted[sorted.len() / 2] {
            return Axis::logarithmic(min, max);
        }
        let room = 0.05 * (max - min);
        let from_zero = min >= 0.0 && min < 0.35 * max;
        Axis::linear(if from_zero { 0.0 } else { min - room }, max + room)
    }

    /// A linear axis over a range, widened if it is too narrow.
    fn linear(low: f64, high: f64) -> Axis {
        let size = low.abs().max(high.abs());
        let (low, high) = match high - low > 1e-6 * size {
            true => (low, high),
            false if size > 0.0 => (low - 0.1 * size, high + 0.1 * size),
            false => (-0.5, 0.5),
        };
        Axis { low, high, log: false, ticks: round_numbers(low, high, 8.0, 0.0) }
    }

    fn logarithmic(min: f64, max: f64) -> Axis {
        let (low, high) = (min.log10() - 0.1, max.log10() + 0.1);
        let ticks = round_numbers(low, high, 8.0, 1.0).iter().map(|e| 10f64.powf(*e)).collect();
        Axis { low, high, log: true, ticks }
    }

    /// An axis over epochs, with ticks only at integers.
    pub fn epochs(first: usize, last: usize) -> Axis {
        let (first, last) = (first as f64, last as f64);
        let room = (0.02 * (last - first)).max(if first == last { 0.5 } else { 0.1 });
        // Keeps the ends distinct for any magnitude.
        let room = room.max(1e-9 * last);
        let (low, high) = (first - room, last + room);
        let mut ticks = round_numbers(low, high, 10.0, 1.0);
        ticks.retain(|tick| *tick >= first);
        Axis { low, high, log: false, ticks }
    }

    /// The position of a value, from 0 to 1.
    pub fn position(&self, value: f64) -> f64 {
        let value = if self.log { value.log10() } else { value };
        (value - self.low) / (self.high - self.low)
    }

    /// Whether the axis is logarithmic.
    pub fn log(&self) -> bool {
        self.log
    }

    /// The ticks with their labels, in increasing order.
    pub fn ticks(&self) -> Vec<(f64, String)> {
        let step = self.ticks.windows(2).map(|w| w[1] - w[0]).fold(f64::INFINITY, f64::min);
        let label = |v: &f64| if self.log { short(*v) } else { decimal(*v, step, self.size()) };
        self.ticks.iter().map(|v| (*v, label(v))).collect()
    }

    fn size(&self) -> f64 {
        self.low.abs().max(self.high.abs())
    }
}

/// Multiples of a step of 1, 2 or 5 times a power of ten within a range, about `count` of them.
fn round_numbers(low: f64, high: f64, count: f64, min_step: f64) -> Vec<f64> {
    let rough = ((high - low) / count).max(f64::MIN_POSITIVE);
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * power);
    let step = step.into_iter().find(|s| *s >= 0.999 * rough).unwrap_or(10.0 * power);
    let step = step.max(min_step);
    let (from, to) = ((low / step).ceil(), (high / step).floor());
    // Computed from the index, because a sum of steps would drift.
    (0..=(to - from).clamp(0.0, 100.0) as usize).map(|i| (from + i as f64) * step).collect()
}

/// Label of a linear axis, with as many decimals as the step needs.
fn decimal(value: f64, step: f64, size: f64) -> String {
    if !(1e-3..1e5).contains(&size) {
        return short(if value.abs() < 1e-9 * size { 0.0 } else { value });
    }
    let decimals = (-(step.log10() + 1e-9).floor()).clamp(0.0, 6.0) as usize;
    let text = format!("{value:.decimals$}");
    if text.trim_matches(['-', '0', '.']).is_empty() { "0".into() } else { text }
}

/// Formats a number of any magnitude in few characters: `0.01`, `500`, `2e6`.
fn short(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        size if (1e-3..1e4).contains(&size) => trimmed(format!("{value:.4}")),
        _ => {
            let text = format!("{value:.3e}");
            let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
            format!("{}e{exponent}", trimmed(digits.into()))
        }
    }
}

fn trimmed(text: String) -> String {
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').into(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis) -> Vec<String> {
        axis.ticks().into_iter().map(|(_, label)| label).collect()
    }

    #[test]
    fn epochs_have_whole_ticks() {
        assert_eq!(labels(&Axis::epochs(1, 1)), ["1"]);
        assert_eq!(labels(&Axis::epochs(1, 5)), ["1", "2", "3", "4", "5"]);
        assert_eq!(labels(&Axis::epochs(1, 70)), ["10", "20", "30", "40", "50", "60", "70"]);
        assert_eq!(labels(&Axis::epochs(1, 1000)).last().unwrap(), "1000");
    }

    #[test]
    fn values_of_every_size_get_a_few_short_labels() {
        let cases: [&[f64]; 9] = [
            &[0.1, 1.4],
            &[0.97, 0.991],
            &[2.3],
            &[0.0, 0.0],
            &[-5.0, 7.0],
            &[1e-9, 2e-9],
            &[1e6, 1.0, 2.0, 3.0],
            &[1e17, 1e17 + 64.0],
            &[-1e300, 1e300],
        ];
        for values in cases {
            let axis = Axis::fitting(values);
            let labels = labels(&axis);
            assert!((2..=12).contains(&labels.len()), "{values:?}: {labels:?}");
            assert!(labels.iter().all(|l| l.len() <= 8), "{values:?}: {labels:?}");
            let distinct: std::collections::HashSet<_> = labels.iter().collect();
            assert_eq!(distinct.len(), labels.len(), "{values:?}: {labels:?}");
            assert!(values.iter().all(|v| (0.0..=1.0).contains(&axis.position(*v))), "{values:?}");
        }
    }

    #[test]
    fn a_spike_makes_the_axis_logarithmic() {
        assert!(Axis::fitting(&[1e6, 2.3, 1.9, 1.5]).log());
        assert!(!Axis::fitting(&[2.3, 1.9, 1.5]).log());
        assert!(!Axis::fitting(&[1e6, 0.0, 0.0, 0.0]).log());
    }
}
