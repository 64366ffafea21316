//! `fit` and its arguments.

use super::session::{BatchOrigin, Session, StepKind};
use super::source::{IntoDataset, Source, TRAINING, VALIDATION, one_batch};
use super::training::{Interrupt, OnNan, TrainLoop};
use super::{Logs, Model, ValidationFreq};
use crate::callbacks::Callback;
use crate::data::{Arrays, Columns, Dataset, HostBatch, IndexBatch};
use crate::error::{Error, Result};
use crate::history::History;
use crate::layer::lock;
use phalanx_exec::{Backend, StepTimes};
use phalanx_graph::profile::Profile;
use phalanx_graph::program::{Policy, Program};
use phalanx_graph::{DType, Tensor};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The arguments of `fit`.
///
/// ```no_run
/// # use phalanx::prelude::*;
/// # fn example(mut model: Model, x: Tensor, y: Tensor) -> Result<(), phalanx::Error> {
/// let history = model.fit(
///     (x, y),
///     Fit::new().epochs(2).batch_size(64).validation_split(0.1).verbose(2),
/// )?;
/// println!("{:?}", history.last("val_accuracy"));
/// # Ok(())
/// # }
/// ```
pub struct Fit {
    pub(super) epochs: usize,
    pub(super) initial_epoch: usize,
    batch_size: Option<usize>,
    pub(super) steps_per_epoch: Option<usize>,
    shuffle: bool,
    validation: Option<Result<Source>>,
    validation_split: f64,
    validation_batch_size: Option<usize>,
    pub(super) validation_steps: Option<usize>,
    pub(super) validation_freq: ValidationFreq,
    class_weight: Option<BTreeMap<usize, f32>>,
    sample_weight: Option<Vec<f32>>,
    output_weights: Option<Vec<Option<Tensor>>>,
    pub(super) accumulate: Option<u64>,
    pub(super) callbacks: Vec<Box<dyn Callback>>,
    pub(super) interrupt: Interrupt,
    pub(super) on_nan: OnNan,
    pub(super) verbose: u8,
}

impl Default for Fit {
    fn default() -> Fit {
        Fit::new()
    }
}

impl Fit {
    /// Creates the defaults: one epoch, batches of 32, shuffling and a progress bar.
    pub fn new() -> Fit {
        Fit {
            epochs: 1,
            initial_epoch: 0,
            batch_size: None,
            steps_per_epoch: None,
            shuffle: true,
            validation: None,
            validation_split: 0.0,
            validation_batch_size: None,
            validation_steps: None,
            validation_freq: ValidationFreq::Every(1),
            class_weight: None,
            sample_weight: None,
            output_weights: None,
            accumulate: None,
            callbacks: vec![],
            interrupt: Interrupt::new(),
            on_nan: OnNan::Raise,
            verbose: 1,
        }
    }

    /// Sets the epoch to stop before, counted from 0.
    pub fn epochs(mut self, epochs: usize) -> Fit {
        self.epochs = epochs;
        self
    }

    /// Sets the first epoch, to continue an earlier run.
    pub fn initial_epoch(mut self, epoch: usize) -> Fit {
        self.initial_epoch = epoch;
        self
    }

    /// Sets the number of samples in a *global* batch, which is split among the replicas.
    pub fn batch_size(mut self, samples: usize) -> Fit {
        self.batch_size = Some(samples);
        self
    }

    /// Sets the number of batches in an epoch. Data that ends earlier starts again; longer data continues in
    /// the next epoch.
    pub fn steps_per_epoch(mut self, steps: usize) -> Fit {
        self.steps_per_epoch = Some(steps);
        self
    }

    /// Sets whether arrays are reshuffled every epoch. The default is true.
    pub fn shuffle(mut self, shuffle: bool) -> Fit {
        self.shuffle = shuffle;
        self
    }

    /// Sets the data to evaluate on after every epoch.
    pub fn validation_data(mut self, data: impl IntoDataset) -> Fit {
        self.validation = Some(data.into_source());
        self
    }

    /// Holds out the last fraction of the samples, before shuffling, to evaluate on.
    pub fn validation_split(mut self, fraction: f64) -> Fit {
        self.validation_split = fraction;
        self
    }

    /// Sets the number of samples in a *global* batch of the validation. The default is that of training.
    pub fn validation_batch_size(mut self, samples: usize) -> Fit {
        self.validation_batch_size = Some(samples);
        self
    }

    /// Sets the number of batches after which a validation ends. Data with fewer ends earlier.
    pub fn validation_steps(mut self, steps: usize) -> Fit {
        self.validation_steps = Some(steps);
        self
    }

    /// Sets after which epochs to validate: after every `n` epochs, or after those in a list, counted from 1.
    pub fn validation_freq(mut self, freq: impl Into<ValidationFreq>) -> Fit {
        self.validation_freq = freq.into();
        self
    }

    /// Sets the sample weight of each class.
    pub fn class_weight(mut self, weights: impl Into<BTreeMap<usize, f32>>) -> Fit {
        self.class_weight = Some(weights.into());
        self
    }

    /// Sets the weight of each sample.
    pub fn sample_weight(mut self, weights: impl Into<Vec<f32>>) -> Fit {
        self.sample_weight = Some(weights.into());
        self
    }

    /// Sets the weights of each output's samples or positions; see [`Arrays::output_weights`].
    pub fn output_weights(mut self, weights: impl IntoIterator<Item = Option<Tensor>>) -> Fit {
        self.output_weights = Some(weights.into_iter().collect());
        self
    }

    /// Accumulates the gradients of `batches` batches, weighted by their rows, for each update.
    pub fn accumulate(mut self, batches: u64) -> Fit {
        self.accumulate = Some(batches);
        self
    }

    /// Adds a callback.
    pub fn callback(mut self, callback: impl Callback + 'static) -> Fit {
        self.callbacks.push(Box::new(callback));
        self
    }

    /// Adds callbacks, such as a [`CallbackList`](crate::callbacks::CallbackList).
    pub fn callbacks(mut self, callbacks: impl Into<Vec<Box<dyn Callback>>>) -> Fit {
        self.callbacks.extend(callbacks.into());
        self
    }

    /// Sets what to do about a NaN or infinite loss. The default is an error.
    pub fn on_nan(mut self, policy: OnNan) -> Fit {
        self.on_nan = policy;
        self
    }

    /// Lets another thread or a signal handler end the run after the current step.
    pub fn interrupt(mut self, interrupt: &Interrupt) -> Fit {
        self.interrupt = interrupt.clone();
        self
    }

    /// Sets the progress output: 0 nothing, 1 a live bar (a plain line if the output is not a terminal),
    /// 2 a line per epoch.
    pub fn verbose(mut self, verbose: u8) -> Fit {
        self.verbose = verbose;
        self
    }

    fn check(&self) -> Result<()> {
        let fail = |argument: &str, expected: &str, received: String| {
            Err(Error::argument("fit", argument, expected, received))
        };
        if self.batch_size == Some(0) {
            return fail("batch_size", "1 or more", "0".into());
        }
        for (argument, value) in [
            ("steps_per_epoch", self.steps_per_epoch),
            ("validation_steps", self.validation_steps),
            ("validation_batch_size", self.validation_batch_size),
        ] {
            if value == Some(0) {
                return fail(argument, "1 or more", "0".into());
            }
        }
        if self.validation_freq == ValidationFreq::Every(0) {
            return fail("validation_freq", "1 or more, or a list of epochs", "0".into());
        }
        if self.accumulate == Some(0) {
            return fail("accumulate", "1 or more", "0".into());
        }
        if self.verbose > 2 {
            return fail("verbose", "0, 1 or 2", self.verbose.to_string());
        }
        if self.validation_split != 0.0 && self.validation.is_some() {
            return fail("validation_split", "none beside validation_data", "both".into());
        }
        Ok(())
    }
}

impl Model {
    /// Returns the session of the compiled model, with the newest weights on the devices.
    pub(super) fn session(&mut self, call: &'static str) -> Result<&mut Session> {
        let def = self.def.clone();
        ready(self.session_slot(), &def.name, call)
    }

    /// Calls `f` with the session of the compiled model, with the newest weights on the devices. Concurrent
    /// calls wait.
    pub(crate) fn with_session<T>(
        &self,
        call: &'static str,
        f: impl FnOnce(&mut Session) -> Result<T>,
    ) -> Result<T> {
        f(ready(&mut lock(&self.session), self.name(), call)?)
    }

    /// Returns the element types of the targets that the losses take.
    ///
    /// # Errors
    /// If the model is not compiled.
    pub fn target_dtypes(&self) -> Result<Vec<DType>> {
        self.with_session("target_dtypes", |session| Ok(session.checks.target_dtypes()))
    }

    /// Returns the outputs whose targets a step takes, in order: those with a loss or metrics.
    ///
    /// # Errors
    /// If the model is not compiled.
    pub fn target_outputs(&self) -> Result<Vec<usize>> {
        self.with_session("target_outputs", |session| Ok(session.objective.compared()))
    }

    /// Returns the learning rate of the next step.
    pub fn learning_rate(&self) -> Result<f64> {
        self.with_session("learning_rate", |session| {
            Ok(session.objective.learning_rate(&session.state))
        })
    }

    /// Returns the current loss scale if the optimizer is a
    /// [`LossScaleOptimizer`](crate::optimizers::LossScaleOptimizer), as Keras' `dynamic_scale`.
    pub fn loss_scale(&self) -> Result<Option<f64>> {
        self.with_session("loss_scale", |session| Ok(session.state.loss_scale.map(f64::from)))
    }

    /// Overrides the optimizer's learning rate or schedule from the next step on.
    pub fn set_learning_rate(&mut self, rate: f64) -> Result<()> {
        let session = self.session("set_learning_rate")?;
        let Session { def, objective, state, .. } = session;
        objective.set_learning_rate(state, &def.name, rate)
    }

    /// Trains the model and returns losses and metrics of every epoch.
    ///
    /// # Errors
    /// If the data does not match the model, an argument is out of range, the loss becomes NaN or infinite
    /// (the error names the step), or a callback fails.
    pub fn fit(&mut self, data: impl IntoDataset, mut fit: Fit) -> Result<History> {
        fit.check()?;
        let session = self.session("fit")?;
        let mut source = data.into_source()?;
        let mut validation = fit.validation.take().transpose()?;
        if let Source::Arrays(arrays) = source {
            let mut arrays = arrays.shuffle(fit.shuffle);
            if let Some(weights) = &fit.sample_weight {
                arrays = arrays.sample_weight(weights)?;
            }
            if let Some(weights) = fit.output_weights.take() {
                arrays = arrays.output_weights(weights)?;
            }
            if fit.validation_split != 0.0 {
                let (train, held_out) = arrays.split(fit.validation_split)?;
                validation = Some(Source::Arrays(held_out.shuffle(false)));
                arrays = train;
            }
            if let Some(weights) = &fit.class_weight {
                arrays = arrays.class_weight(weights)?;
            }
            source = Source::Arrays(arrays);
        } else {
            let array_arguments = [
                ("validation_split", fit.validation_split != 0.0),
                ("class_weight", fit.class_weight.is_some()),
                ("sample_weight", fit.sample_weight.is_some()),
                ("output_weights", fit.output_weights.is_some()),
                ("batch_size", fit.batch_size.is_some()),
            ];
            if let Some((argument, _)) = array_arguments.iter().find(|(_, set)| *set) {
                let received = "a dataset, which has its own batches and weights";
                return Err(Error::argument("fit", *argument, "arrays", received));
            }
        }
        let data = source.prepare(session, fit.batch_size, true, TRAINING)?.dataset();
        let validation = match validation {
            Some(v) => {
                let rows = fit.validation_batch_size.or(fit.batch_size);
                Some(v.in_order().prepare(session, rows, true, VALIDATION)?.dataset())
            }
            None => None,
        };
        TrainLoop::new(session, &*data, validation.as_deref(), fit)?.run()
    }

    /// Performs `steps` updates on the same batch, which is all of `data`, for benchmarks. Calls
    /// `after_steps` after one or more updates with their number. Returns loss and metrics of the last one.
    pub fn train_repeatedly(
        &mut self,
        data: &Arrays,
        steps: usize,
        mut after_steps: impl FnMut(usize),
    ) -> Result<Logs> {
        let session = self.session("train_repeatedly")?;
        let rows = data.len().unwrap_or_default();
        let source = data.into_source()?.in_order();
        let data = source.prepare(session, Some(rows), true, TRAINING)?.dataset();
        let mut tally = session.objective.tally(StepKind::Train);
        session.weights.take_ownership();
        if let Some(table) = session.make_resident(StepKind::Train, &*data)? {
            let batch = IndexBatch { rows: (0..rows as u32).collect(), augments: vec![] };
            let batches = vec![batch; table.steps_per_launch];
            let mut left = steps;
            while left > 0 {
                let count = left.min(session.steps_per_launch(&table));
                let started = session.start_steps(StepKind::Train, &table, &batches[..count])?;
                tally = session.objective.tally(StepKind::Train);
                session.finish_steps(started, &mut tally)?;
                after_steps(count);
                left -= count;
            }
            return Ok(session.objective.logs(StepKind::Train, &tally));
        }
        let mut batch = HostBatch::default();
        data.epoch(0, 0, 0)?.next(&mut batch)?;
        session.checks.origin = BatchOrigin::Batch;
        let mut staged = false;
        for step in 0..steps {
            tally = session.objective.tally(StepKind::Train);
            let accumulation = session.objective.accumulation();
            let started = session.start(StepKind::Train, &batch, accumulation, staged)?;
            if step + 1 < steps {
                staged = session.stage(StepKind::Train, &batch)?;
            }
            session.finish(started, &mut tally)?;
            after_steps(1);
        }
        Ok(session.objective.logs(StepKind::Train, &tally))
    }

    /// Returns the gradient of the loss on one batch with respect to every trainable weight, by name. The
    /// model does not change.
    pub fn gradients(
        &self,
        x: impl Into<Columns>,
        y: impl Into<Columns>,
    ) -> Result<Vec<(String, Tensor)>> {
        let (x, y) = (x.into(), y.into());
        self.with_session("gradients", |session| {
            session.checks.origin = BatchOrigin::Batch;
            let batch = one_batch(session, x, y)?;
            session.gradients(&batch)
        })
    }

    /// Updates the weights with gradients, as Keras' `optimizer.apply`. There must be one for each trainable weight, named
    /// as [`Model::gradients`] names them. They count as those of the global batch, and workers must pass the same.
    ///
    /// ```
    /// use phalanx::prelude::*;
    ///
    /// let mut model = Sequential::new().add(Input::new([2])).add(Dense::new(1)).build()?;
    /// model.compile(Compile::new(SGD::new(0.1)).loss("mse"))?;
    /// let (x, y) = (Tensor::new([1, 2], vec![1.0, 2.0])?, Tensor::new([1, 1], vec![1.0])?);
    /// let gradients = model.gradients(&x, &y)?;
    /// model.apply_gradients(&gradients)?; // the same as model.train_on_batch(&x, &y)
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    ///
    /// # Errors
    /// If a gradient is missing or has another shape, or the optimizer scales the loss or accumulates gradients.
    pub fn apply_gradients(&mut self, gradients: &[(String, Tensor)]) -> Result<()> {
        let session = self.session("apply_gradients")?;
        session.weights.take_ownership();
        session.apply_gradients(gradients)
    }

    /// Returns the program of a step for a global batch of `batch_size`, as it would run; it can be printed.
    pub fn program(&self, kind: StepKind, batch_size: usize) -> Result<Program> {
        if batch_size == 0 {
            return Err(Error::argument("program", "batch_size", "1 or more", batch_size));
        }
        let program = self.with_planner("program", kind, |session, step| {
            session.programs.program(&session.objective, step, batch_size)
        })?;
        Ok(Arc::unwrap_or_clone(program))
    }

    /// Checks that all replicas hold the same weights, bit for bit.
    pub fn check_consistency(&self) -> Result<()> {
        self.with_session("check_consistency", |session| session.check_consistency())
    }

    /// Returns the time spent in each phase of all steps since `compile`.
    pub fn times(&self) -> Result<StepTimes> {
        self.with_any_session(|session| Ok(session.times()))
    }

    /// Starts or stops measuring every instruction. [`Model::profile`] returns the measurements.
    pub fn set_profiling(&mut self, on: bool) -> Result<()> {
        self.with_any_session(|session| {
            session.programs.set_profiling(on);
            Ok(())
        })
    }

    /// Returns time, arithmetic and bytes of every instruction of a step, measured since
    /// [`Model::set_profiling`], or `None` if no such step has run.
    pub fn profile(&self, kind: StepKind) -> Result<Option<Profile>> {
        self.with_any_session(|session| Ok(session.programs.profile(kind)))
    }

    /// Returns the names of the devices the model runs on.
    pub fn devices(&self) -> Result<Vec<String>> {
        self.with_any_session(|session| Ok(session.programs.placement.names.clone()))
    }

    /// Returns the dtype policy that the model was compiled for. The backend may store wider numbers.
    pub fn dtype_policy(&self) -> Result<Policy> {
        self.with_any_session(|session| Ok(session.programs.placement.policy))
    }

    /// Returns the backend of the devices the model runs on.
    ///
    /// # Errors
    /// If no device can be used.
    pub fn backend(&self) -> Result<Arc<dyn Backend>> {
        self.with_any_session(|session| Ok(session.programs.placement.backend.clone()))
    }
}

/// Returns the session if it is compiled, with the newest weights on the devices.
fn ready<'a>(
    session: &'a mut Option<Session>,
    model: &str,
    call: &'static str,
) -> Result<&'a mut Session> {
    let session = session.as_mut().filter(|session| session.objective.compiled);
    let session = session.ok_or_else(|| Error::NotCompiled { model: model.into(), call })?;
    session.weights.sync_to_devices()?;
    Ok(session)
}
