//! Metrics.
//!
//! A metric reduces the rows of a worker to a vector of sums ([`Metric::update`]). The sums of workers,
//! replicas and batches are added, and the result is computed from them on the host, so it does not depend on
//! how the rows were distributed.

mod accuracy;
mod auc;
mod confusion;
mod mean;
mod top_k;

pub use accuracy::{BinaryAccuracy, CategoricalAccuracy, SparseCategoricalAccuracy};
pub use auc::{AUC, Curve, SummationMethod};
pub use confusion::{Precision, Recall};
pub use mean::{
    BinaryCrossentropy, CategoricalCrossentropy, Hinge, Huber, KLDivergence, LossMetric,
    MeanAbsoluteError, MeanSquaredError, RootMeanSquaredError, SparseCategoricalCrossentropy,
};
pub use top_k::{SparseTopKCategoricalAccuracy, TopKCategoricalAccuracy};

use crate::config;
use crate::error::{Error, Result};
use crate::losses::describe;
use phalanx_graph::{DType, Graph, NodeId, Op, Space, Type};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::fmt::Debug;

/// A metric and its options. The provided methods implement a weighted mean, which most metrics are.
pub trait Metric: Debug + Send + Sync {
    /// Keras' class name, such as `BinaryAccuracy`.
    fn class_name(&self) -> &'static str;

    /// The config under Keras' keys.
    fn config(&self) -> Map<String, Value>;

    /// The name it is reported under.
    fn name(&self) -> &str;

    /// Sets the name it is reported under.
    fn set_name(&mut self, name: &str);

    /// Appends the metric's sums over the given rows, a partial vector of length
    /// [`state_len`](Metric::state_len). Targets have the same form as for the loss. `weight` has one number
    /// per row, which applies to all its positions, or one per position.
    fn update(
        &self,
        g: &mut Graph,
        y_true: NodeId,
        y_pred: NodeId,
        weight: NodeId,
    ) -> Result<NodeId>;

    /// The length of the vector of sums.
    fn state_len(&self) -> usize {
        2
    }

    /// Computes the metric from sums over any number of rows; 0 for none.
    fn result(&self, state: &[f64]) -> f64 {
        match state {
            [total, count] => ratio(*total, *count),
            _ => 0.0,
        }
    }

    /// Checks the options.
    fn validate(&self) -> Result<()> {
        Ok(())
    }
}

/// Builder methods for all metrics.
pub trait MetricExt: Metric + Sized {
    /// The metric under another name.
    fn named(mut self, name: &str) -> Self {
        self.set_name(name);
        self
    }
}

impl<M: Metric> MetricExt for M {}

/// `a / b`, or 0 if `b` is 0.
fn ratio(a: f64, b: f64) -> f64 {
    if b == 0.0 { 0.0 } else { a / b }
}

/// The sums of a weighted mean over samples: the sum of each sample's weighted mean over its positions, and the
/// sum of the weights.
fn mean_state(
    metric: &dyn Metric,
    g: &mut Graph,
    values: NodeId,
    weight: NodeId,
) -> Result<NodeId> {
    let (total, count) = if g.ty(weight).dims.is_empty() {
        let mean = g.mean_row(values)?;
        (g.mul(mean, weight)?, weight)
    } else {
        check_same_type(metric, g, "sample_weight", values, weight)?;
        let weighted = g.mul(values, weight)?;
        (g.mean_row(weighted)?, g.mean_row(weight)?)
    };
    sum_rows(g, &[total, count])
}

/// Sums each of `numbers`, which have one value per row, over the rows and returns one partial vector.
fn sum_rows(g: &mut Graph, numbers: &[NodeId]) -> Result<NodeId> {
    let columns: Vec<NodeId> =
        numbers.iter().map(|n| g.reshape(*n, &[1])).collect::<Result<_, _>>()?;
    let joined = g.push(Op::Concat { axis: 0 }, &columns)?;
    Ok(g.push(Op::SumRows, &[joined])?)
}

fn mismatch(metric: &dyn Metric, argument: &str, expected: String, received: &Type) -> Error {
    let owner = format!("metric '{}'", metric.name());
    Error::argument(owner, argument, expected, describe(received))
}

/// Fails unless an operand has the type of `model`.
fn check_same_type(
    metric: &dyn Metric,
    g: &Graph,
    argument: &str,
    model: NodeId,
    x: NodeId,
) -> Result<()> {
    if g.ty(x) == g.ty(model) {
        return Ok(());
    }
    Err(mismatch(metric, argument, describe(g.ty(model)), g.ty(x)))
}

/// Targets as floats in the shape of the predictions, for metrics that compare them element by element.
fn targets_like_predictions(
    metric: &dyn Metric,
    g: &mut Graph,
    y_true: NodeId,
    y_pred: NodeId,
) -> Result<NodeId> {
    let (target, prediction) = (g.ty(y_true).clone(), g.ty(y_pred).clone());
    // `[]` and `[1]` are both one number per row.
    let fits = target.dims == prediction.dims || target.len() == 1 && prediction.len() == 1;
    if !fits || !target.is_rows() {
        return Err(mismatch(metric, "y_true", describe(&prediction), &target));
    }
    let y_true = g.cast(y_true, DType::F32)?;
    Ok(g.reshape(y_true, &prediction.dims)?)
}

/// Fails unless targets are class indices and predictions have a last axis of classes.
fn check_labels(metric: &dyn Metric, g: &Graph, y_true: NodeId, y_pred: NodeId) -> Result<()> {
    let (target, prediction) = (g.ty(y_true), g.ty(y_pred));
    let Some((_, lead)) = prediction.dims.split_last() else {
        return Err(mismatch(metric, "y_pred", "a last axis of classes".into(), prediction));
    };
    let labels = Type::new(DType::I32, Space::Rows, lead);
    if *target == labels {
        return Ok(());
    }
    Err(mismatch(metric, "y_true", describe(&labels), target))
}

/// The class indices of one-hot (or soft) targets shaped like the predictions.
fn classes(metric: &dyn Metric, g: &mut Graph, y_true: NodeId, y_pred: NodeId) -> Result<NodeId> {
    if g.ty(y_pred).dims.is_empty() {
        let received = g.ty(y_pred);
        return Err(mismatch(metric, "y_pred", "a last axis of classes".into(), received));
    }
    check_same_type(metric, g, "y_true", y_pred, y_true)?;
    Ok(g.push(Op::ArgMax, &[y_true])?)
}

/// Fails unless a threshold lies in `0..=1`.
fn check_threshold(metric: &dyn Metric, argument: &str, threshold: f64) -> Result<()> {
    if (0.0..=1.0).contains(&threshold) {
        return Ok(());
    }
    let owner = format!("metric '{}'", metric.name());
    Err(Error::argument(owner, argument, "a number from 0 to 1", threshold))
}

/// Adds the key that the configs of all metrics have.
fn with_dtype(mut config: Map<String, Value>) -> Map<String, Value> {
    config.insert("dtype".into(), "float32".into());
    config
}

type Constructor = fn(&Map<String, Value>) -> Result<Box<dyn Metric>>;

fn construct<M>(config: &Map<String, Value>) -> Result<Box<dyn Metric>>
where
    M: Metric + Default + Serialize + DeserializeOwned + 'static,
{
    let class = M::default().class_name();
    let options = [
        ("axis", (-1).into()),
        ("ignore_class", Value::Null),
        ("top_k", Value::Null),
        ("class_id", Value::Null),
        ("from_sorted_ids", false.into()),
        ("multi_label", false.into()),
        ("num_labels", Value::Null),
        ("label_weights", Value::Null),
    ];
    config::check_fixed_options(class, config, &options)?;
    let metric: M = config::read(class, config)?;
    metric.validate()?;
    Ok(Box::new(metric))
}

/// Class name, the names `compile` accepts, and constructor of every metric.
const REGISTRY: &[(&str, &[&str], Constructor)] = &[
    ("BinaryAccuracy", &["binary_accuracy"], construct::<BinaryAccuracy>),
    ("CategoricalAccuracy", &["categorical_accuracy"], construct::<CategoricalAccuracy>),
    (
        "SparseCategoricalAccuracy",
        &["sparse_categorical_accuracy"],
        construct::<SparseCategoricalAccuracy>,
    ),
    (
        "TopKCategoricalAccuracy",
        &["top_k_categorical_accuracy"],
        construct::<TopKCategoricalAccuracy>,
    ),
    (
        "SparseTopKCategoricalAccuracy",
        &["sparse_top_k_categorical_accuracy"],
        construct::<SparseTopKCategoricalAccuracy>,
    ),
    ("Precision", &["precision"], construct::<Precision>),
    ("Recall", &["recall"], construct::<Recall>),
    ("AUC", &["auc"], |config| {
        config::check_fixed_options("AUC", config, &[("thresholds", Value::Null)])?;
        construct::<AUC>(config)
    }),
    ("MeanSquaredError", &["mean_squared_error", "mse", "MSE"], construct::<MeanSquaredError>),
    ("MeanAbsoluteError", &["mean_absolute_error", "mae", "MAE"], construct::<MeanAbsoluteError>),
    ("RootMeanSquaredError", &["root_mean_squared_error"], construct::<RootMeanSquaredError>),
    ("BinaryCrossentropy", &["binary_crossentropy", "bce", "BCE"], construct::<BinaryCrossentropy>),
    (
        "CategoricalCrossentropy",
        &["categorical_crossentropy"],
        construct::<CategoricalCrossentropy>,
    ),
    (
        "SparseCategoricalCrossentropy",
        &["sparse_categorical_crossentropy"],
        construct::<SparseCategoricalCrossentropy>,
    ),
    ("Huber", &["huber"], construct::<Huber>),
    ("KLDivergence", &["kl_divergence", "kld", "KLD"], construct::<KLDivergence>),
    ("Hinge", &["hinge"], construct::<Hinge>),
];

/// Creates a metric by its Keras name, which is also the name it is reported under. `"accuracy"` (or `"acc"`)
/// and `"crossentropy"` (or `"ce"`) select the binary, sparse or categorical variant: binary for predictions of
/// one number, sparse if targets lack the axis of classes.
pub fn get(name: &str, target: &Type, prediction: &Type) -> Result<Box<dyn Metric>> {
    let binary = prediction.last() == 1;
    let sparse = target.dims.len() < prediction.dims.len();
    let mut metric = match name.to_lowercase().as_str() {
        "accuracy" | "acc" if binary => construct::<BinaryAccuracy>(&Map::new()),
        "accuracy" | "acc" if sparse => construct::<SparseCategoricalAccuracy>(&Map::new()),
        "accuracy" | "acc" => construct::<CategoricalAccuracy>(&Map::new()),
        "crossentropy" | "ce" if binary => construct::<BinaryCrossentropy>(&Map::new()),
        "crossentropy" | "ce" if sparse => construct::<SparseCategoricalCrossentropy>(&Map::new()),
        "crossentropy" | "ce" => construct::<CategoricalCrossentropy>(&Map::new()),
        _ => from_config(name, &Map::new()),
    }?;
    metric.set_name(name);
    Ok(metric)
}

/// Fails unless [`get`] knows a name.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let any = Type::rows([2]);
    get(name, &any, &any).map(|_| ())
}

/// Creates a metric from its class name and config.
pub fn from_config(class_name: &str, config: &Map<String, Value>) -> Result<Box<dyn Metric>> {
    let found =
        REGISTRY.iter().find(|(c, names, _)| *c == class_name || names.contains(&class_name));
    match found {
        Some((_, _, construct)) => construct(config),
        None => {
            let names = REGISTRY.iter().flat_map(|(_, names, _)| *names);
            let known = ["accuracy", "crossentropy"].iter().chain(names);
            Err(Error::Unknown {
                kind: "metric",
                name: class_name.into(),
                known: known.map(|n| n.to_string()).collect(),
            })
        }
    }
}
