//! The mean of a function of Keras, given by name.

use super::{Metric, mean_state};
use crate::error::{Error, Result};
use crate::losses::{self, Loss};
use crate::registry::Config;
use phalanx_graph::{Graph, NodeId};
use serde_json::{Value, json};

const CLASS: &str = "MeanMetricWrapper";
/// Keras' functions that are metrics and no losses.
const METRIC_FUNCTIONS: [&str; 5] = [
    "binary_accuracy",
    "categorical_accuracy",
    "sparse_categorical_accuracy",
    "top_k_categorical_accuracy",
    "sparse_top_k_categorical_accuracy",
];
/// Arguments of Keras' functions that have one supported value, which `from_config` checks.
const FIXED_ARGUMENTS: [(&str, &str); 3] = [
    ("sparse_categorical_crossentropy", "axis"),
    ("top_k_categorical_accuracy", "from_sorted_ids"),
    ("sparse_top_k_categorical_accuracy", "from_sorted_ids"),
];
/// Keys of a config that are not arguments of the function.
const OWN_KEYS: [&str; 4] = ["fn", "name", "dtype", "reduction"];

/// The mean over samples of one of Keras' functions, under a name of one's own.
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
    arguments: Config,
    values: Values,
}

/// What the mean is taken of.
#[derive(Debug)]
enum Values {
    /// The values of a loss.
    Loss(Box<dyn Loss>),
    /// The values of a metric that is a mean itself.
    Mean(Box<dyn Metric>),
}

impl Values {
    fn of(function: &str, arguments: &Config) -> Result<Values> {
        if METRIC_FUNCTIONS.contains(&function) {
            return Ok(Values::Mean(super::from_config(function, arguments)?));
        }
        Ok(Values::Loss(losses::from_config(function, arguments)?))
    }

    /// The arguments of the function.
    fn arguments(&self) -> Config {
        let mut config = match self {
            Values::Loss(loss) => loss.config(),
            Values::Mean(metric) => metric.config(),
        };
        config.retain(|key, _| !OWN_KEYS.contains(&key.as_str()));
        config
    }
}

impl MeanMetricWrapper {
    /// The mean of a function such as `mean_squared_error`, reported under `name`.
    ///
    /// # Errors
    /// A function that Phalanx does not have.
    pub fn new(function: &str, name: &str) -> Result<MeanMetricWrapper> {
        MeanMetricWrapper::with_arguments(function, name, &Config::new())
    }

    /// The mean of a function with arguments, which have the names of Keras.
    ///
    /// ```
    /// use phalanx::metrics::MeanMetricWrapper;
    ///
    /// let arguments = serde_json::json!({ "delta": 2.0 });
    /// let arguments = arguments.as_object().unwrap();
    /// let metric = MeanMetricWrapper::with_arguments("huber", "error", arguments)?;
    /// assert!(MeanMetricWrapper::with_arguments("mse", "error", arguments).is_err());
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    ///
    /// # Errors
    /// A function that Phalanx does not have, or an argument that the function does not take.
    pub fn with_arguments(
        function: &str,
        name: &str,
        arguments: &Config,
    ) -> Result<MeanMetricWrapper> {
        let values = Values::of(function, arguments)?;
        let known = values.arguments();
        let is_known =
            |key: &str| known.contains_key(key) || FIXED_ARGUMENTS.contains(&(function, key));
        if let Some((key, value)) = arguments.iter().find(|(key, _)| !is_known(key)) {
            let names: Vec<&str> = known.keys().map(String::as_str).collect();
            let expected = match names.is_empty() {
                true => format!("no arguments of {function}"),
                false => format!("an argument of {function}: {}", names.join(", ")),
            };
            return Err(Error::argument(CLASS, key.clone(), expected, value));
        }
        let (name, function, arguments) = (name.into(), function.into(), arguments.clone());
        Ok(MeanMetricWrapper { name, function, arguments, values })
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
        let mut arguments = config.clone();
        arguments.retain(|key, _| !OWN_KEYS.contains(&key.as_str()));
        let name = config.get("name").and_then(Value::as_str).unwrap_or(function);
        Ok(Box::new(MeanMetricWrapper::with_arguments(function, name, &arguments)?))
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
        let entries = entries.into_iter().map(|(key, value)| (key.into(), value));
        entries.chain(self.arguments.clone()).collect()
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

    fn ignored_class(&self) -> Option<i64> {
        match &self.values {
            Values::Loss(loss) => loss.ignored_class(),
            Values::Mean(_) => None,
        }
    }

    fn update(
        &self,
        g: &mut Graph,
        y_true: NodeId,
        y_pred: NodeId,
        weight: NodeId,
    ) -> Result<NodeId> {
        match &self.values {
            Values::Loss(loss) => {
                if loss.is_of_batch(g.ty(y_pred)) {
                    let owner = format!("metric '{}'", self.name);
                    let expected = "a function with a value for each sample";
                    let received = format!("{}, one number for a batch", self.function);
                    return Err(Error::argument(owner, "fn", expected, received));
                }
                let values = loss.call(g, y_true, y_pred)?;
                mean_state(self, g, values, weight)
            }
            Values::Mean(metric) => metric.update(g, y_true, y_pred, weight),
        }
    }
}
