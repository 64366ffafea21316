//! Weight regularizers, which add `l1 Σ|w| + l2 Σw²` to the loss.

use crate::by_name::{KerasObject, Named, read_object, write_object};
use crate::error::Result;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

const DEFAULT: f64 = 0.01;

fn default_factor() -> f64 {
    DEFAULT
}

/// A regularizer. Serialised as in Keras.
///
/// ```
/// use phalanx::layers::Dense;
/// use phalanx::regularizers::Regularizer;
///
/// let by_value = Dense::new(10).kernel_regularizer(Regularizer::l2(1e-4));
/// let by_name = Dense::new(10).kernel_regularizer("l2"); // factor 0.01
/// assert_eq!(Regularizer::l2(1e-4).coefficients(), (0.0, 1e-4));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self", tag = "class_name", content = "config", deny_unknown_fields)]
pub enum Regularizer {
    /// `l1 Σ|w|`
    L1 {
        /// Factor.
        #[serde(default = "default_factor")]
        l1: f64,
    },
    /// `l2 Σw²`
    L2 {
        /// Factor.
        #[serde(default = "default_factor")]
        l2: f64,
    },
    /// `l1 Σ|w| + l2 Σw²`
    L1L2 {
        /// Factor of the absolute values.
        #[serde(default)]
        l1: f64,
        /// Factor of the squares.
        #[serde(default)]
        l2: f64,
    },
}

impl Regularizer {
    /// `l1 Σ|w|`
    pub fn l1(l1: f64) -> Regularizer {
        Regularizer::L1 { l1 }
    }

    /// `l2 Σw²`
    pub fn l2(l2: f64) -> Regularizer {
        Regularizer::L2 { l2 }
    }

    /// `l1 Σ|w| + l2 Σw²`
    pub fn l1_l2(l1: f64, l2: f64) -> Regularizer {
        Regularizer::L1L2 { l1, l2 }
    }

    /// The factors of `Σ|w|` and of `Σw²`.
    pub fn coefficients(&self) -> (f64, f64) {
        match *self {
            Regularizer::L1 { l1 } => (l1, 0.0),
            Regularizer::L2 { l2 } => (0.0, l2),
            Regularizer::L1L2 { l1, l2 } => (l1, l2),
        }
    }
}

impl Named for Regularizer {
    const KIND: &'static str = "regularizer";
    const NAMES: &'static [&'static str] = &["l1", "l2", "l1_l2"];

    fn from_name(name: &str) -> Option<Regularizer> {
        match name.to_lowercase().as_str() {
            "l1" => Some(Regularizer::l1(DEFAULT)),
            "l2" => Some(Regularizer::l2(DEFAULT)),
            "l1l2" | "l1_l2" => Some(Regularizer::l1_l2(0.0, 0.0)),
            _ => None,
        }
    }
}

impl KerasObject for Regularizer {
    const MODULE: &'static str = "keras.regularizers";
    const NULL_KEYS: &'static [&'static str] = &[];

    fn to_body(&self) -> Result<Value, serde_json::Error> {
        Regularizer::serialize(self, serde_json::value::Serializer)
    }

    fn from_body(body: Value) -> Result<Regularizer, serde_json::Error> {
        Regularizer::deserialize(body)
    }
}

impl Serialize for Regularizer {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        write_object(self, s)
    }
}

impl<'de> Deserialize<'de> for Regularizer {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Regularizer, D::Error> {
        read_object(d)
    }
}
