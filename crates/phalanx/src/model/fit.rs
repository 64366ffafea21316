//! `fit`, `evaluate`, `predict`: the one loop that drives compiled programs over data.

use super::engine::{Engine, Gather, StepKind};
use super::source::{IntoDataset, Source, one_batch};
use super::{Logs, Model};
use crate::callbacks::{Action, Callback, View, WeightSource};
use crate::data::{Dataset, Epoch, HostBatch};
use crate::error::{Error, Result};
use crate::history::History;
use crate::progress::{Progress, Verbose};
use crate::saving::Training;
use phalanx_graph::Tensor;
use phalanx_graph::exec::Times;
use phalanx_graph::program::Program;
use std::collections::BTreeMap;
use std::time::Instant;

/// Samples of a batch where nothing else is said.
const DEFAULT_BATCH: usize = 32;

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
    epochs: usize,
    initial_epoch: usize,
    batch_size: Option<usize>,
    steps_per_epoch: Option<usize>,
    shuffle: bool,
    validation: Option<Result<Source>>,
    validation_split: f64,
    class_weight: Option<BTreeMap<usize, f32>>,
    sample_weight: Option<Vec<f32>>,
    accumulate: Option<u64>,
    callbacks: Vec<Box<dyn Callback>>,
    verbose: u8,
}

impl Default for Fit {
    fn default() -> Fit {
        Fit::new()
    }
}

impl Fit {
    /// One epoch, batches of 32, shuffled, with a progress bar.
    pub fn new() -> Fit {
        Fit {
            epochs: 1,
            initial_epoch: 0,
            batch_size: None,
            steps_per_epoch: None,
            shuffle: true,
            validation: None,
            validation_split: 0.0,
            class_weight: None,
            sample_weight: None,
            accumulate: None,
            callbacks: vec![],
            verbose: 1,
        }
    }

    /// The epoch to stop before, counted from 0.
    pub fn epochs(mut self, epochs: usize) -> Fit {
        self.epochs = epochs;
        self
    }

    /// The epoch to start with, for a run continued.
    pub fn initial_epoch(mut self, epoch: usize) -> Fit {
        self.initial_epoch = epoch;
        self
    }

    /// Samples of a *global* batch, shared out among the replicas.
    pub fn batch_size(mut self, samples: usize) -> Fit {
        self.batch_size = Some(samples);
        self
    }

    /// Batches of an epoch; data that ends earlier starts again, data that lasts longer goes on
    /// in the next epoch.
    pub fn steps_per_epoch(mut self, steps: usize) -> Fit {
        self.steps_per_epoch = Some(steps);
        self
    }

    /// Whether arrays are shuffled, anew each epoch; true unless said otherwise.
    pub fn shuffle(mut self, shuffle: bool) -> Fit {
        self.shuffle = shuffle;
        self
    }

    /// Data to evaluate on after every epoch.
    pub fn validation_data(mut self, data: impl IntoDataset) -> Fit {
        self.validation = Some(data.into_source());
        self
    }

    /// Sets aside the last share of arrays, before shuffling, to evaluate on.
    pub fn validation_split(mut self, share: f64) -> Fit {
        self.validation_split = share;
        self
    }

    /// Weight of every sample of a class.
    pub fn class_weight(mut self, weights: impl Into<BTreeMap<usize, f32>>) -> Fit {
        self.class_weight = Some(weights.into());
        self
    }

    /// Weight of every sample.
    pub fn sample_weight(mut self, weights: impl Into<Vec<f32>>) -> Fit {
        self.sample_weight = Some(weights.into());
        self
    }

    /// Batches whose gradients, weighted by their rows, make one update.
    pub fn accumulate(mut self, batches: u64) -> Fit {
        self.accumulate = Some(batches);
        self
    }

    /// Adds a callback.
    pub fn callback(mut self, callback: impl Callback + 'static) -> Fit {
        self.callbacks.push(Box::new(callback));
        self
    }

    /// 0 nothing, 1 a live bar (a plain line where the output is no terminal), 2 a line per epoch.
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
        if self.steps_per_epoch == Some(0) {
            return fail("steps_per_epoch", "1 or more", "0".into());
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

/// Hands out batches across the ends of the data.
struct Feeder<'a> {
    data: &'a dyn Dataset,
    seed: u64,
    pass: u64,
    epoch: Box<dyn Epoch + 'a>,
}

impl<'a> Feeder<'a> {
    fn new(data: &'a dyn Dataset, seed: u64, pass: u64) -> Result<Feeder<'a>> {
        Ok(Feeder { data, seed, pass, epoch: data.epoch(seed, pass, 0)? })
    }

    /// The next batch; with `endless`, the data starts again where it ends.
    fn next(&mut self, batch: &mut HostBatch, endless: bool) -> Result<bool> {
        if self.epoch.next(batch)? {
            return Ok(true);
        }
        if !endless {
            return Ok(false);
        }
        self.pass += 1;
        self.epoch = self.data.epoch(self.seed, self.pass, 0)?;
        self.epoch.next(batch)
    }
}

impl WeightSource for Engine {
    fn names(&self) -> Vec<String> {
        self.weight_names()
    }

    fn get(&self, name: &str) -> Option<Vec<f32>> {
        self.weight(name)
    }

    fn training(&self) -> Option<Training> {
        self.compiled().then(|| Engine::training(self))
    }
}

/// What the loop carries from step to step.
struct State {
    epoch: usize,
    epochs: usize,
    steps_per_epoch: Option<usize>,
    stop: bool,
    history: History,
}

impl State {
    /// Lets every callback look, and does what they answer.
    fn call(
        &mut self,
        engine: &mut Engine,
        callbacks: &mut [Box<dyn Callback>],
        logs: &Logs,
        hook: fn(&mut dyn Callback, &View<'_>) -> Result<Action>,
    ) -> Result<()> {
        for callback in callbacks {
            let view = View {
                epoch: self.epoch,
                epochs: self.epochs,
                step: engine.steps,
                steps_per_epoch: self.steps_per_epoch,
                logs,
                learning_rate: engine.learning_rate(),
                history: &self.history,
                model: &engine.def,
                weights: &*engine,
            };
            let action = hook(&mut **callback, &view)?;
            match action {
                Action::Continue => {}
                Action::Stop => self.stop = true,
                Action::SetLearningRate(rate) => engine.set_learning_rate(rate)?,
                Action::RestoreWeights(weights) => engine.restore(&weights)?,
            }
        }
        Ok(())
    }
}

impl Model {
    /// The compiled model, with the newest weights.
    fn engine(&mut self, call: &'static str) -> Result<&mut Engine> {
        let model = self.def.name.clone();
        let engine = self.engine.as_mut().filter(|e| e.compiled());
        let engine = engine.ok_or(Error::NotCompiled { model, call })?;
        engine.refresh()?;
        Ok(engine)
    }

    /// The compiled model, or one that can only predict.
    fn any_engine(&mut self) -> Result<&mut Engine> {
        if self.engine.is_none() {
            self.initialize(0)?;
            self.engine = Some(Engine::inference(self)?);
        }
        let model = self.def.name.clone();
        let engine = self.engine.as_mut();
        let engine = engine.ok_or(Error::NotCompiled { model, call: "predict" })?;
        engine.refresh()?;
        Ok(engine)
    }

    /// The learning rate of the next step.
    pub fn learning_rate(&mut self) -> Result<f64> {
        Ok(self.engine("learning_rate")?.learning_rate())
    }

    /// Trains on with another learning rate, in the place of the optimizer's own or its schedule.
    pub fn set_learning_rate(&mut self, rate: f64) -> Result<()> {
        self.engine("set_learning_rate")?.set_learning_rate(rate)
    }

    /// Trains the model; returns losses and metrics of every epoch.
    ///
    /// # Errors
    /// Data that does not fit the model, an argument out of range, a loss that is no number any
    /// more (with its step), or what a callback reports.
    pub fn fit(&mut self, data: impl IntoDataset, mut fit: Fit) -> Result<History> {
        fit.check()?;
        let engine = self.engine("fit")?;
        let mut source = data.into_source()?;
        let mut validation = fit.validation.take().transpose()?;
        if let Source::Arrays(arrays) = source {
            let mut arrays = arrays.shuffle(fit.shuffle);
            if let Some(weights) = &fit.sample_weight {
                arrays = arrays.sample_weight(weights)?;
            }
            if fit.validation_split != 0.0 {
                let (train, held) = arrays.split(fit.validation_split)?;
                validation = Some(Source::Arrays(held.shuffle(false)));
                arrays = train;
            }
            if let Some(weights) = &fit.class_weight {
                arrays = arrays.class_weight(weights)?;
            }
            source = Source::Arrays(arrays);
        } else {
            let asked = [
                ("validation_split", fit.validation_split != 0.0),
                ("class_weight", fit.class_weight.is_some()),
                ("sample_weight", fit.sample_weight.is_some()),
                ("batch_size", fit.batch_size.is_some()),
            ];
            if let Some((argument, _)) = asked.iter().find(|(_, asked)| *asked) {
                let received = "a dataset, which has its own batches and weights";
                return Err(Error::argument("fit", *argument, "arrays", received));
            }
        }
        let data = source.prepare(engine, fit.batch_size, true)?.dataset();
        let validation = match validation {
            Some(v) => Some(v.in_order().prepare(engine, fit.batch_size, true)?.dataset()),
            None => None,
        };
        run_fit(engine, &*data, validation.as_deref(), fit)
    }

    /// Loss and metrics over a dataset.
    pub fn evaluate(&mut self, data: impl IntoDataset, batch_size: usize) -> Result<Logs> {
        let engine = self.engine("evaluate")?;
        let source = data.into_source()?.in_order();
        let data = source.prepare(engine, Some(batch_size), true)?.dataset();
        evaluate(engine, &*data)
    }

    /// The model's outputs for every sample, in order; one tensor per output.
    ///
    /// Needs no compiled model: where there is none, the visible devices are used.
    pub fn predict_all(
        &mut self,
        data: impl IntoDataset,
        batch_size: usize,
    ) -> Result<Vec<Tensor>> {
        let engine = self.any_engine()?;
        let source = data.into_source()?.in_order();
        let data = source.prepare(engine, Some(batch_size), false)?.dataset();
        let dims = engine.output_dims();
        let mut outputs: Vec<Vec<f32>> = vec![vec![]; dims.len()];
        let mut batch = HostBatch::default();
        let mut epoch = data.epoch(0, 0, 0)?;
        let mut rows = 0;
        while epoch.next(&mut batch)? {
            rows += batch.rows;
            for (out, part) in outputs.iter_mut().zip(engine.predict(&batch)?) {
                out.extend_from_slice(part);
            }
        }
        let tensor = |(dims, values): (Vec<usize>, Vec<f32>)| {
            let mut full = vec![rows];
            full.extend(dims);
            Ok(Tensor::new(full, values)?)
        };
        dims.into_iter().zip(outputs).map(tensor).collect()
    }

    /// The output of a model with one output, for every sample, in order.
    pub fn predict(&mut self, data: impl IntoDataset) -> Result<Tensor> {
        let mut all = self.predict_all(data, DEFAULT_BATCH)?;
        if all.len() == 1 {
            return Ok(all.remove(0));
        }
        Err(Error::argument("predict", "model", "one output (else predict_all)", all.len()))
    }

    /// One update on one batch; returns loss and metrics of that batch.
    pub fn train_on_batch(&mut self, x: &Tensor, y: &Tensor) -> Result<Logs> {
        let engine = self.engine("train_on_batch")?;
        let batch = one_batch(engine, x, y)?;
        let mut tally = engine.tally();
        let rate = engine.learning_rate();
        let gather = engine.gather_steps().map(|every| Gather { every, last: false });
        engine.claim();
        engine.run(StepKind::Train, &batch, rate, gather, &mut tally)?;
        Ok(engine.logs(&tally))
    }

    /// The gradient of the loss on one batch by every weight trained, with the weights' names;
    /// changes nothing.
    pub fn gradients(&mut self, x: &Tensor, y: &Tensor) -> Result<Vec<(String, Tensor)>> {
        let engine = self.engine("gradients")?;
        let batch = one_batch(engine, x, y)?;
        engine.gradients(&batch)
    }

    /// The program of a step for a global batch of this size, as it would be run; print it.
    pub fn program(&self, kind: StepKind, batch_size: usize) -> Result<Program> {
        if batch_size == 0 {
            return Err(Error::argument("program", "batch_size", "1 or more", batch_size));
        }
        let model = self.def.name.clone();
        // A model that was never compiled can only predict.
        let fits = |e: &&Engine| e.compiled() || kind == StepKind::Predict;
        let engine = self.engine.as_ref().filter(fits);
        engine.ok_or(Error::NotCompiled { model, call: "program" })?.program(kind, batch_size)
    }

    /// Checks that all replicas hold the same weights, bit for bit.
    pub fn check_mirrored(&mut self) -> Result<()> {
        self.engine("check_mirrored")?.check_mirrored()
    }

    /// Where the time of all steps since `compile` went.
    pub fn times(&mut self) -> Result<Times> {
        Ok(self.engine("times")?.times())
    }

    /// The devices a compiled model runs on.
    pub fn devices(&mut self) -> Result<Vec<String>> {
        Ok(self.engine("devices")?.devices())
    }
}

fn evaluate(engine: &mut Engine, data: &dyn Dataset) -> Result<Logs> {
    let mut tally = engine.tally();
    let mut batch = HostBatch::default();
    let mut epoch = data.epoch(engine.seed, 0, 0)?;
    while epoch.next(&mut batch)? {
        engine.run(StepKind::Test, &batch, 0.0, None, &mut tally)?;
    }
    if tally.is_empty() {
        return Err(Error::argument("evaluate", "data", "at least one sample", "none"));
    }
    Ok(engine.logs(&tally))
}

fn run_fit(
    engine: &mut Engine,
    data: &dyn Dataset,
    validation: Option<&dyn Dataset>,
    fit: Fit,
) -> Result<History> {
    let mut callbacks = fit.callbacks;
    let steps = fit.steps_per_epoch.or(data.batches());
    if steps == Some(0) || data.is_empty() {
        return Err(Error::argument("fit", "data", "at least one batch", "an empty dataset"));
    }
    let mut progress = Progress::stdout(Verbose::try_from(fit.verbose)?);
    let mut state = State {
        epoch: fit.initial_epoch,
        epochs: fit.epochs,
        steps_per_epoch: steps,
        stop: false,
        history: History::default(),
    };
    let every = fit.accumulate.or(engine.gather_steps());
    if fit.accumulate.is_some() {
        engine.forget_gathered();
    }
    // As in Keras, an optimizer that gathers goes on across epochs; `fit` itself does not.
    let flush = fit.accumulate.is_some();
    let mut batch = HostBatch::default();
    let mut feeder = Feeder::new(data, engine.seed, fit.initial_epoch as u64)?;
    let none = Logs::default();
    engine.claim();
    state.call(engine, &mut callbacks, &none, |c, v| c.on_train_begin(v))?;
    for epoch in fit.initial_epoch..fit.epochs {
        state.epoch = epoch;
        if fit.steps_per_epoch.is_none() && epoch > fit.initial_epoch {
            feeder = Feeder::new(data, engine.seed, epoch as u64)?;
        }
        state.call(engine, &mut callbacks, &none, |c, v| c.on_epoch_begin(v))?;
        progress.begin_epoch(epoch, fit.epochs, steps);
        let started = Instant::now();
        let (mut tally, mut rows, mut done) = (engine.tally(), 0, 0);
        while fit.steps_per_epoch.is_none_or(|n| done < n) && !state.stop {
            if !feeder.next(&mut batch, fit.steps_per_epoch.is_some())? {
                break;
            }
            state.call(engine, &mut callbacks, &none, |c, v| c.on_batch_begin(v))?;
            let last = flush && steps.is_some_and(|n| done + 1 == n);
            let gather = every.map(|every| Gather { every, last });
            let rate = engine.learning_rate();
            let loss = engine.run(StepKind::Train, &batch, rate, gather, &mut tally)?;
            done += 1;
            rows += batch.rows;
            let logs = engine.logs(&tally);
            state.call(engine, &mut callbacks, &logs, |c, v| c.on_batch_end(v))?;
            if !loss.is_finite() && !state.stop {
                let step = engine.steps;
                return Err(Error::NotFinite { loss, step, epoch: epoch + 1 });
            }
            progress.step(done, &logs);
        }
        if done == 0 && !state.stop {
            return Err(Error::argument("fit", "data", "at least one batch", "an empty dataset"));
        }
        let seconds = started.elapsed().as_secs_f64();
        let mut logs = engine.logs(&tally);
        if let Some(validation) = validation {
            logs.extend(evaluate(engine, validation)?.prefixed("val_"));
        }
        progress.end_epoch(&logs);
        let mut entry = logs.clone();
        entry.push("lr", engine.learning_rate());
        state.history.push(epoch, &entry, seconds, rows);
        state.call(engine, &mut callbacks, &logs, |c, v| c.on_epoch_end(v))?;
        if state.stop {
            break;
        }
    }
    engine.finish_training()?;
    state.call(engine, &mut callbacks, &none, |c, v| c.on_train_end(v))?;
    Ok(state.history)
}
