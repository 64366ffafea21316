//! Things picked by value or by Keras' name: `activation("relu")`, `kernel_initializer("he_normal")`.
//!
//! Builders cannot fail, so an unknown name is kept and reported when the layer is called; a config
//! read from a file is refused at once.

use crate::error::{Error, Result};
use serde::de::value::{Error as PlainError, StrDeserializer};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};
use serde_json::{Map, Value};

/// A closed set of things with names.
pub trait Vocabulary: Clone + Sized {
    /// What they are, for messages: `activation`, `initializer`, ….
    const KIND: &'static str;

    /// The names there are.
    const NAMES: &'static [&'static str];

    /// The thing of that name, with its default arguments.
    fn from_name(name: &str) -> Option<Self>;
}

/// That `name` is none of the vocabulary's.
pub fn unknown<T: Vocabulary>(name: &str) -> Error {
    let known = T::NAMES.iter().map(|n| n.to_string()).collect();
    Error::Unknown { kind: T::KIND, name: name.into(), known }
}

/// The variant of a plain enum by its serde name.
pub(crate) fn by_serde_name<'a, T: Deserialize<'a>>(name: &'a str) -> Option<T> {
    T::deserialize(StrDeserializer::<PlainError>::new(name)).ok()
}

/// A value of a vocabulary, or a name that turned out not to be in it.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice<T>(std::result::Result<T, String>);

impl<T: Vocabulary> Choice<T> {
    /// The value.
    ///
    /// # Errors
    /// [`Error::Unknown`] when it was given by a name that nothing answers to.
    pub fn get(&self) -> Result<&T> {
        self.0.as_ref().map_err(|name| unknown::<T>(name))
    }
}

impl<T: Vocabulary> From<T> for Choice<T> {
    fn from(value: T) -> Choice<T> {
        Choice(Ok(value))
    }
}

impl<T: Vocabulary> From<&str> for Choice<T> {
    fn from(name: &str) -> Choice<T> {
        Choice(T::from_name(name).ok_or_else(|| name.into()))
    }
}

impl<T: Serialize> Serialize for Choice<T> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Ok(value) => value.serialize(s),
            Err(name) => s.serialize_str(name),
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Choice<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Choice<T>, D::Error> {
        T::deserialize(d).map(|value| Choice(Ok(value)))
    }
}

/// A choice that may be left open, `null` in a config.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Optional<T>(Option<Choice<T>>);

impl<T: Vocabulary> Optional<T> {
    /// The value, if there is one.
    ///
    /// # Errors
    /// [`Error::Unknown`] when it was given by a name that nothing answers to.
    pub fn get(&self) -> Result<Option<T>> {
        self.0.as_ref().map(|choice| choice.get().cloned()).transpose()
    }
}

impl<T> Default for Optional<T> {
    fn default() -> Optional<T> {
        Optional(None)
    }
}

impl<T: Vocabulary> From<T> for Optional<T> {
    fn from(value: T) -> Optional<T> {
        Optional(Some(value.into()))
    }
}

impl<T: Vocabulary> From<&str> for Optional<T> {
    fn from(name: &str) -> Optional<T> {
        Optional(Some(name.into()))
    }
}

/// A vocabulary whose values Keras saves as objects
/// `{"module", "class_name", "config", "registered_name"}`.
pub(crate) trait KerasObject: Vocabulary {
    /// Keras' module.
    const MODULE: &'static str;

    /// Keys of the config that mean nothing when null: newer versions write them.
    const NULL_KEYS: &'static [&'static str];

    /// As `{"class_name", "config"}`.
    fn to_body(&self) -> Result<Value, serde_json::Error>;

    /// From `{"class_name", "config"}`.
    fn from_body(body: Value) -> Result<Self, serde_json::Error>;
}

/// Serialises as Keras does.
pub(crate) fn write_object<T: KerasObject, S: Serializer>(
    value: &T,
    s: S,
) -> Result<S::Ok, S::Error> {
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
    config: Map<String, Value>,
    #[serde(default, rename = "registered_name")]
    _registered_name: Option<String>,
    #[serde(default, rename = "shared_object_id")]
    _shared_object_id: Option<u64>,
}

/// Deserialises from Keras' object or from a name.
pub(crate) fn read_object<'de, T: KerasObject, D: Deserializer<'de>>(d: D) -> Result<T, D::Error> {
    let object = match Value::deserialize(d)? {
        Value::String(name) => {
            return T::from_name(&name).ok_or_else(|| de::Error::custom(unknown::<T>(&name)));
        }
        value => Object::deserialize(value).map_err(de::Error::custom)?,
    };
    if let Some(module) = object.module.filter(|m| m != "keras" && !m.starts_with("keras.")) {
        let text = format!("expected a module of keras, received '{module}'");
        return Err(de::Error::custom(text));
    }
    let mut config = object.config;
    config.retain(|key, value| !(value.is_null() && T::NULL_KEYS.contains(&key.as_str())));
    let body = serde_json::json!({ "class_name": object.class_name, "config": config });
    T::from_body(body).map_err(de::Error::custom)
}
