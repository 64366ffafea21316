//! Layers inside the config of another layer, as wrappers have them.

use crate::layer::Layer;
use crate::registry::Config;
use serde_json::{Value, json};

/// The dtype policy that configs of layers hold.
pub(crate) fn dtype_policy(dtype: &str) -> Value {
    json!({ "module": "keras", "class_name": "DTypePolicy",
            "config": { "name": dtype }, "registered_name": null })
}

/// The name of an element type or dtype policy.
pub(crate) fn policy_name(dtype: &Value) -> Option<&str> {
    match dtype {
        Value::Null => Some("float32"),
        Value::String(name) => Some(name),
        other => other.get("config")?.get("name")?.as_str(),
    }
}

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
        let mut config = config.clone();
        let dtype = config.remove("dtype").unwrap_or_default();
        if policy_name(&dtype) != Some("float32") {
            return Err(format!("dtype of {class}: expected float32, received {dtype}"));
        }
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
        config.insert("dtype".into(), dtype_policy("float32"));
        json!({ "module": "keras.layers", "class_name": self.class, "config": config,
                "registered_name": null })
    }
}
