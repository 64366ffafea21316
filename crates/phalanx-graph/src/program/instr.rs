//! The instructions of a program.

use super::ValueId;
use crate::graph::ParamId;
use crate::ops::{Op, PartsOp};
use crate::types::Scope;

/// An instruction. Every worker runs all instructions, each on its own rows.
#[derive(Clone, Debug, PartialEq)]
pub enum Instr {
    /// Runs an op's kernel.
    Compute {
        /// The op.
        op: Op,
        /// Its operands.
        inputs: Vec<ValueId>,
        /// Its result.
        output: ValueId,
        /// The layer, for profiles and messages; index into the program's layers.
        layer: u32,
        /// Whether each worker computes for all rows of the device, with its own rows of a dense
        /// kernel. `dot` gives a partial product for [`ReduceScatter`](Instr::ReduceScatter), and
        /// `dot_grad_input` the columns that belong to these rows of the kernel.
        sharded: bool,
    },
    /// Copies pixel by pixel between values of different strides.
    Copy {
        /// Source.
        input: ValueId,
        /// Destination.
        output: ValueId,
    },
    /// Waits for the workers of a scope.
    Barrier(Scope),
    /// Adds the partial sums of a scope's workers in index order.
    AllReduce {
        /// The workers to sum over.
        scope: Scope,
        /// A shared value.
        input: ValueId,
        /// The sum.
        output: ValueId,
    },
    /// Mean over devices, weighted by their rows, in index order.
    ReplicaMean {
        /// A shared value.
        input: ValueId,
        /// The mean.
        output: ValueId,
    },
    /// Exchanges parts among the devices of a replica, between two barriers: a worker reads those of the workers with the
    /// same rows.
    ExchangeParts {
        /// A sum, a maximum or a join.
        op: PartsOp,
        /// The part of each device.
        input: ValueId,
        /// The result.
        output: ValueId,
        /// The layer.
        layer: u32,
    },
    /// Adds the partial products of the device's workers; each worker gets its own rows of the sum.
    /// Not an op, because its operand has the rows of the device and its result those of a worker.
    ReduceScatter {
        /// The result of a sharded `dot`: a shared value with all rows of the device.
        input: ValueId,
        /// The bias, if any.
        bias: Option<ValueId>,
        /// Whether to apply a ReLU.
        relu: bool,
        /// The sum.
        output: ValueId,
        /// The layer.
        layer: u32,
    },
    /// Computes the gradient of this worker's rows of a dense kernel over all rows of its device, for
    /// other devices to read. Used where it is cheaper than reducing full partial gradients. Not a
    /// `Compute`, because no value describes its result: the gradient of a value is a worker's own
    /// partial sum, while this is the device's sum, of which each worker writes a part.
    ShardedGradKernel {
        /// The kernel.
        param: ParamId,
        /// The layer's input.
        x: ValueId,
        /// The derivative of its output.
        dy: ValueId,
    },
    /// Gathers the weights of a group from all memory domains, which have divided them. They are complete until the next
    /// such instruction.
    GatherWeights {
        /// Index into the program's groups.
        group: usize,
    },
    /// Reduces the gradients of a bucket over all devices, between two barriers; each memory domain gets the sums that it
    /// owns. Only programs with sharded gradients have it: the update reduces others.
    ReduceGradients {
        /// Index into the update's buckets.
        bucket: usize,
    },
    /// Reduces all gradients that are not reduced yet and applies the optimizer; each worker updates its part.
    Update,
    /// Assigns a value to a parameter, once per device.
    Assign {
        /// The parameter.
        param: ParamId,
        /// Its new value.
        value: ValueId,
    },
    /// Returns a value to the host.
    Fetch {
        /// Index of the fetch.
        index: usize,
        /// The value.
        value: ValueId,
    },
}

impl Instr {
    /// The values that it reads, in the order of its operands. Gradients that an update reads are in
    /// its plan.
    pub fn inputs(&self) -> Vec<ValueId> {
        match self {
            Instr::Compute { inputs, .. } => inputs.clone(),
            Instr::Copy { input, .. }
            | Instr::AllReduce { input, .. }
            | Instr::ReplicaMean { input, .. }
            | Instr::ExchangeParts { input, .. } => vec![*input],
            Instr::ReduceScatter { input, bias, .. } => [*input].into_iter().chain(*bias).collect(),
            Instr::ShardedGradKernel { x, dy, .. } => vec![*x, *dy],
            Instr::Assign { value, .. } | Instr::Fetch { value, .. } => vec![*value],
            Instr::Barrier(_)
            | Instr::GatherWeights { .. }
            | Instr::ReduceGradients { .. }
            | Instr::Update => vec![],
        }
    }

    /// The value that it writes, if any.
    pub fn output(&self) -> Option<ValueId> {
        match self {
            Instr::Compute { output, .. }
            | Instr::Copy { output, .. }
            | Instr::AllReduce { output, .. }
            | Instr::ReplicaMean { output, .. }
            | Instr::ExchangeParts { output, .. }
            | Instr::ReduceScatter { output, .. } => Some(*output),
            Instr::Barrier(_)
            | Instr::ShardedGradKernel { .. }
            | Instr::GatherWeights { .. }
            | Instr::ReduceGradients { .. }
            | Instr::Update
            | Instr::Assign { .. }
            | Instr::Fetch { .. } => None,
        }
    }
}
