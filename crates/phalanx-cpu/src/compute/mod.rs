//! Dispatch of ops to kernels, one file per family of ops.

mod conv;
mod dense;
mod index;
mod layout;
mod norm;
mod pool;
mod random;
mod recurrent;
mod reduce;
mod softmax;

use crate::collectives::update;
use crate::kernels::conv::{self as conv_kernels, Method, Pass};
use crate::kernels::elementwise::{TapeInput, TapeOutput, TapePlan};
use crate::kernels::matrix::Epilogue;
use crate::kernels::{dot, matmul, recurrent as recurrent_kernels};
use crate::worker::{WorkerCtx, spatial_split};
use phalanx_graph::ops::PartsOp;
use phalanx_graph::program::{Instr, Options, Program, ValueId};
use phalanx_graph::{ConvGeom, Op, ops};

pub(crate) use self::norm::batch_norm;

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
                    Op::MatMul(_) => matmul::scratch_len(),
                    Op::Recurrent(_) | Op::RecurrentGrad(..) => {
                        recurrent_kernels::scratch_len(dims(1)[0])
                    }
                    Op::Conv(g, _) => conv_scratch(program, g, Pass::Forward),
                    Op::ConvGradInput(g) => conv_scratch(program, g, Pass::GradInput),
                    Op::ConvGradKernel(g) => conv_scratch(program, g, Pass::GradKernel),
                    Op::BatchNorm(_) | Op::BatchNormGradSums(_) | Op::BatchNormGradInput(_) => {
                        // Four vectors of floats and two of doubles.
                        8 * program.value(inputs[0]).ty.last()
                    }
                    Op::ThresholdCounts { n } => 4 * n,
                    _ => 0,
                }
            }
            _ => 0,
        };
        floats = floats.max(need);
    }
    floats * 4
}

/// How a program computes a convolution. The choice depends on the maximum batch size, not on the rows of a
/// particular batch.
pub(crate) fn conv_method(program: &Program, geom: &ConvGeom, pass: Pass) -> Method {
    let Options { mesh, max_batch, .. } = program.options();
    Method::choose(geom, pass, mesh.max_rows(max_batch))
}

fn conv_scratch(program: &Program, geom: &ConvGeom, pass: Pass) -> usize {
    conv_kernels::scratch_len(conv_method(program, geom, pass), geom, pass)
}

/// Runs the tape of instruction `at`.
pub(crate) fn tape(ctx: &WorkerCtx<'_>, at: usize, inputs: &[ValueId], output: ValueId) {
    let plan = ctx.run.loaded.tapes[at].as_ref();
    let plan = plan.expect("`load` prepares the tape");
    let out = ctx.value(output);
    let width = out.ty.last().max(1);
    let mut operands = [TapeInput { ptr: std::ptr::null(), ld: 0 }; MAX_OPERANDS];
    for (slot, id) in operands.iter_mut().zip(inputs) {
        *slot = ctx.src(*id);
        // A scalar among vectors, or a value with one element per row, has no last axis of its own.
        if ctx.value(*id).contiguous() {
            slot.ld = width;
        }
    }
    let mut result = ctx.dst(output);
    if out.contiguous() {
        result.ld = width;
    }
    let result: [TapeOutput; 1] = [result];
    let pixels = ctx.my_range(ctx.elements(output) / width);
    let elements = pixels.start * width..pixels.end * width;
    // SAFETY: the plan gave every operand the memory its type needs. The result overlaps an operand
    // only if it replaces it entirely. Nothing else uses the scratch memory during this instruction.
    unsafe {
        let operands = &operands[..inputs.len()];
        plan.run(ctx.run.isa, width, elements, operands, &result, ctx.scratch());
    }
}

/// The epilogue of a product whose operands are `x`.
///
/// # Safety
/// As [`WorkerCtx::slice`], for the bias.
pub(crate) unsafe fn epilogue<'a>(
    ctx: &WorkerCtx<'a>,
    e: &ops::Epilogue,
    x: &[ValueId],
) -> Epilogue<'a> {
    // SAFETY: the caller's contract.
    Epilogue { bias: e.bias.then(|| unsafe { ctx.slice(x[2]) }), relu: e.relu }
}

/// Computes `y` from the operands `x` with the kernel of `op`.
///
/// Why the contracts of the kernels and of the worker's memory hold:
///
/// - Operands and result have the memory their types need for this worker's rows, and each kernel accesses no
///   more than that. The verifier checked that types and attributes agree.
/// - Operands are complete, and no other worker writes to them during the instruction.
/// - A result shares no byte with an operand, unless the plan lets a tape or dropout work in place. It may
///   lie between the pixels of an operand (two parts of a concatenation), but not for kernels that take
///   slices or matrices of both (`needs_own_buffer` in the lowering).
/// - Only the running instruction uses the worker's scratch memory.
pub(crate) fn compute(ctx: &WorkerCtx<'_>, at: usize, op: &Op, x: &[ValueId], y: ValueId) {
    match op {
        Op::Fused(_) => tape(ctx, at, x, y),
        Op::Const { .. }
        | Op::Cast { .. }
        | Op::Broadcast { .. }
        | Op::Reduce { .. }
        | Op::Cumulative { .. }
        | Op::SumRows => reduce::compute(ctx, op, x, y),
        Op::Transpose { .. }
        | Op::Concat { .. }
        | Op::Slice { .. }
        | Op::Stride { .. }
        | Op::Dilate { .. }
        | Op::Pad { .. }
        | Op::Upsample { .. }
        | Op::UpsampleGrad { .. }
        | Op::AffineSample(..)
        | Op::AffineSampleGrad(..)
        | Op::Parts(PartsOp::Slice { .. }) => layout::compute(ctx, op, x, y),
        Op::Dot(..) | Op::DotGradInput | Op::DotGradKernel | Op::MatMul(..) => {
            dense::compute(ctx, op, x, y)
        }
        Op::Conv(..) | Op::ConvGradInput(..) | Op::ConvGradKernel(..) => {
            conv::compute(ctx, op, x, y)
        }
        Op::Pool(..) | Op::PoolGrad(..) => pool::compute(ctx, op, x, y),
        Op::Softmax | Op::SoftmaxGrad | Op::LogSoftmax | Op::SparseXent | Op::SparseXentGrad => {
            softmax::compute(ctx, op, x, y)
        }
        Op::Gather
        | Op::GatherGrad { .. }
        | Op::Take(_)
        | Op::TakeGrad { .. }
        | Op::OneHot { .. }
        | Op::ArgMax
        | Op::ArgSort
        | Op::InTopK { .. }
        | Op::ThresholdCounts { .. }
        | Op::RowIndex => index::compute(ctx, op, x, y),
        Op::Dropout { .. } | Op::Uniform { .. } => random::compute(ctx, op, x, y),
        Op::Moments
        | Op::BatchStats { .. }
        | Op::BatchNorm(..)
        | Op::BatchNormGradSums(..)
        | Op::BatchNormGradInput(..)
        | Op::LayerNorm(_)
        | Op::LayerNormGrad(_) => norm::compute(ctx, op, x, y),
        Op::Recurrent(_) | Op::RecurrentGrad(..) => recurrent::compute(ctx, op, x, y),
        Op::Feed { .. }
        | Op::Param { .. }
        | Op::Unary(_)
        | Op::Binary(_)
        | Op::Select
        | Op::Reshape { .. }
        | Op::AllReduce { .. }
        | Op::ReplicaMean
        | Op::Model(_)
        | Op::Parts(_) => {
            unreachable!("{} is not computed: the compiler lowers it", op.name())
        }
    }
}

/// Scratch memory as doubles.
fn doubles(scratch: &mut [f32]) -> &mut [f64] {
    let ptr = scratch.as_mut_ptr();
    assert!(ptr.cast::<f64>().is_aligned(), "scratch memory starts at a multiple of 64 bytes");
    // SAFETY: aligned, as checked, and within the slice. Every bit pattern is a valid double.
    unsafe { std::slice::from_raw_parts_mut(ptr.cast(), scratch.len() / 2) }
}
