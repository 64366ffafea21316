//! Dispatch of ops to kernels, one file per family of ops.

mod conv;
mod dense;
mod index;
mod layout;
mod norm;
mod pool;
mod random;
mod reduce;
mod softmax;

use crate::kernels::elementwise::{TapeInput, TapeOutput, TapePlan};
use crate::kernels::{conv as conv_kernels, dot};
use crate::spatial_split;
use crate::update;
use crate::worker::WorkerCtx;
use phalanx_graph::program::{Instr, Options, Program, ValueId};
use phalanx_graph::{ConvGeom, Op};

/// Maximum number of operands of a tape.
const MAX_OPERANDS: usize = 40;

/// Bytes of scratch memory that the program's instructions need.
pub(crate) fn scratch_bytes(
    program: &Program,
    tapes: &[Option<TapePlan>],
    update: Option<&TapePlan>,
) -> usize {
    let updates = update::scratch_len(program.update(), update);
    let mut floats = updates.max(spatial_split::scratch_len(program));
    for (instr, tape) in program.instrs().iter().zip(tapes) {
        let need = match (instr, tape) {
            (_, Some(tape)) => tape.scratch_len(),
            (Instr::Compute { op, inputs, .. }, _) => {
                let dims = |i: usize| &program.value(inputs[i]).ty.dims;
                match op {
                    Op::Dot(_) | Op::DotGradInput => dot::scratch_len(dims(1)[0], dims(1)[1]),
                    Op::Conv(g, _) => conv_scratch(program, g, conv_kernels::Pass::Forward),
                    Op::ConvGradInput(g) => conv_scratch(program, g, conv_kernels::Pass::GradInput),
                    Op::ConvGradKernel(g) => {
                        conv_scratch(program, g, conv_kernels::Pass::GradKernel)
                    }
                    Op::BatchNorm(_) | Op::BatchNormGradSums(_) | Op::BatchNormGradInput(_) => {
                        // Four vectors of floats and two of doubles.
                        8 * program.value(inputs[0]).ty.last()
                    }
                    Op::ThresholdCounts { n } => 4 * n,
                    _ => 0,
                }
            }
            (Instr::SlicedDot { kernel, .. } | Instr::SlicedGradInput { kernel, .. }, _) => {
                let dims = &program.value(*kernel).ty.dims;
                dot::scratch_len(dims[0], dims[1])
            }
            _ => 0,
        };
        floats = floats.max(need);
    }
    floats * 4
}

/// How a program computes a convolution. The choice depends on the maximum batch size, not on the rows of a
/// particular batch.
pub(crate) fn conv_method(
    program: &Program,
    geom: &ConvGeom,
    pass: conv_kernels::Pass,
) -> conv_kernels::Method {
    let Options { mesh, max_batch, .. } = program.options();
    conv_kernels::Method::choose(geom, pass, mesh.max_rows(max_batch))
}

fn conv_scratch(program: &Program, geom: &ConvGeom, pass: conv_kernels::Pass) -> usize {
    conv_kernels::scratch_len(conv_method(program, geom, pass), geom, pass)
}

impl WorkerCtx<'_> {
    /// Runs the tape of instruction `at`.
    pub fn tape(&self, at: usize, inputs: &[ValueId], output: ValueId) {
        let plan = self.run.loaded.tapes[at].as_ref();
        let plan = plan.expect("`load` prepares the tape");
        let out = self.value(output);
        let width = out.ty.last().max(1);
        let mut operands = [TapeInput { ptr: std::ptr::null(), ld: 0 }; MAX_OPERANDS];
        for (slot, id) in operands.iter_mut().zip(inputs) {
            *slot = self.src(*id);
            // A scalar among vectors, or a value with one element per row, has no last axis of its own.
            if self.value(*id).contiguous() {
                slot.ld = width;
            }
        }
        let mut result = self.dst(output);
        if out.contiguous() {
            result.ld = width;
        }
        let result: [TapeOutput; 1] = [result];
        let pixels = self.my_range(self.elements(output) / width);
        let elements = pixels.start * width..pixels.end * width;
        // SAFETY: the plan gave every operand the memory its type needs. The result overlaps an operand
        // only if it replaces it entirely.
        unsafe {
            let operands = &operands[..inputs.len()];
            plan.run(self.run.isa, width, elements, operands, &result, self.scratch());
        }
    }

    /// Computes `y` from the operands `x` with the kernel of `op`.
    ///
    /// Why the kernels' contracts hold: operands and result have the memory their types need for this
    /// worker's rows, and each kernel accesses no more than that. The verifier checked that types and
    /// attributes agree. A result shares no byte with an operand, unless the plan lets a tape or dropout
    /// work in place. It may lie between the pixels of an operand (two parts of a concatenation), but
    /// not for kernels that take slices of both.
    pub fn compute(&self, at: usize, op: &Op, x: &[ValueId], y: ValueId) {
        match op {
            Op::Fused(_) => self.tape(at, x, y),
            Op::Const { .. }
            | Op::Cast { .. }
            | Op::Broadcast { .. }
            | Op::Reduce { .. }
            | Op::SumRows => self.compute_reduce(op, x, y),
            Op::Transpose { .. }
            | Op::Concat { .. }
            | Op::Slice { .. }
            | Op::Pad { .. }
            | Op::Upsample { .. }
            | Op::UpsampleGrad { .. }
            | Op::AffineSample(..)
            | Op::AffineSampleGrad(..) => self.compute_layout(op, x, y),
            Op::Dot(..) | Op::DotGradInput | Op::DotGradKernel => self.compute_dense(op, x, y),
            Op::Conv(..) | Op::ConvGradInput(..) | Op::ConvGradKernel(..) => {
                self.compute_conv(op, x, y)
            }
            Op::Pool(..) | Op::PoolGrad(..) => self.compute_pool(op, x, y),
            Op::Softmax | Op::LogSoftmax | Op::SparseXent | Op::SparseXentGrad => {
                self.compute_softmax(op, x, y)
            }
            Op::Gather
            | Op::GatherGrad { .. }
            | Op::OneHot { .. }
            | Op::ArgMax
            | Op::InTopK { .. }
            | Op::ThresholdCounts { .. } => self.compute_index(op, x, y),
            Op::Dropout { .. } | Op::Uniform { .. } => self.compute_random(op, x, y),
            Op::Moments
            | Op::BatchStats { .. }
            | Op::BatchNorm(..)
            | Op::BatchNormGradSums(..)
            | Op::BatchNormGradInput(..) => self.compute_norm(op, x, y),
            Op::Feed { .. }
            | Op::Param { .. }
            | Op::Unary(_)
            | Op::Binary(_)
            | Op::Select
            | Op::Reshape { .. }
            | Op::AllReduce { .. }
            | Op::ReplicaMean => {
                unreachable!("{} is not computed: the compiler lowers it", op.name())
            }
        }
    }
}

/// Scratch memory as doubles.
fn doubles(scratch: &mut [f32]) -> &mut [f64] {
    let ptr = scratch.as_mut_ptr();
    debug_assert!(ptr.cast::<f64>().is_aligned());
    // SAFETY: callers pass the start of the scratch buffer, which is 64-byte aligned. Every bit pattern
    // is a valid double.
    unsafe { std::slice::from_raw_parts_mut(ptr.cast(), scratch.len() / 2) }
}
