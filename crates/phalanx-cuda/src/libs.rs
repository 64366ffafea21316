//! NVIDIA's libraries: where they are looked for, which were found, and what is missing. They are
//! opened when first needed; nothing is linked.

use cudarc::{cublaslt, cudnn, driver, nvrtc};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// A library of NVIDIA's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lib {
    /// The driver.
    Driver,
    /// The runtime compiler.
    Nvrtc,
    /// Matrix products.
    CublasLt,
    /// Convolutions.
    Cudnn,
    /// Sums over several GPUs.
    Nccl,
}

impl Lib {
    /// All of them.
    pub const ALL: [Lib; 5] = [Lib::Driver, Lib::Nvrtc, Lib::CublasLt, Lib::Cudnn, Lib::Nccl];

    /// File names, the best first.
    fn files(self) -> &'static [&'static str] {
        match self {
            Lib::Driver => &["libcuda.so.1", "libcuda.so"],
            Lib::Nvrtc => &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"],
            Lib::CublasLt => &["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"],
            Lib::Cudnn => &["libcudnn.so.9", "libcudnn.so"],
            Lib::Nccl => &["libnccl.so.2", "libnccl.so"],
        }
    }

    /// A function that must be there.
    fn symbol(self) -> &'static [u8] {
        match self {
            Lib::Driver => b"cuGraphInstantiateWithFlags\0",
            Lib::Nvrtc => b"nvrtcGetCUBIN\0",
            Lib::CublasLt => b"cublasLtMatmulAlgoGetHeuristic\0",
            Lib::Cudnn => b"cudnnBackendExecute\0",
            Lib::Nccl => b"ncclCommInitRank\0",
        }
    }

    /// What it is for, in messages.
    pub fn purpose(self) -> &'static str {
        match self {
            Lib::Driver => "the NVIDIA driver",
            Lib::Nvrtc => "compiling kernels",
            Lib::CublasLt => "matrix products",
            Lib::Cudnn => "convolutions",
            Lib::Nccl => "sums over several GPUs",
        }
    }
}

impl fmt::Display for Lib {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.files()[0])
    }
}

/// A library that was opened.
pub struct Found {
    /// Which.
    pub lib: Lib,
    /// The name or path it was opened by.
    pub path: PathBuf,
    handle: Library,
}

impl Found {
    /// A function of the library.
    ///
    /// # Safety
    /// `T` is the function's type.
    pub(crate) unsafe fn symbol<T: Copy>(&self, name: &str) -> Option<T> {
        // SAFETY: the caller's contract; the library is never closed.
        unsafe { self.handle.get::<T>(name.as_bytes()).ok().map(|s| *s) }
    }

    /// Its version as it says itself; empty where it does not.
    pub fn version(&self) -> String {
        let dotted = |v: i64, unit: i64| format!("{}.{}", v / unit, v % unit / 10);
        // SAFETY: the library is open, and these functions need nothing else.
        unsafe {
            match self.lib {
                Lib::Driver => {
                    let mut v = 0;
                    driver::sys::cuDriverGetVersion(&mut v).result().ok();
                    format!("CUDA {}", dotted(i64::from(v), 1000))
                }
                Lib::Nvrtc => {
                    let (mut major, mut minor) = (0, 0);
                    nvrtc::sys::nvrtcVersion(&mut major, &mut minor);
                    format!("{major}.{minor}")
                }
                Lib::CublasLt => {
                    let v = cublaslt::sys::cublasLtGetVersion() as i64;
                    format!("{}.{}.{}", v / 10_000, v / 100 % 100, v % 100)
                }
                Lib::Cudnn => {
                    let v = cudnn::sys::cudnnGetVersion() as i64;
                    format!("{}.{}.{}", v / 10_000, v / 100 % 100, v % 100)
                }
                Lib::Nccl => {
                    let version: Option<unsafe extern "C" fn(*mut i32) -> i32> =
                        self.symbol("ncclGetVersion");
                    let mut v = 0;
                    if let Some(f) = version {
                        f(&mut v);
                    }
                    format!("{}.{}.{}", v / 10_000, v / 100 % 100, v % 100)
                }
            }
        }
    }
}

/// A library that is not there, or not usable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Which.
    pub lib: Lib,
    /// Where it was looked for, or what is wrong with it.
    pub reason: String,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.lib, self.lib.purpose(), self.reason)
    }
}

/// Opens a library, once; later calls give the same answer.
///
/// # Errors
/// It is nowhere, or lacks a function that is needed.
pub fn find(lib: Lib) -> Result<&'static Found, Missing> {
    static FOUND: [OnceLock<Result<Found, Missing>>; 5] = [const { OnceLock::new() }; 5];
    FOUND[lib as usize].get_or_init(|| open(lib)).as_ref().map_err(Clone::clone)
}

fn open(lib: Lib) -> Result<Found, Missing> {
    let folders = folders();
    let system = lib.files().iter().map(PathBuf::from);
    let inside = |d: &PathBuf| lib.files().iter().map(|f| d.join(f)).collect::<Vec<_>>();
    let placed = folders.iter().flat_map(inside).filter(|p| p.is_file());
    let mut wrong = None;
    for path in system.chain(placed) {
        // SAFETY: opening a library runs its initialisers; these are NVIDIA's own.
        let Ok(handle) = (unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_GLOBAL) }) else {
            continue;
        };
        // SAFETY: the symbol is only looked for, not called.
        if unsafe { handle.get::<*const ()>(lib.symbol()) }.is_err() {
            let name = String::from_utf8_lossy(lib.symbol()).trim_end_matches('\0').to_string();
            wrong = Some(format!("{} has no {name}: it is too old", path.display()));
            continue;
        }
        if lib != Lib::Nccl && !visible(lib) {
            wrong = Some(format!("{} is not a version this build can use", path.display()));
            continue;
        }
        return Ok(Found { lib, path, handle });
    }
    let looked = || {
        let list: Vec<String> = folders.iter().map(|d| d.display().to_string()).collect();
        let also = if list.is_empty() { String::new() } else { format!(", {}", list.join(", ")) };
        format!("not found in the system's library path{also}")
    };
    Err(Missing { lib, reason: wrong.unwrap_or_else(looked) })
}

/// Whether the bindings find what was just opened, by its file name.
fn visible(lib: Lib) -> bool {
    // SAFETY: opens libraries that are open already.
    unsafe {
        match lib {
            Lib::Driver => driver::sys::is_culib_present(),
            Lib::Nvrtc => nvrtc::sys::is_culib_present(),
            Lib::CublasLt => cublaslt::sys::is_culib_present(),
            Lib::Cudnn => cudnn::sys::is_culib_present(),
            Lib::Nccl => true,
        }
    }
}

/// Folders besides the system's: `CUDA_HOME`, and the `nvidia-*` wheels of a Python environment.
fn folders() -> Vec<PathBuf> {
    let mut out = vec![];
    let roots = ["CUDA_HOME", "CUDA_PATH"].iter().filter_map(std::env::var_os).map(PathBuf::from);
    for root in roots.chain([PathBuf::from("/usr/local/cuda")]) {
        out.extend(["lib64", "lib", "targets/x86_64-linux/lib"].map(|d| root.join(d)));
    }
    for prefix in python_prefixes() {
        for python in children(&prefix.join("lib"), |n| n.starts_with("python3")) {
            let wheels = children(&python.join("site-packages/nvidia"), |_| true);
            out.extend(wheels.into_iter().map(|d| d.join("lib")));
        }
    }
    out.retain(|d| d.is_dir());
    out
}

/// Where Python environments are: the active one, and that of the first `python3` on the path.
fn python_prefixes() -> Vec<PathBuf> {
    let active = ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(std::env::var_os);
    let mut out: Vec<PathBuf> = active.map(PathBuf::from).collect();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let first = std::env::split_paths(&path).find(|d| d.join("python3").exists());
    out.extend(first.and_then(|bin| bin.parent().map(Path::to_path_buf)));
    out
}

fn children(folder: &Path, wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut out: Vec<PathBuf> =
        entries.filter(|e| e.file_name().to_str().is_some_and(&wanted)).map(|e| e.path()).collect();
    out.sort();
    out
}
