//! Keras configs of losses, metrics and optimizers, whose every option has a default.

use crate::error::{Error, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// A struct's fields as a config.
pub(crate) fn write<T: Serialize>(value: &T) -> Map<String, Value> {
    match serde_json::to_value(value) {
        Ok(Value::Object(map)) => map,
        // Config structs have named fields of plain data; nothing else comes out of them.
        _ => Map::new(),
    }
}

/// Reads a config. Missing keys (and a name of `null`) take the default, keys this version does
/// not know are left alone.
pub(crate) fn read<T>(owner: &str, config: &Map<String, Value>) -> Result<T>
where
    T: Default + Serialize + DeserializeOwned,
{
    let with = |given: &mut dyn Iterator<Item = (&String, &Value)>| {
        let mut merged = write(&T::default());
        merged.extend(given.map(|(key, value)| (key.clone(), value.clone())));
        serde_json::from_value::<T>(Value::Object(merged))
    };
    let given = || config.iter().filter(|(key, value)| *key != "name" || !value.is_null());
    with(&mut given()).map_err(|e| {
        let guilty = given().find(|entry| with(&mut std::iter::once(*entry)).is_err());
        match guilty {
            Some((key, _)) => Error::config(owner, format!("{key}: {e}")),
            None => Error::config(owner, e),
        }
    })
}

/// Fails where a config sets an option of Keras to something else than the one value there is here.
pub(crate) fn fixed(
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
