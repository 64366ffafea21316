//! Whether all devices hold the same bits.

use super::CpuExecutor;
use crate::memory::Buffer;
use phalanx_graph::ParamId;
use phalanx_graph::exec::ExecError;
use phalanx_graph::peers::gather;
use std::ops::Range;

impl CpuExecutor {
    /// Fails where devices of this process hold other bits than the first.
    pub(super) fn check_devices(&self) -> Result<(), ExecError> {
        let same = |a: &Buffer, b: &Buffer, r: &Range<usize>| {
            let (a, b) = (&a.as_floats()[r.clone()], &b.as_floats()[r.clone()]);
            a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
        };
        let first = &self.devices[0];
        for (i, spec) in self.params.iter().enumerate() {
            let range = self.range(ParamId(i as u32));
            for (n, d) in self.devices.iter().enumerate().skip(1) {
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

    /// Fails where other processes hold other bits.
    pub(super) fn check_processes(&self) -> Result<(), ExecError> {
        let Some(cluster) = self.between.as_ref().map(|b| &b.cluster) else { return Ok(()) };
        let first = &self.devices[0];
        let buffers = || std::iter::once(&first.params).chain(&first.slots);
        let digest = |i: usize| {
            let range = self.range(ParamId(i as u32));
            let bits = buffers().flat_map(|b| &b.as_floats()[range.clone()]).map(|v| v.to_bits());
            // FNV-1a, word by word.
            bits.fold(0xcbf2_9ce4_8422_2325u64, |h, v| {
                (h ^ u64::from(v)).wrapping_mul(0x0100_0000_01b3)
            })
        };
        let mine: Vec<u8> = (0..self.params.len()).flat_map(|i| digest(i).to_le_bytes()).collect();
        let all = gather(&*cluster.peers, &mine);
        let all = all.map_err(|peer| ExecError::Peer { step: 0, peer })?;
        for (rank, other) in all.iter().enumerate() {
            let differs = |i: &usize| all[0].get(8 * i..8 * i + 8) != other.get(8 * i..8 * i + 8);
            if let Some(param) = (0..self.params.len()).find(differs) {
                return Err(ExecError::Drift {
                    param: self.params[param].name.clone(),
                    first: cluster.peers.name(0),
                    second: cluster.peers.name(rank),
                });
            }
        }
        Ok(())
    }
}
