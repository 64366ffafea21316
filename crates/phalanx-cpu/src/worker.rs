//! What a worker does with a program: finds each value's memory and calls the kernels.

use crate::executor::{Device, FetchPtr, FlatLayout, Loaded, Worker};
use crate::kernels::elementwise::{TapeInput, TapeOutput, TapePlan};
use crate::kernels::layout::{Dst, Src, Upsample};
use crate::kernels::random::Dropout;
use crate::kernels::{conv, dot, index, layout, norm, pool, random, reduce, softmax};
use crate::pool::Barrier;
use crate::simd::Isa;
use crate::update;
use phalanx_graph::exec::{Batch, FeedData, Times};
use phalanx_graph::ops::{BatchNormAttrs, PoolKind};
use phalanx_graph::program::{Instr, Mesh, Place, Program, Value, ValueId};
use phalanx_graph::rng::Draw;
use phalanx_graph::{DType, Op, ParamId, Scope};
use std::ops::Range;
use std::sync::Mutex;
use std::time::Instant;

/// Most workers of one device: what fixed tables on the stack are sized for.
pub const MAX_WORKERS: usize = 256;

/// Most operands of a tape.
const MAX_OPERANDS: usize = 40;

/// One step, as all workers see it.
pub(crate) struct Run<'a> {
    pub loaded: &'a Loaded,
    pub batch: &'a Batch<'a>,
    pub mesh: Mesh,
    pub isa: Isa,
    pub layout: &'a FlatLayout,
    pub devices: &'a [Device],
    pub workers: &'a [Worker],
    pub barrier: &'a Barrier,
    pub fetches: &'a [FetchPtr],
    pub times: Mutex<Times>,
}

/// One worker's view of a step.
pub(crate) struct Ctx<'a> {
    pub run: &'a Run<'a>,
    pub device: usize,
    pub worker: usize,
    /// Its rows of the global batch.
    pub rows: Range<usize>,
}

/// Floats of scratch memory any instruction of the program needs.
pub(crate) fn scratch_bytes(
    program: &Program,
    tapes: &[Option<TapePlan>],
    update: Option<&TapePlan>,
) -> usize {
    let mut floats = update::scratch_len(update);
    for (instr, tape) in program.instrs.iter().zip(tapes) {
        let need = match (instr, tape) {
            (_, Some(tape)) => tape.scratch_len(),
            (Instr::Compute { op, inputs, .. }, _) => {
                let dims = |i: usize| &program.value(inputs[i]).ty.dims;
                match op {
                    Op::Dot(_) | Op::DotGradInput => dot::scratch_len(dims(1)[0], dims(1)[1]),
                    Op::Conv(g, _) => conv::scratch_len(g, conv::Pass::Forward),
                    Op::ConvGradInput(g) => conv::scratch_len(g, conv::Pass::GradInput),
                    Op::ConvGradKernel(g) => conv::scratch_len(g, conv::Pass::GradKernel),
                    Op::BatchNorm(_) | Op::BatchNormGradSums(_) | Op::BatchNormGradInput(_) => {
                        // Four vectors, and two of doubles.
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

/// Runs the program on worker `number` of the mesh.
pub(crate) fn run(run: &Run<'_>, number: usize) {
    let (device, worker) = (number / run.mesh.workers, number % run.mesh.workers);
    let rows = run.mesh.rows(run.batch.rows, device, worker);
    let ctx = Ctx { run, device, worker, rows };
    let begin = Instant::now();
    let mut update = None;
    for (at, instr) in run.loaded.program.instrs.iter().enumerate() {
        if number == 0 && update.is_none() && matches!(instr, Instr::Barrier(Scope::All)) {
            // Everything behind the last barrier over all is reduction and update.
            let rest = &run.loaded.program.instrs[at..];
            if rest.iter().any(|i| matches!(i, Instr::Update)) && !has_compute(rest) {
                update = Some(Instant::now());
            }
        }
        ctx.instr(at, instr);
    }
    if number == 0 {
        let end = Instant::now();
        let split = update.unwrap_or(end);
        if let Ok(mut times) = run.times.lock() {
            times.compute = (split - begin).as_secs_f64();
            times.reduce = (end - split).as_secs_f64();
        }
    }
}

/// Whether a heavy op is among the instructions.
fn has_compute(instrs: &[Instr]) -> bool {
    instrs.iter().any(|i| match i {
        Instr::Compute { op, .. } => matches!(
            op,
            Op::ConvGradKernel(_) | Op::ConvGradInput(_) | Op::DotGradInput | Op::DotGradKernel
        ),
        _ => false,
    })
}

impl<'a> Ctx<'a> {
    pub fn program(&self) -> &'a Program {
        &self.run.loaded.program
    }

    pub fn device(&self) -> &'a Device {
        &self.run.devices[self.device]
    }

    /// The memory of worker `worker` of a device.
    pub fn worker_of(&self, device: usize, worker: usize) -> &'a Worker {
        &self.run.workers[device * self.run.mesh.workers + worker]
    }

    pub fn me(&self) -> &'a Worker {
        self.worker_of(self.device, self.worker)
    }

    /// This worker's scratch memory; no two instructions use it at once.
    #[allow(clippy::mut_from_ref)]
    pub fn scratch(&self) -> &'a mut [f32] {
        let buffer = &self.me().scratch;
        // SAFETY: only this worker touches its scratch buffer, one instruction at a time, and no
        // kernel keeps it.
        unsafe { std::slice::from_raw_parts_mut(buffer.f32(), buffer.bytes() / 4) }
    }

    fn value(&self, id: ValueId) -> &'a Value {
        self.program().value(id)
    }

    /// First byte of a value as worker `worker` of `device` has it.
    fn address(&self, v: &Value, device: usize, worker: usize) -> *mut u8 {
        let owner = self.worker_of(device, worker);
        let skip = v.offset * v.ty.dtype.bytes();
        // SAFETY: the plan keeps every value inside its buffer.
        unsafe {
            match v.place {
                Place::Feed(id) => {
                    let rows = self.run.mesh.rows(self.run.batch.rows, device, worker);
                    let start = if v.ty.is_rows() { rows.start } else { 0 };
                    // A view keeps the stride of the feed it looks into.
                    let row = self.program().feeds[id.index()].ty.len() * v.ty.dtype.bytes();
                    let base: *const u8 = match self.run.batch.feeds[id.index()] {
                        FeedData::F32(d) => d.as_ptr().cast(),
                        FeedData::I32(d) => d.as_ptr().cast(),
                    };
                    base.add(start * row + skip).cast_mut()
                }
                Place::Param(id) => {
                    let offset = self.run.layout.offsets[id.index()];
                    self.run.devices[device].params.ptr().add(offset * 4 + skip)
                }
                Place::Arena(offset) => owner.arena.ptr().add(offset + skip),
                Place::Shared(offset) => owner.shared.ptr().add(offset + skip),
                Place::Gradient(id) => {
                    owner.gradients.ptr().add(self.run.layout.offsets[id.index()] * 4 + skip)
                }
            }
        }
    }

    fn f32(&self, id: ValueId) -> *mut f32 {
        self.address(self.value(id), self.device, self.worker).cast()
    }

    fn i32(&self, id: ValueId) -> *mut i32 {
        self.f32(id).cast()
    }

    fn src(&self, id: ValueId) -> Src {
        Src { ptr: self.f32(id), ld: self.value(id).ld }
    }

    fn dst(&self, id: ValueId) -> Dst {
        Dst { ptr: self.f32(id), ld: self.value(id).ld }
    }

    /// Rows of a value: the worker's, or one for whole values.
    fn count(&self, id: ValueId) -> usize {
        if self.value(id).ty.is_rows() { self.rows.len() } else { 1 }
    }

    /// Elements of a value on this worker.
    fn elements(&self, id: ValueId) -> usize {
        self.count(id) * self.value(id).ty.len()
    }

    /// Runs of the last axis of a value on this worker.
    fn pixels(&self, id: ValueId) -> usize {
        let last = self.value(id).ty.last().max(1);
        self.elements(id) / last
    }

    /// A value's floats, gaps between pixels included.
    fn slice(&self, id: ValueId) -> &'a [f32] {
        let len = self.span(id);
        // SAFETY: the plan gives the value this much memory, written before and not overlapping
        // what the instruction writes.
        unsafe { std::slice::from_raw_parts(self.f32(id), len) }
    }

    /// A value's floats to write.
    #[allow(clippy::mut_from_ref)]
    fn slice_mut(&self, id: ValueId) -> &'a mut [f32] {
        let len = self.span(id);
        // SAFETY: as above; an instruction's result overlaps none of its operands except where
        // the plan works in place, and those kernels take pointers.
        unsafe { std::slice::from_raw_parts_mut(self.f32(id), len) }
    }

    fn span(&self, id: ValueId) -> usize {
        match self.pixels(id) {
            0 => 0,
            n => (n - 1) * self.value(id).ld + self.value(id).ty.last(),
        }
    }

    /// Rows in a scope.
    fn scope_rows(&self, scope: Scope) -> usize {
        match scope {
            Scope::Device => self.run.mesh.device_rows(self.run.batch.rows, self.device).len(),
            Scope::All => self.run.batch.rows,
        }
    }

    pub fn barrier(&self, scope: Scope) {
        match scope {
            Scope::Device => self.device().barrier.wait(),
            Scope::All => self.run.barrier.wait(),
        }
    }

    fn instr(&self, at: usize, instr: &Instr) {
        match instr {
            Instr::Compute { op, inputs, output, .. } => self.compute(at, op, inputs, *output),
            Instr::Copy { input, output } => self.copy(*input, *output),
            Instr::Barrier(scope) => self.barrier(*scope),
            Instr::AllReduce { scope, input, output } => self.all_reduce(*scope, *input, *output),
            Instr::ReplicaMean { input, output } => self.replica_mean(*input, *output),
            Instr::SlicedGradient { param, x, dy } => self.sliced_gradient(*param, *x, *dy),
            Instr::Update => update::update(self),
            Instr::Assign { param, value } => self.assign(*param, *value),
            Instr::Fetch { index, value } => self.fetch(*index, *value),
        }
    }

    fn tape(&self, plan: &TapePlan, inputs: &[ValueId], output: ValueId) {
        let out = self.value(output);
        let width = out.ty.last().max(1);
        let mut operands = [TapeInput { ptr: std::ptr::null(), ld: 0 }; MAX_OPERANDS];
        for (slot, id) in operands.iter_mut().zip(inputs) {
            *slot = self.src(*id);
            // A scalar among vectors, or a value of one element a row, has no last axis of its own.
            if self.value(*id).contiguous() {
                slot.ld = width;
            }
        }
        let mut result = self.dst(output);
        if out.contiguous() {
            result.ld = width;
        }
        let result: [TapeOutput; 1] = [result];
        let elements = 0..self.elements(output);
        // SAFETY: the plan gave every operand the memory its type needs, and the result overlaps
        // an operand only where it takes over the whole of it.
        unsafe {
            let operands = &operands[..inputs.len()];
            plan.run(self.run.isa, width, elements, operands, &result, self.scratch());
        }
    }

    #[allow(clippy::too_many_lines)]
    fn compute(&self, at: usize, op: &Op, x: &[ValueId], y: ValueId) {
        let isa = self.run.isa;
        let rows = self.count(y);
        let dims = |id: ValueId| &self.value(id).ty.dims[..];
        // SAFETY (for all kernels below): operands and result have the memory their types need for
        // this worker's rows, which is what each kernel reads and writes; the verifier checked
        // that types and attributes agree, and the plan that a result overlaps no live operand.
        match op {
            Op::Fused(_) => {
                let plan = self.run.loaded.tapes[at].as_ref();
                self.tape(plan.expect("prepared when the program was loaded"), x, y);
            }
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
                let block = self.grad_block(x[0], x[1], self.device, self.worker);
                dot::grad_weight(isa, k, n, &[block], 0..k, self.slice_mut(y));
            }
            Op::Conv(geom, e) => {
                let bias = e.bias.then(|| self.slice(x[2]));
                let (input, ldx) = (self.slice(x[0]), self.value(x[0]).ld);
                let (out, ldy) = (self.slice_mut(y), self.value(y).ld);
                let w = self.slice(x[1]);
                let scratch = self.scratch();
                conv::forward(isa, geom, rows, input, ldx, w, bias, e.relu, out, ldy, scratch);
            }
            Op::ConvGradInput(geom) => {
                let (dy, ldy) = (self.slice(x[0]), self.value(x[0]).ld);
                let (dx, ldx) = (self.slice_mut(y), self.value(y).ld);
                let w = self.slice(x[1]);
                conv::grad_input(isa, geom, rows, dy, ldy, w, dx, ldx, self.scratch());
            }
            Op::ConvGradKernel(geom) => {
                let (input, ldx) = (self.slice(x[0]), self.value(x[0]).ld);
                let (dy, ldy) = (self.slice(x[1]), self.value(x[1]).ld);
                let (dw, rows) = (self.slice_mut(y), self.rows.len());
                conv::grad_kernel(isa, geom, rows, input, ldx, dy, ldy, dw, self.scratch());
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
                // SAFETY: see above; working in place is this kernel's right.
                unsafe { random::dropout(isa, &d, self.rows.start, rows, from, to) };
            }
            // SAFETY: see above.
            Op::Moments => unsafe {
                let c = self.value(x[0]).ty.last();
                let out = std::slice::from_raw_parts_mut(self.f32(y).cast::<f64>(), 2 * c);
                norm::moments(isa, self.pixels(x[0]), c, self.src(x[0]), out);
            },
            Op::BatchStats { scope, positions } => {
                let len = self.value(x[0]).ty.len();
                // SAFETY: see above; moments are doubles, 64-byte aligned by the plan.
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

    fn batch_norm(&self, a: &BatchNormAttrs, x: &[ValueId]) -> norm::BatchNorm<'a> {
        norm::BatchNorm {
            stats: self.slice(x[0]),
            gamma: self.slice(x[1]),
            beta: self.slice(x[2]),
            epsilon: a.epsilon.get(),
            relu: a.relu,
        }
    }

    /// Input and output derivative of a dense layer, as one worker holds them.
    fn grad_block(
        &self,
        x: ValueId,
        dy: ValueId,
        device: usize,
        worker: usize,
    ) -> dot::GradBlock<'a> {
        let rows = self.run.mesh.rows(self.run.batch.rows, device, worker).len();
        let part = |id: ValueId| {
            let v = self.value(id);
            let pixels = rows * v.ty.len() / v.ty.last().max(1);
            let len = if pixels == 0 { 0 } else { (pixels - 1) * v.ld + v.ty.last() };
            // SAFETY: that worker finished the value before the barrier in front of this, and
            // does not overwrite it before the end of the step.
            unsafe { std::slice::from_raw_parts(self.address(v, device, worker).cast(), len) }
        };
        let rows = rows * self.value(x).ty.len() / self.value(x).ty.last().max(1);
        let (ldx, ldy) = (self.value(x).ld, self.value(dy).ld);
        dot::GradBlock { x: part(x), ldx, dy: part(dy), ldy, rows }
    }

    fn sliced_gradient(&self, param: ParamId, x: ValueId, dy: ValueId) {
        let dims = &self.program().params[param.index()].dims;
        let (k, n) = (dims[0], dims[1]);
        let workers = self.run.mesh.workers;
        let mine = phalanx_graph::program::share(0..k, workers, self.worker);
        let empty = dot::GradBlock { x: &[], ldx: k, dy: &[], ldy: n, rows: 0 };
        let mut blocks = [empty; MAX_WORKERS];
        for (worker, block) in blocks[..workers].iter_mut().enumerate() {
            *block = self.grad_block(x, dy, self.device, worker);
        }
        let start = self.run.layout.offsets[param.index()] + mine.start * n;
        // SAFETY: this worker alone writes this slice of the device's gradient.
        let out = unsafe {
            std::slice::from_raw_parts_mut(self.device().sliced.f32().add(start), mine.len() * n)
        };
        dot::grad_weight(self.run.isa, k, n, &blocks[..workers], mine, out);
    }

    fn copy(&self, input: ValueId, output: ValueId) {
        let (from, to) = (self.value(input), self.value(output));
        // Where one side has no gaps its pixels may be cut as the other's are.
        let width = if from.contiguous() { to.ty.last() } else { from.ty.last() };
        let step = |v: &Value| if v.contiguous() { width } else { v.ld };
        let pixels = self.elements(output) / width.max(1);
        let (src, dst) = (self.f32(input), self.f32(output));
        for p in 0..pixels {
            // SAFETY: both values have this many pixels, and a copy's sides never overlap.
            unsafe {
                let (src, dst) = (src.add(p * step(from)), dst.add(p * step(to)));
                std::ptr::copy_nonoverlapping(src, dst, width);
            }
        }
    }

    fn all_reduce(&self, scope: Scope, input: ValueId, output: ValueId) {
        let (from, len) = (self.value(input), self.value(input).ty.len());
        let devices = match scope {
            Scope::Device => self.device..self.device + 1,
            Scope::All => 0..self.run.mesh.devices,
        };
        let sources = devices.flat_map(|d| (0..self.run.mesh.workers).map(move |w| (d, w)));
        let out = self.address(self.value(output), self.device, self.worker);
        // SAFETY: sources are shared blocks finished before the barrier in front of this; the
        // result is this worker's own.
        unsafe {
            match from.ty.dtype {
                DType::F64 => {
                    let sources = sources.map(|(d, w)| self.address(from, d, w).cast::<f64>());
                    add_up(sources, std::slice::from_raw_parts_mut(out.cast::<f64>(), len));
                }
                DType::F32 => {
                    let sources = sources.map(|(d, w)| self.address(from, d, w).cast::<f32>());
                    add_up(sources, std::slice::from_raw_parts_mut(out.cast::<f32>(), len));
                }
                DType::I32 => unreachable!("sums are floats"),
            }
        }
    }

    fn replica_mean(&self, input: ValueId, output: ValueId) {
        let from = self.value(input);
        let out = self.slice_mut(output);
        out.fill(0.0);
        let total = self.run.batch.rows.max(1) as f32;
        for device in 0..self.run.mesh.devices {
            let rows = self.run.mesh.device_rows(self.run.batch.rows, device).len();
            if rows == 0 {
                continue;
            }
            let share = rows as f32 / total;
            // SAFETY: every device's first worker finished its statistics before the barrier in
            // front of this.
            let values = unsafe {
                std::slice::from_raw_parts(self.address(from, device, 0).cast::<f32>(), out.len())
            };
            out.iter_mut().zip(values).for_each(|(o, v)| *o += share * v);
        }
    }

    fn assign(&self, param: ParamId, value: ValueId) {
        if self.worker != 0 {
            return;
        }
        let from = self.slice(value);
        let start = self.run.layout.offsets[param.index()];
        // SAFETY: behind a barrier of the device; one worker writes.
        unsafe {
            let to = self.device().params.f32().add(start);
            // Nothing forbids to assign a parameter to itself.
            std::ptr::copy(from.as_ptr(), to, from.len());
        }
    }

    fn fetch(&self, index: usize, value: ValueId) {
        let v = self.value(value);
        let first = self.device == 0 && self.worker == 0;
        if !v.ty.is_rows() && !first {
            return;
        }
        let start = if v.ty.is_rows() { self.rows.start * v.ty.len() } else { 0 };
        let from = self.address(v, self.device, self.worker);
        // SAFETY: the host sized the vector for all rows; workers write disjoint ones. The value
        // was computed before, with elements of its type.
        unsafe {
            let len = self.elements(value);
            let to = self.run.fetches[index].0.add(start);
            match v.ty.dtype {
                DType::F32 => std::ptr::copy_nonoverlapping(from.cast(), to, len),
                DType::I32 => (0..len).for_each(|i| *to.add(i) = *from.cast::<i32>().add(i) as f32),
                DType::F64 => (0..len).for_each(|i| *to.add(i) = *from.cast::<f64>().add(i) as f32),
            }
        }
    }
}

/// `out = Σ sources`, in order.
///
/// # Safety
/// Every source holds as many elements as `out` and overlaps it not.
unsafe fn add_up<T: Copy + std::ops::AddAssign>(
    sources: impl Iterator<Item = *mut T>,
    out: &mut [T],
) {
    for (i, source) in sources.enumerate() {
        // SAFETY: the caller's contract.
        let values = unsafe { std::slice::from_raw_parts(source, out.len()) };
        if i == 0 {
            out.copy_from_slice(values);
        } else {
            out.iter_mut().zip(values).for_each(|(o, v)| *o += *v);
        }
    }
}

/// Scratch memory as doubles.
fn doubles(scratch: &mut [f32]) -> &mut [f64] {
    let ptr = scratch.as_mut_ptr();
    debug_assert!(ptr.cast::<f64>().is_aligned());
    // SAFETY: callers pass the start of the scratch buffer, which is 64-byte aligned; any bits are
    // a double.
    unsafe { std::slice::from_raw_parts_mut(ptr.cast(), scratch.len() / 2) }
}
