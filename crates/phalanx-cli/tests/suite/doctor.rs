//! `phalanx doctor` and `phalanx train` with incompatible NVIDIA libraries. The tests build stub libraries.

use super::{command, text};
use phalanx_needs::needs;
use std::path::Path;
use std::process::{Command, Output};

/// The source file that lists the functions that Phalanx calls in each library.
const SYMBOLS: &str = include_str!("../../../phalanx-cuda-driver/src/libs/symbols.rs");

/// The names in a list of [`SYMBOLS`].
fn names(list: &str) -> Vec<&'static str> {
    let start = SYMBOLS.find(&format!("const {list}: &[&str]")).expect("a list of that name");
    let list = SYMBOLS[start..].split("];").next().unwrap_or_default();
    list.split('"').skip(1).step_by(2).collect()
}

/// Builds a library with all functions of a list: those that `code` defines, and stubs that return success.
fn library(dir: &Path, file: &str, list: &str, code: &str) {
    let defined = |name: &&&str| code.contains(&format!("{name}("));
    let stubs: Vec<String> = names(list)
        .iter()
        .filter(|name| !defined(name))
        .map(|name| format!("int {name}(void) {{ return 0; }}\n"))
        .collect();
    let source = dir.join("library.cc");
    let all = format!("#include <cstring>\nextern \"C\" {{\n{}{code}\n}}\n", stubs.concat());
    std::fs::write(&source, all).unwrap();
    let lib = dir.join("lib");
    std::fs::create_dir_all(&lib).unwrap();
    let soname = format!("-Wl,-soname,{file}");
    let built = Command::new("g++")
        .args(["-shared", "-fPIC", &soname, "-o"])
        .arg(lib.join(file))
        .arg(&source)
        .status();
    assert!(built.expect("g++ starts").success(), "{file} does not compile");
}

fn phalanx(dir: &Path, args: &[&str]) -> Output {
    command(dir, args).env("CUDA_HOME", dir).output().expect("the binary starts")
}

/// A driver of CUDA 12.4 with one GPU.
const DRIVER: &str = "
int cuDriverGetVersion(int *v) { *v = 12040; return 0; }
int cuDeviceGetCount(int *n) { *n = 1; return 0; }
int cuDeviceGetName(char *name, int, int) { strcpy(name, \"Paper GPU\"); return 0; }
int cuDeviceTotalMem_v2(unsigned long *bytes, int) { *bytes = 16ul << 30; return 0; }
";
const NVRTC: &str = "int nvrtcVersion(int *a, int *b) { *a = 13; *b = 1; return 0; }";
const CUDNN: &str = "unsigned long cudnnGetVersion(void) { return 8902; }";

#[needs(gxx)]
#[test]
fn incompatible_libraries_are_named() {
    let dir = tempfile::tempdir().unwrap();
    library(dir.path(), "libcuda.so.1", "DRIVER", DRIVER);
    library(dir.path(), "libnvrtc.so.13", "NVRTC", NVRTC);
    library(dir.path(), "libcudnn.so.9", "CUDNN", CUDNN);
    let devices = text(&phalanx(dir.path(), &["devices"]).stdout);
    assert!(devices.contains("gpu:0  Paper GPU, 16.00 GiB, driver "), "{devices}");
    assert!(devices.contains("CUDA 12.4") && devices.contains("train uses gpu:0"), "{devices}");
    let fails = "train would fail there: libnvrtc.so.13, libcublasLt.so.13, libcudnn.so.9 cannot";
    assert!(devices.lines().any(|line| line.starts_with(fails)), "{devices}");
    let doctor = phalanx(dir.path(), &["doctor"]);
    let (said, error) = (text(&doctor.stdout), text(&doctor.stderr));
    assert_eq!(doctor.status.code(), Some(1), "{said}{error}");
    assert!(said.contains("13.1: newer than the driver's CUDA 12.4"), "{said}");
    assert!(said.contains("8.9.2: expected version 9"), "{said}");
    assert!(said.contains("pip install nvidia-cublas-cu12"), "{said}");
    assert!(error.contains("libnvrtc.so.13, libcublasLt.so.13, libcudnn.so.9 cannot"), "{error}");
    let train = phalanx(dir.path(), &["train", "mnist-mlp", "--epochs", "1"]);
    let error = text(&train.stderr);
    assert_eq!(train.status.code(), Some(1), "{error}");
    assert!(error.starts_with("error: gpu:0: libnvrtc.so.13 (compiling kernels): "), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
}

#[needs(gxx)]
#[test]
fn a_driver_that_lacks_a_function_counts_as_missing() {
    let dir = tempfile::tempdir().unwrap();
    let code = "int cuInit(unsigned) { return 0; }";
    // Built from another list, so that all driver functions are missing.
    library(dir.path(), "libcuda.so.1", "NVRTC", code);
    let doctor = phalanx(dir.path(), &["doctor"]);
    let said = text(&doctor.stdout);
    assert!(doctor.status.success(), "{said}{}", text(&doctor.stderr));
    assert!(said.contains("libcuda.so.1 has no cuCtxSetCurrent: it is too old"), "{said}");
    let devices = text(&phalanx(dir.path(), &["devices"]).stdout);
    assert!(devices.contains("train uses cpu:0"), "{devices}");
}
