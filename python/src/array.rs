//! Arrays that cross between Python and Rust by the buffer protocol.

use crate::errors;
use phalanx::data::{External, ExternalArray, ExternalElements, Samples};
use phalanx::saving::{OptimizerValues, OptimizerVariable};
use phalanx::{DType, Data, Tensor};
use pyo3::buffer::{ElementType, PyUntypedBuffer};
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use std::cell::UnsafeCell;
use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::Arc;

/// The values of an array that Python reads.
enum Values {
    F32(Vec<f32>),
    I32(Vec<i32>),
}

/// An array that Rust hands to Python: `numpy.asarray` shares its memory.
#[pyclass(frozen, module = "phalanx._phalanx")]
pub struct Array {
    /// Only Python uses the elements.
    values: UnsafeCell<Values>,
    dtype: &'static str,
    shape: Vec<isize>,
    strides: Vec<isize>,
}

// SAFETY: Rust never touches the elements after construction. Python synchronises its own accesses, as for any array.
unsafe impl Sync for Array {}

impl Array {
    fn new(dims: &[usize], values: Values) -> Array {
        let shape: Vec<isize> = dims.iter().map(|d| *d as isize).collect();
        let mut strides = vec![size_of::<f32>() as isize; shape.len()];
        for axis in (1..shape.len()).rev() {
            strides[axis - 1] = strides[axis] * shape[axis];
        }
        let dtype = match values {
            Values::F32(_) => "float32",
            Values::I32(_) => "int32",
        };
        Array { values: UnsafeCell::new(values), dtype, shape, strides }
    }

    /// The memory, its length in bytes and its format.
    fn memory(&self) -> (*mut c_void, usize, &'static CStr) {
        // SAFETY: the reference lasts for these lines only, during which Python holds the interpreter for this call.
        match unsafe { &mut *self.values.get() } {
            Values::F32(v) => (v.as_mut_ptr().cast(), size_of_val(&v[..]), c"f"),
            Values::I32(v) => (v.as_mut_ptr().cast(), size_of_val(&v[..]), c"i"),
        }
    }
}

impl From<Tensor> for Array {
    fn from(tensor: Tensor) -> Array {
        let dims = tensor.dims().to_vec();
        let values = match tensor.into_data() {
            Data::F32(values) => Values::F32(values),
            Data::I32(values) => Values::I32(values),
        };
        Array::new(&dims, values)
    }
}

impl From<OptimizerVariable> for Array {
    fn from(variable: OptimizerVariable) -> Array {
        let values = match variable.values {
            OptimizerValues::F32(values) => Values::F32(values),
            OptimizerValues::I32(values) => Values::I32(values),
        };
        Array::new(&variable.dims, values)
    }
}

#[pymethods]
impl Array {
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(pyo3::types::PyTuple::new(py, &self.shape)?.into_any())
    }

    #[getter]
    fn dtype(&self) -> &'static str {
        self.dtype
    }

    /// Fills in Python's view of the memory.
    ///
    /// # Safety
    /// Python passes a valid `view`.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("expected a view, received null"));
        }
        let array = slf.get();
        let (memory, bytes, format) = array.memory();
        let wants = |flag: c_int| flags & flag == flag;
        // SAFETY: Python owns `view` and passes it for us to fill. Shape and memory of `array` never move, and the reference in
        // `obj` keeps it alive until the view is released.
        unsafe {
            (*view).buf = memory;
            (*view).len = bytes as isize;
            (*view).readonly = 0;
            (*view).itemsize = size_of::<f32>() as isize;
            (*view).format = match wants(ffi::PyBUF_FORMAT) {
                true => format.as_ptr().cast_mut(),
                false => ptr::null_mut(),
            };
            (*view).ndim = array.shape.len() as c_int;
            (*view).shape = match wants(ffi::PyBUF_ND) {
                true => array.shape.as_ptr().cast_mut(),
                false => ptr::null_mut(),
            };
            (*view).strides = match wants(ffi::PyBUF_STRIDES) {
                true => array.strides.as_ptr().cast_mut(),
                false => ptr::null_mut(),
            };
            (*view).suboffsets = ptr::null_mut();
            (*view).internal = ptr::null_mut();
            (*view).obj = slf.clone().into_any().into_ptr();
        }
        Ok(())
    }
}

/// Memory that Python owns, such as a NumPy array.
struct PythonArray {
    buffer: PyUntypedBuffer,
    dims: Vec<usize>,
}

impl PythonArray {
    fn slice<T>(&self) -> &[T] {
        let count = self.buffer.item_count();
        if count == 0 {
            return &[];
        }
        // SAFETY: the buffer is contiguous and has `count` elements whose type and size `wrap` has checked. It keeps
        // its memory alive. `wrap` documents that it must not change meanwhile.
        unsafe { std::slice::from_raw_parts(self.buffer.buf_ptr().cast::<T>(), count) }
    }
}

impl ExternalArray for PythonArray {
    fn dims(&self) -> &[usize] {
        &self.dims
    }

    fn elements(&self) -> ExternalElements<'_> {
        match ElementType::from_format(self.buffer.format()) {
            ElementType::Float { bytes: 8 } => ExternalElements::F64(self.slice()),
            ElementType::SignedInteger { bytes: 1 } => ExternalElements::I8(self.slice()),
            ElementType::SignedInteger { bytes: 2 } => ExternalElements::I16(self.slice()),
            ElementType::SignedInteger { bytes: 4 } => ExternalElements::I32(self.slice()),
            ElementType::SignedInteger { bytes: 8 } => ExternalElements::I64(self.slice()),
            ElementType::UnsignedInteger { bytes: 1 } => ExternalElements::U8(self.slice()),
            ElementType::UnsignedInteger { bytes: 2 } => ExternalElements::U16(self.slice()),
            ElementType::UnsignedInteger { bytes: 4 } => ExternalElements::U32(self.slice()),
            ElementType::UnsignedInteger { bytes: 8 } => ExternalElements::U64(self.slice()),
            _ => ExternalElements::F32(self.slice()),
        }
    }
}

/// Borrows a buffer. Python must not change it while a model reads it.
pub fn wrap(array: &Bound<'_, PyAny>) -> PyResult<External> {
    let buffer = PyUntypedBuffer::get(array)?;
    if !buffer.is_c_contiguous() {
        return Err(PyTypeError::new_err("expected a C-contiguous array, received another"));
    }
    let known = match ElementType::from_format(buffer.format()) {
        ElementType::Float { bytes } => matches!(bytes, 4 | 8) && bytes == buffer.item_size(),
        ElementType::SignedInteger { bytes } | ElementType::UnsignedInteger { bytes } => {
            matches!(bytes, 1 | 2 | 4 | 8) && bytes == buffer.item_size()
        }
        ElementType::Bool | ElementType::Unknown => false,
    };
    let aligned = buffer.buf_ptr().addr().is_multiple_of(buffer.item_size().max(1));
    if !known || !aligned {
        let format = buffer.format().to_string_lossy();
        let expected =
            "expected aligned integers, or floats of 32 or 64 bits, in native byte order";
        return Err(PyTypeError::new_err(format!("{expected}, received the format '{format}'")));
    }
    let dims = buffer.shape().to_vec();
    External::new(Arc::new(PythonArray { buffer, dims })).map_err(errors::to_python)
}

/// Copies a NumPy array of numbers as floats. Scalars have no dimensions, and so no buffer of their own.
pub fn floats(array: &Bound<'_, PyAny>) -> PyResult<Tensor> {
    let dims: Vec<usize> = array.getattr("shape")?.extract()?;
    let flat = wrap(&array.call_method1("reshape", (-1,))?)?;
    let flat = flat.with_dtype(DType::F32).expect("every number is a float");
    let values = Arc::unwrap_or_clone(Samples::External(flat).to_tensor()).into_data();
    Tensor::new(dims, values).map_err(|error| errors::to_python(error.into()))
}
