//! Dispatch of ops to kernels.

use crate::kernels::elementwise::{TapeInput, TapeOutput, TapePlan};
use crate::kernels::layout::Upsample;
use crate::kernels::random::Dropout;
use crate::kernels::{conv, dot, index, layout, norm, pool, random, reduce, sample, softmax};
use crate::spatial_split;
use crate::update;
use crate::worker::WorkerCtx;
use phalanx_graph::exec::Batch;
use phalanx_graph::ops::{BatchNormAttrs, PoolKind};
use phalanx_graph::program::{Instr, Options, Program, ValueId};
use phalanx_graph::rng::Draw;
use phalanx_graph::{ConvGeom, DType, Op};

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
                    Op::Conv(g, _) => conv_scratch(program, g, conv::Pass::Forward),
                    Op::ConvGradInput(g) => conv_scratch(program, g, conv::Pass::GradInput),
                    Op::ConvGradKernel(g) => conv_scratch(program, g, conv::Pass::GradKernel),
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
pub(crate) fn conv_method(program: &Program, geom: &ConvGeom, pass: conv::Pass) -> conv::Method {
    let Options { mesh, max_batch, .. } = program.options();
    conv::Method::choose(geom, pass, mesh.max_rows(max_batch))
}

fn conv_scratch(program: &Program, geom: &ConvGeom, pass: conv::Pass) -> usize {
    conv::scratch_len(conv_method(program, geom, pass), geom, pass)
}

impl<'a> WorkerCtx<'a> {
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
    #[allow(clippy::too_many_lines)]
    pub fn compute(&self, at: usize, op: &Op, x: &[ValueId], y: ValueId) {
        let isa = self.run.isa;
        let rows = self.row_count(y);
        let dims = |id: ValueId| &self.value(id).ty.dims[..];
        // SAFETY (for all kernels below): operands and result have the memory their types need for
        // this worker's rows, and each kernel accesses no more than that. The verifier checked that
        // types and attributes agree. A result shares no byte with an operand, unless the plan lets a
        // tape or dropout work in place. It may lie between the pixels of an operand (two parts of a
        // concatenation), but not for kernels that take slices of both.
        match op {
            Op::Fused(_) => self.tape(at, x, y),
            Op::Const { bits, .. } => self.slice_mut(y).fill(f64::from_bits(*bits) as f32),
            // SAFETY: see above.
            Op::Cast { dtype } => unsafe {
                match (self.value(x[0]).ty.dtype, dtype) {
                    (DType::I32, DType::F32) => {
                        reduce::cast_to_f32(self.elements(y), self.i32(x[0]), self.f32(y));
                    }
                    (DType::F32, DType::I32) => {
                        reduce::cast_to_i32(self.elements(y), self.f32(x[0]), self.i32(y));
                    }
                    (from, to) => unreachable!("no graph casts {from} to {to}"),
                }
            },
            // SAFETY: see above.
            Op::Broadcast { dims: to } => unsafe {
                reduce::broadcast(rows, dims(x[0]), to, self.f32(x[0]), self.f32(y));
            },
            // SAFETY: see above.
            Op::Reduce { kind, axes } => unsafe {
                reduce::reduce_axes(
                    isa,
                    *kind,
                    rows,
                    dims(x[0]),
                    axes,
                    self.f32(x[0]),
                    self.f32(y),
                );
            },
            // SAFETY: see above.
            Op::SumRows => unsafe {
                let len = self.value(y).ty.len();
                reduce::sum_rows(isa, self.rows.len(), len, self.f32(x[0]), self.f32(y));
            },
            // SAFETY: see above.
            Op::Transpose { perm } => unsafe {
                layout::transpose(isa, rows, dims(x[0]), perm, self.src(x[0]), self.dst(y));
            },
            Op::Concat { axis } => {
                let mut start = 0;
                for part in x {
                    let len = dims(*part)[*axis];
                    let (from, to) = (self.src(*part), self.dst(y));
                    // SAFETY: see above.
                    unsafe { layout::concat_part(rows, dims(y), *axis, (start, len), from, to) };
                    start += len;
                }
            }
            // SAFETY: see above.
            Op::Slice { axis, start, len } => unsafe {
                let part = (*start, *len);
                layout::slice(rows, dims(x[0]), *axis, part, self.src(x[0]), self.dst(y));
            },
            // SAFETY: see above.
            Op::Pad { before, after } => unsafe {
                layout::pad(rows, dims(x[0]), before, after, self.src(x[0]), self.dst(y));
            },
            Op::Upsample { size, bilinear } => {
                let d = dims(x[0]);
                let geom = Upsample { input: [d[0], d[1], d[2]], size: *size, bilinear: *bilinear };
                // SAFETY: see above.
                unsafe { layout::upsample(isa, rows, &geom, self.src(x[0]), self.dst(y)) };
            }
            Op::UpsampleGrad { size, bilinear } => {
                let d = dims(y);
                let geom = Upsample { input: [d[0], d[1], d[2]], size: *size, bilinear: *bilinear };
                // SAFETY: see above.
                unsafe { layout::upsample_grad(isa, rows, &geom, self.src(x[0]), self.dst(y)) };
            }
            Op::AffineSample(geom) => {
                let (input, matrices) = (self.slice(x[0]), self.slice(x[1]));
                sample::affine(isa, geom, rows, input, matrices, self.slice_mut(y));
            }
            Op::AffineSampleGrad(geom) => {
                let (dy, matrices) = (self.slice(x[0]), self.slice(x[1]));
                sample::affine_grad(isa, geom, rows, dy, matrices, self.slice_mut(y));
            }
            Op::Dot(e) => {
                let (k, n) = (dims(x[1])[0], dims(x[1])[1]);
                let bias = e.bias.then(|| self.slice(x[2]));
                let (input, ldx) = (self.slice(x[0]), self.value(x[0]).ld);
                let (out, ldy) = (self.slice_mut(y), self.value(y).ld);
                let (m, w) = (self.pixels(y), self.slice(x[1]));
                dot::forward(isa, m, k, n, input, ldx, w, bias, e.relu, out, ldy, self.scratch());
            }
            Op::DotGradInput => {
                let (k, n) = (dims(x[1])[0], dims(x[1])[1]);
                let (dy, ldy) = (self.slice(x[0]), self.value(x[0]).ld);
                let (dx, ldx) = (self.slice_mut(y), self.value(y).ld);
                let m = self.pixels(y);
                dot::grad_input(isa, m, k, n, dy, ldy, self.slice(x[1]), dx, ldx, self.scratch());
            }
            Op::DotGradKernel => {
                let (k, n) = (dims(y)[0], dims(y)[1]);
                let (ldx, ldy) = (self.value(x[0]).ld, self.value(x[1]).ld);
                let (input, dy, m) = (self.slice(x[0]), self.slice(x[1]), self.pixels(x[0]));
                dot::grad_weight(isa, m, k, n, input, ldx, dy, ldy, 0..k, self.slice_mut(y));
            }
            Op::Conv(geom, e) => {
                let bias = e.bias.then(|| self.slice(x[2]));
                let (input, ldx) = (self.slice(x[0]), self.value(x[0]).ld);
                let (out, ldy) = (self.slice_mut(y), self.value(y).ld);
                let w = self.slice(x[1]);
                let scratch = self.scratch();
                let method = conv_method(self.program(), geom, conv::Pass::Forward);
                conv::forward(
                    isa, method, geom, rows, input, ldx, w, bias, e.relu, out, ldy, scratch,
                );
            }
            Op::ConvGradInput(geom) => {
                let (dy, ldy) = (self.slice(x[0]), self.value(x[0]).ld);
                let (dx, ldx) = (self.slice_mut(y), self.value(y).ld);
                let w = self.slice(x[1]);
                let method = conv_method(self.program(), geom, conv::Pass::GradInput);
                conv::grad_input(isa, method, geom, rows, dy, ldy, w, dx, ldx, self.scratch());
            }
            Op::ConvGradKernel(geom) => {
                let (input, ldx) = (self.slice(x[0]), self.value(x[0]).ld);
                let (dy, ldy) = (self.slice(x[1]), self.value(x[1]).ld);
                let (dw, rows) = (self.slice_mut(y), self.rows.len());
                let method = conv_method(self.program(), geom, conv::Pass::GradKernel);
                let scratch = self.scratch();
                conv::grad_kernel(isa, method, geom, rows, input, ldx, dy, ldy, dw, scratch);
            }
            // SAFETY: see above.
            Op::Pool(kind, geom) => unsafe {
                pool::pool(isa, *kind, geom, rows, self.src(x[0]), self.dst(y));
            },
            // SAFETY: see above.
            Op::PoolGrad(PoolKind::Max, geom) => unsafe {
                let (input, out, dy) = (self.src(x[0]), self.src(x[1]), self.src(x[2]));
                pool::max_grad(isa, geom, rows, input, out, dy, self.dst(y));
            },
            // SAFETY: see above.
            Op::PoolGrad(PoolKind::Average, geom) => unsafe {
                pool::average_grad(isa, geom, rows, self.src(x[0]), self.dst(y));
            },
            // SAFETY: see above.
            Op::Softmax => unsafe {
                let n = self.value(y).ty.last();
                softmax::softmax(isa, self.pixels(y), n, self.f32(x[0]), self.f32(y));
            },
            // SAFETY: see above.
            Op::LogSoftmax => unsafe {
                let n = self.value(y).ty.last();
                softmax::log_softmax(isa, self.pixels(y), n, self.f32(x[0]), self.f32(y));
            },
            // SAFETY: see above.
            Op::SparseXent => unsafe {
                let n = self.value(x[0]).ty.last();
                let (logits, labels) = (self.f32(x[0]), self.i32(x[1]));
                softmax::sparse_xent(isa, self.elements(y), n, logits, labels, self.f32(y));
            },
            // SAFETY: see above.
            Op::SparseXentGrad => unsafe {
                let (m, n) = (self.pixels(y), self.value(y).ty.last());
                let (logits, labels) = (self.f32(x[0]), self.i32(x[1]));
                softmax::sparse_xent_grad(isa, m, n, logits, labels, self.f32(x[2]), self.f32(y));
            },
            // SAFETY: see above.
            Op::Gather => unsafe {
                let table = [dims(x[0])[0], dims(x[0])[1]];
                let (from, ids) = (self.f32(x[0]), self.i32(x[1]));
                index::gather(table, from, self.elements(x[1]), ids, self.f32(y));
            },
            // SAFETY: see above.
            Op::GatherGrad { .. } => unsafe {
                let table = [dims(y)[0], dims(y)[1]];
                let (count, ids) = (self.elements(x[0]), self.i32(x[0]));
                index::gather_grad(isa, table, count, ids, self.f32(x[1]), self.f32(y));
            },
            // SAFETY: see above.
            Op::OneHot { depth } => unsafe {
                index::one_hot(*depth, self.elements(x[0]), self.i32(x[0]), self.f32(y));
            },
            // SAFETY: see above.
            Op::ArgMax => unsafe {
                let n = self.value(x[0]).ty.last();
                index::arg_max(self.elements(y), n, self.f32(x[0]), self.i32(y));
            },
            // SAFETY: see above.
            Op::InTopK { k } => unsafe {
                let shape = [self.elements(y), self.value(x[0]).ty.last()];
                index::in_top_k(isa, *k, shape, self.f32(x[0]), self.i32(x[1]), self.f32(y));
            },
            // SAFETY: see above.
            Op::ThresholdCounts { n } => unsafe {
                let operands =
                    [self.f32(x[0]), self.f32(x[1]), self.f32(x[2])].map(|p| p.cast_const());
                let (count, wide) = (self.elements(x[0]), doubles(self.scratch()));
                index::threshold_counts(*n, count, operands, self.slice_mut(y), wide);
            },
            Op::Dropout { rate, key, noise } => {
                let Batch { seed, step, .. } = *self.run.batch;
                let draw = Draw { seed, step, stream: *key };
                let d = Dropout { draw, rate: rate.get() as f32, dims: dims(y), noise };
                let (from, to) = (self.f32(x[0]), self.f32(y));
                // SAFETY: see above; this kernel may work in place.
                unsafe { random::dropout(isa, &d, self.rows.start, rows, from, to) };
            }
            Op::Uniform { key, dims } => {
                let Batch { seed, step, .. } = *self.run.batch;
                let draw = Draw { seed, step, stream: *key };
                let len = dims.iter().product();
                random::uniform(&draw, self.rows.start, len, self.slice_mut(y));
            }
            // SAFETY: see above.
            Op::Moments => unsafe {
                let c = self.value(x[0]).ty.last();
                let out = std::slice::from_raw_parts_mut(self.f32(y).cast::<f64>(), 2 * c);
                norm::moments(isa, self.pixels(x[0]), c, self.src(x[0]), out);
            },
            Op::BatchStats { scope, positions } => {
                let len = self.value(x[0]).ty.len();
                // SAFETY: see above; moments are doubles, which the plan aligns to 64 bytes.
                let sums = unsafe { std::slice::from_raw_parts(self.f32(x[0]).cast::<f64>(), len) };
                let count = self.scope_rows(*scope) * positions;
                norm::stats(sums, count as f64, self.slice_mut(y));
            }
            // SAFETY: see above.
            Op::BatchNorm(a) => unsafe {
                let n = self.batch_norm(a, &x[1..4]);
                let (input, out) = (self.src(x[0]), self.dst(y));
                norm::normalize(isa, &n, self.pixels(y), input, out, self.scratch());
            },
            // SAFETY: see above.
            Op::BatchNormGradSums(a) => unsafe {
                let n = self.batch_norm(a, &x[2..5]);
                let (dy, input) = (self.src(x[0]), self.src(x[1]));
                let c = self.value(x[0]).ty.last();
                let (wide, scratch) = self.scratch().split_at_mut(4 * c);
                let (out, wide) = (self.slice_mut(y), doubles(wide));
                norm::grad_sums(isa, &n, self.pixels(x[0]), dy, input, out, wide, scratch);
            },
            // SAFETY: see above.
            Op::BatchNormGradInput(a) => unsafe {
                let n = self.batch_norm(a, &x[2..5]);
                let (dy, input, dx) = (self.src(x[0]), self.src(x[1]), self.dst(y));
                let positions = self.value(y).ty.len() / self.value(y).ty.last();
                let count = (self.scope_rows(a.scope) * positions) as f64;
                let sums = (self.slice(x[5]), count);
                norm::grad_input(isa, &n, self.pixels(y), dy, input, sums, dx, self.scratch());
            },
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

    pub fn batch_norm(&self, a: &BatchNormAttrs, x: &[ValueId]) -> norm::BatchNorm<'a> {
        norm::BatchNorm {
            stats: self.slice(x[0]),
            gamma: self.slice(x[1]),
            beta: self.slice(x[2]),
            epsilon: a.epsilon.get(),
            relu: a.relu,
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
