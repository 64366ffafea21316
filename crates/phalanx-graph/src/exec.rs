//! What an executor does, whatever it runs on.

use crate::graph::{ParamId, ParamSpec};
use crate::process_group::{LocalShard, PeerError};
use crate::profile::Profile;
use crate::program::{Mesh, Program};
use crate::resident::{Column, StepInput, TableId};
use crate::text::part;
use crate::types::DType;
use crate::update::Slot;
use thiserror::Error;

/// A feed's elements on the host: all rows of the global batch (of it those of this process, where there
/// are several), or one mirrored value.
#[derive(Clone, Copy, Debug)]
pub enum FeedData<'a> {
    /// 32-bit floats.
    F32(&'a [f32]),
    /// 32-bit integers.
    I32(&'a [i32]),
}

impl FeedData<'_> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            FeedData::F32(v) => v.len(),
            FeedData::I32(v) => v.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Gradient accumulation: this step's part in an update made of several.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Accumulate {
    /// Whether the sum starts anew.
    pub first: bool,
    /// Weight of this step's gradient in the sum.
    pub weight: f32,
    /// On the last step, the factor that turns the sum into a mean; `None` before.
    pub apply: Option<f32>,
}

/// What one step is run with.
#[derive(Clone, Copy, Debug, Default)]
pub struct Batch<'a> {
    /// Rows of the global batch.
    pub rows: usize,
    /// One entry per feed of the program, with the rows of the executor's own devices.
    pub feeds: &'a [FeedData<'a>],
    /// The run's seed.
    pub seed: u64,
    /// Counts steps, for random numbers.
    pub step: u64,
    /// The optimizer's scalars of this step.
    pub scalars: &'a [f32],
    /// Gradient accumulation, when asked for.
    pub accumulate: Option<Accumulate>,
    /// Whether its feeds were handed in by [`Executor::stage`] before.
    pub staged: bool,
}

impl Program {
    /// Fails where this was compiled for other devices or parameters than an executor's.
    pub fn check_executor(&self, mesh: Mesh, params: &[ParamSpec]) -> Result<(), ExecError> {
        let reject = |reason: &str| {
            Err(ExecError::Program { name: self.name.clone(), reason: reason.into() })
        };
        if self.options.mesh != mesh {
            return reject("it was compiled for other devices");
        }
        let same = |(a, b): (&ParamSpec, &ParamSpec)| a.name == b.name && a.dims == b.dims;
        if self.params.len() != params.len() || !self.params.iter().zip(params).all(same) {
            return reject("its parameters are others");
        }
        Ok(())
    }

    /// Fails where programs that an executor has loaded have other optimizer slots than this: they share
    /// them.
    pub fn check_slots<'a>(
        &self,
        loaded: impl IntoIterator<Item = &'a Program>,
    ) -> Result<(), ExecError> {
        let Some(slots) = self.update.as_ref().map(|plan| &plan.rule.slots) else { return Ok(()) };
        let others = loaded.into_iter().filter_map(|p| p.update.as_ref());
        let Some(other) = others.map(|plan| &plan.rule.slots).find(|other| *other != slots) else {
            return Ok(());
        };
        let names =
            |slots: &[Slot]| slots.iter().map(|s| s.name.as_str()).collect::<Vec<_>>().join(", ");
        let (expected, received) = (names(other), names(slots));
        let reason = format!("optimizer slots: expected [{expected}], received [{received}]");
        Err(ExecError::Program { name: self.name.clone(), reason })
    }

    /// Fails where a batch does not have the feeds, rows or scalars this was compiled for.
    pub fn check_batch(&self, batch: &Batch<'_>) -> Result<(), ExecError> {
        self.check_own_batch(batch, batch.rows)
    }

    /// As [`check_batch`](Program::check_batch), where the feeds hold just so many rows of the batch.
    pub fn check_own_batch(&self, batch: &Batch<'_>, own: usize) -> Result<(), ExecError> {
        self.check_own_feeds(batch, own)?;
        let scalars = self.update.as_ref().map_or(batch.scalars.len(), |u| u.rule.scalars);
        if scalars == batch.scalars.len() {
            return Ok(());
        }
        let (expected, received) = (scalars.to_string(), batch.scalars.len().to_string());
        Err(ExecError::Feed { name: "optimizer scalars".into(), expected, received })
    }

    /// Fails where a batch does not have the feeds or rows this was compiled for, of which just so many
    /// are here.
    pub fn check_own_feeds(&self, batch: &Batch<'_>, own: usize) -> Result<(), ExecError> {
        let fail = |name: &str, expected: String, received: String| {
            Err(ExecError::Feed { name: name.into(), expected, received })
        };
        if batch.feeds.len() != self.feeds.len() {
            let (expected, received) = (self.feeds.len(), batch.feeds.len());
            return fail(&self.name, format!("{expected} feeds"), received.to_string());
        }
        for (spec, data) in self.feeds.iter().zip(batch.feeds) {
            let rows = if spec.ty.is_rows() { own } else { 1 };
            let dtype = match data {
                FeedData::F32(_) => DType::F32,
                FeedData::I32(_) => DType::I32,
            };
            if dtype != spec.ty.dtype || Some(data.len()) != rows.checked_mul(spec.ty.len()) {
                let expected = format!("{} for {rows} row(s)", spec.ty);
                return fail(&spec.name, expected, format!("{} {dtype} elements", data.len()));
            }
        }
        if batch.rows > self.options.max_batch {
            let expected = format!("at most {} rows", self.options.max_batch);
            return fail(&self.name, expected, batch.rows.to_string());
        }
        Ok(())
    }
}

/// A program loaded into an executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramId(pub usize);

/// Runs programs over one set of parameters, mirrored on every device.
pub trait Executor: Send {
    /// Devices and workers, which programs are compiled for.
    fn mesh(&self) -> Mesh;

    /// The devices of the mesh that are here, all unless there are other processes: a batch's feeds
    /// hold their rows alone.
    fn shard(&self) -> LocalShard {
        let mesh = self.mesh();
        LocalShard { mesh, devices: 0..mesh.devices }
    }

    /// Raises bits for all processes to see: they travel with the next step.
    fn set_flags(&mut self, _bits: u64) {}

    /// The bits that any process raised for the last step; `None` where there are no others.
    fn flags(&self) -> Option<u64> {
        None
    }

    /// Takes a program; all programs of an executor share one parameter table.
    fn load(&mut self, program: Program) -> Result<ProgramId, ExecError>;

    /// Hands in the feeds of the step to come, while another may be under way: that step's batch then
    /// says so. An executor whose feeds need not travel ignores it.
    fn stage(&mut self, _program: ProgramId, _batch: &Batch<'_>) -> Result<(), ExecError> {
        Ok(())
    }

    /// Starts a step. One at a time: [`finish`](Executor::finish) comes before the next.
    fn start(&mut self, program: ProgramId, batch: &Batch<'_>) -> Result<(), ExecError>;

    /// Waits for the step that was started. `fetched` receives one vector per fetch: rows of the
    /// batch in order, or the mirrored value.
    fn finish(&mut self, fetched: &mut Vec<Vec<f32>>) -> Result<(), ExecError>;

    /// Whether the step that was started is still under way.
    fn in_flight(&self) -> bool {
        false
    }

    /// Runs a step to its end.
    fn run(
        &mut self,
        program: ProgramId,
        batch: &Batch<'_>,
        fetched: &mut Vec<Vec<f32>>,
    ) -> Result<(), ExecError> {
        self.start(program, batch)?;
        self.finish(fetched)
    }

    /// Keeps samples on every device, one column for each feed that is rows; steps may then be handed
    /// rows by number. Nothing where devices keep none, or have no room to spare.
    fn upload(&mut self, _columns: &[Column<'_>]) -> Result<Option<TableId>, ExecError> {
        Ok(None)
    }

    /// Lets go of samples that were kept.
    fn evict(&mut self, _table: TableId) {}

    /// How many steps on full batches of a table are best started together.
    fn steps_per_launch(
        &mut self,
        _program: ProgramId,
        _table: TableId,
        _rows: usize,
    ) -> Result<usize, ExecError> {
        Ok(1)
    }

    /// Starts steps on rows of a table, one behind the other, as [`start`](Executor::start) does one.
    fn start_steps(
        &mut self,
        program: ProgramId,
        table: TableId,
        _turns: &[StepInput<'_>],
    ) -> Result<(), ExecError> {
        let reason = format!("this executor keeps no samples, so there is no table {}", table.0);
        Err(ExecError::Program { name: format!("#{}", program.0), reason })
    }

    /// Waits for the steps that were started together; what each fetched, as
    /// [`finish`](Executor::finish) hands it over.
    fn finish_steps(&mut self, fetched: &mut Vec<Vec<Vec<f32>>>) -> Result<(), ExecError> {
        fetched.clear();
        Ok(())
    }

    /// Reads a parameter.
    fn param(&self, id: ParamId) -> Vec<f32>;

    /// Sets a parameter on every device.
    fn set_param(&mut self, id: ParamId, values: &[f32]) -> Result<(), ExecError>;

    /// Number of optimizer slots.
    fn slots(&self) -> usize;

    /// Reads an optimizer slot of a parameter.
    fn slot(&self, slot: usize, id: ParamId) -> Vec<f32>;

    /// Sets an optimizer slot of a parameter on every device.
    fn set_slot(&mut self, slot: usize, id: ParamId, values: &[f32]) -> Result<(), ExecError>;

    /// Reads a parameter's gradient as gathered so far under accumulation; nothing before its
    /// first step.
    fn accumulated(&self, id: ParamId) -> Option<Vec<f32>>;

    /// Sets a parameter's gathered gradient on every device.
    fn set_accumulated(&mut self, id: ParamId, values: &[f32]) -> Result<(), ExecError>;

    /// Checks that every device holds the same bits.
    fn check_consistency(&self) -> Result<(), ExecError>;

    /// Seconds spent in training steps so far, by kind.
    fn times(&self) -> StepTimes;

    /// Starts or stops measuring every instruction of the steps run; measuring starts from nothing.
    /// An executor that cannot measure ignores it.
    fn set_profiling(&mut self, _on: bool) {}

    /// What was measured of a program; `None` where nothing was.
    fn profile(&self, _program: ProgramId) -> Option<Profile> {
        None
    }
}

/// Where the time of training steps went, in seconds, as the first worker saw it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepTimes {
    /// Forward and backward.
    pub compute: f64,
    /// Waiting for others, reducing gradients and updating weights.
    pub reduce: f64,
}

/// What can go wrong while running.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ExecError {
    /// A feed of another size or type than the program's.
    #[error("feed '{}': expected {expected}, received {received}", part(name))]
    Feed {
        /// The feed.
        name: String,
        /// Its type and size.
        expected: String,
        /// What was handed in.
        received: String,
    },
    /// Parameters that are not those of the executor.
    #[error("parameter {}: expected {expected} elements, received {received}", part(name))]
    Param {
        /// The parameter.
        name: String,
        /// Elements it has.
        expected: usize,
        /// Elements handed in.
        received: usize,
    },
    /// A program that does not fit the executor.
    #[error("program '{}' does not fit this executor: {reason}", part(name))]
    Program {
        /// The program.
        name: String,
        /// Why.
        reason: String,
    },
    /// An instruction set that this processor does not have.
    #[error(
        "PHALANX_ISA: expected one that this processor has ({available}), received '{}'",
        part(received)
    )]
    InstructionSet {
        /// Those it has.
        available: String,
        /// The one asked for.
        received: String,
    },
    /// Devices that should hold the same bits but do not.
    #[error("replicas drifted apart: '{}' differs between {first} and {second}", part(param))]
    Drift {
        /// The parameter.
        param: String,
        /// A device.
        first: String,
        /// Another device.
        second: String,
    },
    /// Memory that could not be had.
    #[error("out of memory: {wanted} bytes for {purpose}")]
    Memory {
        /// Bytes asked for.
        wanted: usize,
        /// What for.
        purpose: String,
        /// Bytes that a replica can have in all, those that it already holds included, where that is
        /// known.
        available: Option<usize>,
    },
    /// A device that failed; the executor cannot go on.
    #[error("{device}: {message}")]
    Device {
        /// Which.
        device: String,
        /// How.
        message: String,
    },
    /// Another process that was lost; the job cannot go on.
    #[error("step {step}: {peer}")]
    Peer {
        /// The step under way.
        step: u64,
        /// Who, and what became of it.
        peer: PeerError,
    },
    /// A worker that failed; the executor cannot go on.
    #[error("worker {worker} failed: {message}")]
    Worker {
        /// Which.
        worker: usize,
        /// How.
        message: String,
    },
}
