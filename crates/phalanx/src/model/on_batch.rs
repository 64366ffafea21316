//! Steps on one batch, `train_on_batch`, `test_on_batch` and `predict_on_batch`, and what outlives a batch.

use super::session::{BatchOrigin, Session, StepKind};
use super::source::{as_one_batch, one_batch};
use super::{Logs, Model};
use crate::data::{Arrays, Columns, Dataset, HostBatch};
use crate::error::Result;
use crate::model::source::{IntoDataset, Source};
use phalanx_graph::Tensor;
use std::collections::BTreeMap;

/// Weights of the samples of one batch, for [`Model::train_on_batch_with`] and [`Model::test_on_batch_with`].
#[derive(Clone, Debug, Default)]
pub struct BatchWeights {
    sample_weight: Option<Vec<f32>>,
    output_weights: Option<Vec<Option<Tensor>>>,
    class_weight: Option<BTreeMap<usize, f32>>,
}

impl BatchWeights {
    /// Every sample counts as one.
    pub fn new() -> BatchWeights {
        BatchWeights::default()
    }

    /// Sets the weight of each sample.
    #[must_use]
    pub fn sample_weight(mut self, weights: impl Into<Vec<f32>>) -> BatchWeights {
        self.sample_weight = Some(weights.into());
        self
    }

    /// Sets the weights of each output's samples or positions; see [`Arrays::output_weights`].
    #[must_use]
    pub fn output_weights(
        mut self,
        weights: impl IntoIterator<Item = Option<Tensor>>,
    ) -> BatchWeights {
        self.output_weights = Some(weights.into_iter().collect());
        self
    }

    /// Sets the sample weight of each class.
    #[must_use]
    pub fn class_weight(mut self, weights: impl Into<BTreeMap<usize, f32>>) -> BatchWeights {
        self.class_weight = Some(weights.into());
        self
    }

    /// All samples as one batch.
    fn batch(&self, session: &mut Session, x: Columns, y: Columns) -> Result<HostBatch> {
        let of_samples = self.sample_weight.is_none() && self.class_weight.is_none();
        if of_samples && self.output_weights.is_none() {
            return one_batch(session, x, y);
        }
        let mut arrays = Arrays::new(x, y)?;
        if let Some(weights) = &self.sample_weight {
            arrays = arrays.sample_weight(weights)?;
        }
        if let Some(weights) = &self.output_weights {
            arrays = arrays.output_weights(weights.iter().cloned())?;
        }
        if let Some(weights) = &self.class_weight {
            arrays = arrays.class_weight(weights)?;
        }
        as_one_batch(session, arrays)
    }
}

impl Model {
    /// Sets the states of all stateful layers to zero, as Keras' `layer.reset_states()` does for one.
    ///
    /// ```
    /// use phalanx::prelude::*;
    ///
    /// let x = Input::new([3, 2]).batch_size(4).symbol();
    /// let model = Model::new(&x, GRU::new(5).stateful(true).apply(&x))?;
    /// let ones = || Tensor::new([4, 3, 2], vec![1.0; 24]);
    /// let first = model.predict(ones()?)?;
    /// assert_ne!(model.predict(ones()?)?, first);
    /// model.reset_states();
    /// assert_eq!(model.predict(ones()?)?, first);
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    pub fn reset_states(&self) {
        self.layers().iter().for_each(|(_, layer)| layer.reset_states());
    }

    /// Returns the number of samples that every batch must have, if a layer has states that outlive a batch.
    ///
    /// ```
    /// use phalanx::prelude::*;
    ///
    /// let model = |stateful| {
    ///     let x = Input::new([3, 2]).batch_size(4).symbol();
    ///     Model::new(&x, LSTM::new(5).stateful(stateful).apply(&x))
    /// };
    /// assert_eq!(model(true)?.stateful_batch_size(), Some(4));
    /// assert_eq!(model(false)?.stateful_batch_size(), None);
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    pub fn stateful_batch_size(&self) -> Option<usize> {
        let stateful = self.layers().iter().any(|(_, layer)| layer.is_stateful());
        self.def.batch_size().filter(|_| stateful)
    }

    /// Performs one update on one batch and returns loss and metrics of that batch. `x` is a tensor or [`Text`], or a list
    /// of them for a model with several inputs; so is `y` for several outputs.
    ///
    /// [`Text`]: crate::data::Text
    pub fn train_on_batch(&mut self, x: impl Into<Columns>, y: impl Into<Columns>) -> Result<Logs> {
        self.train_on_batch_with(x, y, &BatchWeights::new())
    }

    /// Like [`Model::train_on_batch`], with weights of the samples or classes.
    pub fn train_on_batch_with(
        &mut self,
        x: impl Into<Columns>,
        y: impl Into<Columns>,
        weights: &BatchWeights,
    ) -> Result<Logs> {
        let session = self.session("train_on_batch")?;
        session.checks.origin = BatchOrigin::Batch;
        let batch = weights.batch(session, x.into(), y.into())?;
        let accumulation = session.objective.accumulation();
        session.weights.take_ownership();
        session.run_alone(StepKind::Train, &batch, accumulation)
    }

    /// Performs one update on a prepared batch.
    pub(crate) fn train_on(&mut self, batch: &HostBatch) -> Result<Logs> {
        let session = self.session("train_on_batch")?;
        session.checks.origin = BatchOrigin::Batch;
        let mut tally = session.objective.tally(StepKind::Train);
        let accumulation = session.objective.accumulation();
        session.weights.take_ownership();
        session.run(StepKind::Train, batch, accumulation, &mut tally)?;
        Ok(session.objective.logs(StepKind::Train, &tally))
    }

    /// Prepares all samples of some data as one batch.
    pub(crate) fn whole_batch(&mut self, data: impl IntoDataset) -> Result<HostBatch> {
        let session = self.session("train_on_batch")?;
        let source = data.into_source()?.in_order();
        let rows = match &source {
            Source::Arrays(arrays) => arrays.len(),
            Source::Dataset(_) => None,
        };
        let data = source.prepare(session, rows, true, "batch")?.dataset();
        let mut batch = HostBatch::default();
        data.epoch(0, 0, 0)?.next(&mut batch)?;
        Ok(batch)
    }

    /// Returns the gradients on a prepared batch.
    pub(crate) fn gradients_on(&mut self, batch: &HostBatch) -> Result<Vec<(String, Tensor)>> {
        let session = self.session("gradients")?;
        session.checks.origin = BatchOrigin::Batch;
        session.gradients(batch)
    }

    /// Returns loss and metrics of one batch.
    pub fn test_on_batch(&mut self, x: impl Into<Columns>, y: impl Into<Columns>) -> Result<Logs> {
        self.test_on_batch_with(x, y, &BatchWeights::new())
    }

    /// Like [`Model::test_on_batch`], with weights of the samples or classes.
    pub fn test_on_batch_with(
        &mut self,
        x: impl Into<Columns>,
        y: impl Into<Columns>,
        weights: &BatchWeights,
    ) -> Result<Logs> {
        let session = self.session("test_on_batch")?;
        session.checks.origin = BatchOrigin::Batch;
        let batch = weights.batch(session, x.into(), y.into())?;
        session.run_alone(StepKind::Test, &batch, None)
    }

    /// Returns the output for every sample of one batch. The model must have one output.
    pub fn predict_on_batch(&self, x: impl Into<Columns>) -> Result<Tensor> {
        let arrays = Arrays::new(x, ())?;
        let arguments = super::Inference::new().batch_size(arrays.len().unwrap_or(1).max(1));
        let mut all = self.predict_with(arrays, arguments)?;
        if all.len() == 1 {
            return Ok(all.remove(0));
        }
        let (expected, received) = ("one output (else predict_with)", all.len());
        Err(crate::Error::argument("predict_on_batch", "model", expected, received))
    }

    /// Returns loss and metrics of all batches of `train_on_batch` and `test_on_batch` since
    /// [`reset_metrics`](Model::reset_metrics), or since the model was compiled. Metrics as Keras' methods of these names
    /// return them.
    pub fn get_metrics_result(&mut self) -> Result<Logs> {
        let session = self.session("get_metrics_result")?;
        Ok(session.objective.logs(StepKind::Train, &session.results.running))
    }

    /// Forgets the batches that [`get_metrics_result`](Model::get_metrics_result) is about.
    pub fn reset_metrics(&mut self) -> Result<()> {
        let session = self.session("reset_metrics")?;
        session.results.running = session.objective.tally(StepKind::Train);
        Ok(())
    }
}
