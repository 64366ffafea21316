//! Loss functions.
//!
//! A loss gives one value per sample and position ([`Loss::call`]). Its [`Reduction`] defines how the trainer
//! combines the values of the global batch. A new loss is one file here and one row in the table.

mod axis;
mod binary_crossentropy;
mod categorical_crossentropy;
mod circle;
mod cosine_similarity;
mod ctc;
mod focal;
mod generalized_cross_entropy;
mod hinge;
mod huber;
mod kl_divergence;
mod log_cosh;
mod mean_error;
mod overlap;
mod poisson;
mod sparse_categorical_crossentropy;

pub(crate) use axis::{mean_over, sample_axis};
pub(crate) use cosine_similarity::cosine;
pub(crate) use ctc::Sequences;
pub use focal::Alpha;

use crate::config;
use crate::custom;
use crate::error::{Error, Result};
use crate::registry::{Class, Config, Registry, registry};
use phalanx_graph::ops::Binary;
use phalanx_graph::{DType, Graph, NodeId, Op, Type};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::fmt::Debug;

registry! {
    /// Every loss, for one import.
    pub mod classes;
    const LOSSES: dyn Loss = read;

    sparse_categorical_crossentropy {
        SparseCategoricalCrossentropy = read_sparse aliases ["sparse_categorical_crossentropy"],
    }
    categorical_crossentropy { CategoricalCrossentropy aliases ["categorical_crossentropy"] }
    binary_crossentropy { BinaryCrossentropy aliases ["binary_crossentropy", "bce", "BCE"] }
    mean_error {
        MeanSquaredError aliases ["mean_squared_error", "mse", "MSE"],
        MeanAbsoluteError aliases ["mean_absolute_error", "mae", "MAE"],
        MeanAbsolutePercentageError aliases ["mean_absolute_percentage_error", "mape", "MAPE"],
        MeanSquaredLogarithmicError aliases ["mean_squared_logarithmic_error", "msle", "MSLE"],
    }
    cosine_similarity { CosineSimilarity aliases ["cosine_similarity"] }
    log_cosh { LogCosh aliases ["log_cosh"] }
    poisson { Poisson aliases ["poisson"] }
    huber { Huber aliases ["huber"] }
    kl_divergence { KLDivergence aliases ["kl_divergence", "kld", "KLD"] }
    hinge {
        Hinge aliases ["hinge"],
        SquaredHinge aliases ["squared_hinge"],
        CategoricalHinge aliases ["categorical_hinge"],
    }
    focal {
        BinaryFocalCrossentropy aliases ["binary_focal_crossentropy"],
        CategoricalFocalCrossentropy aliases ["categorical_focal_crossentropy"],
    }
    generalized_cross_entropy {
        CategoricalGeneralizedCrossEntropy aliases ["categorical_generalized_cross_entropy"],
    }
    ctc { CTC aliases ["ctc"] }
    circle { Circle aliases ["circle"] }
    overlap { Dice aliases ["dice"], Tversky aliases ["tversky"] }
}

const REGISTRY: Registry<dyn Loss> = Registry { kind: "loss", tables: &[LOSSES] };

/// Keras' epsilon: the smallest distance of clipped probabilities from 0 and 1.
const EPSILON: f64 = 1e-7;

/// How the losses of a batch become one number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reduction {
    /// The weighted sum divided by the number of samples (and of positions, if a sample has several). Keras'
    /// `mean` is the same.
    #[default]
    #[serde(alias = "mean")]
    SumOverBatchSize,
    /// The weighted sum over samples and positions.
    Sum,
    /// The weighted sum divided by the sum of the weights.
    MeanWithSampleWeight,
}

impl Reduction {
    /// Combines the positions of each sample: their sum for [`Reduction::Sum`], else their mean. The weighted
    /// sum over the samples of the batch is then divided by the number of samples, by 1 or by the sum of the
    /// weights.
    pub fn per_sample(self, g: &mut Graph, values: NodeId) -> Result<NodeId> {
        let positions = g.ty(values).len();
        let mean = g.mean_row(values)?;
        match self {
            Reduction::Sum if positions != 1 => Ok(g.scale(mean, positions as f64)?),
            _ => Ok(mean),
        }
    }
}

/// The options that all losses share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Common {
    /// The name it is reported under.
    pub name: String,
    /// How the losses of a batch become one number.
    pub reduction: Reduction,
}

impl Common {
    /// Options with this name and the default reduction.
    pub fn named(name: &str) -> Common {
        Common { name: name.into(), reduction: Reduction::default() }
    }
}

/// A loss function and its options.
pub trait Loss: Debug + Send + Sync {
    /// Keras' class name, such as `MeanSquaredError`.
    fn class_name(&self) -> &'static str;

    /// The config under Keras' keys.
    fn config(&self) -> Map<String, Value>;

    /// Name and reduction.
    fn common(&self) -> &Common;

    /// Mutable access to name and reduction.
    fn common_mut(&mut self) -> &mut Common;

    /// The formula, for operands of matching types; [`Loss::call`] checks them.
    fn values(&self, g: &mut Graph, y_true: NodeId, y_pred: NodeId) -> Result<NodeId>;

    /// The name it is reported under.
    fn name(&self) -> &str {
        &self.common().name
    }

    /// How the losses of a batch become one number.
    fn reduction(&self) -> Reduction {
        self.common().reduction
    }

    /// The loss in error messages.
    fn owner(&self) -> String {
        format!("loss '{}'", self.name())
    }

    /// Checks the options.
    fn validate(&self) -> Result<()> {
        Ok(())
    }

    /// The class whose labels do not count, if any. It need not be one of the predicted classes.
    fn ignored_class(&self) -> Option<i64> {
        None
    }

    /// Which of the values count in a mean: 1 for those that do, 0 for the others, which are zero. `None` if all count.
    /// By default those whose labels are not of the ignored class.
    fn value_mask(&self, g: &mut Graph, y_true: NodeId, _values: NodeId) -> Result<Option<NodeId>> {
        self.ignored_class().map(|ignored| counted_labels(g, y_true, ignored)).transpose()
    }

    /// Whether the loss of predictions of this type is one number for the whole batch, which every sample has as its value.
    fn is_of_batch(&self, _prediction: &Type) -> bool {
        false
    }

    /// Whether rows of targets may be shorter than the loss takes them, followed by zeros.
    fn pads_targets(&self) -> bool {
        false
    }

    /// The type that targets must have for predictions of this type. It is the same type, unless the loss takes
    /// class indices.
    fn target(&self, prediction: &Type) -> Result<Type> {
        if prediction.is_rows() && prediction.dtype == DType::F32 {
            return Ok(prediction.clone());
        }
        Err(mismatch(self.name(), "y_pred", "float rows, one per sample", prediction))
    }

    /// One value per sample and position, as Keras' `loss.call`.
    fn call(&self, g: &mut Graph, y_true: NodeId, y_pred: NodeId) -> Result<NodeId> {
        let target = self.target(g.ty(y_pred))?;
        if *g.ty(y_true) != target {
            return Err(mismatch(self.name(), "y_true", describe(&target), g.ty(y_true)));
        }
        self.values(g, y_true, y_pred)
    }
}

/// Builder methods for all losses.
pub trait LossExt: Loss + Sized {
    /// The loss under another name.
    fn named(mut self, name: &str) -> Self {
        self.common_mut().name = name.into();
        self
    }

    /// The loss with another reduction.
    fn with_reduction(mut self, reduction: Reduction) -> Self {
        self.common_mut().reduction = reduction;
        self
    }
}

impl<L: Loss> LossExt for L {}

/// Formats a type for messages: `f32 (None, 10)`.
pub(crate) fn describe(ty: &Type) -> String {
    format!("{} {}", ty.dtype, ty.shape_text())
}

fn mismatch(loss: &str, argument: &str, expected: impl Into<String>, received: &Type) -> Error {
    Error::argument(format!("loss '{loss}'"), argument, expected, describe(received))
}

/// Fails unless an option lies in `0..=1`.
fn check_fraction(loss: &str, argument: &str, value: f64) -> Result<()> {
    if (0.0..=1.0).contains(&value) {
        return Ok(());
    }
    Err(Error::argument(format!("loss '{loss}'"), argument, "a number from 0 to 1", value))
}

/// The input of `y_pred` if `y_pred` is the result of `op`. A crossentropy of logits needs no clipping.
fn input_if(g: &Graph, y_pred: NodeId, op: &Op) -> Option<NodeId> {
    let node = g.node(y_pred);
    (node.op == *op).then(|| node.inputs[0])
}

/// Targets like predictions, which must have a last axis of classes.
fn class_targets(loss: &str, prediction: &Type) -> Result<Type> {
    let float = prediction.is_rows() && prediction.dtype == DType::F32;
    if float && !prediction.dims.is_empty() {
        return Ok(prediction.clone());
    }
    Err(mismatch(loss, "y_pred", "a last axis of classes", prediction))
}

/// Class indices for predictions with a last axis of classes.
fn label_targets(loss: &str, prediction: &Type) -> Result<Type> {
    match prediction.dims.split_last() {
        Some((classes, lead)) if *classes > 0 && prediction.is_rows() => {
            Ok(Type { dtype: DType::I32, dims: lead.to_vec(), ..prediction.clone() })
        }
        _ => Err(mismatch(loss, "y_pred", "a last axis of classes", prediction)),
    }
}

/// 1 for each label that counts, 0 for those of the ignored class.
pub(crate) fn counted_labels(g: &mut Graph, labels: NodeId, ignored: i64) -> Result<NodeId> {
    let (one, ignored) = (g.scalar(1.0), g.scalar(ignored as f64));
    let labels = g.cast(labels, DType::F32)?;
    let ignored = g.binary(Binary::Eq, labels, ignored)?;
    Ok(g.sub(one, ignored)?)
}

/// Moves targets towards `centre`: `t · (1 - label_smoothing) + label_smoothing · centre`.
fn smooth(g: &mut Graph, target: NodeId, label_smoothing: f64, centre: f64) -> Result<NodeId> {
    if label_smoothing == 0.0 {
        return Ok(target);
    }
    let target = g.scale(target, 1.0 - label_smoothing)?;
    Ok(g.offset(target, label_smoothing * centre)?)
}

/// Moves one-hot targets towards the even distribution over the classes.
fn smooth_classes(g: &mut Graph, target: NodeId, label_smoothing: f64) -> Result<NodeId> {
    let classes = g.ty(target).last().max(1) as f64;
    smooth(g, target, label_smoothing, 1.0 / classes)
}

/// Sum over the last axis, which is removed.
fn sum_last(g: &mut Graph, x: NodeId) -> Result<NodeId> {
    let dims = g.ty(x).dims.clone();
    match dims.split_last() {
        None => Ok(x),
        Some((_, lead)) => {
            let sum = g.sum_axes(x, &[lead.len()])?;
            Ok(g.reshape(sum, lead)?)
        }
    }
}

/// Mean over the last axis, which is removed.
fn mean_last(g: &mut Graph, x: NodeId) -> Result<NodeId> {
    let n = g.ty(x).last().max(1);
    let sum = sum_last(g, x)?;
    if n == 1 { Ok(sum) } else { Ok(g.scale(sum, 1.0 / n as f64)?) }
}

/// Clips `p` to Keras' epsilon in `f32`.
fn clip_probability(g: &mut Graph, p: NodeId) -> Result<NodeId> {
    Ok(g.clamp(p, EPSILON, f64::from((1.0 - EPSILON) as f32))?)
}

fn read<L>(class: &Class<dyn Loss>, config: &Config) -> Result<Box<dyn Loss>>
where
    L: Loss + Default + Serialize + DeserializeOwned + 'static,
{
    let loss: L = config::read(class.name, config)?;
    loss.validate()?;
    Ok(Box::new(loss))
}

fn read_sparse(class: &Class<dyn Loss>, config: &Config) -> Result<Box<dyn Loss>> {
    config::check_fixed_options(class.name, config, &[("axis", (-1).into())])?;
    read::<SparseCategoricalCrossentropy>(class, config)
}

/// The class names that [`from_config`] knows.
pub fn class_names() -> Vec<&'static str> {
    REGISTRY.class_names()
}

/// Creates a loss by its Keras name: `"sparse_categorical_crossentropy"`, `"mse"`, `"MeanSquaredError"`, ….
pub fn get(name: &str) -> Result<Box<dyn Loss>> {
    from_config(name, &Map::new())
}

/// Creates a loss from its class name and config.
pub fn from_config(class_name: &str, config: &Map<String, Value>) -> Result<Box<dyn Loss>> {
    if let Some(custom) = custom::loss(class_name, config) {
        return custom;
    }
    if class_name.contains('>') {
        return Err(custom::refuse("loss", class_name, None));
    }
    let known = || REGISTRY.aliases().map(String::from).collect();
    let class = REGISTRY.find(class_name, |class| class.has_name(class_name), known)?;
    (class.read)(class, config)
}
