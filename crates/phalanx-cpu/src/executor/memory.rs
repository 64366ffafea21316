//! The memory of an executor: parameters, slots and gradients of its devices, and the buffers of its workers.

use super::memory_requirements::{DeviceBytes, MemoryRequirements, WorkerBytes};
use crate::memory::{Buffer, Heap};
use crate::threads::{Barrier, Team};
use phalanx_exec::ExecError;
use phalanx_graph::ParamSpec;
use phalanx_graph::update::{SlotInit, UpdateRule};
use std::sync::Arc;

/// Alignment of parameters in the flat layout, in floats. It keeps slices aligned.
const PARAM_ALIGN: usize = 16;

/// The offset of each parameter in a flat buffer, in floats.
pub(crate) struct FlatLayout {
    pub offsets: Vec<usize>,
    pub len: usize,
}

impl FlatLayout {
    /// `None` if the total size exceeds the address space.
    pub fn new(params: &[ParamSpec]) -> Option<FlatLayout> {
        let mut offsets = Vec::with_capacity(params.len());
        let mut len = 0usize;
        for p in params {
            offsets.push(len);
            len = len.checked_add(p.len().checked_next_multiple_of(PARAM_ALIGN)?)?;
        }
        isize::try_from(len.checked_mul(4)?).is_ok().then_some(FlatLayout { offsets, len })
    }
}

/// The memory of a device.
pub(crate) struct DeviceMemory {
    pub params: Buffer,
    pub slots: Vec<Buffer>,
    /// Activations that the device's workers share.
    pub rows: Buffer,
    /// Gradients of sharded dense layers, computed over the device's rows.
    pub sharded: Buffer,
    /// This device's share of the reduce-scattered gradients, which the other devices read.
    pub scattered: Buffer,
    /// Reduced gradients, stored if the update first needs their norms or a check that they are finite.
    pub reduced: Buffer,
    /// Gradients accumulated over several steps.
    pub accumulated: Buffer,
    pub barrier: Barrier,
}

impl DeviceMemory {
    fn new(params: Buffer, barrier: Barrier) -> DeviceMemory {
        DeviceMemory {
            params,
            slots: vec![],
            rows: Buffer::empty(),
            sharded: Buffer::empty(),
            scattered: Buffer::empty(),
            reduced: Buffer::empty(),
            accumulated: Buffer::empty(),
            barrier,
        }
    }
}

/// The memory of a worker.
pub(crate) struct WorkerMemory {
    pub arena: Buffer,
    pub shared: Buffer,
    pub gradients: Buffer,
    pub scratch: Buffer,
    /// For each gradient the squared norm of this worker's slice. The entry of the loss scale's state says
    /// whether all slices of this worker are finite.
    pub norms: Buffer,
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
            norms: Buffer::empty(),
            seconds: Buffer::empty(),
        }
    }
}

/// The memory of the devices and workers of this process.
pub(crate) struct ExecutorMemory {
    pub heap: Heap,
    pub layout: FlatLayout,
    pub devices: Vec<DeviceMemory>,
    /// The workers of the first device, then those of the second, and so on.
    pub workers: Vec<WorkerMemory>,
}

impl ExecutorMemory {
    /// Memory for the parameters of `devices` devices with `workers` workers each.
    pub fn new(
        params: &[ParamSpec],
        devices: usize,
        workers: usize,
        team: &Arc<Team>,
    ) -> Result<ExecutorMemory, ExecError> {
        let layout = FlatLayout::new(params).ok_or_else(|| ExecError::Memory {
            wanted: usize::MAX,
            purpose: "weights".into(),
            available: None,
        })?;
        let mut heap = Heap::default();
        let device = |_| -> Result<DeviceMemory, ExecError> {
            let params = heap.buffer(layout.len * 4, "weights")?;
            Ok(DeviceMemory::new(params, Barrier::new(workers, team.clone())))
        };
        let device_memories = (0..devices).map(device).collect::<Result<_, _>>()?;
        let worker_memories = (0..devices * workers).map(|_| WorkerMemory::empty()).collect();
        Ok(ExecutorMemory { heap, layout, devices: device_memories, workers: worker_memories })
    }

    /// Reserves the memory that a program needs on devices and workers. Buffers that are large enough stay as
    /// they are.
    pub(super) fn reserve(&mut self, memory: &MemoryRequirements) -> Result<(), ExecError> {
        let ExecutorMemory { heap, devices, workers, .. } = self;
        let workers_per_device = workers.len() / devices.len();
        let WorkerBytes { arena, shared, scratch, gradients, norms } = memory.worker;
        for (i, w) in workers.iter_mut().enumerate() {
            if i % workers_per_device < memory.arenas {
                grow(heap, &mut w.arena, arena, "activations")?;
            }
            grow(heap, &mut w.shared, shared, "statistics")?;
            grow(heap, &mut w.scratch, scratch, "kernel scratch")?;
            grow(heap, &mut w.gradients, gradients, "gradients")?;
            grow(heap, &mut w.norms, norms, "gradient norms")?;
        }
        let DeviceBytes { rows, sharded, scattered, reduced, .. } = memory.device;
        for d in devices {
            grow(heap, &mut d.rows, rows, "activations")?;
            grow(heap, &mut d.sharded, sharded, "gradients")?;
            grow(heap, &mut d.scattered, scattered, "gradients")?;
            grow(heap, &mut d.reduced, reduced, "reduced gradients")?;
        }
        Ok(())
    }

    /// Reserves the buffers for gradient accumulation.
    pub fn reserve_accumulated(&mut self) -> Result<(), ExecError> {
        let bytes = self.layout.len * 4;
        self.devices.iter_mut().try_for_each(|d| {
            grow(&mut self.heap, &mut d.accumulated, bytes, "accumulated gradients")
        })
    }

    /// Reserves the tables for the times of `instrs` instructions.
    pub fn reserve_seconds(&mut self, instrs: usize) -> Result<(), ExecError> {
        let heap = &mut self.heap;
        self.workers
            .iter_mut()
            .try_for_each(|w| grow(heap, &mut w.seconds, instrs * 8, "a profile"))
    }

    /// Creates the slots of an optimizer, on all devices or on none.
    pub fn create_slots(&mut self, rule: &UpdateRule) -> Result<(), ExecError> {
        let mut created = vec![];
        for d in self.devices.iter().filter(|d| d.slots.len() != rule.slots.len()) {
            let mut slots = vec![];
            for slot in &rule.slots {
                let mut buffer = self.heap.buffer(self.layout.len * 4, "optimizer slots")?;
                match slot.init {
                    SlotInit::Value(v) => buffer.as_floats_mut().fill(v),
                    SlotInit::Weight => {
                        // SAFETY: no step is in flight, so no worker writes.
                        let from = unsafe { d.params.as_floats() };
                        let to = buffer.as_floats_mut();
                        to[..from.len()].copy_from_slice(from);
                    }
                }
                slots.push(buffer);
            }
            created.push(slots);
        }
        let without = self.devices.iter_mut().filter(|d| d.slots.len() != rule.slots.len());
        without.zip(created).for_each(|(d, slots)| d.slots = slots);
        Ok(())
    }
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
