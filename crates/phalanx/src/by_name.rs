//! Values selected by value or by their Keras name: `activation("relu")`, `kernel_initializer("he_normal")`.
//!
//! Builders cannot fail, so an unknown name is stored and reported when the layer is called. A config read from
//! a file is rejected at once.

use crate::custom;
use crate::error::{Error, Result};
use crate::registry::Config;
use phalanx_graph::text::shown;
use serde::de::value::{Error as PlainError, StrDeserializer};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};
use serde_json::{Map, Value};

/// A closed set of values, each with a Keras name.
pub trait Named: Clone + Sized {
    /// What the values are, for error messages: `activation`, `initializer`, ….
    const KIND: &'static str;

    /// All names.
    const NAMES: &'static [&'static str];

    /// The value with this name and default arguments.
    fn from_name(name: &str) -> Option<Self>;
}

/// The error for a name that is not in `T::NAMES`.
pub fn unknown_name<T: Named>(name: &str) -> Error {
    let known = T::NAMES.iter().map(|n| n.to_string()).collect();
    Error::Unknown { kind: T::KIND, name: name.into(), known }
}

/// The variant of a plain enum by its serde name.
pub(crate) fn variant_by_serde_name<'a, T: Deserialize<'a>>(name: &'a str) -> Option<T> {
    T::deserialize(StrDeserializer::<PlainError>::new(name)).ok()
}

/// Implements [`Named`] from one table: the names of a value, of which the first is listed, and the value. Names are
/// compared in the form that `$normalize` gives them. Other names go to `$custom`, if given.
macro_rules! named {
    ($type:ty, $kind:literal, $normalize:expr $(, or $custom:expr)?; $($name:literal $(| $other:literal)* => $value:expr,)+) => {
        impl $crate::by_name::Named for $type {
            const KIND: &'static str = $kind;
            const NAMES: &'static [&'static str] = &[$($name),+];

            fn from_name(name: &str) -> Option<$type> {
                let table: &[(&[&str], fn() -> $type)] = &[$((&[$name $(, $other)*], || $value)),+];
                let normalize: fn(&str) -> String = $normalize;
                let plain = normalize(name);
                let found = table
                    .iter()
                    .find(|(names, _)| names.iter().any(|other| normalize(other) == plain));
                let found = found.map(|(_, value)| value());
                $(let found = found.or_else(|| $custom(name));)?
                found
            }
        }
    };
}
pub(crate) use named;

/// A name without underscores, in small letters: Keras accepts `he_normal` and `HeNormal`.
pub(crate) fn without_case(name: &str) -> String {
    name.replace('_', "").to_lowercase()
}

/// A value of a [`Named`] type, or an unknown name.
#[derive(Clone, Debug, PartialEq)]
pub struct ByName<T>(std::result::Result<T, String>);

impl<T: Named> ByName<T> {
    /// The value.
    ///
    /// # Errors
    /// [`Error::Unknown`] if it was given by an unknown name.
    pub fn get(&self) -> Result<&T> {
        self.0.as_ref().map_err(|name| unknown_name::<T>(name))
    }
}

impl<T: Named> From<T> for ByName<T> {
    fn from(value: T) -> ByName<T> {
        ByName(Ok(value))
    }
}

impl<T: Named> From<&str> for ByName<T> {
    fn from(name: &str) -> ByName<T> {
        ByName(T::from_name(name).ok_or_else(|| name.into()))
    }
}

impl<T: Serialize> Serialize for ByName<T> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Ok(value) => value.serialize(s),
            Err(name) => s.serialize_str(name),
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for ByName<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<ByName<T>, D::Error> {
        T::deserialize(d).map(|value| ByName(Ok(value)))
    }
}

/// An optional [`ByName`], serialised as `null` if absent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OptionalByName<T>(Option<ByName<T>>);

impl<T: Named> OptionalByName<T> {
    /// The value, if any.
    ///
    /// # Errors
    /// [`Error::Unknown`] if it was given by an unknown name.
    pub fn get(&self) -> Result<Option<T>> {
        self.0.as_ref().map(|choice| choice.get().cloned()).transpose()
    }

    /// Whether there is no value.
    pub fn is_none(&self) -> bool {
        self.0.is_none()
    }
}

impl<T> Default for OptionalByName<T> {
    fn default() -> OptionalByName<T> {
        OptionalByName(None)
    }
}

impl<T: Named> From<T> for OptionalByName<T> {
    fn from(value: T) -> OptionalByName<T> {
        OptionalByName(Some(value.into()))
    }
}

impl<T: Named> From<&str> for OptionalByName<T> {
    fn from(name: &str) -> OptionalByName<T> {
        OptionalByName(Some(name.into()))
    }
}

/// A [`Named`] type whose values Keras saves as objects
/// `{"module", "class_name", "config", "registered_name"}`.
pub(crate) trait KerasObject: Named {
    /// The Keras module.
    const MODULE: &'static str;

    /// Keys that newer versions of Keras write; they are ignored if null.
    const NULL_KEYS: &'static [&'static str];

    /// Serialises to `{"class_name", "config"}`.
    fn to_body(&self) -> Result<Value, serde_json::Error>;

    /// Deserialises from `{"class_name", "config"}`.
    fn from_body(body: Value) -> Result<Self, serde_json::Error>;

    /// The registered name and the config of a value of a custom class.
    fn as_custom(&self) -> Option<(&'static str, Config)>;

    /// The value of a registered class.
    fn read_custom(name: &str, config: &Config) -> Option<Result<Self>>;
}

/// Implements [`KerasObject`] and its serialisation for an enum that derives serde's traits with `remote = "Self"`.
macro_rules! keras_object {
    ($type:ty, $module:literal $(, ignores [$($key:literal),+])?) => {
        impl $crate::by_name::KerasObject for $type {
            const MODULE: &'static str = $module;
            const NULL_KEYS: &'static [&'static str] = &[$($($key),+)?];

            fn to_body(&self) -> Result<serde_json::Value, serde_json::Error> {
                <$type>::serialize(self, serde_json::value::Serializer)
            }

            fn from_body(body: serde_json::Value) -> Result<$type, serde_json::Error> {
                <$type>::deserialize(body)
            }

            fn as_custom(&self) -> Option<(&'static str, $crate::registry::Config)> {
                <$type>::as_custom(self)
            }

            fn read_custom(
                name: &str,
                config: &$crate::registry::Config,
            ) -> Option<$crate::error::Result<$type>> {
                <$type>::read_custom(name, config)
            }
        }

        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                $crate::by_name::write_object(self, s)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<$type, D::Error> {
                $crate::by_name::read_object(d)
            }
        }
    };
}
pub(crate) use keras_object;

/// Serialises to a Keras object.
pub(crate) fn write_object<T: KerasObject, S: Serializer>(
    value: &T,
    s: S,
) -> Result<S::Ok, S::Error> {
    if let Some((name, config)) = value.as_custom() {
        return custom::object(T::MODULE, name, config).serialize(s);
    }
    let mut body = value.to_body().map_err(ser::Error::custom)?;
    if let Value::Object(map) = &mut body {
        map.insert("module".into(), T::MODULE.into());
        map.insert("registered_name".into(), Value::Null);
    }
    body.serialize(s)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Object {
    #[serde(default)]
    module: Option<String>,
    class_name: String,
    #[serde(default)]
    config: Value,
    #[serde(default)]
    registered_name: Option<String>,
    #[serde(default, rename = "shared_object_id")]
    _shared_object_id: Option<u64>,
}

/// Deserialises from a Keras object or a name.
pub(crate) fn read_object<'de, T: KerasObject, D: Deserializer<'de>>(d: D) -> Result<T, D::Error> {
    let object = match Value::deserialize(d)? {
        Value::String(name) => {
            return T::from_name(&name).ok_or_else(|| de::Error::custom(unknown_name::<T>(&name)));
        }
        value => Object::deserialize(value).map_err(de::Error::custom)?,
    };
    let mut config = match object.config {
        Value::Null => Map::new(),
        Value::Object(config) => config,
        // A function has its name in place of a config.
        Value::String(name) => {
            let kind = T::KIND;
            let text = format!(
                "expected a class, which Rust code registers with phalanx::custom::register_{kind}, \
                 received the function '{name}'"
            );
            return Err(de::Error::custom(text));
        }
        other => {
            let text =
                format!("config: expected an object, received {}", shown(&other.to_string()));
            return Err(de::Error::custom(text));
        }
    };
    let name = object.registered_name.as_ref().unwrap_or(&object.class_name);
    if let Some(value) = T::read_custom(name, &config) {
        return value.map_err(de::Error::custom);
    }
    let of_keras = |module: &String| module == "keras" || module.starts_with("keras.");
    if object.module.as_ref().is_some_and(|m| !of_keras(m)) || name.contains('>') {
        return Err(de::Error::custom(custom::refuse(T::KIND, name, object.module.as_deref())));
    }
    config.retain(|key, value| !(value.is_null() && T::NULL_KEYS.contains(&key.as_str())));
    let body = serde_json::json!({ "class_name": object.class_name, "config": config });
    T::from_body(body).map_err(de::Error::custom)
}
