//! A table of vectors that also works backwards: `y = embeddings[x]`, or in reverse `y = x · embeddingsᵀ`.
//!
//! Input `(batch, ..)` of integers below `input_dim`, output `(batch, .., output_dim)`; in reverse the shapes are
//! `(batch, .., output_dim)` and `(batch, .., input_dim)`. Weights: `embeddings` `[input_dim, output_dim]` and, if they are
//! not tied, `reverse_embeddings` `[output_dim, input_dim]`.

use super::embedding::Embedding;
use super::rnn::dot;
use super::support::{WeightOptions, single};
use crate::by_name::{ByName, OptionalByName};
use crate::config;
use crate::constraints::Constraint;
use crate::error::Result;
use crate::initializers::Initializer;
use crate::layer::{Argument, Layer, LayerContext, Outputs};
use crate::registry::Config;
use crate::regularizers::Regularizer;
use phalanx_graph::NodeId;
use phalanx_graph::ops::Unary;
use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::Value;

/// The arguments of the call.
const SIGNATURE: &[&str] = &["inputs", "reverse"];

/// A table of vectors that can be called in reverse, as the last layer of a language model is.
///
/// ```
/// use phalanx::prelude::*;
///
/// let tokens = Input::new([16]).integers().symbol();
/// let table = LayerHandle::from(ReversibleEmbedding::new(1000, 64));
/// let x = table.apply(&tokens);
/// let logits = table.apply_with([&x], [("reverse", true.into())]);
/// let model = Model::new(&tokens, &logits)?;
/// assert_eq!(model.output_shapes()[0].to_string(), "(None, 16, 1000)");
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ReversibleEmbedding {
    table: Embedding,
    options: Options,
}

/// The arguments that `Embedding` does not have.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    tie_weights: bool,
    reverse_dtype: Option<String>,
    logit_soft_cap: Option<f64>,
}

impl Default for Options {
    fn default() -> Options {
        Options { tie_weights: true, reverse_dtype: None, logit_soft_cap: None }
    }
}

impl Options {
    /// The keys of a config that belong to these options.
    const KEYS: [&'static str; 3] = ["tie_weights", "reverse_dtype", "logit_soft_cap"];
}

impl ReversibleEmbedding {
    /// `input_dim` vectors of `output_dim` numbers.
    pub fn new(input_dim: usize, output_dim: usize) -> ReversibleEmbedding {
        let table = Embedding::new(input_dim, output_dim);
        ReversibleEmbedding { table, options: Options::default() }
    }

    /// Whether the reverse uses the same table; defaults to true.
    #[must_use]
    pub fn tie_weights(mut self, tie_weights: bool) -> Self {
        self.options.tie_weights = tie_weights;
        self
    }

    /// A limit `c` of the results of the reverse, which become `c · tanh(y / c)`.
    #[must_use]
    pub fn logit_soft_cap(mut self, cap: impl Into<Option<f64>>) -> Self {
        self.options.logit_soft_cap = cap.into();
        self
    }

    /// Whether the index 0 is padding, which later layers mask.
    #[must_use]
    pub fn mask_zero(mut self, mask_zero: bool) -> Self {
        self.table = self.table.mask_zero(mask_zero);
        self
    }

    /// Initializer of the tables; defaults to uniform within ±0.05.
    #[must_use]
    pub fn embeddings_initializer(mut self, value: impl Into<ByName<Initializer>>) -> Self {
        self.table = self.table.embeddings_initializer(value);
        self
    }

    /// Regularizer of the table.
    #[must_use]
    pub fn embeddings_regularizer(mut self, value: impl Into<OptionalByName<Regularizer>>) -> Self {
        self.table = self.table.embeddings_regularizer(value);
        self
    }

    /// Constraint on the table.
    #[must_use]
    pub fn embeddings_constraint(mut self, value: impl Into<OptionalByName<Constraint>>) -> Self {
        self.table = self.table.embeddings_constraint(value);
        self
    }

    /// Declares the weights: the table, and the kernel of the reverse if it has one of its own.
    fn weights(&self, cx: &mut LayerContext<'_>) -> Result<(NodeId, Option<NodeId>)> {
        let table = self.table.declare(cx)?;
        if self.options.tie_weights {
            return Ok((table, None));
        }
        let options = WeightOptions {
            initializer: self.table.initializer(),
            regularizer: &OptionalByName::default(),
            constraint: &OptionalByName::default(),
        };
        let [rows, columns] = self.table.sizes();
        Ok((table, Some(options.weight(cx, "reverse_embeddings", &[columns, rows])?)))
    }

    /// Whether the call is in reverse.
    fn is_reverse(cx: &LayerContext<'_>) -> Result<bool> {
        match cx.passed(SIGNATURE, "reverse") {
            None => Ok(false),
            Some(Argument::Plain(Value::Bool(reverse))) => Ok(*reverse),
            Some(_) => Err(cx.argument("reverse", "true or false", "something else")),
        }
    }
}

impl Layer for ReversibleEmbedding {
    fn class_name(&self) -> &'static str {
        "ReversibleEmbedding"
    }

    fn config(&self) -> Config {
        let mut config = self.table.config();
        config.extend(config::write(&self.options));
        config
    }

    fn signature(&self) -> &'static [&'static str] {
        SIGNATURE
    }

    fn activity_penalty(&self) -> Result<Option<Regularizer>> {
        self.table.activity_penalty()
    }

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        if !matches!(self.options.reverse_dtype.as_deref(), None | Some("float32")) {
            let received = self.options.reverse_dtype.clone().unwrap_or_default();
            return Err(cx.argument("reverse_dtype", "none or float32", received));
        }
        let reverse = Self::is_reverse(cx)?;
        let x = single(cx, inputs)?;
        let (table, kernel) = self.weights(cx)?;
        if !reverse {
            return self.table.look_up(cx, table, x);
        }
        let [_, width] = self.table.sizes();
        if cx.dims(x).last() != Some(&width) {
            let (expected, received) = (format!("vectors of {width}"), cx.ty(x).shape_text());
            return Err(cx.argument("input", &expected, received));
        }
        let mut y = match kernel {
            Some(kernel) => dot(cx, x, kernel, None)?,
            None => cx.graph().einsum("...k,nk->...n", &[x, table])?,
        };
        if let Some(cap) = self.options.logit_soft_cap {
            if !(cap.is_finite() && cap > 0.0) {
                return Err(cx.argument("logit_soft_cap", "a number above 0", cap));
            }
            let g = cx.graph();
            y = g.scale(y, 1.0 / cap)?;
            y = g.unary(Unary::Tanh, y)?;
            y = g.scale(y, cap)?;
        }
        Ok(y.into())
    }
}

impl<'de> Deserialize<'de> for ReversibleEmbedding {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<ReversibleEmbedding, D::Error> {
        let mut table = Config::deserialize(d)?;
        let mut options = Config::new();
        for key in Options::KEYS {
            options.extend(table.remove_entry(key));
        }
        let options = Options::deserialize(Value::Object(options)).map_err(de::Error::custom)?;
        let table = Embedding::deserialize(Value::Object(table)).map_err(de::Error::custom)?;
        Ok(ReversibleEmbedding { table, options })
    }
}
