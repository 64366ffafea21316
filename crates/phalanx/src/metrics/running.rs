//! Means and sums of numbers that a program computes itself.

/// The weighted mean of all values so far. `fit` and `evaluate` need no such metric: it takes values, not targets and
/// predictions.
///
/// ```
/// use phalanx::metrics::Mean;
///
/// let mut mean = Mean::new();
/// mean.update_state(&[1.0, 3.0, 5.0, 7.0], None);
/// assert_eq!(mean.result(), 4.0);
/// mean.reset_state();
/// mean.update_state(&[1.0, 3.0], Some(&[1.0, 3.0]));
/// assert_eq!(mean.result(), 2.5);
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Mean {
    total: f64,
    count: f64,
}

impl Mean {
    /// No values.
    pub fn new() -> Mean {
        Mean::default()
    }

    /// Adds values, each with its weight. Values without a weight count as one.
    pub fn update_state(&mut self, values: &[f64], sample_weight: Option<&[f64]>) {
        for (value, weight) in weighted(values, sample_weight) {
            self.total += value * weight;
            self.count += weight;
        }
    }

    /// The mean; 0 without values.
    pub fn result(&self) -> f64 {
        super::ratio(self.total, self.count)
    }

    /// Forgets all values.
    pub fn reset_state(&mut self) {
        *self = Mean::default();
    }
}

/// The weighted sum of all values so far.
///
/// ```
/// use phalanx::metrics::Sum;
///
/// let mut sum = Sum::new();
/// sum.update_state(&[1.0, 3.0, 5.0, 7.0], None);
/// assert_eq!(sum.result(), 16.0);
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sum {
    total: f64,
}

impl Sum {
    /// No values.
    pub fn new() -> Sum {
        Sum::default()
    }

    /// Adds values, each times its weight. Values without a weight count as one.
    pub fn update_state(&mut self, values: &[f64], sample_weight: Option<&[f64]>) {
        self.total += weighted(values, sample_weight).map(|(v, w)| v * w).sum::<f64>();
    }

    /// The sum.
    pub fn result(&self) -> f64 {
        self.total
    }

    /// Forgets all values.
    pub fn reset_state(&mut self) {
        *self = Sum::default();
    }
}

fn weighted<'a>(
    values: &'a [f64],
    weights: Option<&'a [f64]>,
) -> impl Iterator<Item = (f64, f64)> + 'a {
    let weight = move |i: usize| weights.and_then(|w| w.get(i).copied()).unwrap_or(1.0);
    values.iter().enumerate().map(move |(i, value)| (*value, weight(i)))
}
