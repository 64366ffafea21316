//! Loss functions.
//!
//! A loss gives one value per sample and position ([`Loss::call`]). Its [`Reduction`] defines how the trainer
//! combines the values of the global batch. A new loss is one file here and one row in the table.

mod binary_crossentropy;
mod categorical_crossentropy;
mod hinge;
mod huber;
mod kl_divergence;
mod mean_error;
mod sparse_categorical_crossentropy;

use crate::config;
use crate::error::{Error, Result};
use crate::registry::{Class, Config, Registry, registry};
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
        SparseCategoricalCrossentropy aliases ["sparse_categorical_crossentropy"],
    }
    categorical_crossentropy { CategoricalCrossentropy aliases ["categorical_crossentropy"] }
    binary_crossentropy { BinaryCrossentropy aliases ["binary_crossentropy", "bce", "BCE"] }
    mean_error {
        MeanSquaredError aliases ["mean_squared_error", "mse", "MSE"],
        MeanAbsoluteError aliases ["mean_absolute_error", "mae", "MAE"],
    }
    huber { Huber aliases ["huber"] }
    kl_divergence { KLDivergence aliases ["kl_divergence", "kld", "KLD"] }
    hinge { Hinge aliases ["hinge"] }
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

fn read<L>(class: &Class<dyn Loss>, config: &Config) -> Result<Box<dyn Loss>>
where
    L: Loss + Default + Serialize + DeserializeOwned + 'static,
{
    let options = [("axis", (-1).into()), ("ignore_class", Value::Null)];
    config::check_fixed_options(class.name, config, &options)?;
    let loss: L = config::read(class.name, config)?;
    loss.validate()?;
    Ok(Box::new(loss))
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
    let known = || REGISTRY.aliases().map(String::from).collect();
    let class = REGISTRY.find(class_name, |class| class.has_name(class_name), known)?;
    (class.read)(class, config)
}
