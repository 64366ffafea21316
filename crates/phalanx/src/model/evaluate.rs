//! `evaluate` and `predict`: passes over data that do not change the weights.

use super::multi_step::StepGroup;
use super::pass_events::PassEvents;
use super::session::{BatchOrigin, ResidentTable, Session, StepKind, Tally};
use super::source::{DATA, IntoDataset};
use super::training::Interrupt;
use super::{Logs, Model};
use crate::callbacks::Callback;
use crate::data::{Dataset, HostBatch, InMemory};
use crate::error::{Error, Result};
use crate::history::History;
use crate::layer::lock;
use crate::memory;
use crate::progress::Progress;
use crate::strategy::MirroredStrategy;
use crate::workers::MultiWorkerMirroredStrategy;
use phalanx_distributed::warnings::warning;
use phalanx_graph::{Tensor, Type};

/// The arguments of [`Model::evaluate_with`] and [`Model::predict_with`].
///
/// ```no_run
/// # use phalanx::prelude::*;
/// # fn example(mut model: Model, x: Tensor, y: Tensor) -> Result<(), phalanx::Error> {
/// let logs = model.evaluate_with((x, y), Inference::new().batch_size(256).verbose(0))?;
/// println!("{logs}");
/// # Ok(())
/// # }
/// ```
#[derive(Default)]
pub struct Inference {
    batch_size: Option<usize>,
    steps: Option<usize>,
    callbacks: Vec<Box<dyn Callback>>,
    verbose: u8,
}

impl Inference {
    /// Creates the defaults: the data's own batch size (32 for plain arrays) and no output.
    pub fn new() -> Inference {
        Inference::default()
    }

    /// Sets the number of samples in a *global* batch, which is split among the replicas.
    pub fn batch_size(mut self, samples: usize) -> Inference {
        self.batch_size = Some(samples);
        self
    }

    /// Sets the number of batches after which to end. Data with fewer ends earlier.
    pub fn steps(mut self, steps: usize) -> Inference {
        self.steps = Some(steps);
        self
    }

    /// Adds a callback.
    pub fn callback(mut self, callback: impl Callback + 'static) -> Inference {
        self.callbacks.push(Box::new(callback));
        self
    }

    /// Adds callbacks.
    pub fn callbacks(mut self, callbacks: impl Into<Vec<Box<dyn Callback>>>) -> Inference {
        self.callbacks.extend(callbacks.into());
        self
    }

    fn check(&self, call: &str) -> Result<()> {
        if self.steps == Some(0) {
            return Err(Error::argument(call, "steps", "1 or more", 0));
        }
        Ok(())
    }

    /// Drops callbacks that only the chief calls on other workers.
    fn keep_own_callbacks(&mut self, session: &Session) {
        self.callbacks.retain(|c| session.workers.is_chief() || !c.chief_only());
    }

    /// Sets the progress output: 0 nothing, 1 a live bar (a plain line if the output is not a terminal),
    /// 2 a line at the end.
    pub fn verbose(mut self, verbose: u8) -> Inference {
        self.verbose = verbose;
        self
    }
}

impl Model {
    /// Returns loss and metrics over a dataset and shows a progress bar, as `fit` does.
    ///
    /// ```no_run
    /// # use phalanx::prelude::*;
    /// # fn example(mut model: Model, x: Tensor, y: Tensor) -> Result<(), phalanx::Error> {
    /// let logs = model.evaluate((x, y))?;
    /// println!("accuracy {:?}", logs.get("accuracy"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn evaluate(&mut self, data: impl IntoDataset) -> Result<Logs> {
        self.evaluate_with(data, Inference::new().verbose(1))
    }

    /// Like [`Model::evaluate`], with arguments.
    pub fn evaluate_with(
        &mut self,
        data: impl IntoDataset,
        mut arguments: Inference,
    ) -> Result<Logs> {
        arguments.check("evaluate")?;
        let session = self.session("evaluate")?;
        arguments.keep_own_callbacks(session);
        let mut progress = Progress::stdout(session.workers.verbose(arguments.verbose)?);
        let source = data.into_source()?.in_order();
        let data = source.prepare(session, arguments.batch_size, true, DATA)?.dataset();
        session.check_same_inputs(&*data)?;
        let interrupt = Interrupt::new();
        let steps = arguments.steps;
        let pass = Pass { data: &*data, name: DATA, steps, interrupt: &interrupt };
        let (batches, history, none) = (pass.batches(), History::default(), Logs::default());
        let mut events = PassEvents::new(&mut arguments.callbacks, batches, (&history, &none));
        let logs = evaluate(session, &pass, Some(&mut progress), &mut events)?;
        Ok(logs.unwrap_or_default())
    }

    /// Chooses the devices of a model that only predicts. It needs neither loss nor optimizer. A compiled
    /// model is no longer compiled afterwards.
    ///
    /// # Errors
    /// If a device is not available.
    pub fn predict_on(&mut self, strategy: impl Into<MultiWorkerMirroredStrategy>) -> Result<()> {
        self.initialize(0)?;
        // Frees the devices' memory before the new session allocates.
        *self.session_slot() = None;
        let session = Session::inference(self, strategy.into())?;
        *self.session_slot() = Some(session);
        Ok(())
    }

    /// Returns the output for every sample, in order. The model must have one output.
    ///
    /// The model need not be compiled; if it is not, `predict` uses the visible devices. Several threads may
    /// call it at once; their batches take turns. With several workers, only one thread of each worker may
    /// call it, because the workers compute each batch together.
    ///
    /// ```
    /// use phalanx::prelude::*;
    ///
    /// let model = Sequential::new().add(Input::new([4])).add(Dense::new(2)).build()?;
    /// let one = Tensor::zeros([1, 4]);
    /// std::thread::scope(|scope| {
    ///     let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| model.predict(&one))).collect();
    ///     for thread in threads {
    ///         assert_eq!(thread.join().expect("no panic")?.dims(), [1, 2]);
    ///     }
    ///     Ok::<(), phalanx::Error>(())
    /// })?;
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    pub fn predict(&self, data: impl IntoDataset) -> Result<Tensor> {
        let mut all = self.predict_all(data)?;
        if all.len() == 1 {
            return Ok(all.remove(0));
        }
        Err(Error::argument("predict", "model", "one output (else predict_all)", all.len()))
    }

    /// Like [`Model::predict`], with one tensor per output.
    pub fn predict_all(&self, data: impl IntoDataset) -> Result<Vec<Tensor>> {
        self.predict_with(data, Inference::new())
    }

    /// Like [`Model::predict_all`], with arguments.
    ///
    /// # Errors
    /// If the outputs of two batches have different shapes, which batches of different lengths may cause;
    /// [`Model::predict_batches`] returns them batch by batch.
    pub fn predict_with(
        &self,
        data: impl IntoDataset,
        arguments: Inference,
    ) -> Result<Vec<Tensor>> {
        let mut rows = 0;
        let mut dims: Option<Vec<Vec<usize>>> = None;
        let mut outputs: Vec<Vec<f32>> = vec![vec![]; self.def.outputs.len()];
        self.for_each_prediction(data, arguments, |batch, types, values| {
            let of_batch = || types.iter().map(|ty| ty.dims.clone()).collect::<Vec<_>>();
            let expected = dims.get_or_insert_with(of_batch);
            if types.iter().zip(&*expected).any(|(ty, dims)| ty.dims != *dims) {
                let expected = format!("outputs of one shape, {expected:?} (else predict_batches)");
                return Err(Error::argument(
                    "predict",
                    "data",
                    expected,
                    format!("{:?}", of_batch()),
                ));
            }
            rows += batch;
            for (out, part) in outputs.iter_mut().zip(values) {
                extend(out, part, rows)?;
            }
            Ok(())
        })?;
        let none = || self.output_shapes().iter().map(|shape| shape.with_open(0)).collect();
        let dims = dims.unwrap_or_else(none);
        dims.into_iter().zip(outputs).map(|(dims, values)| tensor(rows, &dims, values)).collect()
    }

    /// Returns the outputs of every batch, one tensor per output. The batches may have different shapes, which
    /// [`Model::predict`] does not join.
    ///
    /// ```
    /// use phalanx::prelude::*;
    ///
    /// let x = Input::new([None, Some(2)]).symbol();
    /// let model = Model::new(&x, LSTM::new(3).return_sequences(true).apply(&x))?;
    /// let sequences = [4, 7].map(|steps| Ok(vec![Tensor::zeros([steps, 2])]));
    /// let sequences = std::sync::Mutex::new(Some(sequences));
    /// let data = Pipeline::from_generator(move || {
    ///     Ok(sequences.lock().unwrap().take().into_iter().flatten())
    /// });
    /// let outputs = model.predict_batches(data.batch(1, false)?, Inference::new())?;
    /// assert_eq!(outputs[0][0].dims(), [1, 4, 3]);
    /// assert_eq!(outputs[1][0].dims(), [1, 7, 3]);
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    pub fn predict_batches(
        &self,
        data: impl IntoDataset,
        arguments: Inference,
    ) -> Result<Vec<Vec<Tensor>>> {
        let mut batches = vec![];
        self.for_each_prediction(data, arguments, |rows, types, values| {
            let mut outputs = vec![];
            for (ty, part) in types.iter().zip(values) {
                let mut values = vec![];
                extend(&mut values, part, rows)?;
                outputs.push(tensor(rows, &ty.dims, values)?);
            }
            batches.push(outputs);
            Ok(())
        })?;
        Ok(batches)
    }

    /// Predicts batch by batch and calls `take` with the rows, types and values of the outputs of each.
    fn for_each_prediction(
        &self,
        data: impl IntoDataset,
        mut arguments: Inference,
        mut take: impl FnMut(usize, &[Type], &[Vec<f32>]) -> Result<()>,
    ) -> Result<()> {
        arguments.check("predict")?;
        let source = data.into_source()?.in_order();
        let (mut progress, data, shard) = self.with_any_session(|session| {
            session.weights.sync_to_devices()?;
            let progress = Progress::stdout(session.workers.verbose(arguments.verbose)?);
            let data = source.prepare(session, arguments.batch_size, false, DATA)?.dataset();
            session.check_same_inputs(&*data)?;
            arguments.keep_own_callbacks(session);
            Ok((progress, data, session.workers.shard_if_several()))
        })?;
        let (history, none) = (History::default(), Logs::default());
        let batches = limited(data.batches(), arguments.steps);
        let steps = arguments.steps.unwrap_or(usize::MAX);
        let mut events = PassEvents::new(&mut arguments.callbacks, batches, (&history, &none));
        let mut batch = HostBatch::default();
        let mut epoch = data.epoch_of(0, 0, 0, shard.as_ref())?;
        let (mut done, mut is_nan) = (0, false);
        progress.begin_predict(batches);
        self.with_any_session(|s| events.call(s, 0, &none, |c, v| c.on_predict_begin(v)))?;
        // The session is not locked while the dataset produces a batch: the dataset may use this model.
        while done < steps && !events.stopped && epoch.next(&mut batch)? {
            self.with_any_session(|session| {
                events.call(session, done, &none, |c, v| c.on_predict_batch_begin(v))?;
                done += 1;
                session.checks.origin = BatchOrigin::Data(DATA, done);
                let (types, values) = session.predict(&batch)?;
                is_nan |= values.iter().flatten().any(|v| v.is_nan());
                take(batch.rows, types, values)?;
                events.call(session, done, &none, |c, v| c.on_predict_batch_end(v))
            })?;
            progress.step(done, &[]);
        }
        self.with_any_session(|s| events.call(s, done, &none, |c, v| c.on_predict_end(v)))?;
        progress.end_predict();
        self.with_any_session(|session| {
            warn_of_nan(session, DATA, || is_nan);
            Ok(())
        })
    }

    /// Calls `f` with the session, creating one that only predicts if there is none. Concurrent calls wait.
    pub(super) fn with_any_session<T>(
        &self,
        f: impl FnOnce(&mut Session) -> Result<T>,
    ) -> Result<T> {
        let mut session = lock(&self.session);
        let session = match &mut *session {
            Some(session) => session,
            none => {
                self.initialize(0)?;
                none.insert(Session::inference(self, MirroredStrategy::new().into())?)
            }
        };
        f(session)
    }
}

/// Appends the outputs of a batch; `rows` samples are then predicted.
fn extend(outputs: &mut Vec<f32>, part: &[f32], rows: usize) -> Result<()> {
    if memory::extend(outputs, part) {
        return Ok(());
    }
    let (expected, received) =
        ("data whose outputs fit into memory", format!("{rows} rows or more"));
    Err(Error::argument("predict", "data", expected, received))
}

/// Returns an output of `rows` samples.
fn tensor(rows: usize, dims: &[usize], values: Vec<f32>) -> Result<Tensor> {
    let mut all = vec![rows];
    all.extend(dims);
    Ok(Tensor::new(all, values)?)
}

/// Warns about results that are NaN and names the layers that may have caused it.
fn warn_of_nan(session: &Session, name: &str, is_nan: impl FnOnce() -> bool) {
    let lookups = session.checks.unchecked_lookups();
    if !lookups.is_empty() && is_nan() {
        warning!("results on the {name} are NaN: {}", lookups.join(", "));
    }
}

/// A pass over data. `name` describes the data in errors.
pub(super) struct Pass<'a> {
    pub data: &'a dyn Dataset,
    pub name: &'static str,
    /// Batches after which it ends, if the data has as many.
    pub steps: Option<usize>,
    pub interrupt: &'a Interrupt,
}

/// The number of batches, if known.
fn limited(batches: Option<usize>, steps: Option<usize>) -> Option<usize> {
    batches.map_or(steps, |n| Some(n.min(steps.unwrap_or(n))))
}

impl Pass<'_> {
    /// The number of batches, if known.
    pub fn batches(&self) -> Option<usize> {
        limited(self.data.batches(), self.steps)
    }
}

/// Runs one pass of the test program over a dataset. Returns `None` if interrupted.
pub(super) fn evaluate(
    session: &mut Session,
    pass: &Pass<'_>,
    mut progress: Option<&mut Progress>,
    events: &mut PassEvents<'_>,
) -> Result<Option<Logs>> {
    if let Some(progress) = &mut progress {
        progress.begin_evaluate(pass.batches());
    }
    events.call(session, 0, &Logs::default(), |c, v| c.on_test_begin(v))?;
    let batch_by_batch = pass.steps.is_some() || events.wants_batches();
    let table = match batch_by_batch {
        true => None,
        false => session.make_resident(StepKind::Test, pass.data)?,
    };
    let mut done = 0;
    let after_steps = &mut |steps: usize, session: &Session, tally: &Tally| {
        done += steps;
        if let Some(progress) = &mut progress {
            progress.step(done, &session.objective.logs(StepKind::Test, tally));
        }
        !session.workers.any_worker_stopping(pass.interrupt.is_requested())
    };
    let mut tally = session.objective.tally(StepKind::Test);
    let completed = match table.zip(pass.data.in_memory()) {
        Some((table, data)) => {
            evaluate_resident(session, data, &table, &mut tally, events, after_steps)?
        }
        None => evaluate_batches(session, pass, &mut tally, events, after_steps)?,
    };
    let logs = session.objective.logs(StepKind::Test, &tally);
    events.call(session, done, &logs, |c, v| c.on_test_end(v))?;
    if !completed {
        return Ok(None);
    }
    if tally.is_empty() {
        return Err(Error::argument("evaluate", "data", "at least one sample", "none"));
    }
    warn_of_nan(session, pass.name, || logs.get("loss").is_some_and(f64::is_nan));
    if let Some(progress) = progress {
        progress.end_evaluate(&logs);
    }
    Ok(Some(logs))
}

/// Called after one or more steps with their number. Returns whether to continue.
type AfterSteps<'a> = dyn FnMut(usize, &Session, &Tally) -> bool + 'a;

/// Evaluates samples that are resident on the devices. Returns false if interrupted.
fn evaluate_resident(
    session: &mut Session,
    data: &dyn InMemory,
    table: &ResidentTable,
    tally: &mut Tally,
    events: &mut PassEvents<'_>,
    after_steps: &mut AfterSteps<'_>,
) -> Result<bool> {
    let mut done = 0;
    let mut index_batches = data.index_batches(session.state.seed, 0, 0)?;
    let (mut current, mut next) = (StepGroup::default(), StepGroup::default());
    current.fill(&mut next, &mut *index_batches, table.steps_per_launch)?;
    while !current.batches().is_empty() && !events.stopped {
        let started = session.start_steps(StepKind::Test, table, current.batches())?;
        next.fill(&mut current, &mut *index_batches, table.steps_per_launch)?;
        session.finish_steps(started, tally)?;
        done += current.batches().len();
        let logs = session.objective.logs(StepKind::Test, tally);
        events.call(session, done, &logs, |c, v| c.on_test_batch_end(v))?;
        if !after_steps(current.batches().len(), session, tally) {
            return Ok(false);
        }
        std::mem::swap(&mut current, &mut next);
    }
    Ok(true)
}

/// Evaluates batches from the host. Returns false if interrupted.
fn evaluate_batches(
    session: &mut Session,
    pass: &Pass<'_>,
    tally: &mut Tally,
    events: &mut PassEvents<'_>,
    after_steps: &mut AfterSteps<'_>,
) -> Result<bool> {
    let mut batch = HostBatch::default();
    let shard = session.workers.shard_if_several();
    let mut epoch = pass.data.epoch_of(session.state.seed, 0, 0, shard.as_ref())?;
    let (mut next_batch, mut staged) = (HostBatch::default(), false);
    let (steps, none) = (pass.steps.unwrap_or(usize::MAX), Logs::default());
    let mut more = epoch.next(&mut batch)?;
    let mut done = 0;
    while more && !events.stopped {
        session.workers.set_stop_flag(pass.interrupt.is_requested());
        events.call(session, done, &none, |c, v| c.on_test_batch_begin(v))?;
        session.checks.origin = BatchOrigin::Data(pass.name, done + 1);
        let started = session.start(StepKind::Test, &batch, None, staged)?;
        done += 1;
        more = done < steps && epoch.next(&mut next_batch)?;
        if more {
            session.checks.origin = BatchOrigin::Data(pass.name, done + 1);
            staged = session.stage(StepKind::Test, &next_batch)?;
        }
        session.finish(started, tally)?;
        std::mem::swap(&mut batch, &mut next_batch);
        let logs = session.objective.logs(StepKind::Test, tally);
        events.call(session, done, &logs, |c, v| c.on_test_batch_end(v))?;
        if !after_steps(1, session, tally) {
            return Ok(false);
        }
    }
    Ok(true)
}
