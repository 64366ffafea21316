//! The extension module `phalanx._phalanx`: models of Python Keras on the devices of Phalanx.
//!
//! It converts between Python's objects and the library's, and nothing else. `phalanx/_phalanx.pyi` describes it.

mod array;
mod data;
mod engine;
mod errors;
mod hooks;
mod logs;
mod shared;
mod warnings;

use phalanx::saving;
use phalanx::strategy::{DeviceKind, list_physical_devices};
use pyo3::prelude::*;
use std::ffi::OsString;

#[pymodule]
mod _phalanx {
    #[pymodule_export]
    use super::array::Array;
    #[pymodule_export]
    use super::data::{ArrayData, BatchData};
    #[pymodule_export]
    use super::engine::Engine;
    #[pymodule_export]
    use super::errors::UnsupportedError;
    #[pymodule_export]
    use super::{list_devices, run_command, unsupported};

    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "the name that Python uses")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}

/// The devices of this machine, such as `["cpu:0", "gpu:0"]`.
#[pyfunction]
fn list_devices() -> Vec<String> {
    let devices = [DeviceKind::Cpu, DeviceKind::Gpu].into_iter().flat_map(list_physical_devices);
    devices.map(|device| device.to_string()).collect()
}

/// Every unsupported part of a model's config.
#[pyfunction]
fn unsupported(config: &str) -> Vec<String> {
    saving::unsupported(config)
}

/// Runs the command `phalanx` with its arguments, the name of the program first, and returns its exit code.
#[pyfunction]
fn run_command(py: Python<'_>, args: Vec<OsString>) -> u8 {
    py.detach(|| phalanx_cli::run(args))
}
