//! Execution of a program by one worker: address lookup, dispatch of instructions, barriers, collectives and
//! copies. `compute/` holds the ops.

use crate::denormals::FlushToZeroGuard;
use crate::executor::{DeviceMemory, FetchPtr, FlatLayout, LoadedProgram, WorkerMemory};
use crate::kernels::layout::{Dst, Src};
use crate::pool::Barrier;
use crate::process_collectives::{self, ProcessCollectives};
use crate::simd::Isa;
use crate::update;
use phalanx_distributed::PeerError;
use phalanx_exec::{Batch, ExecError, FeedData, StepTimes};
use phalanx_graph::program::{
    Instr, Location, Mesh, Program, SHARDS, Split, Value, ValueId, split_range,
};
use phalanx_graph::{DType, Op, ParamId, Scope};
use std::ops::Range;
use std::sync::Mutex;
use std::time::Instant;

/// Maximum number of workers per device. Fixed tables on the stack have this size.
pub const MAX_WORKERS_PER_DEVICE: usize = 256;

/// One step, shared by all workers.
pub(crate) struct Run<'a> {
    pub loaded: &'a LoadedProgram,
    pub batch: &'a Batch<'a>,
    pub mesh: Mesh,
    /// The first device of this process, by its index in the mesh.
    pub first_device: usize,
    /// The first row of this process in the global batch.
    pub first_row: usize,
    pub isa: Isa,
    pub layout: &'a FlatLayout,
    pub devices: &'a [DeviceMemory],
    pub workers: &'a [WorkerMemory],
    pub barrier: &'a Barrier,
    /// `None` in a single-process run.
    pub collectives: Option<&'a ProcessCollectives>,
    /// Why a worker aborted the step.
    pub failure: Mutex<Option<ExecError>>,
    pub fetches: &'a [FetchPtr],
    pub times: Mutex<StepTimes>,
    /// Whether each worker records the time of every instruction.
    pub profiling: bool,
}

/// One worker's view of a step.
pub(crate) struct WorkerCtx<'a> {
    pub run: &'a Run<'a>,
    pub device: usize,
    pub worker: usize,
    /// Its rows of the global batch; all rows of the device under `Split::Spatial`.
    pub rows: Range<usize>,
}

impl Run<'_> {
    /// The rows of the global batch that a worker processes.
    pub fn rows(&self, device: usize, worker: usize) -> Range<usize> {
        match self.loaded.program.split() {
            Split::Rows => self.mesh.rows(self.batch.rows, device, worker),
            Split::Spatial => self.mesh.device_rows(self.batch.rows, device),
        }
    }
}

/// Runs the program on worker `index` of this process.
pub(crate) fn run(run: &Run<'_>, index: usize) {
    let (device, worker) = (run.first_device + index / run.mesh.workers, index % run.mesh.workers);
    let rows = run.rows(device, worker);
    let ctx = WorkerCtx { run, device, worker, rows };
    let _guard = FlushToZeroGuard::new();
    let begin = Instant::now();
    let mut update_begin = None;
    for (at, instr) in run.loaded.program.instrs().iter().enumerate() {
        if index == 0 && update_begin.is_none() && matches!(instr, Instr::Barrier(Scope::All)) {
            // Everything after the last barrier over all devices is reduction and update.
            let rest = &run.loaded.program.instrs()[at..];
            if rest.iter().any(|i| matches!(i, Instr::Update)) && !has_compute(rest) {
                update_begin = Some(Instant::now());
            }
        }
        if run.profiling {
            ctx.run_timed(at, instr);
        } else {
            ctx.run_instr(at, instr);
        }
        update::submit_finished_buckets(&ctx, at);
    }
    if index == 0 {
        let end = Instant::now();
        let split = update_begin.unwrap_or(end);
        if let Ok(mut times) = run.times.lock() {
            times.compute = (split - begin).as_secs_f64();
            times.reduce = (end - split).as_secs_f64();
        }
    }
}

/// Whether the instructions contain a gradient of a dense or convolution layer.
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

impl<'a> WorkerCtx<'a> {
    pub fn program(&self) -> &'a Program {
        &self.run.loaded.program
    }

    /// The memory of this worker's device.
    pub fn device_memory(&self) -> &'a DeviceMemory {
        self.memory_of_device(self.device)
    }

    /// The memory of a device of this process.
    pub fn memory_of_device(&self, device: usize) -> &'a DeviceMemory {
        &self.run.devices[device - self.run.first_device]
    }

    /// The devices of this process, by their indices in the mesh.
    pub fn devices(&self) -> Range<usize> {
        self.run.first_device..self.run.first_device + self.run.devices.len()
    }

    /// Whether this is the first worker of the process.
    pub fn is_leader(&self) -> bool {
        self.device == self.run.first_device && self.worker == 0
    }

    /// The memory of worker `worker` of a device.
    pub fn memory_of_worker(&self, device: usize, worker: usize) -> &'a WorkerMemory {
        &self.run.workers[(device - self.run.first_device) * self.run.mesh.workers + worker]
    }

    /// The memory of this worker.
    pub fn memory(&self) -> &'a WorkerMemory {
        self.memory_of_worker(self.device, self.worker)
    }

    /// This worker's scratch memory. Only one instruction at a time uses it.
    #[allow(clippy::mut_from_ref)]
    pub fn scratch(&self) -> &'a mut [f32] {
        let buffer = &self.memory().scratch;
        // SAFETY: only this worker touches its scratch buffer, one instruction at a time, and no
        // kernel retains it.
        unsafe { std::slice::from_raw_parts_mut(buffer.f32(), buffer.bytes() / 4) }
    }

    pub fn value(&self, id: ValueId) -> &'a Value {
        self.program().value(id)
    }

    /// The first byte of a value in the memory of worker `worker` of `device`. The verifier ensures that
    /// every value lies inside its buffer, except that an empty value may lie anywhere.
    pub fn address(&self, v: &Value, device: usize, worker: usize) -> *mut u8 {
        let owner = self.memory_of_worker(device, worker);
        let skip = v.offset * v.ty.dtype.bytes();
        match v.location {
            Location::Feed(id) => {
                let rows = self.run.rows(device, worker);
                let start = if v.ty.is_rows() { rows.start - self.run.first_row } else { 0 };
                // A view has the row stride of its feed.
                let row = self.program().feeds()[id.index()].ty.len() * v.ty.dtype.bytes();
                let base: *const u8 = match self.run.batch.feeds[id.index()] {
                    FeedData::F32(d) => d.as_ptr().cast(),
                    FeedData::I32(d) => d.as_ptr().cast(),
                };
                base.wrapping_add(start * row + skip).cast_mut()
            }
            Location::Param(id) => {
                let offset = self.run.layout.offsets[id.index()];
                self.memory_of_device(device).params.ptr().wrapping_add(offset * 4 + skip)
            }
            Location::Arena(offset) => owner.arena.ptr().wrapping_add(offset + skip),
            Location::Shared(offset) => owner.shared.ptr().wrapping_add(offset + skip),
            Location::Device(offset) => {
                // Bytes per row of the value's buffer, gaps included.
                let row = v.ty.len() / v.ty.last().max(1) * v.ld * v.ty.dtype.bytes();
                let first = self.run.rows(device, 0).start;
                let before = self.run.rows(device, worker).start - first;
                self.memory_of_device(device).rows.ptr().wrapping_add(offset + before * row + skip)
            }
            Location::Gradient(id) => {
                let offset = self.run.layout.offsets[id.index()] * 4 + skip;
                owner.gradients.ptr().wrapping_add(offset)
            }
        }
    }

    pub fn f32(&self, id: ValueId) -> *mut f32 {
        self.address(self.value(id), self.device, self.memory_owner()).cast()
    }

    /// The worker whose memory holds this worker's values: the first of the device under `Split::Spatial`.
    pub fn memory_owner(&self) -> usize {
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

    /// Number of rows of a value on this worker; 1 if the value has no row axis.
    pub fn row_count(&self, id: ValueId) -> usize {
        if self.value(id).ty.is_rows() { self.rows.len() } else { 1 }
    }

    /// Number of elements of a value on this worker.
    pub fn elements(&self, id: ValueId) -> usize {
        self.row_count(id) * self.value(id).ty.len()
    }

    /// Number of pixels (vectors along the last axis) of a value on this worker.
    pub fn pixels(&self, id: ValueId) -> usize {
        let last = self.value(id).ty.last().max(1);
        self.elements(id) / last
    }

    /// A value's floats, gaps between pixels included.
    pub fn slice(&self, id: ValueId) -> &'a [f32] {
        let len = self.span(id);
        // SAFETY: the value has this much memory, and buffers are zeroed when allocated. Nothing in it is
        // written while the slice lives: the gaps belong to other values of the same buffer, and no
        // instruction takes slices of both an operand and a result in one buffer
        // (`needs_own_buffer` in the lowering).
        unsafe { std::slice::from_raw_parts(self.f32(id), len) }
    }

    /// A value's floats, writable.
    #[allow(clippy::mut_from_ref)]
    pub fn slice_mut(&self, id: ValueId) -> &'a mut [f32] {
        let len = self.span(id);
        // SAFETY: as above. If a result shares the buffer of an operand (in place, or adjacent in a
        // concatenation), the kernel takes pointers to both instead of slices.
        unsafe { std::slice::from_raw_parts_mut(self.f32(id), len) }
    }

    fn span(&self, id: ValueId) -> usize {
        match self.pixels(id) {
            0 => 0,
            n => (n - 1) * self.value(id).ld + self.value(id).ty.last(),
        }
    }

    /// Number of rows in a scope.
    pub fn scope_rows(&self, scope: Scope) -> usize {
        match scope {
            Scope::Device => self.run.mesh.device_rows(self.run.batch.rows, self.device).len(),
            Scope::All => self.run.batch.rows,
        }
    }

    pub fn barrier(&self, scope: Scope) {
        match scope {
            Scope::Device => self.device_memory().barrier.wait(),
            Scope::All => self.run.barrier.wait(),
        }
    }

    /// Runs an instruction and records its time.
    fn run_timed(&self, at: usize, instr: &Instr) {
        let begin = Instant::now();
        self.run_instr(at, instr);
        // SAFETY: only this worker uses its table, which has one number per instruction.
        unsafe {
            *self.memory().seconds.ptr().cast::<f64>().add(at) = begin.elapsed().as_secs_f64()
        };
    }

    fn run_instr(&self, at: usize, instr: &Instr) {
        match instr {
            Instr::Compute { op, inputs, output, .. } => match self.program().split() {
                Split::Rows => self.compute(at, op, inputs, *output),
                Split::Spatial => self.compute_spatial(at, op, inputs, *output),
            },
            Instr::Copy { input, output } => self.copy(*input, *output),
            Instr::Barrier(scope) => {
                self.barrier(*scope);
                self.exchange_collectives(at);
            }
            Instr::AllReduce { .. } | Instr::ReplicaMean { .. } if self.take_reduced(at, instr) => {
            }
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

    /// After the barrier at index `barrier`: reduces the collectives that follow it over all processes.
    fn exchange_collectives(&self, barrier: usize) {
        let Some(collectives) = self.run.collectives else { return };
        let all = &self.run.loaded.fused_collectives;
        let Some(fused) = ProcessCollectives::after_barrier(all, barrier) else { return };
        if self.is_leader() {
            self.unwrap_or_abort(collectives.reduce(self, fused));
        }
        self.barrier(Scope::All);
    }

    /// Unwraps a result of the process group. On an error it records the reason for the executor and
    /// unwinds; barriers then release the other workers.
    pub fn unwrap_or_abort<T>(&self, result: Result<T, PeerError>) -> T {
        result.unwrap_or_else(|peer| {
            let text = peer.to_string();
            let failure = ExecError::Peer { step: self.run.batch.step, peer };
            let mut first = self.run.failure.lock().unwrap_or_else(|e| e.into_inner());
            first.get_or_insert(failure);
            drop(first);
            // Not `panic!`: its hook would print this as a panic of the worker.
            std::panic::resume_unwind(Box::new(text))
        })
    }

    /// Copies the result of a collective that the processes reduced. Returns false for other instructions.
    fn take_reduced(&self, at: usize, instr: &Instr) -> bool {
        let (Instr::AllReduce { input, output, .. } | Instr::ReplicaMean { input, output }) = instr
        else {
            return false;
        };
        let fused = &self.run.loaded.fused_collectives;
        let result = self.run.collectives.and_then(|c| c.result(fused, at));
        let Some(from) = result else { return false };
        let ty = &self.value(*input).ty;
        let out = self.address(self.value(*output), self.device, self.worker);
        // SAFETY: the source is complete since the barrier before this. The output has the same type and
        // belongs to this worker.
        unsafe { std::ptr::copy_nonoverlapping(from, out, ty.len() * ty.dtype.bytes()) };
        true
    }

    fn copy(&self, input: ValueId, output: ValueId) {
        let (from, to) = (self.value(input), self.value(output));
        // A side without gaps can be split into pixels of the other side's width.
        let width = if from.contiguous() { to.ty.last() } else { from.ty.last() };
        let step = |v: &Value| if v.contiguous() { width } else { v.ld };
        let pixels = self.my_range(self.elements(output) / width.max(1));
        let (src, dst) = (self.f32(input), self.f32(output));
        for p in pixels {
            // SAFETY: both values have this many pixels, and the two sides of a copy never overlap.
            unsafe {
                let (src, dst) = (src.add(p * step(from)), dst.add(p * step(to)));
                std::ptr::copy_nonoverlapping(src, dst, width);
            }
        }
    }

    /// This worker's part of `0..pieces`: everything under `Split::Rows`, an equal share under
    /// `Split::Spatial`.
    pub fn my_range(&self, pieces: usize) -> Range<usize> {
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
        // SAFETY: the sources are shared blocks, complete since the barrier before this. The result
        // belongs to this worker.
        unsafe {
            match from.ty.dtype {
                DType::F64 => {
                    let sources = sources.map(|(d, w)| self.address(from, d, w).cast::<f64>());
                    let out = std::slice::from_raw_parts_mut(out.cast::<f64>(), len);
                    sum_sources(self.run.mesh, sources, out);
                }
                DType::F32 => {
                    let sources = sources.map(|(d, w)| self.address(from, d, w).cast::<f32>());
                    let out = std::slice::from_raw_parts_mut(out.cast::<f32>(), len);
                    sum_sources(self.run.mesh, sources, out);
                }
                DType::I32 | DType::Bf16 | DType::F16 => unreachable!("sums are wide floats"),
            }
        }
    }

    fn replica_mean(&self, input: ValueId, output: ValueId) {
        let (from, out) = (self.value(input), self.slice_mut(output));
        let len = out.len();
        // SAFETY: the first worker of every device finished its statistics before the barrier that
        // precedes this.
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
        // SAFETY: this runs after a barrier of the device, and only one worker writes.
        unsafe {
            let to = self.device_memory().params.f32().add(start);
            // `copy` because a parameter may be assigned to itself.
            std::ptr::copy(from.as_ptr(), to, from.len());
        }
    }

    fn fetch(&self, index: usize, value: ValueId) {
        let v = self.value(value);
        if !v.ty.is_rows() && !self.is_leader() || self.worker != self.memory_owner() {
            return;
        }
        let start = if v.ty.is_rows() { self.rows.start * v.ty.len() } else { 0 };
        let from = self.address(v, self.device, self.worker);
        // SAFETY: `start` sized the vector for all rows, and workers write disjoint rows. The value is
        // complete and has elements of its type.
        unsafe {
            let len = self.elements(value);
            let to = self.run.fetches[index].0.add(start);
            match v.ty.dtype {
                DType::F32 => std::ptr::copy_nonoverlapping(from.cast(), to, len),
                DType::I32 => (0..len).for_each(|i| *to.add(i) = *from.cast::<i32>().add(i) as f32),
                DType::F64 => (0..len).for_each(|i| *to.add(i) = *from.cast::<f64>().add(i) as f32),
                DType::Bf16 | DType::F16 => unreachable!("`load` rejects this program"),
            }
        }
    }
}

/// The mean over all devices, weighted by their rows and summed in device order.
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

/// `out = Σ sources`, in order or, on a fixed mesh, as a tree.
///
/// # Safety
/// Every source holds as many elements as `out` and does not overlap it.
pub(crate) unsafe fn sum_sources<T: Copy + std::ops::Add<Output = T>>(
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
        return process_collectives::sum_slices(true, &shards[..count], out);
    }
    for (i, values) in values.enumerate() {
        if i == 0 {
            out.copy_from_slice(values);
        } else {
            out.iter_mut().zip(values).for_each(|(o, v)| *o = *o + *v);
        }
    }
}
