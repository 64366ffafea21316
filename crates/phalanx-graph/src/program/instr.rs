//! The instructions of a program.

use super::ValueId;
use crate::graph::ParamId;
use crate::ops::Op;
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
        /// The layer, for profiles and messages; index into the program's scopes.
        scope: u32,
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
    /// Multiplies all rows of the device by this worker's slice of a dense kernel, which gives a
    /// partial product for [`AddSlices`](Instr::AddSlices).
    SlicedDot {
        /// The layer's input.
        x: ValueId,
        /// The kernel.
        kernel: ValueId,
        /// The partial product: a shared value with all rows of the device.
        output: ValueId,
        /// The layer.
        scope: u32,
    },
    /// Adds the partial products of the device's workers; each worker computes its own rows.
    AddSlices {
        /// A partial product of [`SlicedDot`](Instr::SlicedDot).
        input: ValueId,
        /// The bias, if any.
        bias: Option<ValueId>,
        /// Whether to apply a ReLU.
        relu: bool,
        /// The sum.
        output: ValueId,
        /// The layer.
        scope: u32,
    },
    /// Computes the columns of a dense layer's input derivative that belong to this worker's slice of
    /// the kernel, for all rows of the device.
    SlicedGradInput {
        /// The derivative of the layer's output.
        dy: ValueId,
        /// The kernel.
        kernel: ValueId,
        /// The derivative of its input, in the device's block.
        output: ValueId,
        /// The layer.
        scope: u32,
    },
    /// Computes this worker's slice of a dense kernel's gradient over all rows of its device, for other
    /// devices to read. Used where it is cheaper than reducing full partial gradients.
    SlicedGradient {
        /// The kernel.
        param: ParamId,
        /// The layer's input.
        x: ValueId,
        /// The derivative of its output.
        dy: ValueId,
    },
    /// Reduces all gradients and applies the optimizer; each worker updates its slice.
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
