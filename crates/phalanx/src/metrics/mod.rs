//! Metrics.
//!
//! A metric reduces the rows of a worker to a vector of sums ([`Metric::update`]). The sums of workers,
//! replicas and batches are added, and the result is computed from them on the host, so it does not depend on
//! how the rows were distributed.

mod accuracy;
mod at_constraint;
mod auc;
mod confusion;
mod correlation;
mod f_score;
mod iou;
mod mean;
mod mean_metric_wrapper;
mod r2_score;
mod running;
mod support;
mod threshold_counts;
mod top_k;

pub use auc::{Curve, SummationMethod};
pub use confusion::Thresholds;
pub use f_score::Average;
pub use mean::LossMetric;
pub use r2_score::ClassAggregation;
pub use support::mean_state as weighted_mean;
use support::{
    MAX_LISTED_THRESHOLDS, MAX_THRESHOLDS, check_labels, check_threshold, check_weights,
    class_slice, classes, mean_state, mismatch, owner, position_sums, ratio,
    targets_like_predictions, top_k_mask,
};

pub use running::{Mean, Sum};

use crate::config;
use crate::custom;
use crate::error::{Error, Result};
use crate::registry::{Class, Config, Registry, registry};
use phalanx_graph::{Graph, NodeId, Type};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::fmt::Debug;

registry! {
    /// Every metric that does not have the name of a loss, for one import.
    pub mod classes;
    const METRICS: dyn Metric = read;

    accuracy {
        Accuracy,
        BinaryAccuracy aliases ["binary_accuracy"],
        CategoricalAccuracy aliases ["categorical_accuracy"],
        SparseCategoricalAccuracy aliases ["sparse_categorical_accuracy"],
    }
    top_k {
        TopKCategoricalAccuracy aliases ["top_k_categorical_accuracy"],
        SparseTopKCategoricalAccuracy aliases ["sparse_top_k_categorical_accuracy"],
    }
    confusion {
        TruePositives aliases ["true_positives"],
        FalsePositives aliases ["false_positives"],
        TrueNegatives aliases ["true_negatives"],
        FalseNegatives aliases ["false_negatives"],
        Precision aliases ["precision"],
        Recall aliases ["recall"],
    }
    at_constraint {
        SensitivityAtSpecificity aliases ["sensitivity_at_specificity"] required ["specificity"],
        SpecificityAtSensitivity aliases ["specificity_at_sensitivity"] required ["sensitivity"],
        PrecisionAtRecall aliases ["precision_at_recall"] required ["recall"],
        RecallAtPrecision aliases ["recall_at_precision"] required ["precision"],
    }
    auc { AUC = read_auc aliases ["auc"] }
    f_score { FBetaScore aliases ["f_beta_score"], F1Score aliases ["f1_score"] }
    iou {
        IoU aliases ["io_u"] required ["num_classes", "target_class_ids"],
        BinaryIoU aliases ["binary_io_u"],
        MeanIoU aliases ["mean_io_u"] required ["num_classes"],
        OneHotIoU aliases ["one_hot_io_u"] required ["num_classes", "target_class_ids"],
        OneHotMeanIoU aliases ["one_hot_mean_io_u"] required ["num_classes"],
    }
    r2_score { R2Score aliases ["r2_score"] }
    correlation {
        PearsonCorrelation aliases ["pearson_correlation"],
        ConcordanceCorrelation aliases ["concordance_correlation"],
    }
}

registry! {
    /// Means over samples. Most have the name of a loss, so the prelude omits them.
    pub mod means;
    const MEANS: dyn Metric = read;

    mean {
        MeanSquaredError aliases ["mean_squared_error", "mse", "MSE"],
        MeanAbsoluteError aliases ["mean_absolute_error", "mae", "MAE"],
        MeanAbsolutePercentageError aliases ["mean_absolute_percentage_error", "mape", "MAPE"],
        MeanSquaredLogarithmicError aliases ["mean_squared_logarithmic_error", "msle", "MSLE"],
        RootMeanSquaredError aliases ["root_mean_squared_error"],
        CosineSimilarity aliases ["cosine_similarity"],
        LogCoshError aliases ["log_cosh_error"],
        Poisson aliases ["poisson"],
        BinaryCrossentropy aliases ["binary_crossentropy", "bce", "BCE"],
        CategoricalCrossentropy aliases ["categorical_crossentropy"],
        SparseCategoricalCrossentropy = read_sparse aliases ["sparse_categorical_crossentropy"],
        Huber aliases ["huber"],
        KLDivergence aliases ["kl_divergence", "kld", "KLD"],
        Hinge aliases ["hinge"],
        SquaredHinge aliases ["squared_hinge"],
        CategoricalHinge aliases ["categorical_hinge"],
    }
    mean_metric_wrapper { MeanMetricWrapper = read_wrapper }
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

    /// The class whose labels have values of 0, if any. As in Keras, they count in the mean nevertheless, but not beside a
    /// mask or sample weights.
    fn ignored_class(&self) -> Option<i64> {
        None
    }

    /// The length of the vector of sums for predictions of this type.
    fn state_len(&self, _prediction: &Type) -> usize {
        2
    }

    /// Computes the metric from sums over any number of rows; 0 for none. If the result is a vector, this is the mean of
    /// its numbers.
    fn result(&self, state: &[f64]) -> f64 {
        match state {
            [total, count] => ratio(*total, *count),
            _ => 0.0,
        }
    }

    /// The numbers of a metric whose result is a vector, such as a score for each class; `None` if it is one number.
    fn vector(&self, _state: &[f64]) -> Option<Vec<f64>> {
        None
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

fn read<M>(class: &Class<dyn Metric>, config: &Config) -> Result<Box<dyn Metric>>
where
    M: Metric + Default + Serialize + DeserializeOwned + 'static,
{
    if let Some(key) = class.required.iter().find(|key| !config.contains_key(**key)) {
        return Err(Error::config(class.name, format!("missing key `{key}`")));
    }
    config::check_fixed_options(class.name, config, &[("from_sorted_ids", false.into())])?;
    let metric: M = config::read(class.name, config)?;
    metric.validate()?;
    Ok(Box::new(metric))
}

/// Keras writes the weights of labels as a tensor.
fn read_auc(class: &Class<dyn Metric>, config: &Config) -> Result<Box<dyn Metric>> {
    let mut config = config.clone();
    let tensor = config.get("label_weights").and_then(|weights| weights.pointer("/config/value"));
    if let Some(values) = tensor.cloned() {
        config.insert("label_weights".into(), values);
    }
    read::<AUC>(class, &config)
}

/// Without sample weights, Keras counts ignored labels as correct. A metric here does not know whether there are
/// weights.
fn read_sparse(class: &Class<dyn Metric>, config: &Config) -> Result<Box<dyn Metric>> {
    let options = [("axis", (-1).into()), ("ignore_class", Value::Null)];
    config::check_fixed_options(class.name, config, &options)?;
    read::<SparseCategoricalCrossentropy>(class, config)
}

fn read_wrapper(_: &Class<dyn Metric>, config: &Config) -> Result<Box<dyn Metric>> {
    MeanMetricWrapper::read(config)
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
    // A custom class has a name of its own.
    if REGISTRY.classes().any(|class| class.has_name(class_name)) {
        metric.set_name(name);
    }
    Ok(metric)
}

/// Fails unless [`get`] knows a name.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let any = Type::rows([2]);
    get(name, &any, &any).map(|_| ())
}

/// Creates a metric from its class name and config.
pub fn from_config(class_name: &str, config: &Map<String, Value>) -> Result<Box<dyn Metric>> {
    if let Some(custom) = custom::metric(class_name, config) {
        return custom;
    }
    if class_name.contains('>') {
        return Err(custom::refuse("metric", class_name, None));
    }
    let variants = ["accuracy", "crossentropy"];
    let known = || variants.into_iter().chain(REGISTRY.aliases()).map(String::from).collect();
    if let "Mean" | "Sum" = class_name {
        let reason = "a mean or sum of values; `fit` has none but those of targets and predictions";
        return Err(Error::config(class_name, reason));
    }
    let class = REGISTRY.find(class_name, |class| class.has_name(class_name), known)?;
    (class.read)(class, config)
}
