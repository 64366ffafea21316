//! The columns from which arrays are made.

use crate::data::Samples;
use phalanx_graph::Tensor;
use std::sync::Arc;

/// The argument of [`Arrays::new`](super::Arrays::new): one tensor or set of images, several of them, or
/// `()` for none.
#[derive(Clone, Debug, Default)]
pub struct Columns(Vec<Samples>);

impl From<()> for Columns {
    fn from((): ()) -> Columns {
        Columns::default()
    }
}

impl<S: Into<Samples>> From<S> for Columns {
    fn from(samples: S) -> Columns {
        Columns(vec![samples.into()])
    }
}

impl<S: Into<Samples>> From<Vec<S>> for Columns {
    fn from(columns: Vec<S>) -> Columns {
        Columns(columns.into_iter().map(Into::into).collect())
    }
}

impl<A: Into<Samples>, B: Into<Samples>> From<(A, B)> for Columns {
    fn from((a, b): (A, B)) -> Columns {
        Columns(vec![a.into(), b.into()])
    }
}

impl<A: Into<Samples>, B: Into<Samples>, C: Into<Samples>> From<(A, B, C)> for Columns {
    fn from((a, b, c): (A, B, C)) -> Columns {
        Columns(vec![a.into(), b.into(), c.into()])
    }
}

impl Columns {
    /// The columns as samples.
    pub(crate) fn into_samples(self) -> Vec<Samples> {
        self.0
    }

    /// All columns as tensors.
    pub(in crate::data) fn tensors(&self) -> Vec<Arc<Tensor>> {
        self.0.iter().map(Samples::to_tensor).collect()
    }
}
