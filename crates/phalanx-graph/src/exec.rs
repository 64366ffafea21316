//! The interface of executors, independent of the device.

use crate::graph::{ParamId, ParamSpec};
use crate::process_group::{LocalShard, PeerError};
use crate::profile::Profile;
use crate::program::{Mesh, Program};
use crate::resident::{Column, StepInput, TableId};
use crate::text::part;
use crate::types::DType;
use crate::update::Slot;
use thiserror::Error;

/// The elements of a feed on the host: all rows of the global batch (with several processes, only
/// the rows of this process), or one mirrored value.
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

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Gradient accumulation: how this step contributes to an update over several steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Accumulate {
    /// Whether this step resets the sum.
    pub first: bool,
    /// Weight of this step's gradient in the sum.
    pub weight: f32,
    /// On the last step, the factor that turns the sum into a mean; `None` on the others.
    pub apply: Option<f32>,
}

/// The inputs of one step.
#[derive(Clone, Copy, Debug, Default)]
pub struct Batch<'a> {
    /// Rows of the global batch.
    pub rows: usize,
    /// One entry per feed of the program, with the rows of this executor's devices only.
    pub feeds: &'a [FeedData<'a>],
    /// The run's seed.
    pub seed: u64,
    /// The step number, which random numbers are derived from.
    pub step: u64,
    /// The optimizer's scalars for this step.
    pub scalars: &'a [f32],
    /// Gradient accumulation, if enabled.
    pub accumulate: Option<Accumulate>,
    /// Whether the feeds were already uploaded by [`Executor::stage`].
    pub staged: bool,
}

impl Program {
    /// Fails unless the program was compiled for the given devices and parameters.
    pub fn check_executor(&self, mesh: Mesh, params: &[ParamSpec]) -> Result<(), ExecError> {
        let reject = |reason: &str| {
            Err(ExecError::Program { name: self.name.clone(), reason: reason.into() })
        };
        if self.options.mesh != mesh {
            return reject("it was compiled for other devices");
        }
        let same = |(a, b): (&ParamSpec, &ParamSpec)| a.name == b.name && a.dims == b.dims;
        if self.params.len() != params.len() || !self.params.iter().zip(params).all(same) {
            return reject("its parameters differ from the executor's");
        }
        Ok(())
    }

    /// Fails if a program in `loaded` has different optimizer slots: all programs of an executor share
    /// their slots.
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

    /// Fails unless the batch has the feeds, rows and scalars that the program was compiled for.
    pub fn check_batch(&self, batch: &Batch<'_>) -> Result<(), ExecError> {
        self.check_own_batch(batch, batch.rows)
    }

    /// Like [`check_batch`](Program::check_batch), for feeds that hold only `own` rows of the batch.
    pub fn check_own_batch(&self, batch: &Batch<'_>, own: usize) -> Result<(), ExecError> {
        self.check_own_feeds(batch, own)?;
        let scalars = self.update.as_ref().map_or(batch.scalars.len(), |u| u.rule.scalars);
        if scalars == batch.scalars.len() {
            return Ok(());
        }
        let (expected, received) = (scalars.to_string(), batch.scalars.len().to_string());
        Err(ExecError::Feed { name: "optimizer scalars".into(), expected, received })
    }

    /// Fails unless the batch has the feeds and rows that the program was compiled for. The feeds hold
    /// `own` rows of it.
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

/// Runs programs on one set of parameters, which is mirrored on every device.
pub trait Executor: Send {
    /// The devices and workers that programs must be compiled for.
    fn mesh(&self) -> Mesh;

    /// The devices of the mesh that belong to this process: all of them unless there are several
    /// processes. The feeds of a batch hold the rows of these devices only.
    fn shard(&self) -> LocalShard {
        let mesh = self.mesh();
        LocalShard { mesh, devices: 0..mesh.devices }
    }

    /// Sets flag bits, which the next step shares with all processes.
    fn set_flags(&mut self, _bits: u64) {}

    /// The union of the flag bits of all processes as of the last step; `None` with a single process.
    fn flags(&self) -> Option<u64> {
        None
    }

    /// Loads a program. All programs of an executor share one parameter table.
    fn load(&mut self, program: Program) -> Result<ProgramId, ExecError>;

    /// Uploads the feeds of the next step, possibly while another step is in flight; the batch of that
    /// step then sets [`Batch::staged`]. An executor that reads feeds in place ignores the call.
    fn stage(&mut self, _program: ProgramId, _batch: &Batch<'_>) -> Result<(), ExecError> {
        Ok(())
    }

    /// Starts a step. Only one may be in flight: call [`finish`](Executor::finish) before the next.
    fn start(&mut self, program: ProgramId, batch: &Batch<'_>) -> Result<(), ExecError>;

    /// Waits for the step in flight. `fetched` receives one vector per fetch: the rows of the batch in
    /// order, or the mirrored value.
    fn finish(&mut self, fetched: &mut Vec<Vec<f32>>) -> Result<(), ExecError>;

    /// Whether a started step is still in flight.
    fn in_flight(&self) -> bool {
        false
    }

    /// Runs a step to completion.
    fn run(
        &mut self,
        program: ProgramId,
        batch: &Batch<'_>,
        fetched: &mut Vec<Vec<f32>>,
    ) -> Result<(), ExecError> {
        self.start(program, batch)?;
        self.finish(fetched)
    }

    /// Makes samples resident on every device, one column for each feed with rows, so that steps can
    /// refer to rows by index. Returns `None` if the executor does not support this or lacks the memory.
    fn upload(&mut self, _columns: &[Column<'_>]) -> Result<Option<TableId>, ExecError> {
        Ok(None)
    }

    /// Frees a resident table.
    fn evict(&mut self, _table: TableId) {}

    /// The number of steps on full batches of a table that are best launched together.
    fn steps_per_launch(
        &mut self,
        _program: ProgramId,
        _table: TableId,
        _rows: usize,
    ) -> Result<usize, ExecError> {
        Ok(1)
    }

    /// Starts consecutive steps on rows of a table, like [`start`](Executor::start) for one step.
    fn start_steps(
        &mut self,
        program: ProgramId,
        table: TableId,
        _inputs: &[StepInput<'_>],
    ) -> Result<(), ExecError> {
        let reason =
            format!("this executor has no resident samples, so there is no table {}", table.0);
        Err(ExecError::Program { name: format!("#{}", program.0), reason })
    }

    /// Waits for the steps of [`start_steps`](Executor::start_steps). `fetched` receives, for each step,
    /// what [`finish`](Executor::finish) returns for one.
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

    /// Reads a parameter's accumulated gradient; `None` before the first accumulation step.
    fn accumulated(&self, id: ParamId) -> Option<Vec<f32>>;

    /// Sets a parameter's accumulated gradient on every device.
    fn set_accumulated(&mut self, id: ParamId, values: &[f32]) -> Result<(), ExecError>;

    /// Checks that all devices hold bitwise identical state.
    fn check_consistency(&self) -> Result<(), ExecError>;

    /// The time spent in training steps so far.
    fn times(&self) -> StepTimes;

    /// Starts or stops timing every instruction. Starting resets earlier measurements. An executor
    /// without instruction timing ignores the call.
    fn set_profiling(&mut self, _on: bool) {}

    /// The measurements of a program, if any.
    fn profile(&self, _program: ProgramId) -> Option<Profile> {
        None
    }
}

/// Time spent in training steps, in seconds, as measured by the first worker.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepTimes {
    /// Forward and backward.
    pub compute: f64,
    /// Waiting for other workers, reducing gradients and updating weights.
    pub reduce: f64,
}

/// An error from loading or running a program.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ExecError {
    /// A feed whose size or type differs from the program's.
    #[error("feed '{}': expected {expected}, received {received}", part(name))]
    Feed {
        /// The feed.
        name: String,
        /// Its type and size.
        expected: String,
        /// The size and type that were passed.
        received: String,
    },
    /// A parameter with the wrong number of elements.
    #[error("parameter {}: expected {expected} elements, received {received}", part(name))]
    Param {
        /// The parameter.
        name: String,
        /// Its number of elements.
        expected: usize,
        /// The number of elements that were passed.
        received: usize,
    },
    /// A program that is incompatible with the executor.
    #[error("program '{}' does not fit this executor: {reason}", part(name))]
    Program {
        /// The program.
        name: String,
        /// Why.
        reason: String,
    },
    /// An instruction set that this processor does not support.
    #[error(
        "PHALANX_ISA: expected one that this processor has ({available}), received '{}'",
        part(received)
    )]
    InstructionSet {
        /// The supported instruction sets.
        available: String,
        /// The requested one.
        received: String,
    },
    /// Replicas whose state is no longer bitwise identical.
    #[error("replicas drifted apart: '{}' differs between {first} and {second}", part(param))]
    Drift {
        /// The parameter.
        param: String,
        /// A device.
        first: String,
        /// Another device.
        second: String,
    },
    /// An allocation that failed.
    #[error("out of memory: {wanted} bytes for {purpose}")]
    Memory {
        /// The requested bytes.
        wanted: usize,
        /// The use of the memory.
        purpose: String,
        /// The total bytes available to a replica, including those already allocated, if known.
        available: Option<usize>,
    },
    /// A device failure, after which the executor cannot continue.
    #[error("{device}: {message}")]
    Device {
        /// The device.
        device: String,
        /// The cause.
        message: String,
    },
    /// The loss of another process, after which the job cannot continue.
    #[error("step {step}: {peer}")]
    Peer {
        /// The step in flight.
        step: u64,
        /// The lost process and the cause.
        peer: PeerError,
    },
    /// A worker failure, after which the executor cannot continue.
    #[error("worker {worker} failed: {message}")]
    Worker {
        /// The worker.
        worker: usize,
        /// The cause.
        message: String,
    },
}
