//! Multi-head attention: every head attends with projections of its own, and a last projection combines the heads.
//!
//! Inputs `query (batch, T, .., q)`, `value (batch, S, .., v)` and optionally `key`, output `(batch, T, .., q)`. Weights of
//! the sublayers `query_dense`, `key_dense`, `value_dense` (`kernel` `[features, heads, size]`, `bias` `[heads, size]`) and
//! `output_dense` (`kernel` `[heads, size, features]`, `bias` `[features]`).

use super::projection::ProjectionOptions;
use super::scores::{Call, SIGNATURE, WithoutKeys, drop, masked_softmax};
use crate::by_name::{ByName, OptionalByName};
use crate::config::setters;
use crate::constraints::Constraint;
use crate::error::Result;
use crate::initializers::Initializer;
use crate::layer::{InputsForm, Layer, LayerContext, Outputs};
use crate::layers::support::check_at_least_one;
use crate::registry::keras_class;
use crate::regularizers::Regularizer;
use phalanx_graph::NodeId;
use phalanx_graph::ops::Unary;
use serde::{Deserialize, Deserializer, Serialize, de};

/// Multi-head attention.
///
/// ```
/// use phalanx::prelude::*;
///
/// let x = Input::new([16, 32]).symbol();
/// let attention = MultiHeadAttention::new(4, 8);
/// let y = attention.apply_with([&x, &x], [("use_causal_mask", true.into())]);
/// let model = Model::new(&x, &y)?;
/// assert_eq!(model.output_shapes(), [[16, 32]]);
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default = "defaults", deny_unknown_fields)]
pub struct MultiHeadAttention {
    num_heads: usize,
    key_dim: usize,
    value_dim: Option<usize>,
    dropout: f64,
    use_bias: bool,
    use_gate: bool,
    #[serde(deserialize_with = "one_or_several")]
    output_shape: Option<Vec<usize>>,
    attention_axes: Option<Vec<i64>>,
    sliding_window: Option<usize>,
    kernel_initializer: ByName<Initializer>,
    bias_initializer: ByName<Initializer>,
    kernel_regularizer: OptionalByName<Regularizer>,
    bias_regularizer: OptionalByName<Regularizer>,
    activity_regularizer: OptionalByName<Regularizer>,
    kernel_constraint: OptionalByName<Constraint>,
    bias_constraint: OptionalByName<Constraint>,
    seed: Option<i64>,
}

fn defaults() -> MultiHeadAttention {
    MultiHeadAttention { value_dim: None, ..MultiHeadAttention::new(0, 0) }
}

/// One number counts as a list of one.
fn one_or_several<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Vec<usize>>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Form {
        One(usize),
        Several(Vec<usize>),
    }
    let form = Option::<Form>::deserialize(d);
    Ok(match form.map_err(|_| de::Error::custom("expected a whole number or a list of them"))? {
        None => None,
        Some(Form::One(size)) => Some(vec![size]),
        Some(Form::Several(sizes)) => Some(sizes),
    })
}

impl MultiHeadAttention {
    /// `num_heads` heads, whose queries and keys have `key_dim` numbers.
    pub fn new(num_heads: usize, key_dim: usize) -> MultiHeadAttention {
        MultiHeadAttention {
            num_heads,
            key_dim,
            value_dim: Some(key_dim),
            dropout: 0.0,
            use_bias: true,
            use_gate: false,
            output_shape: None,
            attention_axes: None,
            sliding_window: None,
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
        /// The size of a head's values; defaults to `key_dim`.
        value_dim: impl Into<Option<usize>>,
        /// The fraction of the attention weights to drop in training.
        dropout: f64,
        /// Whether the projections add a bias.
        use_bias: bool,
        /// Whether a gate of the query multiplies the result.
        use_gate: bool,
        /// How far keys may be from a query.
        sliding_window: impl Into<Option<usize>>,
        /// Initializer of the kernels; defaults to `glorot_uniform`.
        kernel_initializer: impl Into<ByName<Initializer>>,
        /// Initializer of the biases; defaults to zeros.
        bias_initializer: impl Into<ByName<Initializer>>,
        /// Regularizer of the outputs of all projections.
        activity_regularizer: impl Into<OptionalByName<Regularizer>>,
    }

    fn projections(&self) -> ProjectionOptions<'_> {
        ProjectionOptions {
            use_bias: self.use_bias,
            kernel_initializer: &self.kernel_initializer,
            bias_initializer: &self.bias_initializer,
            kernel_regularizer: &self.kernel_regularizer,
            bias_regularizer: &self.bias_regularizer,
            kernel_constraint: &self.kernel_constraint,
            bias_constraint: &self.bias_constraint,
            activity_regularizer: &self.activity_regularizer,
        }
    }

    /// The axes that attention runs over, counting the batch.
    fn axes(&self, cx: &LayerContext<'_>, rank: usize) -> Result<Vec<usize>> {
        let Some(given) = &self.attention_axes else { return Ok((1..rank - 2).collect()) };
        let axis = |axis: &i64| {
            let positive = if *axis < 0 { axis + rank as i64 - 1 } else { *axis };
            usize::try_from(positive).ok().filter(|a| (1..rank - 2).contains(a))
        };
        let axes: Option<Vec<usize>> = given.iter().map(axis).collect();
        let expected = format!("axes from 1 to {}", rank - 3);
        axes.ok_or_else(|| cx.argument("attention_axes", &expected, format!("{given:?}")))
    }

    /// Scores and combination of projected heads; returns the output and the attention weights.
    fn attend(
        &self,
        cx: &mut LayerContext<'_>,
        [query, key, value]: [NodeId; 3],
        (mask, return_scores): (Option<NodeId>, bool),
    ) -> Result<[NodeId; 2]> {
        let rank = cx.dims(query).len() + 1;
        let without_keys = WithoutKeys::of_heads(self.dropout, return_scores, rank);
        let axes = self.axes(cx, rank)?;
        let Equations { scores, combine } = Equations::new(rank, &axes);
        let query = cx.graph().scale(query, 1.0 / (self.key_dim as f64).sqrt())?;
        let scores = cx.graph().einsum(&scores, &[key, query])?;
        let dims = cx.dims(scores);
        // The mask broadcasts over the heads and the axes before them.
        let mask = match mask {
            None => None,
            Some(mask) => {
                let mut shape = cx.dims(mask);
                while shape.len() < dims.len() {
                    shape.insert(shape.len().saturating_sub(2 * axes.len()), 1);
                }
                Some(cx.graph().reshape(mask, &shape)?)
            }
        };
        // The softmax runs over all key axes at once.
        let split = dims.len() - axes.len();
        let keys: usize = dims[split..].iter().product();
        let flat = [&dims[..split], &[keys]].concat();
        let (scores, mask) = match axes.len() {
            1 => (scores, mask),
            _ => {
                let g = cx.graph();
                let mask = mask.map(|mask| {
                    g.push(phalanx_graph::Op::Broadcast { dims: dims.clone() }, &[mask])
                });
                let mask = mask.transpose()?.map(|mask| g.reshape(mask, &flat)).transpose()?;
                (g.reshape(scores, &flat)?, mask)
            }
        };
        let weights = masked_softmax(cx, scores, mask, without_keys)?;
        let weights = cx.graph().reshape(weights, &dims)?;
        let dropped = drop(cx, weights, self.dropout)?;
        let output = cx.graph().einsum(&combine, &[dropped, value])?;
        Ok([output, weights])
    }
}

/// The products of attention, as Keras writes them.
struct Equations {
    scores: String,
    combine: String,
}

impl Equations {
    /// For queries `(batch, .., heads, size)` of this rank and the axes that attention runs over.
    fn new(rank: usize, axes: &[usize]) -> Equations {
        let letter = |i: usize| char::from(b'a' + (i % 26) as u8);
        let target: Vec<char> = (0..rank).map(letter).collect();
        let mut source = target.clone();
        for (next, axis) in (rank..).zip(axes) {
            source[*axis] = letter(next);
        }
        let batch = (0..rank - 1).filter(|i| !axes.contains(i)).map(|i| target[i]);
        let queries = axes.iter().map(|i| target[*i]);
        let keys = axes.iter().map(|i| source[*i]);
        let product: String = batch.chain(queries).chain(keys).collect();
        let (source, target) = (String::from_iter(source), String::from_iter(target));
        Equations {
            scores: format!("{source},{target}->{product}"),
            combine: format!("{product},{source}->{target}"),
        }
    }
}

impl Layer for MultiHeadAttention {
    keras_class!("MultiHeadAttention");

    fn inputs_form(&self) -> InputsForm {
        InputsForm::Separate
    }

    fn signature(&self) -> &'static [&'static str] {
        SIGNATURE
    }

    fn call(&self, cx: &mut LayerContext<'_>, _: &[NodeId]) -> Result<Outputs> {
        check_at_least_one(cx, "num_heads", self.num_heads)?;
        check_at_least_one(cx, "key_dim", self.key_dim)?;
        let value_dim = self.value_dim.unwrap_or(self.key_dim);
        check_at_least_one(cx, "value_dim", value_dim)?;
        let call = Call::read(cx, self.sliding_window)?;
        for input in [call.query, call.value, call.key] {
            cx.remove_mask(input.node);
        }
        let features = cx.dims(call.query.node);
        let rank = features.len();
        if rank < 2 || [call.key, call.value].iter().any(|x| cx.dims(x.node).len() != rank) {
            return Err(cx.argument("inputs", "query, key and value of one rank", rank + 1));
        }
        if rank > 8 {
            return Err(cx.argument("inputs", "at most 9 axes", rank + 1));
        }
        let projections = self.projections();
        let (keys, values) = ([self.num_heads, self.key_dim], [self.num_heads, value_dim]);
        let query = projections.apply(cx, "query_dense", call.query.node, 1, &keys)?;
        let key = projections.apply(cx, "key_dense", call.key.node, 1, &keys)?;
        let gate = match self.use_gate {
            true => Some(projections.apply(cx, "_gate_dense", call.query.node, 1, &values)?),
            false => None,
        };
        let value = projections.apply(cx, "value_dense", call.value.node, 1, &values)?;
        let [mut output, scores] =
            self.attend(cx, [query, key, value], (call.mask, call.return_scores))?;
        if let Some(gate) = gate {
            let gate = cx.graph().unary(Unary::Sigmoid, gate)?;
            output = cx.graph().mul(output, gate)?;
        }
        let shape = match &self.output_shape {
            Some(shape) if !shape.is_empty() => shape.clone(),
            _ => vec![features[rank - 1]],
        };
        let output = projections.apply(cx, "output_dense", output, 2, &shape)?;
        let outputs = match call.return_scores {
            true => vec![output, scores],
            false => vec![output],
        };
        Ok(Outputs::from(outputs).masked(call.query.mask))
    }
}

#[cfg(test)]
mod tests {
    use super::Equations;

    #[test]
    fn equations_are_keras() {
        let Equations { scores, combine } = Equations::new(4, &[1]);
        assert_eq!((scores.as_str(), combine.as_str()), ("aecd,abcd->acbe", "acbe,aecd->abcd"));
        let Equations { scores, .. } = Equations::new(5, &[1, 2]);
        assert_eq!(scores, "afgde,abcde->adbcfg");
    }
}
