//! Consistency checks: all devices must hold the same bits of every parameter and slot.

use super::CpuExecutor;
use crate::memory::Buffer;
use phalanx_distributed::digest;
use phalanx_exec::{ExecError, StateId, check_equal};
use phalanx_graph::ParamId;
use std::ops::Range;

impl CpuExecutor {
    /// Fails if a copy of the training state in this process differs from the first.
    pub(super) fn check_devices(&self) -> Result<(), ExecError> {
        let same = |a: &Buffer, b: &Buffer, r: &Range<usize>| {
            // SAFETY: no step is in flight, so no worker writes.
            let (a, b) = unsafe { (&a.as_floats()[r.clone()], &b.as_floats()[r.clone()]) };
            a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
        };
        let model = self.mesh.devices_per_replica;
        for (i, spec) in self.params.iter().enumerate() {
            let range = self.memory.weights.positions(ParamId(i as u32));
            for (n, d) in self.memory.states.iter().enumerate().skip(1) {
                // Devices with other parts of a replica hold other parts of what is partitioned.
                let first =
                    &self.memory.states[if spec.partition_axis.is_some() { n % model } else { 0 }];
                let mut slots = first.slots.iter().zip(&d.slots);
                let mirrored = same(&first.params, &d.params, &range)
                    && slots.all(|(a, b)| same(a, b, &range));
                if !mirrored {
                    return Err(ExecError::Drift {
                        param: spec.name.clone(),
                        first: "cpu:0".into(),
                        second: format!("cpu:{n}"),
                    });
                }
            }
        }
        Ok(())
    }

    /// Fails if the processes differ.
    pub(super) fn check_processes(&self) -> Result<(), ExecError> {
        let Some(cluster) = self.collectives.as_ref().map(|c| &c.cluster) else { return Ok(()) };
        let first = &self.memory.states[0];
        // Each process has its own part of sharded slots.
        let slots = if self.mesh.sharding.is_on() { &[][..] } else { &first.slots };
        let buffers = || std::iter::once(&first.params).chain(slots);
        let digests = (0..self.params.len()).map(|i| {
            let id = ParamId(i as u32);
            if self.divides(StateId::Param(id)) {
                return 0;
            }
            let range = self.memory.weights.positions(id);
            // SAFETY: as above.
            let floats = buffers().flat_map(|b| unsafe { &b.as_floats()[range.clone()] });
            digest(floats.map(|v| v.to_bits()))
        });
        check_equal(&*cluster.peers, &self.params, digests)
    }
}
