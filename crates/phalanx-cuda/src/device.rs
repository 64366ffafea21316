//! The interface to the device that runs a step: a GPU, or the emulator in tests.

use crate::launch::{Block, Ptr};
use crate::work_item::WorkItem;
use phalanx_exec::ExecError;

/// Steps whose inputs can be staged on a GPU at the same time. Each has its own copy there.
pub(crate) const MAX_STAGED_STEPS: usize = 2;

/// A step that a device has prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepId(pub usize);

/// A step's work items, and the source of the kernels generated for it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    /// In a valid order of execution.
    pub work_items: Vec<WorkItem>,
    /// The source of the kernels of [`crate::launch::Source::Tapes`].
    pub tapes: String,
}

/// Size of the step lists of a GPU's replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ArgLists {
    pub replicas: usize,
    /// Bytes of each list.
    pub bytes: usize,
}

/// One GPU with the memory of every replica on it.
pub(crate) trait GpuDevice: Send {
    /// Whether it reduces with other GPUs. Also true for a group of one.
    fn joined(&self) -> bool {
        false
    }

    /// Aborts all collectives of this GPU, so that no other GPU waits for it.
    fn abort(&mut self) {}

    /// Grows a block to at least `bytes`. New bytes are zero; blocks that outlive a step keep their
    /// content. Returns `true` if the block was relocated: steps that were prepared before must be
    /// prepared again.
    fn reserve(
        &mut self,
        replica: usize,
        block: Block,
        bytes: usize,
        purpose: &str,
    ) -> Result<bool, ExecError>;

    /// Writes memory, after all started steps have finished.
    fn write(&mut self, at: Ptr, bytes: &[u8]) -> Result<(), ExecError>;

    /// Reads memory, after all started steps have finished.
    fn read(&self, at: Ptr, bytes: &mut [u8]) -> Result<(), ExecError>;

    /// Compiles a step's kernels and selects its library plans.
    fn prepare(&mut self, plan: Plan) -> Result<StepId, ExecError>;

    /// Captures a prepared step, so that it can be started. All GPUs that reduce with each other do
    /// this at the same time.
    fn capture(&mut self, _step: StepId) -> Result<(), ExecError> {
        Ok(())
    }

    /// Stages the feeds of the next step while others may be in flight. `fill` writes `bytes` bytes
    /// of each replica, which follow the head.
    fn stage(
        &mut self,
        replicas: usize,
        bytes: usize,
        fill: &mut dyn FnMut(usize, &mut [u8]),
    ) -> Result<(), ExecError>;

    /// Starts a step after all that were started before, with this head and the feeds staged last.
    fn start(&mut self, step: StepId, head: &[u8]) -> Result<(), ExecError>;

    /// Fills each replica's step list with `fill`, and starts `steps` steps.
    fn start_steps(
        &mut self,
        step: StepId,
        steps: usize,
        lists: ArgLists,
        fill: &mut dyn FnMut(usize, &mut [u8]),
    ) -> Result<(), ExecError>;

    /// The best number of steps per launch.
    fn steps_per_launch(&self, step: StepId) -> usize;

    /// Drops a step, after all started steps have finished.
    fn forget(&mut self, step: StepId);

    /// Frees a block that no step uses any more, after all started steps have finished.
    fn free(&mut self, replica: usize, block: Block);

    /// Free memory in bytes, if known.
    fn free_memory(&self) -> Option<usize>;

    /// Whether a started step is still in flight.
    fn busy(&self) -> bool {
        false
    }

    /// Runs each work item of a step by itself, many times, and returns its seconds per run. `None`
    /// if it cannot be measured, as for reductions across GPUs. The content of memory is undefined
    /// afterwards.
    fn measure(&mut self, _step: StepId) -> Result<Vec<Option<f64>>, ExecError> {
        Ok(vec![])
    }

    /// Waits for all started steps, then reads the beginning of a block of each replica.
    fn finish(&mut self, from: Block, fetches: &mut [&mut [u8]]) -> Result<(), ExecError>;
}
