//! Batches of samples of different sizes, padded to one size.
//!
//! A padded size belongs to the whole batch. A worker that needs only some rows of it still has to see the sizes of all.

use super::epoch_context::Item;
use super::{Element, Pipeline, steps};
use crate::error::{Error, Result};
use crate::model::Shape;
use phalanx_graph::{DType, Data, MAX_ELEMENTS, Tensor};
use std::ops::Range;
use std::sync::Arc;

/// The arguments of [`Pipeline::padded_batch`]. A number stands for batches of this size with the defaults.
#[derive(Clone, Debug)]
pub struct PaddedBatch {
    batch_size: usize,
    padding: Padding,
    drop_remainder: bool,
}

impl PaddedBatch {
    /// Batches of `batch_size` samples, padded with zeros to the largest sample of each batch.
    pub fn new(batch_size: usize) -> PaddedBatch {
        PaddedBatch { batch_size, padding: Padding::default(), drop_remainder: false }
    }

    /// Sets the shape of the padded samples, one for each tensor of an element, without the batch. Open sizes are those of
    /// the largest sample of each batch.
    pub fn padded_shapes<S: Into<Shape>>(
        mut self,
        shapes: impl IntoIterator<Item = S>,
    ) -> PaddedBatch {
        self.padding.shapes = Some(shapes.into_iter().map(Into::into).collect());
        self
    }

    /// Sets the number to pad with, for each tensor of an element. The default is 0.
    pub fn padding_values(mut self, values: impl Into<Vec<f32>>) -> PaddedBatch {
        self.padding.values = values.into();
        self
    }

    /// Drops the last batch if it is not full.
    pub fn drop_remainder(mut self, drop_remainder: bool) -> PaddedBatch {
        self.drop_remainder = drop_remainder;
        self
    }
}

impl From<usize> for PaddedBatch {
    fn from(batch_size: usize) -> PaddedBatch {
        PaddedBatch::new(batch_size)
    }
}

impl Pipeline {
    /// Combines elements into batches and pads their tensors to one shape.
    ///
    /// With several workers, each sees every sample of a batch, unless [`PaddedBatch::padded_shapes`] leaves no size open.
    ///
    /// ```
    /// use phalanx::prelude::*;
    ///
    /// let sequence = |steps: usize| vec![Tensor::new([steps], vec![7; steps]).unwrap()];
    /// let data = Pipeline::from_elements(vec![sequence(2), sequence(3), sequence(1)])?;
    /// let mut batches = data.padded_batch(2)?.elements(0, 0)?;
    /// let first = batches.next().unwrap()?;
    /// assert_eq!(first[0].dims(), [2, 3]);
    /// assert_eq!(first[0].i32(), Some(&[7, 7, 0, 7, 7, 7][..]));
    /// assert_eq!(batches.next().unwrap()?[0].dims(), [1, 1]);
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the batch size is 0. Samples that do not fit are errors while the pipeline runs.
    pub fn padded_batch(self, batch: impl Into<PaddedBatch>) -> Result<Pipeline> {
        let PaddedBatch { batch_size, padding, drop_remainder } = batch.into();
        if batch_size == 0 {
            return Err(Error::argument("padded_batch", "batch_size", "at least 1", batch_size));
        }
        let rows = self.rows_in_batches(batch_size, drop_remainder);
        let provenance = self
            .provenance
            .then(format_args!("padded_batch({batch_size}, {padding:?}, {drop_remainder})"));
        let (inner, size, padding) = (self.step, batch_size, Some(Arc::new(padding)));
        let step = Arc::new(steps::Batch { inner, size, drop_remainder, padding });
        let text = self.text.after("padded_batch");
        Ok(Pipeline { step, batch: Some(batch_size), rows, provenance, text, ..self })
    }

    /// Samples in batches of this size, if known.
    pub(super) fn rows_in_batches(&self, size: usize, drop_remainder: bool) -> Option<usize> {
        let full = |n: usize| if drop_remainder { n - n % size } else { n };
        self.rows.filter(|_| self.batch.is_none()).map(full)
    }
}

/// How samples are padded.
#[derive(Clone, Debug, Default)]
pub(super) struct Padding {
    /// The padded shape of each tensor; by default all sizes are open.
    pub shapes: Option<Vec<Shape>>,
    /// The number to pad each tensor with, 0 if missing.
    pub values: Vec<f32>,
}

impl Padding {
    /// Whether the padded shapes do not depend on the samples.
    pub fn is_fixed(&self) -> bool {
        self.shapes.as_ref().is_some_and(|shapes| !shapes.iter().any(Shape::is_open))
    }

    /// Pads the samples of a batch and stacks the rows `made`; `None` if one of these, or one whose size counts, was not
    /// produced. `open` is the size of open axes, if given, and `index` the index of a row's element.
    pub fn stack(
        &self,
        items: &[Item],
        made: Range<usize>,
        open: Option<usize>,
        index: impl Fn(usize) -> usize,
    ) -> Result<Option<Element>> {
        let counted = if self.is_fixed() { made.clone() } else { 0..items.len() };
        let sample = |row: usize| match &items[row] {
            Item::Full(element) => Some((row, element)),
            Item::Partial(_) | Item::Skipped => None,
        };
        let Some(samples) = counted.map(sample).collect::<Option<Vec<_>>>() else {
            return Ok(None);
        };
        let Some((_, first)) = samples.first() else { return Ok(None) };
        let mut stacked = vec![];
        for at in 0..first.len() {
            let wrong = |row: usize, expected: String, received: String| {
                let argument = format!("element {}, tensor {at}", index(row));
                Error::argument("padded_batch", argument, expected, received)
            };
            let mut tensors = vec![];
            for (row, element) in &samples {
                match element.get(at).filter(|_| element.len() == first.len()) {
                    Some(tensor) => tensors.push((*row, tensor)),
                    None => {
                        let received = format!("{} tensors", element.len());
                        return Err(wrong(*row, format!("{} tensors", first.len()), received));
                    }
                }
            }
            let dims = self.padded_dims(at, &tensors, open, &wrong)?;
            let rows = tensors.iter().filter(|(row, _)| made.contains(row)).map(|(_, t)| *t);
            stacked.push(pad_and_stack(&rows.collect::<Vec<_>>(), &dims, self.value(at))?);
        }
        Ok(Some(stacked))
    }

    fn value(&self, tensor: usize) -> f32 {
        self.values.get(tensor).copied().unwrap_or(0.0)
    }

    /// The padded dimensions of a tensor. `wrong` makes an error about a row.
    fn padded_dims(
        &self,
        at: usize,
        tensors: &[(usize, &Tensor)],
        open: Option<usize>,
        wrong: &dyn Fn(usize, String, String) -> Error,
    ) -> Result<Vec<usize>> {
        let (first_row, first) = tensors[0];
        let (rank, dtype) = (first.dims().len(), first.dtype());
        let fractional = dtype == DType::I32 && self.value(at).fract() != 0.0;
        if fractional || !self.value(at).is_finite() {
            let received = self.value(at).to_string();
            return Err(wrong(first_row, format!("a {dtype} to pad with"), received));
        }
        let shape = match &self.shapes {
            None => Shape::from(vec![None; rank]),
            Some(shapes) => match shapes.get(at) {
                Some(shape) => shape.clone(),
                None => {
                    let expected = "a padded shape for each tensor".to_string();
                    return Err(wrong(first_row, expected, shapes.len().to_string()));
                }
            },
        };
        if shape.sizes().len() != rank {
            let expected = format!("{} axes, as in {:?}", shape.sizes().len(), shape.sizes());
            return Err(wrong(first_row, expected, format!("{:?}", first.dims())));
        }
        let largest = |axis: usize| tensors.iter().filter_map(|(_, t)| t.dims().get(axis)).max();
        let size = |axis: usize| {
            let open = || open.unwrap_or_else(|| largest(axis).copied().unwrap_or_default());
            shape.sizes()[axis].unwrap_or_else(open)
        };
        let dims: Vec<usize> = (0..rank).map(size).collect();
        for (row, tensor) in tensors {
            let fits = tensor.dims().len() == rank && tensor.dtype() == dtype;
            if !fits || tensor.dims().iter().zip(&dims).any(|(size, padded)| size > padded) {
                let received = format!("{} {:?}", tensor.dtype(), tensor.dims());
                return Err(wrong(*row, format!("{dtype} of at most {dims:?}"), received));
            }
        }
        let len = dims.iter().try_fold(tensors.len(), |n, d| n.checked_mul(*d));
        if len.is_none_or(|n| n > MAX_ELEMENTS) {
            let expected = "a shape that fits in memory".into();
            return Err(wrong(first_row, expected, format!("{dims:?}")));
        }
        Ok(dims)
    }
}

/// Pads tensors to `dims` and stacks them.
fn pad_and_stack(tensors: &[&Tensor], dims: &[usize], value: f32) -> Result<Tensor> {
    let row: usize = dims.iter().product();
    if !crate::memory::is_free(row.saturating_mul(tensors.len()).saturating_mul(4)) {
        let received = format!("{} samples of {dims:?}", tensors.len());
        let expected = "a batch that fits into memory";
        return Err(Error::argument("padded_batch", "shape", expected, received));
    }
    let integers = tensors.first().is_some_and(|t| t.dtype() == DType::I32);
    let data: Data = match integers {
        true => {
            let mut out = vec![value as i32; row * tensors.len()];
            for (tensor, to) in tensors.iter().zip(out.chunks_mut(row.max(1))) {
                copy(tensor.dims(), tensor.i32().unwrap_or_default(), dims, to);
            }
            out.into()
        }
        false => {
            let mut out = vec![value; row * tensors.len()];
            for (tensor, to) in tensors.iter().zip(out.chunks_mut(row.max(1))) {
                copy(tensor.dims(), tensor.f32().unwrap_or_default(), dims, to);
            }
            out.into()
        }
    };
    let mut all = vec![tensors.len()];
    all.extend(dims);
    Ok(Tensor::new(all, data)?)
}

/// Copies a tensor to the beginning of each axis of a larger one.
fn copy<T: Copy>(dims: &[usize], from: &[T], padded: &[usize], to: &mut [T]) {
    let (Some((size, inner)), Some((_, padded_inner))) = (dims.split_first(), padded.split_first())
    else {
        to[..from.len()].copy_from_slice(from);
        return;
    };
    if inner == padded_inner {
        to[..from.len()].copy_from_slice(from);
        return;
    }
    let (step, padded_step): (usize, usize) =
        (inner.iter().product(), padded_inner.iter().product());
    for at in 0..*size {
        let (from, to) = (&from[at * step..(at + 1) * step], &mut to[at * padded_step..]);
        copy(inner, from, padded_inner, &mut to[..padded_step]);
    }
}
