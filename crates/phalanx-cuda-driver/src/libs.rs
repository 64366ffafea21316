//! NVIDIA's libraries: where they are searched, which were found, and which are missing. They are
//! opened on first use; nothing is linked.

mod symbols;
mod version;

pub use version::Version;

use cudarc::{cublaslt, driver, nvrtc};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// A library of NVIDIA.
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
    /// All-reduce across GPUs.
    Nccl,
}

impl Lib {
    /// All libraries.
    pub const ALL: [Lib; 5] = [Lib::Driver, Lib::Nvrtc, Lib::CublasLt, Lib::Cudnn, Lib::Nccl];

    /// File names, in order of preference.
    fn files(self) -> &'static [&'static str] {
        match self {
            Lib::Driver => &["libcuda.so.1", "libcuda.so"],
            Lib::Nvrtc => &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"],
            Lib::CublasLt => &["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"],
            Lib::Cudnn => &["libcudnn.so.9", "libcudnn.so"],
            Lib::Nccl => &["libnccl.so.2", "libnccl.so"],
        }
    }

    /// Its purpose, for messages.
    pub fn purpose(self) -> &'static str {
        match self {
            Lib::Driver => "the NVIDIA driver",
            Lib::Nvrtc => "compiling kernels",
            Lib::CublasLt => "matrix products",
            Lib::Cudnn => "convolutions",
            Lib::Nccl => "sums over several GPUs",
        }
    }

    /// How to install it, for a driver of this CUDA version if any.
    pub fn install_hint(self, driver: Option<Version>) -> String {
        let old = driver.is_some_and(|v| v.major == 12);
        let (bare, suffixed) = if old { ("-cu12", "-cu12") } else { ("", "-cu13") };
        let wheel = match self {
            Lib::Driver => {
                return "install NVIDIA's driver, for example your distribution's".into();
            }
            Lib::Nvrtc => format!("nvidia-cuda-nvrtc{bare}"),
            Lib::CublasLt => format!("nvidia-cublas{bare}"),
            Lib::Cudnn => format!("nvidia-cudnn{suffixed}"),
            Lib::Nccl => format!("nvidia-nccl{suffixed}"),
        };
        format!("pip install {wheel}, or your distribution's package")
    }
}

impl fmt::Display for Lib {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.files()[0])
    }
}

/// An opened library.
pub struct Found {
    /// The library.
    pub lib: Lib,
    /// Path of its file.
    pub path: PathBuf,
    /// Version that it reports.
    pub version: Version,
    handle: Library,
}

impl Found {
    /// The address of a function.
    pub fn address(&self, name: &str) -> Option<usize> {
        address(&self.handle, name)
    }
}

/// A library that is missing or unusable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The library.
    pub lib: Lib,
    /// Where it was searched, or why it is unusable.
    pub reason: String,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let install_hint = self.lib.install_hint(driver_version());
        write!(f, "{} ({}): {}; {install_hint}", self.lib, self.lib.purpose(), self.reason)
    }
}

/// Opens a library, once. Later calls return the same result.
///
/// # Errors
/// It was not found, lacks a required function, or is incompatible with the driver.
pub fn find(lib: Lib) -> Result<&'static Found, Missing> {
    static FOUND: [OnceLock<Result<Found, Missing>>; 5] = [const { OnceLock::new() }; 5];
    FOUND[lib as usize].get_or_init(|| open(lib)).as_ref().map_err(Clone::clone)
}

/// The CUDA version of the driver, if any.
pub fn driver_version() -> Option<Version> {
    find(Lib::Driver).ok().map(|found| found.version)
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
        match check(lib, &handle) {
            Ok(version) => {
                let path = file_of(lib, &handle).unwrap_or(path);
                // The library stays open until the process ends, as do the functions found in it.
                return Ok(Found { lib, path, version, handle });
            }
            Err(what) => {
                let path = file_of(lib, &handle).unwrap_or(path);
                wrong.get_or_insert(format!("{} {what}", path.display()));
            }
        }
    }
    let looked = || {
        let list: Vec<String> = folders.iter().map(|d| d.display().to_string()).collect();
        let also = if list.is_empty() { String::new() } else { format!(", {}", list.join(", ")) };
        format!("not found in the system's library path{also}")
    };
    Err(Missing { lib, reason: wrong.unwrap_or_else(looked) })
}

/// The version of a usable library, or why it is unusable.
fn check(lib: Lib, handle: &Library) -> Result<Version, String> {
    if let Some(name) = lib.symbols().iter().find(|name| address(handle, name).is_none()) {
        return Err(format!("has no {name}: it is too old"));
    }
    // SAFETY: the library has the functions of its kind.
    let version = unsafe { version::query(lib, handle) }.ok_or("does not say its version")?;
    let driver = if lib == Lib::Nvrtc { driver_version() } else { None };
    version::check(lib, version, driver)?;
    // SAFETY: opens libraries that are already open.
    let seen = unsafe {
        match lib {
            Lib::Driver => driver::sys::is_culib_present(),
            Lib::Nvrtc => nvrtc::sys::is_culib_present(),
            Lib::CublasLt => cublaslt::sys::is_culib_present(),
            // Called through the functions of this copy.
            Lib::Cudnn | Lib::Nccl => true,
        }
    };
    if !seen {
        return Err("is not a version this build can use".into());
    }
    // The bindings search on their own, and may find another copy.
    let lacks = |name: &&&str| address_bound(lib, name).is_none();
    match lib.symbols().iter().find(lacks).filter(|_| !matches!(lib, Lib::Cudnn | Lib::Nccl)) {
        Some(name) => Err(format!("is hidden by another copy, which has no {name}")),
        None => Ok(version),
    }
}

/// The address of a function of a library.
fn address(handle: &Library, name: &str) -> Option<usize> {
    // SAFETY: the function is only looked up, not called.
    let found = unsafe { handle.get::<*const ()>(name.as_bytes()) };
    found.ok().map(|function| function.as_raw_ptr() as usize)
}

/// The address of a function that the bindings will call.
fn address_bound(lib: Lib, name: &str) -> Option<usize> {
    // SAFETY: the bindings find their library, as checked before; nothing is called.
    let found = unsafe {
        let library = match lib {
            Lib::Driver => driver::sys::culib(),
            Lib::Nvrtc => nvrtc::sys::culib(),
            Lib::CublasLt => cublaslt::sys::culib(),
            Lib::Cudnn | Lib::Nccl => return None,
        };
        library.get::<*const ()>(name.as_bytes())
    };
    // SAFETY: converts a pointer to a pointer.
    found.ok().map(|function| unsafe { function.into_raw() }.as_raw_ptr() as usize)
}

/// The file that a library was loaded from, according to the memory map of the process.
fn file_of(lib: Lib, handle: &Library) -> Option<PathBuf> {
    let at = lib.symbols().iter().find_map(|name| address(handle, name))?;
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    maps.lines().find_map(|line| mapped(line, at))
}

/// The file of a mapping that contains an address.
fn mapped(line: &str, at: usize) -> Option<PathBuf> {
    let (range, rest) = line.split_once(' ')?;
    let (from, to) = range.split_once('-')?;
    let number = |text: &str| usize::from_str_radix(text, 16).ok();
    let holds = (number(from)?..number(to)?).contains(&at);
    holds.then(|| rest.find('/').map(|i| PathBuf::from(&rest[i..]))).flatten()
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
            for packages in ["site-packages/nvidia", "dist-packages/nvidia"] {
                let wheels = children(&python.join(packages), |_| true);
                out.extend(wheels.into_iter().map(|d| d.join("lib")));
            }
        }
    }
    out.retain(|d| d.is_dir());
    out
}

/// Prefixes of Python environments: the active one, that of the first `python3` on the path, the
/// system's own packages and the user's.
fn python_prefixes() -> Vec<PathBuf> {
    let active = ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(std::env::var_os);
    let mut out: Vec<PathBuf> = active.map(PathBuf::from).collect();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let first = std::env::split_paths(&path).find(|d| d.join("python3").exists());
    out.extend(first.and_then(|bin| bin.parent().map(Path::to_path_buf)));
    out.push("/usr/local".into());
    out.extend(std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local")));
    out
}

fn children(folder: &Path, wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut out: Vec<PathBuf> =
        entries.filter(|e| e.file_name().to_str().is_some_and(&wanted)).map(|e| e.path()).collect();
    out.sort();
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_map_gives_the_file_of_an_address() {
        let line = "7f10-7f20 r-xp 00000000 fd:01 1234                       /usr/lib/libcuda.so.1";
        assert_eq!(mapped(line, 0x7f1f), Some("/usr/lib/libcuda.so.1".into()));
        assert_eq!(mapped(line, 0x7f20), None);
        assert_eq!(mapped("7f10-7f20 rw-p 00000000 00:00 0", 0x7f10), None);
        assert_eq!(mapped("", 0), None);
    }

    #[test]
    fn a_missing_library_reports_where_it_was_searched_and_how_to_install_it() {
        let missing = Missing { lib: Lib::Cudnn, reason: "not found in /a".into() };
        let text = missing.to_string();
        assert!(text.starts_with("libcudnn.so.9 (convolutions): not found in /a; "), "{text}");
        assert!(text.contains("pip install nvidia-cudnn-cu1"), "{text}");
        let old = Some(Version { major: 12, minor: 4, patch: 0 });
        assert!(Lib::Nvrtc.install_hint(old).contains("nvidia-cuda-nvrtc-cu12,"));
        assert!(Lib::Nvrtc.install_hint(None).contains("nvidia-cuda-nvrtc,"));
    }

    #[test]
    fn an_unrelated_library_of_the_same_name_is_refused() {
        // SAFETY: a library without relevant initialisers.
        let handle = unsafe { Library::open(Some("libm.so.6"), RTLD_NOW) }.expect("there is one");
        for lib in Lib::ALL {
            let what = check(lib, &handle).unwrap_err();
            assert!(what.starts_with(&format!("has no {}", lib.symbols()[0])), "{what}");
        }
    }
}
