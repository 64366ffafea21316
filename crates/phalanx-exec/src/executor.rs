//! The interface of executors, independent of the device. What only some executors can do has a trait of its own,
//! which [`Executor`] hands out if it is there.

use crate::batch::Batch;
use crate::cluster::LocalShard;
use crate::error::ExecError;
use crate::resident::{Column, StepInput, TableId};
use phalanx_graph::profile::Profile;
use phalanx_graph::update::UpdateRule;
use phalanx_graph::{Mesh, ParamId, Program};
use std::sync::Arc;

/// A program loaded into an executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramId(pub usize);

/// A part of the state that outlives a step. Devices mirror it or divide it; reading and writing concern the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateId {
    /// A parameter.
    Param(ParamId),
    /// An optimizer slot of a parameter.
    Slot(usize, ParamId),
    /// A parameter's accumulated gradient.
    Accumulated(ParamId),
}

/// Runs programs on one set of parameters, which the devices mirror or divide.
pub trait Executor: Send {
    /// The devices and workers that programs must be compiled for.
    fn mesh(&self) -> Mesh;

    /// The devices of the mesh that belong to this process: all of them unless there are several
    /// processes. The feeds of a batch hold the rows of these devices only.
    fn shard(&self) -> LocalShard;

    /// Loads a program. All programs of an executor share one parameter table.
    fn load(&mut self, program: Arc<Program>) -> Result<ProgramId, ExecError>;

    /// Unloads a program, of which no step may be in flight. The memory that programs share stays.
    fn unload(&mut self, program: ProgramId);

    /// Creates the slots of an optimizer with their initial values, unless they exist. Loading a program
    /// with an update does so too.
    fn create_slots(&mut self, rule: &UpdateRule) -> Result<(), ExecError>;

    /// Starts a step. Only one may be in flight: call [`finish`](Executor::finish) before the next.
    fn start(&mut self, program: ProgramId, batch: &Batch<'_>) -> Result<(), ExecError>;

    /// Waits for the step in flight. `fetched` receives one vector per fetch: the rows of the batch in
    /// order, or the mirrored value.
    fn finish(&mut self, fetched: &mut Vec<Vec<f32>>) -> Result<(), ExecError>;

    /// Whether a started step is still in flight.
    fn in_flight(&self) -> bool;

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

    /// Number of optimizer slots.
    fn slots(&self) -> usize;

    /// Reads a part of the state; `None` if it does not exist yet, such as gradients before the first
    /// accumulation step.
    fn read(&self, id: StateId) -> Result<Option<Vec<f32>>, ExecError>;

    /// Sets a part of the state, wherever it lies.
    fn write(&mut self, id: StateId, values: &[f32]) -> Result<(), ExecError>;

    /// Reads a parameter.
    fn param(&self, id: ParamId) -> Result<Vec<f32>, ExecError> {
        Ok(self.read(StateId::Param(id))?.expect("parameters exist from the start"))
    }

    /// Sets a parameter on every device.
    fn set_param(&mut self, id: ParamId, values: &[f32]) -> Result<(), ExecError> {
        self.write(StateId::Param(id), values)
    }

    /// Checks that all devices hold bitwise identical state.
    fn check_consistency(&self) -> Result<(), ExecError>;

    /// The time spent in training steps so far.
    fn times(&self) -> StepTimes;

    /// Uploads ahead of a step; `None` if feeds are read in place.
    fn staging(&mut self) -> Option<&mut dyn Staging>;

    /// Samples that stay on the devices; `None` if the executor cannot keep any.
    fn resident_data(&mut self) -> Option<&mut dyn ResidentData>;

    /// Timing of every instruction; `None` if the executor cannot measure it.
    fn profiling(&mut self) -> Option<&mut dyn Profiling>;

    /// Flags that processes share; `None` with a single process.
    fn process_flags(&mut self) -> Option<&mut dyn ProcessFlags>;
}

/// Uploads the feeds of a step ahead of it.
pub trait Staging {
    /// Uploads the feeds of the next step, possibly while another step is in flight; the batch of that
    /// step then sets [`Batch::staged`].
    fn stage(&mut self, program: ProgramId, batch: &Batch<'_>) -> Result<(), ExecError>;
}

/// Keeps samples on the devices, so that steps can refer to rows by index.
pub trait ResidentData {
    /// Makes samples resident on every device, one column for each feed with rows. Returns `None` if memory is
    /// lacking.
    fn upload(&mut self, columns: &[Column<'_>]) -> Result<Option<TableId>, ExecError>;

    /// Frees a resident table.
    fn evict(&mut self, table: TableId);

    /// The number of steps on full batches of a table that are best launched together.
    fn steps_per_launch(
        &mut self,
        program: ProgramId,
        table: TableId,
        rows: usize,
    ) -> Result<usize, ExecError>;

    /// Starts consecutive steps on rows of a table, like [`Executor::start`] for one step.
    fn start_steps(
        &mut self,
        program: ProgramId,
        table: TableId,
        inputs: &[StepInput<'_>],
    ) -> Result<(), ExecError>;

    /// Waits for the steps of [`start_steps`](ResidentData::start_steps). `fetched` receives, for each step,
    /// what [`Executor::finish`] returns for one.
    fn finish_steps(&mut self, fetched: &mut Vec<Vec<Vec<f32>>>) -> Result<(), ExecError>;
}

/// Times every instruction.
pub trait Profiling {
    /// Starts or stops the timing. Starting resets earlier measurements.
    fn set_profiling(&mut self, on: bool);

    /// The measurements of a program, if any.
    fn profile(&self, program: ProgramId) -> Option<Profile>;
}

/// Bits that the processes of a job share with every step.
pub trait ProcessFlags {
    /// Sets flag bits, which the next step shares with all processes.
    fn set_flags(&mut self, bits: u64);

    /// The union of the flag bits of all processes as of the last step.
    fn flags(&self) -> u64;
}

/// Time spent in training steps, in seconds, as measured by the first worker. A device whose step is one launch
/// counts all of it as `compute`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepTimes {
    /// Forward and backward.
    pub compute: f64,
    /// Waiting for other workers, reducing gradients and updating weights.
    pub reduce: f64,
}
