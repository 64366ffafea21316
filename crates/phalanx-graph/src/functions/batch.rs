//! Values of all samples of the global batch. Each worker writes its own rows into a table of zeros, and the sum over the
//! workers has all of them: adding zeros is exact. The table has as many rows as the largest batch, so that the graph
//! serves no larger one ([`Graph::max_batch`]).

use crate::error::{GraphError, Result};
use crate::graph::{Graph, NodeId};
use crate::ops::{Op, TakeAxis};
use crate::types::{DType, Scope};

/// The values of all samples, `[largest batch, ..]`. Row `i` is sample `i` of the global batch, and zeros follow the last
/// sample.
pub fn all_rows(g: &mut Graph, x: NodeId) -> Result<NodeId> {
    let rows = g.max_batch();
    row_table(g, x, rows)
}

/// The values of all samples of batches with at most `rows` of them, as [`all_rows`] has them.
pub fn row_table(g: &mut Graph, x: NodeId, rows: usize) -> Result<NodeId> {
    let ty = g.ty(x).clone();
    if !ty.is_rows() || ty.dtype != DType::F32 {
        return Err(GraphError::mismatch("input of all_rows", "float rows", ty.to_string()));
    }
    let vectors = g.reshape(x, &[ty.len()])?;
    let index = g.push(Op::RowIndex, &[])?;
    let partial = g.push(Op::GatherGrad { vocab: rows }, &[index, vectors])?;
    let table = g.push(Op::AllReduce { scope: Scope::All }, &[partial])?;
    g.reshape(table, &[&[rows], &ty.dims[..]].concat())
}

/// For each sample its entry in a table that has one for every sample of the batch.
pub fn own_rows(g: &mut Graph, table: NodeId) -> Result<NodeId> {
    let dims = g.ty(table).dims.clone();
    let [rows, row @ ..] = &dims[..] else {
        return Err(GraphError::mismatch("table", "one entry per sample", format!("{dims:?}")));
    };
    let table = g.reshape(table, &[*rows, row.iter().product()])?;
    let index = g.push(Op::RowIndex, &[])?;
    let found = g.push(Op::Gather, &[table, index])?;
    g.reshape(found, row)
}

/// For each sample the index of the sample that takes its place in a random order of the batch. `keys` has one random
/// number below 1 per sample.
pub fn shuffled_index(g: &mut Graph, keys: NodeId) -> Result<NodeId> {
    let key = g.reshape(keys, &[1])?;
    // Places without a sample come last.
    let below_zero = g.offset(key, -1.0)?;
    let table = all_rows(g, below_zero)?;
    let rows = g.ty(table).dims[0];
    let table = g.reshape(table, &[rows])?;
    let order = g.push(Op::ArgSort, &[table])?;
    let index = g.push(Op::RowIndex, &[])?;
    g.push(Op::Take(TakeAxis { axis: 0, along: false }), &[order, index])
}

/// For each sample the value of the sample at an index of the global batch.
pub fn rows_at(g: &mut Graph, x: NodeId, index: NodeId) -> Result<NodeId> {
    let dims = g.ty(x).dims.clone();
    let table = all_rows(g, x)?;
    let (rows, len) = (g.ty(table).dims[0], g.ty(x).len());
    let table = g.reshape(table, &[rows, len])?;
    let found = g.push(Op::Gather, &[table, index])?;
    g.reshape(found, &dims)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Type;
    use crate::{Fetch, Mesh, Options, Program, Step};

    #[test]
    fn a_program_serves_no_larger_batch_than_its_graph() {
        let mut g = Graph::new();
        g.set_max_batch(4);
        let feed = g.add_feed("x", Type::rows([3]));
        let x = g.feed(feed);
        assert_eq!(g.batch_limit(), None);
        let node = all_rows(&mut g, x).unwrap();
        assert_eq!((g.batch_limit(), g.ty(node)), (Some(4), &Type::mirrored([4, 3])));
        let mut step = Step::new("test", g);
        step.fetches.push(Fetch { name: "table".into(), node });
        let compile = |batch| Program::compile(step.clone(), Options::new(Mesh::new(2, 1), batch));
        assert!(compile(3).is_ok() && compile(4).is_ok());
        let text = compile(5).unwrap_err().to_string();
        assert_eq!(text, "batch: expected at most 4, for which the step is built, received 5");
    }

    #[test]
    fn only_float_rows_have_a_table() {
        let mut g = Graph::new();
        let index = g.push(Op::RowIndex, &[]).unwrap();
        let weight = g.fill(1.0, &[2]);
        for x in [index, weight] {
            let text = all_rows(&mut g, x).unwrap_err().to_string();
            assert!(text.contains("input of all_rows: expected float rows"), "{text}");
        }
    }
}
