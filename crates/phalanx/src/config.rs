//! Keras configs: their structs, and how they are written and read.

use crate::error::{Error, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// Builder methods, one per config key and with the same name.
macro_rules! setters {
    ($($(#[$doc:meta])* $field:ident: $type:ty,)*) => {
        $($(#[$doc])*
        #[must_use]
        pub fn $field(mut self, $field: $type) -> Self {
            self.$field = $field.into();
            self
        })*
    };
}
pub(crate) use setters;

/// Declares a class whose options all have defaults: the struct, its `Default`, and a builder method for each option
/// with the option's documentation. The struct starts with what its family shares: `common`, or `name` for a metric.
///
/// ```ignore
/// options! {
///     /// Huber loss.
///     pub struct Huber {
///         common: Common::named("huber_loss");
///         /// The error at which the loss changes from quadratic to linear.
///         delta: f64 = 1.0,
///     }
/// }
/// ```
macro_rules! options {
    ($(#[$meta:meta])* pub struct $class:ident { common: $common:expr; $($options:tt)* }) => {
        $crate::config::options! {
            $(#[$meta])*
            pub struct $class {
                /// The options that every class of the family has.
                #[serde(flatten)]
                common: Common = $common;
                $($options)*
            }
        }
    };
    ($(#[$meta:meta])* pub struct $class:ident { name: $name:literal; $($options:tt)* }) => {
        $crate::config::options! {
            $(#[$meta])*
            pub struct $class {
                /// The name it is reported under.
                name: String = $name.into();
                $($options)*
            }
        }
    };
    (
        $(#[$meta:meta])*
        pub struct $class:ident {
            $(#[$shared_meta:meta])*
            $shared:ident: $shared_type:ty = $shared_value:expr;
            $($(#[$doc:meta])* $option:ident: $type:ty = $value:expr,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        pub struct $class {
            $(#[$shared_meta])*
            pub $shared: $shared_type,
            $($(#[$doc])* pub $option: $type,)*
        }

        impl Default for $class {
            fn default() -> $class {
                $class { $shared: $shared_value, $($option: $value,)* }
            }
        }

        impl $class {
            $crate::config::setters! { $($(#[$doc])* $option: $type,)* }
        }
    };
}
pub(crate) use options;

/// Serialises the fields of a struct into a config.
pub(crate) fn write<T: Serialize>(value: &T) -> Map<String, Value> {
    match serde_json::to_value(value) {
        Ok(Value::Object(map)) => map,
        // Config structs have named fields of plain data, so they always serialise to an object.
        _ => Map::new(),
    }
}

/// Like [`write`], with the entries of further objects.
pub(crate) fn write_with<T: Serialize>(value: &T, objects: &[Value]) -> Map<String, Value> {
    let mut config = write(value);
    for object in objects.iter().filter_map(Value::as_object) {
        config.extend(object.clone());
    }
    config
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
