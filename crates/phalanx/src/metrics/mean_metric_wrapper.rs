//! The mean of a function of Keras, given by name.

use super::{Metric, mean_state};
use crate::error::{Error, Result};
use crate::losses::{self, Loss};
use crate::registry::Config;
use phalanx_graph::{Graph, NodeId};
use serde_json::{Value, json};

const CLASS: &str = "MeanMetricWrapper";

/// The mean over samples of one of Keras' loss functions, under a name of one's own.
///
/// ```
/// use phalanx::metrics::{MeanMetricWrapper, Metric};
///
/// let metric = MeanMetricWrapper::new("mean_squared_error", "error")?;
/// assert_eq!(metric.name(), "error");
/// assert!(MeanMetricWrapper::new("my_function", "error").is_err());
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Debug)]
pub struct MeanMetricWrapper {
    name: String,
    function: String,
    loss: Box<dyn Loss>,
}

impl MeanMetricWrapper {
    /// The mean of a function such as `mean_squared_error`, reported under `name`.
    ///
    /// # Errors
    /// A function that Phalanx does not have.
    pub fn new(function: &str, name: &str) -> Result<MeanMetricWrapper> {
        let loss = losses::get(function)?;
        Ok(MeanMetricWrapper { name: name.into(), function: function.into(), loss })
    }

    /// Reads a Keras config.
    pub(super) fn read(config: &Config) -> Result<Box<dyn Metric>> {
        let function = config.get("fn").unwrap_or(&Value::Null);
        let name = match function.get("class_name").and_then(Value::as_str) {
            Some("function") => function.get("config"),
            _ => Some(function),
        };
        let Some(function) = name.and_then(Value::as_str) else {
            let expected = "a function of Keras";
            return Err(Error::argument(CLASS, "fn", expected, function));
        };
        let options = ["fn", "name", "dtype", "reduction"];
        if let Some(key) = config.keys().find(|key| !options.contains(&key.as_str())) {
            let expected = "no arguments of the function";
            return Err(Error::argument(CLASS, key.clone(), expected, &config[key]));
        }
        let name = config.get("name").and_then(Value::as_str).unwrap_or(function);
        Ok(Box::new(MeanMetricWrapper::new(function, name)?))
    }
}

impl Metric for MeanMetricWrapper {
    fn class_name(&self) -> &'static str {
        CLASS
    }

    fn config(&self) -> Config {
        let function = json!({
            "module": "builtins",
            "class_name": "function",
            "config": self.function,
            "registered_name": "function",
        });
        let entries = [("name", json!(self.name)), ("dtype", json!("float32")), ("fn", function)];
        entries.into_iter().map(|(key, value)| (key.into(), value)).collect()
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn set_name(&mut self, name: &str) {
        self.name = name.into();
    }

    fn uses_mask(&self) -> bool {
        true
    }

    fn update(
        &self,
        g: &mut Graph,
        y_true: NodeId,
        y_pred: NodeId,
        weight: NodeId,
    ) -> Result<NodeId> {
        let values = self.loss.call(g, y_true, y_pred)?;
        mean_state(self, g, values, weight)
    }
}
