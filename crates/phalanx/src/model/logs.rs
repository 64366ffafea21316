//! Losses and metrics by name.

use phalanx_graph::text::shown;
use std::fmt;
use std::ops::Deref;

/// Names and values of losses and metrics, in reporting order. Prints like Keras:
/// `loss: 0.3830 - accuracy: 0.8812`.
///
/// ```
/// use phalanx::model::Logs;
///
/// let logs: Logs = [("loss".to_string(), 0.25), ("accuracy".to_string(), 0.9)].into_iter().collect();
/// assert_eq!(logs.get("accuracy"), Some(0.9));
/// assert_eq!(logs.to_string(), "loss: 0.2500 - accuracy: 0.9000");
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Logs(Vec<(String, f64)>);

impl Logs {
    /// Returns the value with this name.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.iter().find(|(n, _)| n == name).map(|(_, value)| *value)
    }

    pub(crate) fn push(&mut self, name: impl Into<String>, value: f64) {
        self.0.push((name.into(), value));
    }

    /// Replaces the value of a name, or adds it.
    pub(crate) fn set(&mut self, name: String, value: f64) {
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = value,
            None => self.push(name, value),
        }
    }

    /// Prefixes all names.
    pub(crate) fn prefixed(self, prefix: &str) -> impl Iterator<Item = (String, f64)> {
        self.0.into_iter().map(move |(name, value)| (format!("{prefix}{name}"), value))
    }
}

impl Deref for Logs {
    type Target = [(String, f64)];

    fn deref(&self) -> &[(String, f64)] {
        &self.0
    }
}

impl Extend<(String, f64)> for Logs {
    fn extend<I: IntoIterator<Item = (String, f64)>>(&mut self, logs: I) {
        self.0.extend(logs);
    }
}

impl FromIterator<(String, f64)> for Logs {
    fn from_iter<I: IntoIterator<Item = (String, f64)>>(logs: I) -> Logs {
        Logs(logs.into_iter().collect())
    }
}

impl IntoIterator for Logs {
    type Item = (String, f64);
    type IntoIter = std::vec::IntoIter<(String, f64)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl fmt::Display for Logs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<String> =
            self.iter().map(|(n, v)| format!("{}: {v:.4}", shown(n))).collect();
        f.write_str(&texts.join(" - "))
    }
}
