//! The order of the optimizers in an `OptimizerMap`.
//!
//! Keras stores the variables of a `MultiOptimizer` in the order of the map in the file, while JSON objects are sorted
//! here.

use serde::Deserialize;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use std::fmt;

#[derive(Deserialize)]
struct Stored {
    compile_config: CompileConfig,
}

#[derive(Deserialize)]
struct CompileConfig {
    optimizer: Object,
}

#[derive(Deserialize)]
struct Object {
    config: Config,
}

#[derive(Deserialize)]
struct Config {
    inner_optimizer: Option<Box<Object>>,
    optimizer_map: Option<MapObject>,
}

#[derive(Deserialize)]
struct MapObject {
    config: MapConfig,
}

#[derive(Deserialize)]
struct MapConfig {
    optimizer_map: Keys,
}

/// The keys of an object, in the order of the text.
pub(super) struct Keys(pub Vec<String>);

impl<'de> Deserialize<'de> for Keys {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Keys, D::Error> {
        struct InOrder;

        impl<'de> Visitor<'de> for InOrder {
            type Value = Keys;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Keys, A::Error> {
                let mut keys = vec![];
                while let Some((key, IgnoredAny)) = map.next_entry()? {
                    keys.push(key);
                }
                Ok(Keys(keys))
            }
        }

        d.deserialize_map(InOrder)
    }
}

/// Adds the order of an `OptimizerMap` in the text of a `config.json` to the parsed config, as its key `order`.
pub(super) fn keep(text: &[u8], config: &mut Value) {
    // A file without such a map has another structure.
    let Ok(stored) = serde_json::from_slice::<Stored>(text) else { return };
    let mut pointer = "/compile_config/optimizer/config".to_string();
    let mut object = stored.compile_config.optimizer.config;
    if let Some(inner) = object.inner_optimizer {
        pointer += "/inner_optimizer/config";
        object = inner.config;
    }
    let map = config.pointer_mut(&(pointer + "/optimizer_map/config"));
    if let (Some(map), Some(Value::Object(config))) = (object.optimizer_map, map) {
        config.insert("order".into(), map.config.optimizer_map.0.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_the_text_is_kept() {
        let map = r#"{"class_name": "OptimizerMap", "config": {"default_optimizer": {},
            "optimizer_map": {"b": {"x": [1]}, "a": {}, "c": null}}}"#;
        for (text, at) in [
            (format!(r#"{{"optimizer_map": {map}}}"#), ""),
            (
                format!(r#"{{"inner_optimizer": {{"config": {{"optimizer_map": {map}}}}}}}"#),
                "/inner_optimizer/config",
            ),
        ] {
            let text =
                format!(r#"{{"x": 1, "compile_config": {{"optimizer": {{"config": {text}}}}}}}"#);
            let mut config: Value = serde_json::from_str(&text).unwrap();
            keep(text.as_bytes(), &mut config);
            let at = format!("/compile_config/optimizer/config{at}/optimizer_map/config/order");
            assert_eq!(config.pointer(&at), Some(&serde_json::json!(["b", "a", "c"])));
        }
        let mut plain = serde_json::json!({"compile_config": {"optimizer": "adam"}});
        let before = plain.clone();
        keep(plain.to_string().as_bytes(), &mut plain);
        assert_eq!(plain, before);
    }
}
