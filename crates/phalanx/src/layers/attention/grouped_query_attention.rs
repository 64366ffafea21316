//! Multi-head attention in which several query heads share a key and a value head.
//!
//! Inputs and output as `MultiHeadAttention`, for sequences of vectors. Weights of the sublayers `_query_dense`,
//! `_key_dense`, `_value_dense` and `_output_dense`.

use super::projection::ProjectionOptions;
use super::scores::{Call, SIGNATURE, WithoutKeys, drop, masked_softmax, with_axis};
use crate::by_name::{ByName, OptionalByName};
use crate::config::setters;
use crate::constraints::Constraint;
use crate::error::Result;
use crate::initializers::Initializer;
use crate::layer::{InputsForm, Layer, LayerContext, Outputs};
use crate::layers::support::{activity_penalty, check_at_least_one, shape_text};
use crate::registry::keras_class;
use crate::regularizers::Regularizer;
use phalanx_graph::NodeId;
use phalanx_graph::ops::Unary;
use serde::{Deserialize, Serialize};

/// Grouped-query attention.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::GroupQueryAttention;
///
/// assert_eq!(GroupQueryAttention::new(8, 4, 2).config()["num_query_heads"], 4);
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default = "defaults", deny_unknown_fields)]
pub struct GroupQueryAttention {
    head_dim: usize,
    num_query_heads: usize,
    num_key_value_heads: usize,
    use_bias: bool,
    use_gate: bool,
    sliding_window: Option<usize>,
    dropout: f64,
    kernel_initializer: ByName<Initializer>,
    bias_initializer: ByName<Initializer>,
    kernel_regularizer: OptionalByName<Regularizer>,
    bias_regularizer: OptionalByName<Regularizer>,
    activity_regularizer: OptionalByName<Regularizer>,
    kernel_constraint: OptionalByName<Constraint>,
    bias_constraint: OptionalByName<Constraint>,
    seed: Option<i64>,
}

fn defaults() -> GroupQueryAttention {
    GroupQueryAttention::new(0, 0, 0)
}

impl GroupQueryAttention {
    /// Heads of `head_dim` numbers; a multiple of `num_key_value_heads` query heads.
    pub fn new(
        head_dim: usize,
        num_query_heads: usize,
        num_key_value_heads: usize,
    ) -> GroupQueryAttention {
        GroupQueryAttention {
            head_dim,
            num_query_heads,
            num_key_value_heads,
            use_bias: true,
            use_gate: false,
            sliding_window: None,
            dropout: 0.0,
            kernel_initializer: Initializer::GlorotUniform { seed: None }.into(),
            bias_initializer: Initializer::Zeros {}.into(),
            kernel_regularizer: OptionalByName::default(),
            bias_regularizer: OptionalByName::default(),
            activity_regularizer: OptionalByName::default(),
            kernel_constraint: OptionalByName::default(),
            bias_constraint: OptionalByName::default(),
            seed: None,
        }
    }

    setters! {
        /// Whether the projections add a bias.
        use_bias: bool,
        /// Whether a gate of the query multiplies the result.
        use_gate: bool,
        /// How far keys may be from a query.
        sliding_window: impl Into<Option<usize>>,
        /// The fraction of the attention weights to drop in training.
        dropout: f64,
        /// Regularizer of the layer's output.
        activity_regularizer: impl Into<OptionalByName<Regularizer>>,
    }
}

impl Layer for GroupQueryAttention {
    keras_class!("GroupQueryAttention");
    activity_penalty!();

    fn inputs_form(&self) -> InputsForm {
        InputsForm::Separate
    }

    fn signature(&self) -> &'static [&'static str] {
        SIGNATURE
    }

    fn call(&self, cx: &mut LayerContext<'_>, _: &[NodeId]) -> Result<Outputs> {
        check_at_least_one(cx, "head_dim", self.head_dim)?;
        check_at_least_one(cx, "num_key_value_heads", self.num_key_value_heads)?;
        let (size, heads) = (self.head_dim, self.num_key_value_heads);
        if self.num_query_heads == 0 || !self.num_query_heads.is_multiple_of(heads) {
            let expected = format!("a multiple of num_key_value_heads, {heads}");
            return Err(cx.argument("num_query_heads", &expected, self.num_query_heads));
        }
        let call = Call::read(cx, self.sliding_window)?;
        let [steps, features] = cx.dims(call.query.node)[..] else {
            let received = shape_text(cx, call.query.node);
            return Err(cx.argument("query", "shape (batch, steps, features)", received));
        };
        let projections = ProjectionOptions {
            use_bias: self.use_bias,
            kernel_initializer: &self.kernel_initializer,
            bias_initializer: &self.bias_initializer,
            kernel_regularizer: &self.kernel_regularizer,
            bias_regularizer: &self.bias_regularizer,
            kernel_constraint: &self.kernel_constraint,
            bias_constraint: &self.bias_constraint,
            activity_regularizer: &self.activity_regularizer,
        };
        let queries = [self.num_query_heads, size];
        let query = projections.apply(cx, "_query_dense", call.query.node, 1, &queries)?;
        let key = projections.apply(cx, "_key_dense", call.key.node, 1, &[heads, size])?;
        let gate = match self.use_gate {
            true => Some(projections.apply(cx, "_gate_dense", call.query.node, 1, &queries)?),
            false => None,
        };
        let value = projections.apply(cx, "_value_dense", call.value.node, 1, &[heads, size])?;
        // Query head `v · group + u` reads key and value head `v`.
        let group = self.num_query_heads / heads;
        let g = cx.graph();
        let query = g.reshape(query, &[steps, heads, group, size])?;
        let query = g.scale(query, 1.0 / (size as f64).sqrt())?;
        let scores = g.einsum("bqvuh,bkvh->bvuqk", &[query, key])?;
        let mask = match call.mask {
            Some(mask) => {
                let mask = with_axis(cx, mask, 0)?;
                Some(with_axis(cx, mask, 0)?)
            }
            None => None,
        };
        let without_keys = WithoutKeys::of_heads(self.dropout, call.return_scores, 4);
        let weights = masked_softmax(cx, scores, mask, without_keys)?;
        let dropped = drop(cx, weights, self.dropout)?;
        let g = cx.graph();
        let output = g.einsum("bvuqk,bkvh->bqvuh", &[dropped, value])?;
        let mut output = g.reshape(output, &[steps, self.num_query_heads, size])?;
        if let Some(gate) = gate {
            let gate = g.unary(Unary::Sigmoid, gate)?;
            output = g.mul(output, gate)?;
        }
        let output = projections.apply(cx, "_output_dense", output, 2, &[features])?;
        let mut outputs = vec![output];
        if call.return_scores {
            let keys = cx.dims(weights)[3];
            outputs.push(cx.graph().reshape(weights, &[self.num_query_heads, steps, keys])?);
        }
        Ok(Outputs::from(outputs).masked(call.query.mask))
    }
}
