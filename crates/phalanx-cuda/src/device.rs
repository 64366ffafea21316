//! What carries out the tasks of a step: a GPU, or whatever stands for one in tests.

use crate::launch::{Block, Ptr};
use crate::work_item::WorkItem;
use phalanx_graph::exec::ExecError;

/// Steps whose inputs may be on their way to a GPU at the same time: each has a copy of its own there.
pub(crate) const MAX_STAGED_STEPS: usize = 2;

/// A step that a machine has made ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepId(pub usize);

/// A step's work, and the kernels that were written for it alone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    /// In an order that can be kept.
    pub work_items: Vec<WorkItem>,
    /// The source of the kernels of [`crate::launch::Source::Tapes`].
    pub tapes: String,
}

/// The lists of a GPU's replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ArgLists {
    pub replicas: usize,
    /// Of each.
    pub bytes: usize,
}

/// One GPU with the memory of every replica on it.
pub(crate) trait GpuDevice: Send {
    /// Whether it adds with other machines, or would if there were any.
    fn joined(&self) -> bool {
        false
    }

    /// Has nobody wait for this machine any more: what all do together fails from now on.
    fn abort(&mut self) {}

    /// Gives a block at least so many bytes. New bytes are zero; those of blocks that outlive a step survive.
    /// Steps made ready before must be made ready again if `true` comes back: the block has moved.
    fn reserve(
        &mut self,
        replica: usize,
        block: Block,
        bytes: usize,
        purpose: &str,
    ) -> Result<bool, ExecError>;

    /// Writes memory, once everything started is done.
    fn write(&mut self, at: Ptr, bytes: &[u8]) -> Result<(), ExecError>;

    /// Reads memory, once everything started is done.
    fn read(&self, at: Ptr, bytes: &mut [u8]) -> Result<(), ExecError>;

    /// Compiles a step's kernels and chooses its plans.
    fn prepare(&mut self, plan: Plan) -> Result<StepId, ExecError>;

    /// Makes a prepared step ready to be started. All machines that add with each other do this at the
    /// same time.
    fn capture(&mut self, _step: StepId) -> Result<(), ExecError> {
        Ok(())
    }

    /// Takes the feeds of the next step, while others may be under way: `fill` writes `bytes` of each
    /// replica, which follow the head.
    fn stage(
        &mut self,
        replicas: usize,
        bytes: usize,
        fill: &mut dyn FnMut(usize, &mut [u8]),
    ) -> Result<(), ExecError>;

    /// Starts a step behind whatever was started before, with this head and the feeds staged last.
    fn start(&mut self, step: StepId, head: &[u8]) -> Result<(), ExecError>;

    /// Writes each replica's list of turns with `fill`, and starts a step for each of them.
    fn start_steps(
        &mut self,
        step: StepId,
        steps: usize,
        lists: ArgLists,
        fill: &mut dyn FnMut(usize, &mut [u8]),
    ) -> Result<(), ExecError>;

    /// How many turns of a step are best started together.
    fn steps_per_launch(&self, step: StepId) -> usize;

    /// Forgets a step, once everything started is done.
    fn forget(&mut self, step: StepId);

    /// Frees a block that no step uses any more, once everything started is done.
    fn free(&mut self, replica: usize, block: Block);

    /// Bytes that are still to be had, where that is known.
    fn free_memory(&self) -> Option<usize>;

    /// Whether what was started is still under way.
    fn busy(&self) -> bool {
        false
    }

    /// Runs each work of a step by itself, many times, and says how many seconds one takes; nothing
    /// where that cannot be measured, as for sums over GPUs. Memory is left in whatever state that gives.
    fn measure(&mut self, _step: StepId) -> Result<Vec<Option<f64>>, ExecError> {
        Ok(vec![])
    }

    /// Waits for everything started and reads what each replica has at the start of a block.
    fn finish(&mut self, from: Block, fetches: &mut [&mut [u8]]) -> Result<(), ExecError>;
}
