//! The offset of every buffer in its block.

use super::Planner;
use super::liveness::LiveRange;
use crate::error::{GraphError, Result};
use crate::graph::NodeId;
use crate::lower::{BufferKind, LinearInstr, needs_own_buffer};
use crate::program::Memory;
use std::collections::HashMap;

impl Planner<'_> {
    /// First fit in order of decreasing size: small buffers fill the gaps.
    pub(super) fn offsets(&self) -> (Vec<usize>, Memory) {
        let mut offsets = vec![0; self.live_ranges.len()];
        let mut memory = Memory::default();
        let mut order: Vec<(usize, LiveRange)> = vec![];
        for (i, range) in self.live_ranges.iter().enumerate() {
            let Some(range) = range else { continue };
            match self.lowered.kinds[i] {
                BufferKind::Shared => offsets[i] = allocate(&mut memory.shared, range.bytes),
                BufferKind::Device => offsets[i] = allocate(&mut memory.device, range.bytes),
                BufferKind::Arena | BufferKind::Gradient(_) => {
                    memory.unplanned += range.bytes;
                    order.push((i, *range));
                }
            }
        }
        order.sort_by_key(|(i, range)| (std::cmp::Reverse(range.bytes), *i));
        let mut placed: Vec<(usize, LiveRange)> = vec![];
        for (i, range) in order {
            let mut occupied: Vec<(usize, usize)> = placed
                .iter()
                .filter(|(_, o)| o.start <= range.end && range.start <= o.end)
                .map(|(at, o)| (*at, at + o.bytes))
                .collect();
            occupied.sort_unstable();
            let mut at = 0;
            for (from, to) in occupied {
                if at + range.bytes <= from {
                    break;
                }
                at = at.max(to);
            }
            offsets[i] = at;
            memory.arena = memory.arena.max(at + range.bytes);
            placed.push((at, range));
        }
        (offsets, memory)
    }

    /// Allocates this worker's partial product of every sharded product: all rows of the device.
    pub(super) fn partial_products(&self, memory: &mut Memory) -> HashMap<NodeId, usize> {
        let mut offsets = HashMap::new();
        for instr in &self.lowered.instrs {
            let LinearInstr::ReduceScatter(id) = instr else { continue };
            let bytes = self.bytes_of(self.step.graph.ty(*id), self.replica_rows);
            offsets.insert(*id, allocate(&mut memory.shared, bytes));
        }
        offsets
    }

    /// Fails if two live buffers overlap, if a buffer exceeds its block, or if a kernel that takes slices
    /// reads the buffer it writes.
    pub(super) fn check(&self, offsets: &[usize], memory: Memory) -> Result<()> {
        let buffers: Vec<(usize, LiveRange)> = self
            .live_ranges
            .iter()
            .enumerate()
            .filter_map(|(i, range)| Some((i, (*range)?)))
            .collect();
        for (n, (i, a)) in buffers.iter().enumerate() {
            let kind = self.lowered.kinds[*i];
            let size = match kind {
                BufferKind::Shared => memory.shared,
                BufferKind::Device => memory.device,
                BufferKind::Arena | BufferKind::Gradient(_) => memory.arena,
            };
            if offsets[*i] + a.bytes > size {
                let text = format!("the buffer of %{i} ends after byte {size}");
                return Err(GraphError::internal("plan", text));
            }
            for (j, b) in &buffers[..n] {
                // Buffers that other workers read are not reused within a step.
                let same_block = kind == self.lowered.kinds[*j];
                let same_time = kind != BufferKind::Arena || (a.start <= b.end && b.start <= a.end);
                let (x, y) = (offsets[*i], offsets[*j]);
                if same_block && same_time && x < y + b.bytes && y < x + a.bytes {
                    let text = format!("the buffers of %{j} and %{i} overlap");
                    return Err(GraphError::internal("plan", text));
                }
            }
        }
        for instr in &self.lowered.instrs {
            let LinearInstr::Compute { id, .. } = instr else { continue };
            let node = self.step.graph.node(*id);
            let buffer = |x: NodeId| self.buffer[self.root(x).index()];
            if needs_own_buffer(&node.op) && node.inputs.iter().any(|x| buffer(*x) == buffer(*id)) {
                let text = format!("{} of %{} reads the buffer it writes", node.op.name(), id.0);
                return Err(GraphError::internal("plan", text));
            }
        }
        Ok(())
    }
}

/// Appends `bytes` to a block and returns their offset.
fn allocate(block: &mut usize, bytes: usize) -> usize {
    *block += bytes;
    *block - bytes
}
