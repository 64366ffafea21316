//! The targets of a step: those of the outputs that have a loss or metrics.

use super::objective::Tracked;
use super::{BatchChecks, Objective, Session};
use crate::data::{Dataset, HostBatch};
use crate::error::{Error, Result};
use crate::losses::Loss;
use crate::metrics;
use crate::model::compile::MetricArgument;
use crate::model::source::Source;
use phalanx_graph::{DType, Graph, Tensor, Type};
use std::borrow::Borrow;
use std::sync::Arc;

impl Objective {
    /// The outputs with a loss or metrics, whose targets a step is fed with.
    pub fn compared(&self) -> Vec<usize> {
        let has_metrics = |output: &usize| self.metrics.get(*output).is_some_and(|m| !m.is_empty());
        let outputs = 0..self.output_names.len();
        outputs.filter(|output| self.trained.contains(output) || has_metrics(output)).collect()
    }

    /// The loss of an output.
    pub fn loss_of(&self, output: usize) -> Option<&dyn Loss> {
        let at = self.trained.iter().position(|trained| *trained == output)?;
        Some(&*self.losses[at])
    }

    /// The type of the targets of an output of a type.
    pub fn target_type(&self, output: usize, prediction: &Type) -> Result<Type> {
        target_type(self.loss_of(output), &self.metrics[output], prediction)
    }
}

/// The type that the loss of an output takes, else the one that its metrics take: that of the predictions, or class
/// indices.
pub(super) fn target_type(
    loss: Option<&dyn Loss>,
    metrics: &[Tracked],
    prediction: &Type,
) -> Result<Type> {
    if let Some(loss) = loss {
        return loss.target(prediction);
    }
    let labels =
        |lead: &[usize]| Type { dtype: DType::I32, dims: lead.to_vec(), ..prediction.clone() };
    let labels = prediction.dims.split_last().map(|(_, lead)| labels(lead));
    let takes = |target: &Type, tracked: &Tracked| -> Result<()> {
        let mut g = Graph::new();
        let mut feed = |name: &str, ty: Type| {
            let feed = g.add_feed(name, ty);
            g.feed(feed)
        };
        let y_true = feed("target", target.clone());
        let y_pred = feed("prediction", prediction.clone());
        let weight = feed("weight", Type::rows([]));
        tracked.metric.update(&mut g, y_true, y_pred, weight).map(drop)
    };
    let all_take = |target: &Type| metrics.iter().try_for_each(|metric| takes(target, metric));
    match (all_take(prediction), labels) {
        (Ok(()), _) => Ok(prediction.clone()),
        (Err(_), Some(labels)) if all_take(&labels).is_ok() => Ok(labels),
        (Err(error), _) => Err(error),
    }
}

/// Fails for names that Keras knows as losses only. With a loss, it says which crossentropy they are here.
pub(super) fn check_name_is_exact(name: &str, output: &str, prediction: &Type) -> Result<()> {
    let expected = match name.to_lowercase().as_str() {
        "crossentropy" | "ce" => "categorical_crossentropy or sparse_categorical_crossentropy",
        _ => return Ok(()),
    };
    if prediction.last() == 1 {
        return Ok(());
    }
    let owner = format!("metrics of '{output}', which has no loss");
    Err(Error::argument("compile", owner, expected, name))
}

/// Whether the targets of an output without a loss decide which accuracy a name is, as in Keras.
pub(super) fn depends_on_targets(metric: &MetricArgument, prediction: &Type) -> bool {
    let MetricArgument::Name(name) = metric else { return false };
    matches!(name.to_lowercase().as_str(), "accuracy" | "acc") && prediction.last() != 1
}

/// The dimensions of the targets that a source gives, without the samples.
fn target_sizes(source: &Source) -> Result<Vec<Vec<usize>>> {
    let sizes = |dims: &[usize]| dims.get(1..).unwrap_or_default().to_vec();
    let of_table = |targets: &[Arc<Tensor>]| targets.iter().map(|t| sizes(t.dims())).collect();
    match source {
        Source::Arrays(arrays) => Ok(of_table(arrays.targets())),
        Source::Dataset(dataset) => match dataset.in_memory() {
            Some(samples) => Ok(of_table(&samples.table().targets)),
            None if !dataset.is_repeatable() => {
                let expected = "categorical_accuracy or sparse_categorical_accuracy for an output without a loss, \
                     if data can be read only once";
                Err(Error::argument("compile", "metrics", expected, "accuracy"))
            }
            None => {
                let mut first = HostBatch::default();
                dataset.epoch(0, 0, 0)?.next(&mut first)?;
                Ok(first.targets.iter().map(|t| sizes(t.dims())).collect())
            }
        },
    }
}

impl Session {
    /// Whether targets have yet to decide which accuracies the names of outputs without a loss are.
    pub(crate) fn has_undecided_metrics(&self) -> bool {
        self.objective.metrics.iter().flatten().any(|tracked| tracked.undecided)
    }

    /// Decides by the first targets which accuracies the names of outputs without a loss are: the sparse one for targets
    /// with fewer axes than the predictions, or a last axis of size one.
    pub(crate) fn decide_metrics(&mut self, source: &Source) -> Result<()> {
        if !self.has_undecided_metrics() {
            return Ok(());
        }
        let sizes = target_sizes(source)?;
        let fed: Vec<Vec<usize>> = self.checks.fed(&sizes).into_iter().cloned().collect();
        let outputs = self.def.output_types_for(&self.def.example_shapes())?;
        let mut changed = false;
        for ((at, output), sizes) in self.checks.compared.clone().into_iter().enumerate().zip(fed) {
            let prediction = &outputs[output];
            let is_sparse = sizes.len() < prediction.dims.len() || sizes.last() == Some(&1);
            for tracked in &mut self.objective.metrics[output] {
                if std::mem::take(&mut tracked.undecided) && is_sparse {
                    let lead = &prediction.dims[..prediction.dims.len() - 1];
                    let labels = Type::rows(lead);
                    tracked.metric = metrics::get(tracked.metric.name(), &labels, prediction)?;
                    changed = true;
                }
            }
            let target = self.objective.target_type(output, prediction)?;
            self.checks.target_dtypes[at] = target.dtype;
        }
        if changed { self.programs.rebuild_shapes(&self.objective) } else { Ok(()) }
    }
}

impl BatchChecks {
    /// Selects those of `targets` (or weights) that a step is fed with, if there is one for every output.
    pub(crate) fn fed<'a, T>(&self, targets: &'a [T]) -> Vec<&'a T> {
        if targets.len() == self.output_names.len() {
            return self.compared.iter().map(|output| &targets[*output]).collect();
        }
        targets.iter().collect()
    }
    /// The dimensions of the sample weights of each target, without the samples.
    pub fn weight_sizes<T: Borrow<Tensor>>(&self, output_weights: &[T]) -> Vec<Vec<usize>> {
        let sizes = |t: &T| t.borrow().dims().get(1..).unwrap_or_default().to_vec();
        self.fed(output_weights).into_iter().map(sizes).collect()
    }
}
