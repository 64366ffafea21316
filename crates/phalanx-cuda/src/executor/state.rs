//! State that outlives a step on every replica, by parameter: weights, slots and accumulated
//! gradients.

use super::GpuExecutor;
use crate::bytes::{as_bytes, floats};
use crate::device::GpuDevice;
use crate::launch::{Block, Ptr};
use phalanx_distributed::digest;
use phalanx_exec::{ExecError, StateId, check_len};
use phalanx_graph::ParamId;
use phalanx_graph::update::SlotInit;

impl<M: GpuDevice> GpuExecutor<M> {
    /// Writes a parameter's values into a block of every replica.
    fn write_to_all(&mut self, block: Block, id: ParamId, values: &[f32]) -> Result<(), ExecError> {
        check_len(&self.state.params[id.index()], values.len())?;
        let bytes = to_bytes(values);
        for device in &mut self.devices {
            for local in 0..device.replicas.len() {
                let at = Ptr::new(local, block, self.state.offsets[id.index()]);
                device.gpu.write(at, &bytes)?;
            }
        }
        Ok(())
    }

    /// Reads a parameter's values from a block of a replica.
    fn read_from(&self, replica: usize, block: Block, id: ParamId) -> Result<Vec<f32>, ExecError> {
        let mut bytes = vec![0; self.state.params[id.index()].len() * 4];
        for device in self.devices.iter().filter(|s| s.replicas.contains(&replica)) {
            let local = replica - device.replicas.start;
            device.gpu.read(Ptr::new(local, block, self.state.offsets[id.index()]), &mut bytes)?;
        }
        Ok(to_floats(&bytes))
    }

    /// Reads a part of the state from the first replica; `None` if it is not allocated.
    pub(super) fn read_state(&self, id: StateId) -> Result<Option<Vec<f32>>, ExecError> {
        let (block, param) = block_of(id);
        let allocated = match id {
            StateId::Param(_) => true,
            StateId::Slot(slot, _) => slot < self.state.slots,
            StateId::Accumulated(_) => self.state.accumulates,
        };
        let first = self.local_replicas().start;
        allocated.then(|| self.read_from(first, block, param)).transpose()
    }

    /// Writes a part of the state on every replica.
    pub(super) fn write_state(&mut self, id: StateId, values: &[f32]) -> Result<(), ExecError> {
        let (block, param) = block_of(id);
        if block == Block::Accumulated {
            self.reserve(block, self.state.bytes, "accumulated gradients")?;
            self.state.accumulates = true;
        }
        self.write_to_all(block, param, values)
    }

    /// Fills the optimizer slots with their initial values.
    pub(super) fn init_slots(&mut self, inits: &[SlotInit]) -> Result<(), ExecError> {
        for (i, init) in inits.iter().enumerate() {
            for at in 0..self.state.params.len() {
                let id = ParamId(at as u32);
                let values = match init {
                    SlotInit::Value(v) => vec![*v; self.state.params[at].len()],
                    SlotInit::Weight => {
                        self.read_from(self.local_replicas().start, Block::Params, id)?
                    }
                };
                self.write_to_all(Block::Slot(i), id, &values)?;
            }
        }
        self.state.slots = inits.len();
        Ok(())
    }

    /// Fails if replicas, here or in other processes, hold different bits.
    pub(super) fn check_replicas_equal(&self) -> Result<(), ExecError> {
        let slots = (0..self.state.slots).map(Block::Slot);
        let blocks: Vec<Block> = [Block::Params].into_iter().chain(slots).collect();
        let own = self.local_replicas();
        let mut digests = vec![];
        for (at, spec) in self.state.params.iter().enumerate() {
            let id = ParamId(at as u32);
            let mut held = vec![];
            for block in &blocks {
                let first = self.read_from(own.start, *block, id)?;
                for (device, name) in own.clone().zip(&self.names).skip(1) {
                    let other = self.read_from(device, *block, id)?;
                    let same = first.iter().zip(&other).all(|(a, b)| a.to_bits() == b.to_bits());
                    if !same {
                        return Err(ExecError::Drift {
                            param: spec.name.clone(),
                            first: self.names[0].clone(),
                            second: name.clone(),
                        });
                    }
                }
                held.extend(first.into_iter().map(f32::to_bits));
            }
            digests.push(digest(held.into_iter()));
        }
        self.peers.as_ref().map_or(Ok(()), |peers| {
            peers.check_consistency(&self.state.params, digests.into_iter())
        })
    }
}

/// The block of a part of the state, and its parameter.
fn block_of(id: StateId) -> (Block, ParamId) {
    match id {
        StateId::Param(param) => (Block::Params, param),
        StateId::Slot(slot, param) => (Block::Slot(slot), param),
        StateId::Accumulated(param) => (Block::Accumulated, param),
    }
}

fn to_bytes(values: &[f32]) -> Vec<u8> {
    as_bytes(values).to_vec()
}

fn to_floats(bytes: &[u8]) -> Vec<f32> {
    floats(bytes).collect()
}
