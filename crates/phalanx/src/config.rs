//! Keras configs of losses, metrics and optimizers. Every option has a default.

use crate::error::{Error, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// Serialises the fields of a struct into a config.
pub(crate) fn write<T: Serialize>(value: &T) -> Map<String, Value> {
    match serde_json::to_value(value) {
        Ok(Value::Object(map)) => map,
        // Config structs have named fields of plain data, so they always serialise to an object.
        _ => Map::new(),
    }
}

/// Deserialises a config. Missing keys (and a `name` of `null`) take their defaults. Unknown keys are ignored.
pub(crate) fn read<T>(owner: &str, config: &Map<String, Value>) -> Result<T>
where
    T: Default + Serialize + DeserializeOwned,
{
    let parse = |given: &mut dyn Iterator<Item = (&String, &Value)>| {
        let mut merged = write(&T::default());
        merged.extend(given.map(|(key, value)| (key.clone(), value.clone())));
        serde_json::from_value::<T>(Value::Object(merged))
    };
    let given = || config.iter().filter(|(key, value)| *key != "name" || !value.is_null());
    parse(&mut given()).map_err(|e| {
        let invalid_entry = given().find(|entry| parse(&mut std::iter::once(*entry)).is_err());
        match invalid_entry {
            Some((key, _)) => Error::config(owner, format!("{key}: {e}")),
            None => Error::config(owner, e),
        }
    })
}

/// Checks options of Keras for which only one value is supported.
///
/// # Errors
/// An option that is set to any other value.
pub(crate) fn check_fixed_options(
    owner: &str,
    config: &Map<String, Value>,
    options: &[(&str, Value)],
) -> Result<()> {
    for (key, only) in options {
        match config.get(*key) {
            Some(value) if value != only && !value.is_null() => {
                return Err(Error::argument(owner, *key, only.to_string(), value));
            }
            _ => {}
        }
    }
    Ok(())
}
