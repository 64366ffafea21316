//! Errors of the library as Python's exceptions, and back.

use phalanx::{Error, ExecError};
use pyo3::exceptions::{
    PyFloatingPointError, PyKeyboardInterrupt, PyMemoryError, PyNotImplementedError, PyOSError,
    PyRuntimeError, PyValueError,
};
use pyo3::prelude::*;

pyo3::create_exception!(
    phalanx,
    UnsupportedError,
    PyNotImplementedError,
    "A model that Phalanx cannot train. The attribute `reasons` lists every unsupported part."
);

/// The error of a model with unsupported parts.
pub fn unsupported(py: Python<'_>, reasons: Vec<String>) -> PyErr {
    let error = UnsupportedError::new_err(reasons.join("; "));
    match error.value(py).setattr("reasons", reasons) {
        Ok(()) => error,
        Err(failed) => failed,
    }
}

/// An exception of a hook or of data, for the library to pass on.
pub fn foreign(error: PyErr) -> Error {
    Error::Foreign(Box::new(error))
}

/// The exception of an error. An exception that Python raised comes back unchanged.
pub fn to_python(error: Error) -> PyErr {
    let text = error.to_string();
    match error {
        Error::Foreign(inner) => match inner.downcast::<PyErr>() {
            Ok(raised) => *raised,
            Err(other) => PyRuntimeError::new_err(other.to_string()),
        },
        Error::Memory { .. } | Error::Exec(ExecError::Memory { .. }) => {
            PyMemoryError::new_err(text)
        }
        Error::Io { .. } | Error::System(_) | Error::Missing { .. } | Error::Download { .. } => {
            PyOSError::new_err(text)
        }
        Error::NotFinite { .. } => PyFloatingPointError::new_err(text),
        Error::Interrupted { .. } => PyKeyboardInterrupt::new_err(text),
        Error::Exec(_) | Error::NotCompiled { .. } | Error::MissingFeature { .. } => {
            PyRuntimeError::new_err(text)
        }
        _ => PyValueError::new_err(text),
    }
}
