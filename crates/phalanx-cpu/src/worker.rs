//! What a worker does with a program: finds each value's memory, computes (`compute.rs`), waits for
//! the others, adds up what they have, and copies.

use crate::between::{self, Between};
use crate::executor::{Device, FetchPtr, FlatLayout, Loaded, Worker};
use crate::flush::Flush;
use crate::kernels::layout::{Dst, Src};
use crate::pool::Barrier;
use crate::simd::Isa;
use crate::update;
use phalanx_graph::exec::{Batch, ExecError, FeedData, StepTimes};
use phalanx_graph::process_group::PeerError;
use phalanx_graph::program::{
    Instr, Location, Mesh, Program, SHARDS, Split, Value, ValueId, split_range,
};
use phalanx_graph::{DType, Op, ParamId, Scope};
use std::ops::Range;
use std::sync::Mutex;
use std::time::Instant;

/// Most workers of one device: what fixed tables on the stack are sized for.
pub const MAX_WORKERS: usize = 256;

/// One step, as all workers see it.
pub(crate) struct Run<'a> {
    pub loaded: &'a Loaded,
    pub batch: &'a Batch<'a>,
    pub mesh: Mesh,
    /// The first device of the mesh that is here, and the first of its rows.
    pub first: usize,
    pub first_row: usize,
    pub isa: Isa,
    pub layout: &'a FlatLayout,
    pub devices: &'a [Device],
    pub workers: &'a [Worker],
    pub barrier: &'a Barrier,
    /// Where there are other processes.
    pub between: Option<&'a Between>,
    /// Why a worker gave up.
    pub failure: Mutex<Option<ExecError>>,
    pub fetches: &'a [FetchPtr],
    pub times: Mutex<StepTimes>,
    /// Whether each worker notes the time of every instruction.
    pub profiling: bool,
}

/// One worker's view of a step.
pub(crate) struct Ctx<'a> {
    pub run: &'a Run<'a>,
    pub device: usize,
    pub worker: usize,
    /// Its rows of the global batch; the device's where lines are shared.
    pub rows: Range<usize>,
}

impl Run<'_> {
    /// The rows that a worker of a device works on.
    pub fn rows(&self, device: usize, worker: usize) -> Range<usize> {
        match self.loaded.program.split() {
            Split::Rows => self.mesh.rows(self.batch.rows, device, worker),
            Split::Spatial => self.mesh.device_rows(self.batch.rows, device),
        }
    }
}

/// Runs the program on worker `number` of those that are here.
pub(crate) fn run(run: &Run<'_>, number: usize) {
    let (device, worker) = (run.first + number / run.mesh.workers, number % run.mesh.workers);
    let rows = run.rows(device, worker);
    let ctx = Ctx { run, device, worker, rows };
    let _flush = Flush::begin();
    let begin = Instant::now();
    let mut update = None;
    for (at, instr) in run.loaded.program.instrs().iter().enumerate() {
        if number == 0 && update.is_none() && matches!(instr, Instr::Barrier(Scope::All)) {
            // Everything behind the last barrier over all is reduction and update.
            let rest = &run.loaded.program.instrs()[at..];
            if rest.iter().any(|i| matches!(i, Instr::Update)) && !has_compute(rest) {
                update = Some(Instant::now());
            }
        }
        if run.profiling {
            ctx.timed(at, instr);
        } else {
            ctx.instr(at, instr);
        }
        update::send_finished(&ctx, at);
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
pub(crate) fn has_compute(instrs: &[Instr]) -> bool {
    instrs.iter().any(|i| match i {
        Instr::Compute { op, .. } => matches!(
            op,
            Op::ConvGradKernel(_) | Op::ConvGradInput(_) | Op::DotGradInput | Op::DotGradKernel
        ),
        Instr::SlicedGradInput { .. } => true,
        _ => false,
    })
}

impl<'a> Ctx<'a> {
    pub fn program(&self) -> &'a Program {
        &self.run.loaded.program
    }

    pub fn device(&self) -> &'a Device {
        self.device_at(self.device)
    }

    /// The memory of a device of this process.
    pub fn device_at(&self, device: usize) -> &'a Device {
        &self.run.devices[device - self.run.first]
    }

    /// The devices of this process, by their numbers in the mesh.
    pub fn devices(&self) -> Range<usize> {
        self.run.first..self.run.first + self.run.devices.len()
    }

    /// Whether this is the first of the process' workers.
    pub fn leads(&self) -> bool {
        self.device == self.run.first && self.worker == 0
    }

    /// The memory of worker `worker` of a device.
    pub fn worker_of(&self, device: usize, worker: usize) -> &'a Worker {
        &self.run.workers[(device - self.run.first) * self.run.mesh.workers + worker]
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

    pub fn value(&self, id: ValueId) -> &'a Value {
        self.program().value(id)
    }

    /// First byte of a value as worker `worker` of `device` has it. The verifier keeps every value inside
    /// its buffer; one without elements may lie anywhere.
    pub fn address(&self, v: &Value, device: usize, worker: usize) -> *mut u8 {
        let owner = self.worker_of(device, worker);
        let skip = v.offset * v.ty.dtype.bytes();
        match v.location {
            Location::Feed(id) => {
                let rows = self.run.rows(device, worker);
                let start = if v.ty.is_rows() { rows.start - self.run.first_row } else { 0 };
                // A view keeps the stride of the feed it looks into.
                let row = self.program().feeds()[id.index()].ty.len() * v.ty.dtype.bytes();
                let base: *const u8 = match self.run.batch.feeds[id.index()] {
                    FeedData::F32(d) => d.as_ptr().cast(),
                    FeedData::I32(d) => d.as_ptr().cast(),
                };
                base.wrapping_add(start * row + skip).cast_mut()
            }
            Location::Param(id) => {
                let offset = self.run.layout.offsets[id.index()];
                self.device_at(device).params.ptr().wrapping_add(offset * 4 + skip)
            }
            Location::Arena(offset) => owner.arena.ptr().wrapping_add(offset + skip),
            Location::Shared(offset) => owner.shared.ptr().wrapping_add(offset + skip),
            Location::Device(offset) => {
                // Rows of the buffer that the value lies in, gaps included.
                let row = v.ty.len() / v.ty.last().max(1) * v.ld * v.ty.dtype.bytes();
                let first = self.run.rows(device, 0).start;
                let before = self.run.rows(device, worker).start - first;
                self.device_at(device).rows.ptr().wrapping_add(offset + before * row + skip)
            }
            Location::Gradient(id) => {
                let offset = self.run.layout.offsets[id.index()] * 4 + skip;
                owner.gradients.ptr().wrapping_add(offset)
            }
        }
    }

    pub fn f32(&self, id: ValueId) -> *mut f32 {
        self.address(self.value(id), self.device, self.home()).cast()
    }

    /// The worker in whose memory this one works.
    pub fn home(&self) -> usize {
        if self.program().split() == Split::Spatial { 0 } else { self.worker }
    }

    pub fn i32(&self, id: ValueId) -> *mut i32 {
        self.f32(id).cast()
    }

    pub fn src(&self, id: ValueId) -> Src {
        Src { ptr: self.f32(id), ld: self.value(id).ld }
    }

    pub fn dst(&self, id: ValueId) -> Dst {
        Dst { ptr: self.f32(id), ld: self.value(id).ld }
    }

    /// Rows of a value: the worker's, or one for whole values.
    pub fn count(&self, id: ValueId) -> usize {
        if self.value(id).ty.is_rows() { self.rows.len() } else { 1 }
    }

    /// Elements of a value on this worker.
    pub fn elements(&self, id: ValueId) -> usize {
        self.count(id) * self.value(id).ty.len()
    }

    /// Runs of the last axis of a value on this worker.
    pub fn pixels(&self, id: ValueId) -> usize {
        let last = self.value(id).ty.last().max(1);
        self.elements(id) / last
    }

    /// A value's floats, gaps between pixels included.
    pub fn slice(&self, id: ValueId) -> &'a [f32] {
        let len = self.span(id);
        // SAFETY: the value has this much memory, which was never uninitialised. Nothing in it is
        // written while the slice lives: the gaps belong to others in the same buffer, and no
        // instruction takes slices both of an operand and of a result in one buffer
        // (`needs_own_buffer` in the lowering).
        unsafe { std::slice::from_raw_parts(self.f32(id), len) }
    }

    /// A value's floats to write.
    #[allow(clippy::mut_from_ref)]
    pub fn slice_mut(&self, id: ValueId) -> &'a mut [f32] {
        let len = self.span(id);
        // SAFETY: as above: where a result lies in the buffer of an operand, in place or beside it
        // in a concatenation, the kernel takes pointers to both.
        unsafe { std::slice::from_raw_parts_mut(self.f32(id), len) }
    }

    fn span(&self, id: ValueId) -> usize {
        match self.pixels(id) {
            0 => 0,
            n => (n - 1) * self.value(id).ld + self.value(id).ty.last(),
        }
    }

    /// Rows in a scope.
    pub fn scope_rows(&self, scope: Scope) -> usize {
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

    /// Runs an instruction and notes how long it took.
    fn timed(&self, at: usize, instr: &Instr) {
        let begin = Instant::now();
        self.instr(at, instr);
        // SAFETY: a table of this worker's own, one number per instruction.
        unsafe { *self.me().seconds.ptr().cast::<f64>().add(at) = begin.elapsed().as_secs_f64() };
    }

    fn instr(&self, at: usize, instr: &Instr) {
        match instr {
            Instr::Compute { op, inputs, output, .. } => match self.program().split() {
                Split::Rows => self.compute(at, op, inputs, *output),
                Split::Spatial => self.compute_lines(at, op, inputs, *output),
            },
            Instr::Copy { input, output } => self.copy(*input, *output),
            Instr::Barrier(scope) => {
                self.barrier(*scope);
                self.meet(at);
            }
            Instr::AllReduce { .. } | Instr::ReplicaMean { .. } if self.collect(at, instr) => {}
            Instr::AllReduce { scope, input, output } => self.all_reduce(*scope, *input, *output),
            Instr::ReplicaMean { input, output } => self.replica_mean(*input, *output),
            Instr::SlicedDot { x, kernel, output, .. } => self.sliced_dot(*x, *kernel, *output),
            Instr::AddSlices { input, bias, relu, output, .. } => {
                self.add_slices(*input, *bias, *relu, *output);
            }
            Instr::SlicedGradInput { dy, kernel, output, .. } => {
                self.sliced_grad_input(*dy, *kernel, *output);
            }
            Instr::SlicedGradient { param, x, dy } => self.sliced_gradient(*param, *x, *dy),
            Instr::Update => update::update(self),
            Instr::Assign { param, value } => self.assign(*param, *value),
            Instr::Fetch { index, value } => self.fetch(*index, *value),
        }
    }

    /// Behind a barrier: adds up over all processes what the collectives behind it take.
    fn meet(&self, at: usize) {
        let Some(between) = self.run.between else { return };
        let Some(meeting) = Between::meeting(&self.run.loaded.meetings, at) else { return };
        if self.leads() {
            self.or_leave(between.meet(self, meeting));
        }
        self.barrier(Scope::All);
    }

    /// Gives up where another process was lost; the executor has the reason, and barriers let the
    /// others out.
    pub fn or_leave<T>(&self, result: Result<T, PeerError>) -> T {
        result.unwrap_or_else(|peer| {
            let text = peer.to_string();
            let failure = ExecError::Peer { step: self.run.batch.step, peer };
            let mut first = self.run.failure.lock().unwrap_or_else(|e| e.into_inner());
            first.get_or_insert(failure);
            drop(first);
            // Not `panic!`, whose hook would report a failure of ours.
            std::panic::resume_unwind(Box::new(text))
        })
    }

    /// Takes a collective's result where processes have met for it; whether they have.
    fn collect(&self, at: usize, instr: &Instr) -> bool {
        let (Instr::AllReduce { input, output, .. } | Instr::ReplicaMean { input, output }) = instr
        else {
            return false;
        };
        let total = self.run.between.and_then(|b| b.total(&self.run.loaded.meetings, at));
        let Some(from) = total else { return false };
        let ty = &self.value(*input).ty;
        let out = self.address(self.value(*output), self.device, self.worker);
        // SAFETY: the total was finished before the barrier in front of this; the result, of the same
        // type, is this worker's own.
        unsafe { std::ptr::copy_nonoverlapping(from, out, ty.len() * ty.dtype.bytes()) };
        true
    }

    fn copy(&self, input: ValueId, output: ValueId) {
        let (from, to) = (self.value(input), self.value(output));
        // Where one side has no gaps its pixels may be cut as the other's are.
        let width = if from.contiguous() { to.ty.last() } else { from.ty.last() };
        let step = |v: &Value| if v.contiguous() { width } else { v.ld };
        let pixels = self.part(self.elements(output) / width.max(1));
        let (src, dst) = (self.f32(input), self.f32(output));
        for p in pixels {
            // SAFETY: both values have this many pixels, and a copy's sides never overlap.
            unsafe {
                let (src, dst) = (src.add(p * step(from)), dst.add(p * step(to)));
                std::ptr::copy_nonoverlapping(src, dst, width);
            }
        }
    }

    /// This worker's part of so many equal pieces of a value: all, unless lines are shared.
    pub fn part(&self, pieces: usize) -> Range<usize> {
        match self.program().split() {
            Split::Rows => 0..pieces,
            Split::Spatial => split_range(0..pieces, self.run.mesh.workers, self.worker),
        }
    }

    fn all_reduce(&self, scope: Scope, input: ValueId, output: ValueId) {
        let (from, len) = (self.value(input), self.value(input).ty.len());
        let devices = match scope {
            Scope::Device => self.device..self.device + 1,
            Scope::All => self.devices(),
        };
        let sources = devices.flat_map(|d| (0..self.run.mesh.workers).map(move |w| (d, w)));
        let out = self.address(self.value(output), self.device, self.worker);
        // SAFETY: sources are shared blocks finished before the barrier in front of this; the
        // result is this worker's own.
        unsafe {
            match from.ty.dtype {
                DType::F64 => {
                    let sources = sources.map(|(d, w)| self.address(from, d, w).cast::<f64>());
                    let out = std::slice::from_raw_parts_mut(out.cast::<f64>(), len);
                    add_up(self.run.mesh, sources, out);
                }
                DType::F32 => {
                    let sources = sources.map(|(d, w)| self.address(from, d, w).cast::<f32>());
                    let out = std::slice::from_raw_parts_mut(out.cast::<f32>(), len);
                    add_up(self.run.mesh, sources, out);
                }
                DType::I32 | DType::Bf16 | DType::F16 => unreachable!("sums are wide floats"),
            }
        }
    }

    fn replica_mean(&self, input: ValueId, output: ValueId) {
        let (from, out) = (self.value(input), self.slice_mut(output));
        let len = out.len();
        // SAFETY: every device's first worker finished its statistics before the barrier in front of
        // this.
        let values = self.devices().map(|device| unsafe {
            std::slice::from_raw_parts(self.address(from, device, 0).cast::<f32>(), len)
        });
        weighted_mean(self.run.mesh, self.run.batch.rows, values, out);
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
        if !v.ty.is_rows() && !self.leads() || self.worker != self.home() {
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
                DType::Bf16 | DType::F16 => unreachable!("refused when the program was loaded"),
            }
        }
    }
}

/// The mean of what all devices have, weighted by their rows, in their order.
pub(crate) fn weighted_mean<'v>(
    mesh: Mesh,
    rows: usize,
    devices: impl Iterator<Item = &'v [f32]>,
    out: &mut [f32],
) {
    out.fill(0.0);
    let total = rows.max(1) as f32;
    for (device, values) in devices.enumerate() {
        let rows = mesh.device_rows(rows, device).len();
        if rows > 0 {
            let share = rows as f32 / total;
            out.iter_mut().zip(values).for_each(|(o, v)| *o += share * v);
        }
    }
}

/// `out = Σ sources`: in order, or as a tree where the mesh is fixed.
///
/// # Safety
/// Every source holds as many elements as `out` and overlaps it not.
pub(crate) unsafe fn add_up<T: Copy + std::ops::Add<Output = T>>(
    mesh: Mesh,
    sources: impl Iterator<Item = *mut T>,
    out: &mut [T],
) {
    let len = out.len();
    // SAFETY: the caller's contract.
    let mut values = sources.map(|source| unsafe { std::slice::from_raw_parts(source, len) });
    if mesh.fixed {
        let mut shards: [&[T]; SHARDS] = [&[]; SHARDS];
        let count = shards.iter_mut().zip(&mut values).map(|(s, v)| *s = v).count();
        return between::add_parts(true, &shards[..count], out);
    }
    for (i, values) in values.enumerate() {
        if i == 0 {
            out.copy_from_slice(values);
        } else {
            out.iter_mut().zip(values).for_each(|(o, v)| *o = *o + *v);
        }
    }
}
