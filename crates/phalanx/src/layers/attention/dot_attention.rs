//! Attention without projections: `softmax(scores(query, key)) · value`.
//!
//! Inputs `[query (batch, T, d), value (batch, S, v)]` and optionally `key (batch, S, d)`, output `(batch, T, v)`.
//! Weights: `scale` if `use_scale`, and `concat_score_weight` for `score_mode` `concat`.

use super::scores::{Band, WithoutKeys, all, band, drop, flag, masked_softmax, with_axis};
use crate::by_name::{ByName, Named, variant_by_serde_name};
use crate::config::setters;
use crate::error::Result;
use crate::initializers::Initializer;
use crate::layer::{InputsForm, Layer, LayerContext, Outputs, WeightSpec};
use crate::registry::keras_class;
use phalanx_graph::NodeId;
use phalanx_graph::ops::Unary;
use serde::{Deserialize, Serialize};

const SIGNATURE: &[&str] = &["inputs", "return_attention_scores", "use_causal_mask"];

/// How query and key give a score.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScoreMode {
    /// Their dot product.
    Dot,
    /// The sum of `tanh(query + key)`.
    Concat,
}

impl Named for ScoreMode {
    const KIND: &'static str = "score_mode";
    const NAMES: &'static [&'static str] = &["dot", "concat"];

    fn from_name(name: &str) -> Option<ScoreMode> {
        variant_by_serde_name(name)
    }
}

/// Dot-product attention.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::Attention;
///
/// assert_eq!(Attention::new().use_scale(true).config()["use_scale"], true);
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Attention {
    use_scale: bool,
    score_mode: ByName<ScoreMode>,
    dropout: f64,
    seed: Option<i64>,
}

impl Default for Attention {
    fn default() -> Attention {
        Attention { use_scale: false, score_mode: ScoreMode::Dot.into(), dropout: 0.0, seed: None }
    }
}

impl Attention {
    /// Dot products without scale.
    pub fn new() -> Attention {
        Attention::default()
    }

    setters! {
        /// Whether a trained number scales the scores.
        use_scale: bool,
        /// `dot` (the default) or `concat`.
        score_mode: impl Into<ByName<ScoreMode>>,
        /// The fraction of the attention weights to drop in training.
        dropout: f64,
    }
}

/// Attention whose scores are a weighted sum of `tanh(query + key)`.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::AdditiveAttention;
///
/// assert_eq!(AdditiveAttention::new().config()["use_scale"], true);
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdditiveAttention {
    use_scale: bool,
    dropout: f64,
    seed: Option<i64>,
}

impl Default for AdditiveAttention {
    fn default() -> AdditiveAttention {
        AdditiveAttention { use_scale: true, dropout: 0.0, seed: None }
    }
}

impl AdditiveAttention {
    /// With a trained scale for every feature.
    pub fn new() -> AdditiveAttention {
        AdditiveAttention::default()
    }

    setters! {
        /// Whether a trained vector scales the features.
        use_scale: bool,
        /// The fraction of the attention weights to drop in training.
        dropout: f64,
    }
}

/// Query, value and key of a call.
fn operands(cx: &LayerContext<'_>, inputs: &[NodeId]) -> Result<[NodeId; 3]> {
    let [query, value, key] = match *inputs {
        [query, value] => [query, value, value],
        [query, value, key] => [query, value, key],
        _ => {
            return Err(cx.argument(
                "inputs",
                "[query, value] or [query, value, key]",
                inputs.len(),
            ));
        }
    };
    let dims = [query, value, key].map(|x| cx.dims(x));
    let fits =
        dims.iter().all(|d| d.len() == 2) && dims[0][1] == dims[2][1] && dims[1][0] == dims[2][0];
    if !fits {
        let expected = "query [T, d], value [S, v] and key [S, d]";
        return Err(cx.argument("inputs", expected, format!("{dims:?}")));
    }
    Ok([query, value, key])
}

/// `tanh(scale · (query + key))` for every pair, `[T, S, d]`.
fn pairs(
    cx: &mut LayerContext<'_>,
    query: NodeId,
    key: NodeId,
    scale: Option<NodeId>,
) -> Result<NodeId> {
    let ([steps, size], keys) = ([cx.dims(query)[0], cx.dims(query)[1]], cx.dims(key)[0]);
    let g = cx.graph();
    let query = g.reshape(query, &[steps, 1, size])?;
    let key = g.reshape(key, &[1, keys, size])?;
    let mut sum = g.add(query, key)?;
    if let Some(scale) = scale {
        sum = g.mul(sum, scale)?;
    }
    Ok(g.unary(Unary::Tanh, sum)?)
}

/// Sum over the last axis, `[T, S]`.
fn sum_features(cx: &mut LayerContext<'_>, x: NodeId) -> Result<NodeId> {
    let dims = cx.dims(x);
    let g = cx.graph();
    let sum = g.sum_axes(x, &[2])?;
    Ok(g.reshape(sum, &dims[..2])?)
}

/// Softmax, dropout and product with the values; masks as Keras applies them.
fn attend(cx: &mut LayerContext<'_>, scores: NodeId, value: NodeId, rate: f64) -> Result<Outputs> {
    let [steps, keys] = [cx.dims(scores)[0], cx.dims(scores)[1]];
    let mut masks = vec![];
    if let Some(mask) = cx.mask(1) {
        masks.push(with_axis(cx, mask, 0)?);
    }
    if flag(cx, SIGNATURE, "use_causal_mask")? {
        masks.push(band(cx, steps, keys, Band::Causal)?);
    }
    let mask = all(cx, &masks)?;
    let weights = masked_softmax(cx, scores, mask, WithoutKeys::Uniform)?;
    let dropped = drop(cx, weights, rate)?;
    let mut output = cx.graph().einsum("bqk,bkv->bqv", &[dropped, value])?;
    let query_mask = cx.mask(0);
    if let Some(mask) = query_mask {
        let mask = with_axis(cx, mask, 1)?;
        let zero = cx.graph().scalar(0.0);
        output = cx.graph().select(mask, output, zero)?;
    }
    let mut outputs = vec![output];
    if flag(cx, SIGNATURE, "return_attention_scores")? {
        outputs.push(weights);
    }
    Ok(Outputs::from(outputs).masked(query_mask))
}

impl Layer for Attention {
    keras_class!("Attention");

    fn inputs_form(&self) -> InputsForm {
        InputsForm::List
    }

    fn signature(&self) -> &'static [&'static str] {
        SIGNATURE
    }

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        let mode = *self.score_mode.get()?;
        let [query, value, key] = operands(cx, inputs)?;
        let one = Initializer::Ones {};
        let scale = match self.use_scale {
            true => Some(cx.weight(WeightSpec::new("scale", &[], one.clone()))?),
            false => None,
        };
        let scores = match mode {
            ScoreMode::Dot => {
                let scores = cx.graph().einsum("bqd,bkd->bqk", &[query, key])?;
                match scale {
                    Some(scale) => cx.graph().mul(scores, scale)?,
                    None => scores,
                }
            }
            ScoreMode::Concat => {
                let weight = cx.weight(WeightSpec::new("concat_score_weight", &[], one))?;
                let pairs = pairs(cx, query, key, scale)?;
                let scores = sum_features(cx, pairs)?;
                cx.graph().mul(scores, weight)?
            }
        };
        attend(cx, scores, value, self.dropout)
    }
}

impl Layer for AdditiveAttention {
    keras_class!("AdditiveAttention");

    fn inputs_form(&self) -> InputsForm {
        InputsForm::List
    }

    fn signature(&self) -> &'static [&'static str] {
        SIGNATURE
    }

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        let [query, value, key] = operands(cx, inputs)?;
        let mut features = pairs(cx, query, key, None)?;
        if self.use_scale {
            let size = cx.dims(query)[1];
            let initializer = Initializer::GlorotUniform { seed: None };
            let scale = cx.weight(WeightSpec::new("scale", &[size], initializer))?;
            features = cx.graph().mul(features, scale)?;
        }
        let scores = sum_features(cx, features)?;
        attend(cx, scores, value, self.dropout)
    }
}
