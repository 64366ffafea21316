//! Quantiles of data that come in batches, as Keras' `Discretization` estimates them.
//!
//! A summary is a sorted list of values, each with the number of values that it stands for.

/// A summary of values seen so far. Numbers are floats of 32 bits, as in Keras.
#[derive(Clone, Debug, Default)]
pub(super) struct Summary {
    values: Vec<f32>,
    weights: Vec<f32>,
}

impl Summary {
    /// Adds a batch of values, with a precision of `epsilon`.
    pub fn add(&mut self, mut batch: Vec<f32>, epsilon: f64) {
        batch.sort_by(f32::total_cmp);
        let step = (batch.len() as f64 / (1.0 / epsilon)).max(1.0);
        let (start, stride) = ((step - 1.0) as usize, step as usize);
        let boundaries: Vec<f32> = batch.iter().skip(start).step_by(stride).copied().collect();
        let mut merged: Vec<(f32, f32)> =
            boundaries.into_iter().map(|v| (v, step as f32)).collect();
        merged.extend(self.values.iter().copied().zip(self.weights.iter().copied()));
        merged.sort_by(|a, b| a.0.total_cmp(&b.0));
        (self.values, self.weights) = merged.into_iter().unzip();
        self.compress(epsilon);
    }

    /// The boundaries of `bins` bins with about as many values each.
    pub fn boundaries(mut self, bins: usize) -> Vec<f32> {
        self.compress(1.0 / bins as f64);
        self.values.pop();
        self.values
    }

    /// Reduces the summary to the precision `epsilon` by interpolation.
    fn compress(&mut self, epsilon: f64) {
        if (self.values.len() as f64) * epsilon < 1.0 {
            return;
        }
        let mut total = 0f32;
        let cumulative: Vec<f32> = self
            .weights
            .iter()
            .map(|weight| {
                total += weight;
                total
            })
            .collect();
        let fractions: Vec<f64> = cumulative.iter().map(|c| f64::from(c / total)).collect();
        let count = (1.0 / epsilon).ceil() as usize;
        let percents: Vec<f64> = (0..count).map(|i| epsilon + i as f64 * epsilon).collect();
        let (mut values, mut weights, mut before) = (vec![], vec![], 0.0);
        for percent in percents {
            values.push(interpolate(percent, &fractions, &self.values) as f32);
            let sum = interpolate(percent, &fractions, &cumulative);
            weights.push((sum - before) as f32);
            before = sum;
        }
        (self.values, self.weights) = (values, weights);
    }
}

/// Linear interpolation at `x` between points whose `xs` ascend, constant outside of them.
fn interpolate(x: f64, xs: &[f64], ys: &[f32]) -> f64 {
    let y = |at: usize| f64::from(ys[at]);
    let after = xs.partition_point(|known| *known <= x);
    if after == 0 {
        return y(0);
    }
    if after == xs.len() {
        return y(xs.len() - 1);
    }
    let slope = (y(after) - y(after - 1)) / (xs[after] - xs[after - 1]);
    slope * (x - xs[after - 1]) + y(after - 1)
}
