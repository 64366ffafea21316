//! Addresses: where the values of a worker lie, and views of their memory.
//!
//! The functions that hand out references are `unsafe`, because the compiler does not see who else accesses
//! the memory. The program orders conflicting accesses by barriers.

use super::WorkerCtx;
use crate::executor::{DeviceMemory, StateMemory, WorkerMemory};
use crate::kernels::layout::{Dst, Src};
use crate::kernels::matrix::{MatrixMut, MatrixRef};
use phalanx_exec::FeedData;
use phalanx_graph::program::{Location, Split, Value, ValueId};

impl<'a> WorkerCtx<'a> {
    /// The memory of this worker's device.
    pub fn device_memory(&self) -> &'a DeviceMemory {
        self.run.device_memory(self.replica, self.part)
    }

    /// The copy of the training state that this worker uses.
    pub fn state(&self) -> &'a StateMemory {
        self.run.state(self.replica, self.part)
    }

    /// The memory of worker `worker` of the device with this worker's part of a replica.
    pub fn memory_of_worker(&self, replica: usize, worker: usize) -> &'a WorkerMemory {
        self.run.worker_memory(replica, self.part, worker)
    }

    /// The memory of this worker.
    pub fn memory(&self) -> &'a WorkerMemory {
        self.memory_of_worker(self.replica, self.worker)
    }

    /// The worker whose memory holds this worker's values: the first of the device under `Split::Spatial`.
    pub fn memory_owner(&self) -> usize {
        if self.program().split() == Split::Spatial { 0 } else { self.worker }
    }

    /// This worker's scratch memory.
    ///
    /// # Safety
    /// No other slice of it is used while this one lives. So an instruction takes it once at a time, and no
    /// kernel retains it.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn scratch(&self) -> &'a mut [f32] {
        let buffer = &self.memory().scratch;
        // SAFETY: no other worker touches this buffer; the rest is the caller's contract.
        unsafe { std::slice::from_raw_parts_mut(buffer.f32(), buffer.bytes() / 4) }
    }

    /// The first byte of a value in the memory of worker `worker` of the device with this worker's part of replica
    /// `replica`. The verifier ensures that every value lies inside its buffer, except that an empty value may lie anywhere.
    pub fn address(&self, v: &Value, replica: usize, worker: usize) -> *mut u8 {
        self.address_of(v, (replica, self.part), worker)
    }

    /// The first byte of a value in the memory of worker `worker` of a replica's device.
    pub fn address_of(&self, v: &Value, (replica, part): (usize, usize), worker: usize) -> *mut u8 {
        let owner = self.run.worker_memory(replica, part, worker);
        let skip = v.offset * v.ty.dtype.bytes();
        match v.location {
            Location::Feed(id) => {
                let rows = self.run.rows(replica, worker);
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
                let offset = self.run.memory.weights.offsets[id.index()];
                self.run.state(replica, part).params.ptr().wrapping_add(offset * 4 + skip)
            }
            Location::Gathered { group, offset } => {
                let buffers = self.run.collectives.map(|c| c.gathered[group % 2].ptr());
                let buffer = buffers.expect("weights are divided among processes");
                buffer.wrapping_add(offset + skip)
            }
            Location::Arena(offset) => owner.arena.ptr().wrapping_add(offset + skip),
            Location::Shared(offset) => owner.shared.ptr().wrapping_add(offset + skip),
            Location::Device(offset) => {
                // Bytes per row of the value's buffer, gaps included.
                let row = v.ty.len() / v.ty.last().max(1) * v.ld * v.ty.dtype.bytes();
                let first = self.run.rows(replica, 0).start;
                let before = self.run.rows(replica, worker).start - first;
                let memory = self.run.device_memory(replica, part);
                memory.rows.ptr().wrapping_add(offset + before * row + skip)
            }
            Location::Gradient(id) => {
                let offset = self.run.memory.layout.offsets[id.index()] * 4 + skip;
                owner.gradients.ptr().wrapping_add(offset)
            }
        }
    }

    /// The first float of a value.
    pub fn f32(&self, id: ValueId) -> *mut f32 {
        self.address(self.value(id), self.replica, self.memory_owner()).cast()
    }

    /// The first integer of a value.
    pub fn i32(&self, id: ValueId) -> *mut i32 {
        self.f32(id).cast()
    }

    /// A value's pixels.
    pub fn src(&self, id: ValueId) -> Src {
        Src { ptr: self.f32(id), ld: self.value(id).ld }
    }

    /// A value's pixels, writable.
    pub fn dst(&self, id: ValueId) -> Dst {
        Dst { ptr: self.f32(id), ld: self.value(id).ld }
    }

    /// A value's floats, gaps between pixels included.
    ///
    /// # Safety
    /// Nothing writes to the value or its gaps while the slice lives. The gaps belong to other values of the
    /// same buffer.
    pub unsafe fn slice(&self, id: ValueId) -> &'a [f32] {
        // SAFETY: the value has this much memory, and buffers are zeroed when allocated. The rest is the
        // caller's contract.
        unsafe { std::slice::from_raw_parts(self.f32(id), self.span(id)) }
    }

    /// A value's floats, gaps between pixels included, writable.
    ///
    /// # Safety
    /// Nothing else accesses the value or its gaps while the slice lives.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn slice_mut(&self, id: ValueId) -> &'a mut [f32] {
        // SAFETY: the value has this much memory, and buffers are zeroed when allocated. The rest is the
        // caller's contract.
        unsafe { std::slice::from_raw_parts_mut(self.f32(id), self.span(id)) }
    }

    /// A value as a matrix with one row per pixel.
    ///
    /// # Safety
    /// As [`slice`](Self::slice).
    pub unsafe fn matrix(&self, id: ValueId) -> MatrixRef<'a> {
        let v = self.value(id);
        // SAFETY: the caller's contract.
        MatrixRef::new(unsafe { self.slice(id) }, self.pixels(id), v.ty.last(), v.ld)
    }

    /// A value as a writable matrix with one row per pixel.
    ///
    /// # Safety
    /// As [`slice_mut`](Self::slice_mut).
    pub unsafe fn matrix_mut(&self, id: ValueId) -> MatrixMut<'a> {
        let v = self.value(id);
        // SAFETY: the caller's contract.
        MatrixMut::new(unsafe { self.slice_mut(id) }, self.pixels(id), v.ty.last(), v.ld)
    }

    /// Floats of a value, gaps between pixels included.
    pub(super) fn span(&self, id: ValueId) -> usize {
        match self.pixels(id) {
            0 => 0,
            n => (n - 1) * self.value(id).ld + self.value(id).ty.last(),
        }
    }
}
