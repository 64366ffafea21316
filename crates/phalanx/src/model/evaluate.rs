//! `evaluate` and `predict`: passes over data that change no weight.

use super::session::{BatchOrigin, ResidentTable, Session, StepKind, Tally};
use super::source::{DATA, IntoDataset};
use super::training::Interrupt;
use super::turns::Group;
use super::{Logs, Model};
use crate::data::{Dataset, HostBatch, InMemory};
use crate::error::{Error, Result};
use crate::layer::lock;
use crate::memory;
use crate::progress::Progress;
use crate::strategy::MirroredStrategy;
use crate::warnings::warning;
use crate::workers::MultiWorkerMirroredStrategy;
use phalanx_graph::Tensor;

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
#[derive(Clone, Debug, Default)]
pub struct Inference {
    batch_size: Option<usize>,
    verbose: u8,
}

impl Inference {
    /// The batches that the data have (of 32 for plain arrays), printing nothing.
    pub fn new() -> Inference {
        Inference::default()
    }

    /// Samples of a *global* batch, shared out among the replicas.
    pub fn batch_size(mut self, samples: usize) -> Inference {
        self.batch_size = Some(samples);
        self
    }

    /// 0 nothing, 1 a live bar (a plain line where the output is no terminal), 2 a line at the end.
    pub fn verbose(mut self, verbose: u8) -> Inference {
        self.verbose = verbose;
        self
    }
}

impl Model {
    /// Loss and metrics over a dataset, with a bar as `fit` has it.
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

    /// As [`Model::evaluate`], with arguments.
    pub fn evaluate_with(&mut self, data: impl IntoDataset, arguments: Inference) -> Result<Logs> {
        let session = self.session("evaluate")?;
        let mut progress = Progress::stdout(session.workers.verbose(arguments.verbose)?);
        let source = data.into_source()?.in_order();
        let data = source.prepare(session, arguments.batch_size, true, DATA)?.dataset();
        session.check_pass(&*data)?;
        let logs = evaluate(session, (&*data, DATA), Some(&mut progress), &Interrupt::new())?;
        Ok(logs.unwrap_or_default())
    }

    /// Chooses the devices of a model that only predicts: it needs neither loss nor optimizer, and one that was
    /// compiled is so no more.
    ///
    /// # Errors
    /// Devices that cannot be had.
    pub fn predict_on(&mut self, strategy: impl Into<MultiWorkerMirroredStrategy>) -> Result<()> {
        self.initialize(0)?;
        // The devices' memory is given back before it is asked for anew.
        *self.session_slot() = None;
        let session = Session::inference(self, strategy.into())?;
        *self.session_slot() = Some(session);
        Ok(())
    }

    /// The output of a model with one output, for every sample, in order.
    ///
    /// Needs no compiled model: where there is none, the visible devices are used. Several threads may
    /// call it at once; their batches take turns. (One thread of each worker where there are several
    /// workers: they compute each batch together.)
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

    /// As [`Model::predict`], with one tensor per output.
    pub fn predict_all(&self, data: impl IntoDataset) -> Result<Vec<Tensor>> {
        self.predict_with(data, Inference::new())
    }

    /// As [`Model::predict_all`], with arguments.
    pub fn predict_with(
        &self,
        data: impl IntoDataset,
        arguments: Inference,
    ) -> Result<Vec<Tensor>> {
        let source = data.into_source()?.in_order();
        let (mut progress, data, share) = self.with_any_session(|session| {
            session.weights.sync_to_devices()?;
            let progress = Progress::stdout(session.workers.verbose(arguments.verbose)?);
            let data = source.prepare(session, arguments.batch_size, false, DATA)?.dataset();
            session.check_pass(&*data)?;
            Ok((progress, data, session.worker_shard()))
        })?;
        let dims = self.output_shapes();
        let mut outputs: Vec<Vec<f32>> = vec![vec![]; dims.len()];
        let mut batch = HostBatch::default();
        let mut epoch = data.epoch_of(0, 0, 0, share.as_ref())?;
        let (mut rows, mut done) = (0, 0);
        progress.begin_predict(data.batches());
        // Nothing is locked while the data make a batch: they may ask this very model.
        while epoch.next(&mut batch)? {
            rows += batch.rows;
            done += 1;
            self.with_any_session(|session| {
                session.checks.origin = BatchOrigin::Data(DATA, done);
                for (out, part) in outputs.iter_mut().zip(session.predict(&batch)?) {
                    if !memory::extend(out, part) {
                        let received = format!("{rows} rows and more");
                        let expected = "data whose outputs fit into memory";
                        return Err(Error::argument("predict", "data", expected, received));
                    }
                }
                Ok(())
            })?;
            progress.step(done, &[]);
        }
        progress.end_predict();
        let is_nan = || outputs.iter().flatten().any(|v| v.is_nan());
        self.with_any_session(|session| {
            warn_of_nan(session, DATA, is_nan);
            Ok(())
        })?;
        let tensor = |(dims, values): (Vec<usize>, Vec<f32>)| {
            let mut full = vec![rows];
            full.extend(dims);
            Ok(Tensor::new(full, values)?)
        };
        dims.into_iter().zip(outputs).map(tensor).collect()
    }

    /// Asks the compiled model, or one that can only predict; whoever else asks waits.
    pub(super) fn with_any_session<T>(
        &self,
        ask: impl FnOnce(&mut Session) -> Result<T>,
    ) -> Result<T> {
        let mut session = lock(&self.session);
        let session = match &mut *session {
            Some(session) => session,
            none => {
                self.initialize(0)?;
                none.insert(Session::inference(self, MirroredStrategy::new().into())?)
            }
        };
        ask(session)
    }
}

/// Where results are NaN, says which layers may have given it.
fn warn_of_nan(session: &Session, name: &str, found: impl FnOnce() -> bool) {
    let lookups = session.checks.unchecked_lookups();
    if !lookups.is_empty() && found() {
        warning!("results on the {name} are NaN: {}", lookups.join(", "));
    }
}

/// One pass of the test program over a dataset, which has a name; nothing comes of it when interrupted.
pub(super) fn evaluate(
    session: &mut Session,
    (data, name): (&dyn Dataset, &'static str),
    mut progress: Option<&mut Progress>,
    interrupt: &Interrupt,
) -> Result<Option<Logs>> {
    if let Some(progress) = &mut progress {
        progress.begin_evaluate(data.batches());
    }
    let kept = session.make_resident(StepKind::Test, data)?;
    let mut done = 0;
    let each = &mut |steps: usize, session: &Session, tally: &Tally| {
        done += steps;
        if let Some(progress) = &mut progress {
            progress.step(done, &session.objective.logs(tally));
        }
        !session.any_worker_stopping(interrupt.raised())
    };
    let mut tally = session.objective.tally();
    let whole = match kept.zip(data.in_memory()) {
        Some((kept, data)) => over_table(session, data, &kept, &mut tally, each)?,
        None => over_batches(session, (data, name), &mut tally, interrupt, each)?,
    };
    if !whole {
        return Ok(None);
    }
    if tally.is_empty() {
        return Err(Error::argument("evaluate", "data", "at least one sample", "none"));
    }
    let logs = session.objective.logs(&tally);
    warn_of_nan(session, name, || logs.get("loss").is_some_and(f64::is_nan));
    if let Some(progress) = progress {
        progress.end_evaluate(&logs);
    }
    Ok(Some(logs))
}

/// Called behind steps with their number; whether to go on.
type Each<'a> = dyn FnMut(usize, &Session, &Tally) -> bool + 'a;

/// The pass over samples that the devices keep; whether it came to its end.
fn over_table(
    session: &mut Session,
    data: &dyn InMemory,
    kept: &ResidentTable,
    tally: &mut Tally,
    each: &mut Each<'_>,
) -> Result<bool> {
    let mut picks = data.index_batches(session.state.seed, 0, 0)?;
    let (mut now, mut next) = (Group::default(), Group::default());
    now.fill(&mut next, &mut *picks, kept.steps_per_launch)?;
    while !now.batches().is_empty() {
        let started = session.start_steps(StepKind::Test, kept, now.batches())?;
        next.fill(&mut now, &mut *picks, kept.steps_per_launch)?;
        session.finish_steps(started, tally)?;
        if !each(now.batches().len(), session, tally) {
            return Ok(false);
        }
        std::mem::swap(&mut now, &mut next);
    }
    Ok(true)
}

/// The pass over batches of the host; whether it came to its end.
fn over_batches(
    session: &mut Session,
    (data, name): (&dyn Dataset, &'static str),
    tally: &mut Tally,
    interrupt: &Interrupt,
    each: &mut Each<'_>,
) -> Result<bool> {
    let mut batch = HostBatch::default();
    let mut epoch = data.epoch_of(session.state.seed, 0, 0, session.worker_shard().as_ref())?;
    let (mut ahead, mut staged) = (HostBatch::default(), false);
    let mut more = epoch.next(&mut batch)?;
    let mut taken = 1;
    while more {
        session.set_stop_flag(interrupt.raised());
        session.checks.origin = BatchOrigin::Data(name, taken);
        let started = session.start(StepKind::Test, &batch, None, staged)?;
        more = epoch.next(&mut ahead)?;
        taken += 1;
        if more {
            session.checks.origin = BatchOrigin::Data(name, taken);
            session.stage(StepKind::Test, &ahead)?;
        }
        session.finish(started, tally)?;
        std::mem::swap(&mut batch, &mut ahead);
        staged = true;
        if !each(1, session, tally) {
            return Ok(false);
        }
    }
    Ok(true)
}
