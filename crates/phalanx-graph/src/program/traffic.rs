//! The traffic of a step: what the members of a mesh send to each other.

use super::{Instr, Program, ShardLevel};
use crate::ops::PartsOp;
use crate::types::{Scope, Space};

/// The axis of the mesh whose members exchange a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeshAxis {
    /// The replicas.
    Batch,
    /// The devices of a replica.
    Model,
}

/// A kind of exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectiveKind {
    /// All members get the sum of what they hold.
    AllReduce,
    /// Each member gets a part of the sum.
    ReduceScatter,
    /// All members get the parts of all.
    AllGather,
}

/// An exchange of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Transfer {
    /// Its kind.
    pub kind: CollectiveKind,
    /// Who takes part.
    pub axis: MeshAxis,
    /// Bytes of the whole value.
    pub bytes: usize,
    /// The instruction that needs the result; the update for gradients that it reduces.
    pub at: usize,
}

impl Transfer {
    /// The bytes that each of `members` members sends, if every byte travels as little as possible.
    pub fn sent(&self, members: usize) -> f64 {
        let once = self.bytes as f64 * (members - 1) as f64 / members as f64;
        match self.kind {
            CollectiveKind::AllReduce => 2.0 * once,
            CollectiveKind::ReduceScatter | CollectiveKind::AllGather => once,
        }
    }
}

impl Program {
    /// The exchanges of a step on `rows` rows per replica, in the order of the instructions. Reduced fetches of rows are
    /// left out.
    pub fn transfers(&self, rows: usize) -> Vec<Transfer> {
        let mut found = vec![];
        let bytes = |id| {
            let ty = &self.value(id).ty;
            let rows = if ty.space == Space::Rows { rows } else { 1 };
            ty.len() * ty.dtype.bytes() * rows
        };
        for (at, instr) in self.instrs.iter().enumerate() {
            let mut add = |kind, axis, bytes| found.push(Transfer { kind, axis, bytes, at });
            match instr {
                Instr::AllReduce { scope: Scope::All, input, .. }
                | Instr::ReplicaMean { input, .. } => {
                    add(CollectiveKind::AllReduce, MeshAxis::Batch, bytes(*input));
                }
                Instr::ExchangeParts { op: PartsOp::AllReduce(_), input, .. } => {
                    add(CollectiveKind::AllReduce, MeshAxis::Model, bytes(*input));
                }
                Instr::ExchangeParts { output, .. } => {
                    add(CollectiveKind::AllGather, MeshAxis::Model, bytes(*output));
                }
                Instr::GatherWeights { group } => {
                    let weights = &self.weight_groups[*group].weights;
                    let sizes = weights.iter().map(|(id, _)| self.params[id.index()].len() * 4);
                    add(CollectiveKind::AllGather, MeshAxis::Batch, sizes.sum());
                }
                Instr::ReduceGradients { bucket } => {
                    let bytes = self.bucket_bytes(*bucket);
                    add(CollectiveKind::ReduceScatter, MeshAxis::Batch, bytes);
                }
                Instr::Update => self.update_transfers(at, &mut found),
                _ => {}
            }
        }
        found
    }

    /// Bytes of the gradients of a bucket.
    fn bucket_bytes(&self, bucket: usize) -> usize {
        let Some(update) = &self.update else { return 0 };
        let gradients = &update.gradients[update.buckets[bucket].clone()];
        gradients.iter().map(|g| self.params[g.param.index()].len() * 4).sum()
    }

    /// The gradients that the update reduces, and the weights that are gathered after it.
    fn update_transfers(&self, at: usize, found: &mut Vec<Transfer>) {
        let buckets = self.update.as_ref().map_or(0, |u| u.buckets.len());
        let (reduce, gather) = match self.options.mesh.sharding.level {
            ShardLevel::None => (Some(CollectiveKind::AllReduce), false),
            ShardLevel::Optimizer => (Some(CollectiveKind::ReduceScatter), true),
            ShardLevel::Gradients => (None, true),
            ShardLevel::Weights => (None, false),
        };
        let gather = gather.then_some(CollectiveKind::AllGather);
        for kind in reduce.into_iter().chain(gather) {
            for bucket in 0..buckets {
                let bytes = self.bucket_bytes(bucket);
                found.push(Transfer { kind, axis: MeshAxis::Batch, bytes, at });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_sends_what_the_others_lack() {
        let sent = |kind| Transfer { kind, axis: MeshAxis::Batch, bytes: 800, at: 0 }.sent(4);
        assert_eq!(sent(CollectiveKind::AllReduce), 1200.0);
        assert_eq!(sent(CollectiveKind::ReduceScatter), 600.0);
        assert_eq!(sent(CollectiveKind::AllGather), 600.0);
        let alone =
            Transfer { kind: CollectiveKind::AllReduce, axis: MeshAxis::Model, bytes: 8, at: 0 };
        assert_eq!(alone.sent(1), 0.0);
    }
}
