//! Host tensors: the inputs and outputs of the user API.

use crate::error::{GraphError, Result};
use crate::types::DType;
use std::sync::Arc;

/// The elements of a host tensor.
#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    /// 32-bit floats.
    F32(Vec<f32>),
    /// 32-bit integers.
    I32(Vec<i32>),
}

/// A dense row-major array on the host. Clones share their elements until one of them is modified.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    dims: Vec<usize>,
    data: Arc<Data>,
}

impl Tensor {
    /// A tensor of the given dimensions.
    ///
    /// # Errors
    /// The number of elements is not the product of the dimensions.
    pub fn new(dims: impl Into<Vec<usize>>, data: impl Into<Data>) -> Result<Tensor> {
        Tensor::from_shared(dims.into(), Arc::new(data.into()))
    }

    fn from_shared(dims: Vec<usize>, data: Arc<Data>) -> Result<Tensor> {
        let len = dims.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
        if len == Some(data.len()) {
            return Ok(Tensor { dims, data });
        }
        let expected = format!("the product of {dims:?}");
        Err(GraphError::mismatch("elements of a tensor", expected, data.len().to_string()))
    }

    /// A tensor of zeros.
    ///
    /// # Panics
    /// If the number of elements exceeds the capacity of a vector.
    pub fn zeros(dims: impl Into<Vec<usize>>) -> Tensor {
        let dims = dims.into();
        let len = dims.iter().fold(1usize, |n, d| n.saturating_mul(*d));
        Tensor { dims, data: Arc::new(Data::F32(vec![0.0; len])) }
    }

    /// Dimensions, the batch first.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        match *self.data {
            Data::F32(_) => DType::F32,
            Data::I32(_) => DType::I32,
        }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.data.len()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The leading dimension; 1 for a scalar.
    pub fn rows(&self) -> usize {
        self.dims.first().copied().unwrap_or(1)
    }

    /// Elements per row.
    pub fn row_len(&self) -> usize {
        // The product can overflow only in a tensor without rows.
        self.dims.iter().skip(1).fold(1, |n, d| n.saturating_mul(*d))
    }

    /// The elements.
    pub fn data(&self) -> &Data {
        &self.data
    }

    /// Returns the elements, without a copy if no other tensor shares them.
    pub fn into_data(self) -> Data {
        Arc::unwrap_or_clone(self.data)
    }

    /// The elements if they are floats.
    pub fn f32(&self) -> Option<&[f32]> {
        match &*self.data {
            Data::F32(v) => Some(v),
            Data::I32(_) => None,
        }
    }

    /// The elements if they are floats, mutably.
    pub fn f32_mut(&mut self) -> Option<&mut [f32]> {
        match Arc::make_mut(&mut self.data) {
            Data::F32(v) => Some(v),
            Data::I32(_) => None,
        }
    }

    /// The elements if they are integers.
    pub fn i32(&self) -> Option<&[i32]> {
        match &*self.data {
            Data::I32(v) => Some(v),
            Data::F32(_) => None,
        }
    }

    /// The elements if they are integers, mutably.
    pub fn i32_mut(&mut self) -> Option<&mut [i32]> {
        match Arc::make_mut(&mut self.data) {
            Data::I32(v) => Some(v),
            Data::F32(_) => None,
        }
    }

    /// Whether no element is NaN or infinite.
    pub fn is_finite(&self) -> bool {
        self.f32().is_none_or(|values| values.iter().all(|v| v.is_finite()))
    }

    /// The same elements with other dimensions.
    ///
    /// # Errors
    /// The number of elements differs.
    pub fn reshape(self, dims: impl Into<Vec<usize>>) -> Result<Tensor> {
        Tensor::from_shared(dims.into(), self.data)
    }

    /// Rows `range` as a new tensor.
    ///
    /// # Panics
    /// If the range is out of bounds.
    pub fn slice_rows(&self, range: std::ops::Range<usize>) -> Tensor {
        let len = self.row_len();
        let part = range.start * len..range.end * len;
        let data = match &*self.data {
            Data::F32(v) => Data::F32(v[part].to_vec()),
            Data::I32(v) => Data::I32(v[part].to_vec()),
        };
        let mut dims = self.dims.clone();
        dims[0] = range.len();
        Tensor { dims, data: Arc::new(data) }
    }

    /// The given rows in the given order.
    ///
    /// # Panics
    /// If a row is out of bounds, or the tensor is a scalar.
    pub fn select_rows(&self, rows: &[usize]) -> Tensor {
        fn select<T: Copy>(values: &[T], len: usize, rows: &[usize]) -> Vec<T> {
            let row = |row: &usize| &values[row * len..(row + 1) * len];
            rows.iter().flat_map(row).copied().collect()
        }
        let len = self.row_len();
        let data = match &*self.data {
            Data::F32(v) => Data::F32(select(v, len, rows)),
            Data::I32(v) => Data::I32(select(v, len, rows)),
        };
        let mut dims = self.dims.clone();
        dims[0] = rows.len();
        Tensor { dims, data: Arc::new(data) }
    }
}

impl Data {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Data::F32(v) => v.len(),
            Data::I32(v) => v.len(),
        }
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl From<Vec<f32>> for Data {
    fn from(v: Vec<f32>) -> Data {
        Data::F32(v)
    }
}

impl From<Vec<i32>> for Data {
    fn from(v: Vec<i32>) -> Data {
        Data::I32(v)
    }
}
