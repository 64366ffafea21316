//! Integers that 32-bit floats hold. Arithmetic of `keras.ops` on integers runs on floats, which is exact below 2²⁴. A step
//! counts the values that are not, and the session fails if there are any.

use super::Lowering;
use crate::error::{Error, Result};
use phalanx_graph::ops::{Binary, Unary};
use phalanx_graph::{DType, Fetch, NodeId, Op, Scope, Space};
use std::collections::HashSet;

/// All integers of a smaller magnitude are exact as 32-bit floats.
pub(crate) const EXACT_INTEGERS: f64 = 16_777_216.0;

/// The first words of the fetches that count integers that are too large. The binary logarithm of the limit and the name of
/// the op follow.
const FETCH: &str = "integers below 2^";

/// Which values of a lowering are integers, and what counts those that are too large.
#[derive(Debug, Default)]
pub(super) struct IntegerRecord {
    /// Values that were checked, or need no check.
    checked: HashSet<NodeId>,
    /// The op, and the number of values of each sample that are too large.
    counts: Vec<(String, NodeId)>,
}

fn bits(limit: f64) -> u32 {
    limit.log2() as u32
}

impl Lowering {
    /// Whether a value holds integers, as 32-bit integers or as the results of ops on integers.
    pub(crate) fn holds_integers(&self, x: NodeId) -> bool {
        self.graph.ty(x).dtype == DType::I32 || self.record.integers.checked.contains(&x)
    }

    /// Notes that a value holds integers that are exact as floats.
    pub(crate) fn mark_integers(&mut self, x: NodeId) {
        self.record.integers.checked.insert(x);
    }

    /// Counts the integers whose magnitude reaches a limit, a power of two, once for each value. `owner` names the op.
    /// Infinities count if they cannot come from a division by zero.
    pub(crate) fn check_integers(
        &mut self,
        owner: &str,
        x: NodeId,
        limit: f64,
        infinities: bool,
    ) -> Result<()> {
        if limit >= EXACT_INTEGERS && self.record.integers.checked.contains(&x) {
            return Ok(());
        }
        let g = &mut self.graph;
        let floats = g.cast(x, DType::F32)?;
        let floats = g.stop_gradient(floats)?;
        let size = g.unary(Unary::Abs, floats)?;
        let first = g.scalar(limit);
        let mut large = g.binary(Binary::Ge, size, first)?;
        if !infinities {
            let infinite = g.scalar(f64::INFINITY);
            let infinite = g.binary(Binary::Eq, size, infinite)?;
            large = g.sub(large, infinite)?;
        }
        let axes: Vec<usize> = (0..g.ty(large).dims.len()).collect();
        let count = if axes.is_empty() { large } else { g.sum_axes(large, &axes)? };
        let count = g.reshape(count, &[])?;
        self.record.integers.counts.push((format!("{} {owner}", bits(limit)), count));
        self.mark_integers(x);
        Ok(())
    }

    /// What a step fetches to know whether all integers were exact. The fetches come after those of the results.
    pub(crate) fn integer_fetches(&mut self) -> Result<Vec<Fetch>> {
        let mut fetches = vec![];
        for (owner, mut node) in std::mem::take(&mut self.record.integers.counts) {
            let g = &mut self.graph;
            if g.ty(node).space == Space::Rows {
                node = g.push(Op::SumRows, &[node])?;
                node = g.push(Op::AllReduce { scope: Scope::All }, &[node])?;
            }
            fetches.push(Fetch { name: format!("{FETCH}{owner}"), node });
        }
        Ok(fetches)
    }
}

/// Whether a fetch counts integers that are too large.
pub(crate) fn is_integer_check(fetch: &str) -> bool {
    fetch.starts_with(FETCH)
}

/// Fails if a step has computed with integers that are not exact as floats. `fetched` are the names and values of its
/// fetches.
pub(crate) fn check_fetched<'a>(
    fetched: impl IntoIterator<Item = (&'a str, &'a [f32])>,
) -> Result<()> {
    for (name, values) in fetched {
        let Some((bits, owner)) = name.strip_prefix(FETCH).and_then(|rest| rest.split_once(' '))
        else {
            continue;
        };
        let count = values.first().copied().unwrap_or_default();
        if count != 0.0 {
            return Err(error(owner, bits, format!("{count} larger ones in a batch")));
        }
    }
    Ok(())
}

/// The error for a constant that is not exact as a float.
pub(crate) fn too_large(owner: &str, received: impl ToString) -> Error {
    error(owner, &bits(EXACT_INTEGERS).to_string(), received)
}

fn error(owner: &str, bits: &str, received: impl ToString) -> Error {
    let expected = format!(
        "magnitudes below 2^{bits}: ops compute integers with 32-bit floats (to round as floats do, cast to float32 before)"
    );
    Error::argument(owner, "integers", expected, received)
}
