//! What `fit`, `evaluate` and `predict` consume: global batches, one after the other.

mod arrays;

pub use arrays::{Arrays, Columns};

use crate::error::Result;
use phalanx_graph::{Data, Tensor};

/// One global batch on the host.
///
/// The tensors have room for the largest batch, and floats are written to the same buffers from one
/// batch to the next; only their first `rows` rows count.
#[derive(Clone, Debug, Default)]
pub struct HostBatch {
    /// Samples in this batch.
    pub rows: usize,
    /// One tensor per input of the model.
    pub inputs: Vec<Tensor>,
    /// One tensor per output of the model; none when there is nothing to compare with.
    pub targets: Vec<Tensor>,
    /// One weight per sample.
    pub sample_weight: Vec<f32>,
}

/// Samples in batches, epoch after epoch.
pub trait Dataset: Send + Sync {
    /// Samples of one epoch, where known.
    fn len(&self) -> Option<usize>;

    /// Whether there is nothing in it, as far as is known.
    fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }

    /// Batches of one epoch, where known.
    fn batches(&self) -> Option<usize>;

    /// Samples of the largest batch.
    fn batch_size(&self) -> usize;

    /// Starts an epoch at its batch `start`. The order depends on `seed` and `epoch` alone, so a
    /// run may be resumed anywhere.
    fn epoch(&self, seed: u64, epoch: u64, start: usize) -> Result<Box<dyn Epoch + '_>>;
}

/// The batches of one epoch.
pub trait Epoch {
    /// Fills the next batch; false at the end, when `batch` is left as it was.
    fn next(&mut self, batch: &mut HostBatch) -> Result<bool>;
}

/// Makes `slots` hold one tensor of `batch` rows for each of the columns, keeping those that fit.
fn make_room<'a>(
    slots: &mut Vec<Tensor>,
    columns: impl ExactSizeIterator<Item = &'a Tensor>,
    batch: usize,
) {
    slots.truncate(columns.len());
    for (i, column) in columns.enumerate() {
        let fits = |slot: &Tensor| {
            slot.dtype() == column.dtype()
                && slot.rows() == batch
                && slot.dims().get(1..) == column.dims().get(1..)
        };
        match slots.get_mut(i) {
            Some(slot) if fits(slot) => {}
            Some(slot) => *slot = empty_like(column, batch),
            None => slots.push(empty_like(column, batch)),
        }
    }
}

/// Zeros of the column's type and row shape.
fn empty_like(column: &Tensor, rows: usize) -> Tensor {
    let mut dims = column.dims().to_vec();
    dims[0] = rows;
    let len = rows * column.row_len();
    let data: Data = match column.data() {
        Data::F32(_) => vec![0f32; len].into(),
        Data::I32(_) => vec![0i32; len].into(),
    };
    Tensor::new(dims, data).expect("the length is the product of the dimensions")
}
