//! Preprocessing layers: text, categories and bins. Those that take strings run on the host; they compute what Keras'
//! layers compute with TensorFlow.

/// Implements [`Layer`](crate::layer::Layer) for a layer that looks up terms on the host. Its config has the size of
/// its vocabulary.
macro_rules! lookup_layer {
    ($layer:ident) => {
        impl crate::layer::Layer for $layer {
            fn class_name(&self) -> &'static str {
                stringify!($layer)
            }

            fn config(&self) -> crate::registry::Config {
                let mut config = crate::config::write(self);
                let size = self.lookup().size().or(self.options.vocabulary_size);
                let size = size.map_or(serde_json::Value::Null, serde_json::Value::from);
                config.insert("vocabulary_size".into(), size);
                config
            }

            fn call(
                &self,
                cx: &mut crate::layer::LayerContext<'_>,
                _: &[phalanx_graph::NodeId],
            ) -> crate::error::Result<crate::layer::Outputs> {
                Err(crate::layer::host_only(&format!("layer '{}'", cx.name())))
            }

            fn host(&self) -> Option<&dyn crate::layer::HostLayer> {
                Some(self)
            }

            fn vocabulary(&self) -> Option<&dyn VocabularyLayer> {
                Some(self)
            }
        }
    };
}

pub(super) mod category_encoding;
pub(super) mod discretization;
mod encode;
pub(super) mod feature_layers;
mod hash;
pub(super) mod hashed_crossing;
pub(super) mod hashing;
pub(super) mod integer_lookup;
mod lookup;
mod quantiles;
pub(super) mod string_lookup;
pub(super) mod text_vectorization;
mod tokens;
mod vocabulary;

pub use encode::OutputMode;
pub use hash::Salt;
pub use tokens::{Ngrams, Split, Standardize};
pub use vocabulary::OovMethod;

use crate::data::Samples;
use crate::error::{Error, Result};
use crate::layer::{Elements, RowType};
use crate::registry::Config;
use phalanx_graph::Data;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The encoding of strings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
enum Encoding {
    #[default]
    #[serde(rename = "utf-8", alias = "UTF-8", alias = "utf8")]
    Utf8,
}

/// Fails if a config has other keys than these.
fn check_keys(config: &Config, known: &[&[&str]]) -> std::result::Result<(), String> {
    let known = known.concat();
    match config.keys().find(|key| !known.contains(&key.as_str())) {
        None => Ok(()),
        Some(key) => {
            let names: Vec<String> = known.iter().map(|name| format!("`{name}`")).collect();
            Err(format!("unknown field `{key}`, expected one of {}", names.join(", ")))
        }
    }
}

/// The options of a config that a struct has.
fn options<P: DeserializeOwned>(config: &Config) -> std::result::Result<P, String> {
    P::deserialize(config).map_err(|e| e.to_string())
}

/// One option of a config; its default if it is missing.
fn option<P: DeserializeOwned + Default>(
    config: &Config,
    key: &str,
) -> std::result::Result<P, String> {
    match config.get(key) {
        Some(value) => P::deserialize(value).map_err(|e| format!("{key}: {e}")),
        None => Ok(P::default()),
    }
}

/// The numbers of samples as integers; floats are truncated.
fn integers(owner: &str, samples: &Samples) -> Result<Vec<i64>> {
    let fail =
        |expected: &str, received: String| Err(Error::argument(owner, "input", expected, received));
    if samples.text().is_some() {
        return fail("numbers", RowType::of(samples).to_string());
    }
    match samples.to_tensor().data() {
        Data::I32(values) => Ok(values.iter().map(|v| i64::from(*v)).collect()),
        Data::F32(values) => match values.iter().find(|v| !v.is_finite()) {
            Some(bad) => fail("finite numbers", bad.to_string()),
            None => Ok(values.iter().map(|v| *v as i64).collect()),
        },
    }
}

/// Fails unless a value has elements of this kind.
fn check_elements(owner: &str, input: &RowType, expected: Elements) -> Result<()> {
    if input.elements == expected {
        return Ok(());
    }
    let expected = RowType { elements: expected, shape: input.shape.clone() };
    Err(Error::argument(owner, "input", expected.to_string(), input))
}
