//! Loss functions.
//!
//! A loss gives one value per sample and position ([`Loss::call`]). Its [`Reduction`] defines how the trainer
//! combines the values of the global batch. A new loss is one file here and one line in the registry.

mod binary_crossentropy;
mod categorical_crossentropy;
mod hinge;
mod huber;
mod kl_divergence;
mod mean_error;
mod sparse_categorical_crossentropy;

pub use binary_crossentropy::BinaryCrossentropy;
pub use categorical_crossentropy::CategoricalCrossentropy;
pub use hinge::Hinge;
pub use huber::Huber;
pub use kl_divergence::KLDivergence;
pub use mean_error::{MeanAbsoluteError, MeanSquaredError};
pub use sparse_categorical_crossentropy::SparseCategoricalCrossentropy;

use crate::config;
use crate::error::{Error, Result};
use phalanx_graph::{DType, Graph, NodeId, Op, Type};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::fmt::Debug;

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
    fn named(name: &str) -> Common {
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

    /// Checks the options.
    fn validate(&self) -> Result<()> {
        Ok(())
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

type Constructor = fn(&Map<String, Value>) -> Result<Box<dyn Loss>>;

fn construct<L>(config: &Map<String, Value>) -> Result<Box<dyn Loss>>
where
    L: Loss + Default + Serialize + DeserializeOwned + 'static,
{
    let class = L::default().class_name();
    config::check_fixed_options(
        class,
        config,
        &[("axis", (-1).into()), ("ignore_class", Value::Null)],
    )?;
    let loss: L = config::read(class, config)?;
    loss.validate()?;
    Ok(Box::new(loss))
}

/// Class name, the names `compile` accepts, and constructor of every loss.
const REGISTRY: &[(&str, &[&str], Constructor)] = &[
    (
        "SparseCategoricalCrossentropy",
        &["sparse_categorical_crossentropy"],
        construct::<SparseCategoricalCrossentropy>,
    ),
    (
        "CategoricalCrossentropy",
        &["categorical_crossentropy"],
        construct::<CategoricalCrossentropy>,
    ),
    ("BinaryCrossentropy", &["binary_crossentropy", "bce", "BCE"], construct::<BinaryCrossentropy>),
    ("MeanSquaredError", &["mean_squared_error", "mse", "MSE"], construct::<MeanSquaredError>),
    ("MeanAbsoluteError", &["mean_absolute_error", "mae", "MAE"], construct::<MeanAbsoluteError>),
    ("Huber", &["huber"], construct::<Huber>),
    ("KLDivergence", &["kl_divergence", "kld", "KLD"], construct::<KLDivergence>),
    ("Hinge", &["hinge"], construct::<Hinge>),
];

/// Creates a loss by its Keras name: `"sparse_categorical_crossentropy"`, `"mse"`, `"MeanSquaredError"`, ….
pub fn get(name: &str) -> Result<Box<dyn Loss>> {
    from_config(name, &Map::new())
}

/// Creates a loss from its class name and config.
pub fn from_config(class_name: &str, config: &Map<String, Value>) -> Result<Box<dyn Loss>> {
    let found =
        REGISTRY.iter().find(|(c, names, _)| *c == class_name || names.contains(&class_name));
    match found {
        Some((_, _, construct)) => construct(config),
        None => Err(Error::Unknown {
            kind: "loss",
            name: class_name.into(),
            known: REGISTRY
                .iter()
                .flat_map(|(_, names, _)| *names)
                .map(|n| n.to_string())
                .collect(),
        }),
    }
}
