//! Samples in memory that another library owns, such as a NumPy array. Rows are converted as batches are gathered, so the
//! whole is never copied.

use crate::error::{Error, Result};
use phalanx_graph::{DType, Tensor};
use std::fmt;
use std::sync::Arc;

/// The elements of external memory, by type.
#[derive(Clone, Copy, Debug)]
pub enum ExternalElements<'a> {
    /// 32-bit floats.
    F32(&'a [f32]),
    /// 64-bit floats.
    F64(&'a [f64]),
    /// Signed bytes.
    I8(&'a [i8]),
    /// Bytes.
    U8(&'a [u8]),
    /// Signed 16-bit integers.
    I16(&'a [i16]),
    /// 16-bit integers.
    U16(&'a [u16]),
    /// Signed 32-bit integers.
    I32(&'a [i32]),
    /// 32-bit integers.
    U32(&'a [u32]),
    /// Signed 64-bit integers.
    I64(&'a [i64]),
    /// 64-bit integers.
    U64(&'a [u64]),
}

/// Runs an expression with the elements as a slice `$values`, whatever their type.
macro_rules! with_values {
    ($elements:expr, $values:ident => $body:expr) => {
        match $elements {
            ExternalElements::F32($values) => $body,
            ExternalElements::F64($values) => $body,
            ExternalElements::I8($values) => $body,
            ExternalElements::U8($values) => $body,
            ExternalElements::I16($values) => $body,
            ExternalElements::U16($values) => $body,
            ExternalElements::I32($values) => $body,
            ExternalElements::U32($values) => $body,
            ExternalElements::I64($values) => $body,
            ExternalElements::U64($values) => $body,
        }
    };
}

impl ExternalElements<'_> {
    fn len(&self) -> usize {
        with_values!(self, values => values.len())
    }

    fn is_float(&self) -> bool {
        matches!(self, ExternalElements::F32(_) | ExternalElements::F64(_))
    }

    /// The first integer that needs more than 32 bits.
    fn too_wide(&self) -> Option<i128> {
        let wide = |v: &i128| i32::try_from(*v).is_err();
        match self {
            ExternalElements::U32(values) => values.iter().map(|v| i128::from(*v)).find(wide),
            ExternalElements::I64(values) => values.iter().map(|v| i128::from(*v)).find(wide),
            ExternalElements::U64(values) => values.iter().map(|v| i128::from(*v)).find(wide),
            _ => None,
        }
    }

    /// Whether every element is an integer that floats of 32 bits hold exactly.
    fn is_whole(&self) -> bool {
        const MAX_EXACT: f64 = 16_777_216.0;
        let whole = |x: f64| x.fract() == 0.0 && x.abs() < MAX_EXACT;
        match self {
            ExternalElements::F32(values) => values.iter().all(|x| whole(f64::from(*x))),
            ExternalElements::F64(values) => values.iter().all(|x| whole(*x)),
            _ => true,
        }
    }
}

/// Memory that another library owns. It must not change while a model reads it.
pub trait ExternalArray: Send + Sync {
    /// Dimensions, batch dimension first.
    fn dims(&self) -> &[usize];

    /// The elements in row-major order.
    fn elements(&self) -> ExternalElements<'_>;
}

/// Samples in memory that another library owns, read as floats or as integers. Clones share the memory.
#[derive(Clone)]
pub struct External {
    array: Arc<dyn ExternalArray>,
    dtype: DType,
}

impl External {
    /// Wraps an array. Integers are read as integers, floats as floats.
    ///
    /// # Errors
    /// If the elements are not as many as the dimensions say, or an integer needs more than 32 bits.
    pub fn new(array: Arc<dyn ExternalArray>) -> Result<External> {
        let (dims, elements) = (array.dims(), array.elements());
        let len = dims.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
        if dims.is_empty() || len != Some(elements.len()) {
            let expected = format!("the elements of {dims:?}");
            return Err(Error::argument("data", "array", expected, elements.len()));
        }
        if let Some(value) = elements.too_wide() {
            return Err(Error::argument("data", "array", "integers of 32 bits", value));
        }
        let dtype = if elements.is_float() { DType::F32 } else { DType::I32 };
        Ok(External { array, dtype })
    }

    /// Dimensions, batch dimension first.
    pub fn dims(&self) -> &[usize] {
        self.array.dims()
    }

    /// The type that the elements are read as.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The elements as they are.
    pub(crate) fn elements(&self) -> ExternalElements<'_> {
        self.array.elements()
    }

    /// The array, for comparisons of identity.
    pub(crate) fn array(&self) -> &Arc<dyn ExternalArray> {
        &self.array
    }

    /// The same memory read as another type; `None` if a fraction would become an integer.
    pub fn with_dtype(&self, dtype: DType) -> Option<External> {
        let exact = dtype != DType::I32 || self.elements().is_whole();
        exact.then(|| External { array: self.array.clone(), dtype })
    }

    /// Reads consecutive elements from `first` on as floats, until `to` is full.
    #[expect(clippy::unnecessary_cast, reason = "one expression for all types")]
    pub(crate) fn read_f32(&self, first: usize, to: &mut [f32]) {
        if let ExternalElements::F32(values) = self.elements() {
            to.copy_from_slice(&values[first..first + to.len()]);
            return;
        }
        with_values!(self.elements(), values => {
            to.iter_mut().zip(&values[first..]).for_each(|(to, value)| *to = *value as f32);
        });
    }

    /// Reads consecutive elements from `first` on as integers, until `to` is full.
    #[expect(clippy::unnecessary_cast, reason = "one expression for all types")]
    pub(crate) fn read_i32(&self, first: usize, to: &mut [i32]) {
        with_values!(self.elements(), values => {
            to.iter_mut().zip(&values[first..]).for_each(|(to, value)| *to = *value as i32);
        });
    }

    /// Copies all rows to a tensor. Its memory is reused if type and dimensions are the same.
    pub fn copy_to(&self, tensor: &mut Tensor) {
        if tensor.dims() != self.dims() || tensor.dtype() != self.dtype {
            *tensor = self.copy_rows(0, self.dims()[0]);
        } else if let Some(to) = tensor.f32_mut() {
            self.read_f32(0, to);
        } else if let Some(to) = tensor.i32_mut() {
            self.read_i32(0, to);
        }
    }

    /// A copy of consecutive rows.
    pub(crate) fn copy_rows(&self, first: usize, rows: usize) -> Tensor {
        let mut dims = self.dims().to_vec();
        dims[0] = rows;
        let (width, len) = (self.dims()[1..].iter().product::<usize>(), dims.iter().product());
        let tensor = match self.dtype {
            DType::I32 => {
                let mut values = vec![0; len];
                self.read_i32(first * width, &mut values);
                Tensor::new(dims, values)
            }
            _ => {
                let mut values = vec![0.0; len];
                self.read_f32(first * width, &mut values);
                Tensor::new(dims, values)
            }
        };
        tensor.expect("as many elements as the dimensions say")
    }
}

impl PartialEq for External {
    /// Whether both are the same memory, read as the same type.
    fn eq(&self, other: &External) -> bool {
        Arc::ptr_eq(&self.array, &other.array) && self.dtype == other.dtype
    }
}

impl fmt::Debug for External {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("External").field("dims", &self.dims()).field("dtype", &self.dtype).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Arrays, Dataset, HostBatch, Samples};
    use crate::prelude::*;

    /// Bytes, floats or integers owned by a test.
    enum Values {
        U8(Vec<u8>),
        F64(Vec<f64>),
        I64(Vec<i64>),
    }

    struct Owned(Vec<usize>, Values);

    impl ExternalArray for Owned {
        fn dims(&self) -> &[usize] {
            &self.0
        }

        fn elements(&self) -> ExternalElements<'_> {
            match &self.1 {
                Values::U8(v) => ExternalElements::U8(v),
                Values::F64(v) => ExternalElements::F64(v),
                Values::I64(v) => ExternalElements::I64(v),
            }
        }
    }

    fn external(dims: &[usize], values: Values) -> Result<Samples> {
        External::new(Arc::new(Owned(dims.to_vec(), values))).map(Samples::External)
    }

    #[test]
    fn every_type_trains_as_its_floats_do() {
        let bytes: Vec<u8> = (0..60).collect();
        let doubles: Vec<f64> = bytes.iter().map(|b| f64::from(*b)).collect();
        let integers: Vec<i64> = bytes.iter().map(|b| i64::from(*b)).collect();
        let floats: Vec<f32> = bytes.iter().map(|b| f32::from(*b)).collect();
        let y = || Tensor::new([20], (0..20).map(|i| i % 2).collect::<Vec<i32>>()).unwrap();
        let train = |x: Samples| {
            let mut model = Sequential::new()
                .add(Input::new([3]))
                .add(Dense::new(2).activation("softmax"))
                .build()
                .unwrap();
            model.compile(Compile::new("sgd").loss("sparse_categorical_crossentropy")).unwrap();
            let data = Arrays::new(x, y()).unwrap();
            model.fit(data, Fit::new().epochs(2).batch_size(7).verbose(0)).unwrap();
            model.get_weights().unwrap()
        };
        let expected = train(Tensor::new([20, 3], floats).unwrap().into());
        for values in [Values::U8(bytes), Values::F64(doubles), Values::I64(integers)] {
            assert_eq!(train(external(&[20, 3], values).unwrap()), expected);
        }
    }

    #[test]
    fn integers_are_read_as_integers_and_fractions_never() {
        let samples = external(&[4], Values::I64(vec![3, -1, 2, 0])).unwrap();
        assert_eq!(
            (samples.dtype(), samples.to_tensor().i32()),
            (DType::I32, Some(&[3, -1, 2, 0][..]))
        );
        let mut batch = HostBatch::default();
        let data = Arrays::new(samples, ()).unwrap().batch(3).unwrap();
        data.epoch(0, 0, 1).unwrap().next(&mut batch).unwrap();
        assert_eq!(batch.inputs[0].i32().unwrap()[0], 0);
        let Samples::External(halves) = external(&[2], Values::F64(vec![1.0, 0.5])).unwrap() else {
            unreachable!()
        };
        assert!(halves.with_dtype(DType::I32).is_none());
        let error = external(&[1], Values::I64(vec![1 << 40])).err().unwrap().to_string();
        assert!(error.contains("integers of 32 bits, received 1099511627776"), "{error}");
        assert!(external(&[3], Values::U8(vec![1])).is_err());
    }
}
