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

pub use auc::{Curve, SummationMethod};
pub use mean::LossMetric;

use crate::config;
use crate::error::{Error, Result};
use crate::losses::describe;
use crate::registry::{Class, Config, Registry, registry};
use phalanx_graph::{DType, Graph, NodeId, Op, Space, Type};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::fmt::Debug;

registry! {
    /// Every metric that does not have the name of a loss, for one import.
    pub mod classes;
    const METRICS: dyn Metric = read;

    accuracy {
        BinaryAccuracy aliases ["binary_accuracy"],
        CategoricalAccuracy aliases ["categorical_accuracy"],
        SparseCategoricalAccuracy aliases ["sparse_categorical_accuracy"],
    }
    top_k {
        TopKCategoricalAccuracy aliases ["top_k_categorical_accuracy"],
        SparseTopKCategoricalAccuracy aliases ["sparse_top_k_categorical_accuracy"],
    }
    confusion { Precision aliases ["precision"], Recall aliases ["recall"] }
    auc { AUC = read_auc aliases ["auc"] }
}

registry! {
    /// Means over samples. Most have the name of a loss, so the prelude omits them.
    pub mod means;
    const MEANS: dyn Metric = read;

    mean {
        MeanSquaredError aliases ["mean_squared_error", "mse", "MSE"],
        MeanAbsoluteError aliases ["mean_absolute_error", "mae", "MAE"],
        RootMeanSquaredError aliases ["root_mean_squared_error"],
        BinaryCrossentropy aliases ["binary_crossentropy", "bce", "BCE"],
        CategoricalCrossentropy aliases ["categorical_crossentropy"],
        SparseCategoricalCrossentropy aliases ["sparse_categorical_crossentropy"],
        Huber aliases ["huber"],
        KLDivergence aliases ["kl_divergence", "kld", "KLD"],
        Hinge aliases ["hinge"],
    }
}

const REGISTRY: Registry<dyn Metric> = Registry { kind: "metric", tables: &[METRICS, MEANS] };

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

    /// Whether the mask of the predictions weights their positions. As in Keras, only means of a function do so.
    fn uses_mask(&self) -> bool {
        false
    }

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

fn read<M>(class: &Class<dyn Metric>, config: &Config) -> Result<Box<dyn Metric>>
where
    M: Metric + Default + Serialize + DeserializeOwned + 'static,
{
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
    config::check_fixed_options(class.name, config, &options)?;
    let metric: M = config::read(class.name, config)?;
    metric.validate()?;
    Ok(Box::new(metric))
}

fn read_auc(class: &Class<dyn Metric>, config: &Config) -> Result<Box<dyn Metric>> {
    config::check_fixed_options(class.name, config, &[("thresholds", Value::Null)])?;
    read::<AUC>(class, config)
}

/// The class names that [`from_config`] knows.
pub fn class_names() -> Vec<&'static str> {
    REGISTRY.class_names()
}

/// Creates a metric by its Keras name, which is also the name it is reported under. `"accuracy"` (or `"acc"`)
/// and `"crossentropy"` (or `"ce"`) select the binary, sparse or categorical variant: binary for predictions of
/// one number, sparse if targets lack the axis of classes.
pub fn get(name: &str, target: &Type, prediction: &Type) -> Result<Box<dyn Metric>> {
    let binary = prediction.last() == 1;
    let sparse = target.dims.len() < prediction.dims.len();
    let class_name = match name.to_lowercase().as_str() {
        "accuracy" | "acc" if binary => "BinaryAccuracy",
        "accuracy" | "acc" if sparse => "SparseCategoricalAccuracy",
        "accuracy" | "acc" => "CategoricalAccuracy",
        "crossentropy" | "ce" if binary => "BinaryCrossentropy",
        "crossentropy" | "ce" if sparse => "SparseCategoricalCrossentropy",
        "crossentropy" | "ce" => "CategoricalCrossentropy",
        _ => name,
    };
    let mut metric = from_config(class_name, &Map::new())?;
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
    let variants = ["accuracy", "crossentropy"];
    let known = || variants.into_iter().chain(REGISTRY.aliases()).map(String::from).collect();
    let class = REGISTRY.find(class_name, |class| class.has_name(class_name), known)?;
    (class.read)(class, config)
}
