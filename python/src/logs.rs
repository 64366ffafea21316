//! Losses and metrics as Python sees them.

use crate::array::Array;
use phalanx::Tensor;
use phalanx::model::Logs;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Names and values in their order. The result of a metric is a float or, as in Keras, a NumPy array if it is a vector.
pub fn pairs<'py>(py: Python<'py>, logs: &Logs) -> PyResult<Vec<(String, Bound<'py, PyAny>)>> {
    let pair = |(name, value): &(String, f64)| {
        let value = match logs.vector(name) {
            Some(vector) => array(py, vector)?,
            None => value.into_pyobject(py)?.into_any(),
        };
        Ok((name.clone(), value))
    };
    logs.iter().map(pair).collect()
}

/// A NumPy array of 32-bit floats.
fn array<'py>(py: Python<'py>, vector: &[f64]) -> PyResult<Bound<'py, PyAny>> {
    let values: Vec<f32> = vector.iter().map(|value| *value as f32).collect();
    let tensor = Tensor::new([values.len()], values);
    let tensor = tensor.map_err(|error| PyValueError::new_err(error.to_string()))?;
    py.import("numpy")?.call_method1("asarray", (Array::from(tensor),))
}
