//! The memory of an executor: copies of the training state, and the buffers of its devices and workers.

use super::memory_requirements::{DeviceBytes, MemoryRequirements, StateNeeds, WorkerBytes};
use crate::memory::{Buffer, Heap};
use crate::threads::{Barrier, Team};
use phalanx_exec::ExecError;
use phalanx_graph::program::{BLOCK, Mesh};
use phalanx_graph::update::{SlotInit, UpdateRule};
use phalanx_graph::{ParamId, ParamSpec};
use std::ops::Range;
use std::sync::Arc;

/// Alignment of parameters in the flat layout, in floats. It keeps slices aligned.
const PARAM_ALIGN: usize = 16;

/// Where a flat buffer holds the elements of each parameter.
pub(crate) struct FlatLayout {
    /// The elements that the buffer holds: all of a parameter, or a part.
    pub held: Vec<Range<usize>>,
    /// The offset of the first of them, in floats.
    pub offsets: Vec<usize>,
    pub len: usize,
}

impl FlatLayout {
    /// All elements of every parameter. `None` if the total size exceeds the address space.
    pub fn new(params: &[ParamSpec]) -> Option<FlatLayout> {
        FlatLayout::of(params, |_, p| 0..p.len())
    }

    /// The elements of each parameter that `held` returns.
    pub fn of(
        params: &[ParamSpec],
        held: impl Fn(ParamId, &ParamSpec) -> Range<usize>,
    ) -> Option<FlatLayout> {
        let mut layout = FlatLayout { held: vec![], offsets: vec![], len: 0 };
        for (id, p) in (0..).map(ParamId).zip(params) {
            let held = held(id, p);
            layout.offsets.push(layout.len);
            layout.len =
                layout.len.checked_add(held.len().checked_next_multiple_of(PARAM_ALIGN)?)?;
            layout.held.push(held);
        }
        isize::try_from(layout.len.checked_mul(4)?).is_ok().then_some(layout)
    }

    /// The position of an element that the buffer holds.
    pub fn at(&self, param: ParamId, element: usize) -> usize {
        self.offsets[param.index()] + element - self.held[param.index()].start
    }

    /// The positions of all elements of a parameter that the buffer holds.
    pub fn positions(&self, param: ParamId) -> Range<usize> {
        let start = self.offsets[param.index()];
        start..start + self.held[param.index()].len()
    }
}

/// The memory of a device.
pub(crate) struct DeviceMemory {
    /// Activations that the device's workers share.
    pub rows: Buffer,
    /// Gradients of sharded dense layers, computed over the device's rows.
    pub sharded: Buffer,
    /// This device's share of the reduce-scattered gradients, which the other devices read.
    pub scattered: Buffer,
    pub barrier: Barrier,
}

impl DeviceMemory {
    fn new(barrier: Barrier) -> DeviceMemory {
        let [rows, sharded, scattered] = [(); 3].map(|()| Buffer::empty());
        DeviceMemory { rows, sharded, scattered, barrier }
    }
}

/// A copy of the training state: that of one device, or of the whole process if the state is sharded.
pub(crate) struct StateMemory {
    pub params: Buffer,
    /// Slots, reduced and accumulated gradients hold the elements that this copy updates.
    pub slots: Vec<Buffer>,
    /// Reduced gradients, stored if the update first needs their norms or a check that they are finite.
    pub reduced: Buffer,
    /// Gradients accumulated over several steps.
    pub accumulated: Buffer,
    /// The squared norm of every block of every gradient, in doubles.
    pub block_norms: Buffer,
}

impl StateMemory {
    fn new(params: Buffer) -> StateMemory {
        let [reduced, accumulated, block_norms] = [(); 3].map(|()| Buffer::empty());
        StateMemory { params, slots: vec![], reduced, accumulated, block_norms }
    }
}

/// The memory of a worker.
pub(crate) struct WorkerMemory {
    pub arena: Buffer,
    pub shared: Buffer,
    pub gradients: Buffer,
    pub scratch: Buffer,
    /// Whether all gradients that this worker has reduced are finite: one double, 1 or 0.
    pub finite: Buffer,
    /// Seconds of each instruction in this step, if profiling is on.
    pub seconds: Buffer,
}

impl WorkerMemory {
    fn empty() -> WorkerMemory {
        WorkerMemory {
            arena: Buffer::empty(),
            shared: Buffer::empty(),
            gradients: Buffer::empty(),
            scratch: Buffer::empty(),
            finite: Buffer::empty(),
            seconds: Buffer::empty(),
        }
    }
}

/// The memory of the devices and workers of this process.
pub(crate) struct ExecutorMemory {
    pub heap: Heap,
    /// The layout of whole gradients.
    pub layout: FlatLayout,
    /// The layout of the weights that this process holds.
    pub weights: FlatLayout,
    /// The layout of what this process updates.
    pub owned: FlatLayout,
    /// The index of each parameter's first block among those of all parameters.
    pub first_blocks: Vec<usize>,
    pub devices: Vec<DeviceMemory>,
    /// One copy of the training state for each device, or one for each part of a replica.
    pub states: Vec<StateMemory>,
    /// The workers of the first device, then those of the second, and so on; the devices of a replica follow each
    /// other.
    pub workers: Vec<WorkerMemory>,
}

impl ExecutorMemory {
    /// Memory for the parameters of the `own` replicas of a mesh: the part of them that each device holds. `domain` is the
    /// index of this process.
    pub fn new(
        params: &[ParamSpec],
        mesh: Mesh,
        (own, domain): (usize, usize),
        team: &Arc<Team>,
    ) -> Result<ExecutorMemory, ExecError> {
        let (sharding, workers) = (mesh.sharding, mesh.workers);
        let params = &parts_of(params, mesh.devices_per_replica);
        let too_large =
            || ExecError::Memory { wanted: usize::MAX, purpose: "weights".into(), available: None };
        let layout = FlatLayout::new(params).ok_or_else(too_large)?;
        let owned = FlatLayout::of(params, |id, p| sharding.owned(id, p.len(), domain));
        let weights = FlatLayout::of(params, |id, p| sharding.held(id, p, domain));
        let weights = weights.ok_or_else(too_large)?;
        let mut blocks = 0;
        let first_blocks = params.iter().map(|p| {
            blocks += p.len().div_ceil(BLOCK);
            blocks - p.len().div_ceil(BLOCK)
        });
        let first_blocks = first_blocks.collect();
        let mut heap = Heap::default();
        let state = |_| heap.buffer(weights.len * 4, "weights").map(StateMemory::new);
        let devices = own * mesh.devices_per_replica;
        let copies = if sharding.is_on() { mesh.devices_per_replica } else { devices };
        let states = (0..copies).map(state).collect::<Result<_, _>>()?;
        let device = |_| DeviceMemory::new(Barrier::new(workers, team.clone()));
        Ok(ExecutorMemory {
            heap,
            layout,
            weights,
            owned: owned.ok_or_else(too_large)?,
            first_blocks,
            devices: (0..devices).map(device).collect(),
            states,
            workers: (0..devices * workers).map(|_| WorkerMemory::empty()).collect(),
        })
    }

    /// Reserves the memory that a program needs on devices and workers. Buffers that are large enough stay as
    /// they are.
    pub(super) fn reserve(&mut self, memory: &MemoryRequirements) -> Result<(), ExecError> {
        let ExecutorMemory { heap, devices, states, workers, .. } = self;
        let workers_per_device = workers.len() / devices.len();
        let WorkerBytes { arena, shared, scratch, gradients, finite } = memory.worker;
        for (i, w) in workers.iter_mut().enumerate() {
            if i % workers_per_device < memory.arenas {
                grow(heap, &mut w.arena, arena, "activations")?;
            }
            grow(heap, &mut w.shared, shared, "statistics")?;
            grow(heap, &mut w.scratch, scratch, "kernel scratch")?;
            grow(heap, &mut w.gradients, gradients, "gradients")?;
            grow(heap, &mut w.finite, finite, "a check of gradients")?;
        }
        let DeviceBytes { rows, sharded, scattered } = memory.device;
        for d in devices {
            grow(heap, &mut d.rows, rows, "activations")?;
            grow(heap, &mut d.sharded, sharded, "gradients")?;
            grow(heap, &mut d.scattered, scattered, "gradients")?;
        }
        let owned = self.owned.len * 4;
        let StateNeeds { reduced, block_norms, .. } = memory.state;
        for s in states {
            grow(heap, &mut s.reduced, if reduced { owned } else { 0 }, "reduced gradients")?;
            grow(heap, &mut s.block_norms, block_norms, "norms of gradients")?;
        }
        Ok(())
    }

    /// Reserves the buffers for gradient accumulation.
    pub fn reserve_accumulated(&mut self) -> Result<(), ExecError> {
        // Never empty: whether the buffer exists must be the same on all processes.
        let bytes = (self.owned.len * 4).max(4);
        self.states.iter_mut().try_for_each(|s| {
            grow(&mut self.heap, &mut s.accumulated, bytes, "accumulated gradients")
        })
    }

    /// Reserves the tables for the times of `instrs` instructions.
    pub fn reserve_seconds(&mut self, instrs: usize) -> Result<(), ExecError> {
        let heap = &mut self.heap;
        self.workers
            .iter_mut()
            .try_for_each(|w| grow(heap, &mut w.seconds, instrs * 8, "a profile"))
    }

    /// Creates the slots of an optimizer, in all copies of the state or in none.
    pub fn create_slots(&mut self, rule: &UpdateRule) -> Result<(), ExecError> {
        let mut created = vec![];
        for s in self.states.iter().filter(|s| s.slots.len() != rule.slots.len()) {
            let mut slots = vec![];
            for slot in &rule.slots {
                let mut buffer = self.heap.buffer(self.owned.len * 4, "optimizer slots")?;
                match slot.init {
                    SlotInit::Value(v) => buffer.as_floats_mut().fill(v),
                    SlotInit::Weight => {
                        // SAFETY: no step is in flight, so no worker writes.
                        let weights = unsafe { s.params.as_floats() };
                        let to = buffer.as_floats_mut();
                        for (id, held) in (0..).map(ParamId).zip(&self.owned.held) {
                            let from = self.weights.at(id, held.start);
                            let values = &weights[from..from + held.len()];
                            to[self.owned.positions(id)].copy_from_slice(values);
                        }
                    }
                }
                slots.push(buffer);
            }
            created.push(slots);
        }
        let without = self.states.iter_mut().filter(|s| s.slots.len() != rule.slots.len());
        without.zip(created).for_each(|(s, slots)| s.slots = slots);
        Ok(())
    }
}

/// The parameters with the dimensions of the part that each of `parts` devices of a replica holds.
pub(crate) fn parts_of(params: &[ParamSpec], parts: usize) -> Vec<ParamSpec> {
    let part = |spec: &ParamSpec| {
        let mut spec = spec.clone();
        if let Some(dim) = spec.partition_axis.and_then(|axis| spec.dims.get_mut(axis)) {
            *dim /= parts;
        }
        spec
    };
    params.iter().map(part).collect()
}

/// Replaces a buffer by a larger one if it has fewer than `bytes` bytes. Its contents are lost.
pub(crate) fn grow(
    heap: &mut Heap,
    buffer: &mut Buffer,
    bytes: usize,
    purpose: &str,
) -> Result<(), ExecError> {
    if buffer.bytes() < bytes {
        *buffer = Buffer::empty();
        *buffer = heap.buffer(bytes, purpose)?;
    }
    Ok(())
}
