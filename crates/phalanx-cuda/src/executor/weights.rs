//! State that outlives a step on every replica, by parameter: weights, slots and accumulated
//! gradients.

use super::{GpuExecutor, as_bytes, floats};
use crate::device::GpuDevice;
use crate::launch::{Block, Ptr};
use phalanx_graph::ParamId;
use phalanx_graph::exec::ExecError;
use phalanx_graph::process_group::digest;
use phalanx_graph::update::SlotInit;

impl<M: GpuDevice> GpuExecutor<M> {
    fn check_len(&self, id: ParamId, received: usize) -> Result<(), ExecError> {
        let spec = &self.params[id.index()];
        if spec.len() == received {
            return Ok(());
        }
        Err(ExecError::Param { name: spec.name.clone(), expected: spec.len(), received })
    }

    /// Writes a parameter's values into a block of every replica.
    pub(super) fn write(
        &mut self,
        block: Block,
        id: ParamId,
        values: &[f32],
    ) -> Result<(), ExecError> {
        self.check_len(id, values.len())?;
        let bytes = to_bytes(values);
        for device in &mut self.devices {
            for local in 0..device.replicas.len() {
                let at = Ptr::new(local, block, self.offsets[id.index()]);
                device.gpu.write(at, &bytes)?;
            }
        }
        Ok(())
    }

    /// Reads a parameter's values from a block of a replica.
    pub(super) fn read(
        &self,
        replica: usize,
        block: Block,
        id: ParamId,
    ) -> Result<Vec<f32>, ExecError> {
        let mut bytes = vec![0; self.params[id.index()].len() * 4];
        for device in self.devices.iter().filter(|s| s.replicas.contains(&replica)) {
            let local = replica - device.replicas.start;
            device.gpu.read(Ptr::new(local, block, self.offsets[id.index()]), &mut bytes)?;
        }
        Ok(to_floats(&bytes))
    }

    /// Reads a parameter from the first replica. If the GPU cannot be read, all values are NaN.
    pub(super) fn read_first(&self, block: Block, id: ParamId) -> Vec<f32> {
        self.read(self.local_replicas().start, block, id).unwrap_or_else(|e| {
            tracing::error!("{e}");
            vec![f32::NAN; self.params[id.index()].len()]
        })
    }

    /// Fills the optimizer slots with their initial values.
    pub(super) fn init_slots(&mut self, inits: &[SlotInit]) -> Result<(), ExecError> {
        for (i, init) in inits.iter().enumerate() {
            for at in 0..self.params.len() {
                let id = ParamId(at as u32);
                let values = match init {
                    SlotInit::Value(v) => vec![*v; self.params[at].len()],
                    SlotInit::Weight => {
                        self.read(self.local_replicas().start, Block::Params, id)?
                    }
                };
                self.write(Block::Slot(i), id, &values)?;
            }
        }
        self.slots = inits.len();
        Ok(())
    }

    /// Fails if replicas, here or in other processes, hold different bits.
    pub(super) fn check_replicas_equal(&self) -> Result<(), ExecError> {
        let slots = (0..self.slots).map(Block::Slot);
        let blocks: Vec<Block> = [Block::Params].into_iter().chain(slots).collect();
        let own = self.local_replicas();
        let mut digests = vec![];
        for (at, spec) in self.params.iter().enumerate() {
            let id = ParamId(at as u32);
            let mut held = vec![];
            for block in &blocks {
                let first = self.read(own.start, *block, id)?;
                for (device, name) in own.clone().zip(&self.names).skip(1) {
                    let other = self.read(device, *block, id)?;
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
        self.peers
            .as_ref()
            .map_or(Ok(()), |peers| peers.check_consistency(&self.params, digests.into_iter()))
    }
}

fn to_bytes(values: &[f32]) -> Vec<u8> {
    as_bytes(values).to_vec()
}

fn to_floats(bytes: &[u8]) -> Vec<f32> {
    floats(bytes).collect()
}
