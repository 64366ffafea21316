//! Losses and metrics by name.

use phalanx_graph::text::shown;
use serde_json::Value;
use std::fmt;
use std::ops::Deref;

/// Names and values of losses and metrics, in reporting order. Prints like Keras:
/// `loss: 0.3830 - accuracy: 0.8812`.
///
/// A metric whose result is a vector, such as a score for each class, has the mean of its numbers as value, which
/// Keras' progress bar shows too. [`Logs::vector`] returns the numbers.
///
/// ```
/// use phalanx::model::Logs;
///
/// let logs: Logs = [("loss".to_string(), 0.25), ("accuracy".to_string(), 0.9)].into_iter().collect();
/// assert_eq!(logs.get("accuracy"), Some(0.9));
/// assert_eq!(logs.to_string(), "loss: 0.2500 - accuracy: 0.9000");
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Logs {
    values: Vec<(String, f64)>,
    /// The numbers of those that are vectors.
    vectors: Vec<(String, Vec<f64>)>,
}

impl Logs {
    /// Returns the value with this name; the mean of a vector.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.iter().find(|(n, _)| n == name).map(|(_, value)| *value)
    }

    /// Returns the numbers of a metric whose result is a vector; `None` for every other name.
    ///
    /// ```
    /// use phalanx::prelude::*;
    ///
    /// let layer = Activation::new("linear");
    /// let mut model = Sequential::new().add(Input::new([2])).add(layer).build()?;
    /// model.compile(Compile::new("sgd").loss("mse").metrics([F1Score::default()]))?;
    /// let x = Tensor::new([2, 2], vec![0.9, 0.1, 0.8, 0.2])?;
    /// let y = Tensor::new([2, 2], vec![1.0, 0.0, 0.0, 1.0])?;
    /// let logs = model.evaluate_with((x, y), Inference::new())?;
    /// let scores = logs.vector("f1_score").expect("a score for each class");
    /// assert!((scores[0] - 2.0 / 3.0).abs() < 1e-6 && scores[1] == 0.0);
    /// assert!((logs.get("f1_score").unwrap() - 1.0 / 3.0).abs() < 1e-6);
    /// assert_eq!(logs.to_string(), "loss: 0.3250 - f1_score: [0.6667, 0.0000]");
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    pub fn vector(&self, name: &str) -> Option<&[f64]> {
        self.vectors.iter().find(|(n, _)| n == name).map(|(_, vector)| vector.as_slice())
    }

    /// The names and values as JSON: a number, or an array for a vector. Numbers that are not finite are `null`.
    pub fn to_json(&self) -> impl Iterator<Item = (&str, Value)> {
        self.iter().map(|(name, value)| match self.vector(name) {
            Some(vector) => (name.as_str(), vector.into()),
            None => (name.as_str(), (*value).into()),
        })
    }

    /// Replaces the value of a name, or adds it.
    pub(crate) fn set(&mut self, name: String, value: f64) {
        match self.values.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = value,
            None => self.push(name, value),
        }
    }

    pub(crate) fn push(&mut self, name: impl Into<String>, value: f64) {
        self.values.push((name.into(), value));
    }

    /// Adds a vector, and its mean as value.
    pub(crate) fn push_vector(&mut self, name: impl Into<String>, vector: Vec<f64>) {
        let name = name.into();
        self.push(name.clone(), mean(&vector));
        self.vectors.push((name, vector));
    }

    /// Adds other logs, whose names get a prefix.
    pub(crate) fn extend_prefixed(&mut self, prefix: &str, other: Logs) {
        let prefixed = |name: String| format!("{prefix}{name}");
        self.values.extend(other.values.into_iter().map(|(name, v)| (prefixed(name), v)));
        self.vectors.extend(other.vectors.into_iter().map(|(name, v)| (prefixed(name), v)));
    }
}

/// The mean of numbers; 0 for none.
fn mean(numbers: &[f64]) -> f64 {
    numbers.iter().sum::<f64>() / numbers.len().max(1) as f64
}

impl Deref for Logs {
    type Target = [(String, f64)];

    fn deref(&self) -> &[(String, f64)] {
        &self.values
    }
}

impl Extend<(String, f64)> for Logs {
    fn extend<I: IntoIterator<Item = (String, f64)>>(&mut self, logs: I) {
        self.values.extend(logs);
    }
}

impl FromIterator<(String, f64)> for Logs {
    fn from_iter<I: IntoIterator<Item = (String, f64)>>(logs: I) -> Logs {
        Logs { values: logs.into_iter().collect(), vectors: vec![] }
    }
}

impl IntoIterator for Logs {
    type Item = (String, f64);
    type IntoIter = std::vec::IntoIter<(String, f64)>;

    fn into_iter(self) -> Self::IntoIter {
        self.values.into_iter()
    }
}

impl fmt::Display for Logs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |(name, value): &(String, f64)| match self.vector(name) {
            Some(vector) => {
                let numbers: Vec<String> = vector.iter().map(|v| format!("{v:.4}")).collect();
                format!("{}: [{}]", shown(name), numbers.join(", "))
            }
            None => format!("{}: {value:.4}", shown(name)),
        };
        let texts: Vec<String> = self.iter().map(text).collect();
        f.write_str(&texts.join(" - "))
    }
}
