//! Layers inside the config of another layer, as wrappers have them.

use crate::custom;
use crate::layer::Layer;
use crate::registry::Config;
use phalanx_graph::program::Policy;
use serde_json::{Value, json};

/// A dtype policy as configs of layers hold it.
pub(crate) fn policy_value(policy: Policy) -> Value {
    dtype_value(policy.name())
}

/// An element type as configs of layers hold it.
pub(crate) fn dtype_value(name: &str) -> Value {
    json!({ "module": "keras", "class_name": "DTypePolicy",
            "config": { "name": name }, "registered_name": null })
}

/// The name of an element type or dtype policy.
pub(crate) fn policy_name(dtype: &Value) -> Option<&str> {
    match dtype {
        Value::Null => Some("float32"),
        Value::String(name) => Some(name),
        other => other.get("config")?.get("name")?.as_str(),
    }
}

/// The dtype policy of a layer's config; absent is `float32`.
///
/// # Errors
/// The value that is not a policy of Phalanx, as text, with what to do.
pub(crate) fn parse_policy(dtype: Option<&Value>) -> Result<Policy, String> {
    let Some(dtype) = dtype else { return Ok(Policy::Float32) };
    let known = policy_name(dtype).and_then(Policy::from_name);
    known.ok_or_else(|| match policy_name(dtype) {
        Some(name @ ("float16" | "bfloat16" | "float64")) => format!(
            "{name}, whose weights are not 32-bit floats (in Python, build the model with another policy, give it the \
             weights with set_weights and save it)"
        ),
        _ => phalanx_graph::text::brief(&dtype.to_string()).into_owned(),
    })
}

/// Calls `visit` with the dtype policy of every layer inside a config.
pub(crate) fn for_each_policy(config: &mut Value, visit: &mut impl FnMut(&mut Value)) {
    match config {
        Value::Object(entries) => {
            // The type of an input is that of its data.
            let is_input = entries.get("class_name").is_some_and(|class| class == "InputLayer");
            let is_layer = entries.get("module").is_some_and(|module| module == "keras.layers");
            let is_layer = is_layer && !is_input;
            if let (true, Some(dtype)) =
                (is_layer, entries.get_mut("config").and_then(|config| config.get_mut("dtype")))
            {
                visit(dtype);
            }
            entries.values_mut().for_each(|value| for_each_policy(value, visit));
        }
        Value::Array(items) => items.iter_mut().for_each(|value| for_each_policy(value, visit)),
        _ => {}
    }
}

/// What [`parse_policy`] accepts.
pub(crate) const POLICIES: &str = "float32, mixed_bfloat16 or mixed_float16";

/// A serialized layer: its class, its name, whether it is trainable, and the rest of its config.
#[derive(Clone, Debug)]
pub(crate) struct NestedLayer {
    pub class: String,
    pub name: String,
    pub trainable: bool,
    pub config: Config,
}

impl NestedLayer {
    /// Parses an object of a config.
    ///
    /// # Errors
    /// A text that says what was expected and received.
    pub fn parse(value: &Value) -> Result<NestedLayer, String> {
        let class = value.get("class_name").and_then(Value::as_str);
        let config = value.get("config").and_then(Value::as_object);
        let (Some(class), Some(config)) = (class, config) else {
            return Err("expected a layer with class_name and config".into());
        };
        let whole = value.as_object();
        let custom = whole.map(|whole| custom::class_and_package("layer", whole, class));
        let custom = custom.transpose().map_err(|error| error.to_string())?.flatten();
        let class = custom.unwrap_or(class);
        let mut config = config.clone();
        // The file reader checks that it is the policy of the layer around it.
        config.remove("dtype");
        let name = config.remove("name");
        let name = name.as_ref().and_then(Value::as_str).unwrap_or_default().to_string();
        let trainable = config.remove("trainable") != Some(Value::Bool(false));
        super::drop_no_op_keys(&mut config);
        Ok(NestedLayer { class: class.into(), name, trainable, config })
    }

    /// A layer with this name.
    pub fn new(layer: &dyn Layer, name: &str, trainable: bool) -> NestedLayer {
        let class = layer.class_name().into();
        NestedLayer { class, name: name.into(), trainable, config: layer.config() }
    }

    /// The object that [`parse`](Self::parse) reads.
    pub fn to_value(&self) -> Value {
        let mut config = self.config.clone();
        config.insert("name".into(), self.name.clone().into());
        config.insert("trainable".into(), self.trainable.into());
        config.insert("dtype".into(), policy_value(Policy::Float32));
        custom::object("keras.layers", &self.class, config)
    }
}
