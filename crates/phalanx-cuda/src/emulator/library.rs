//! Kernels as functions of a shared library: emitted as C++, compiled by g++ and cached next to the
//! test programs by the hash of their source. The headers are precompiled and the scheduler is
//! compiled once, so that a unit costs little more than its own kernels.

use crate::nvrtc::PRELUDE;
use libloading::Library;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, LazyLock, Mutex, OnceLock};

const FLAGS: [&str; 9] = [
    "-O1",
    "-std=c++17",
    "-fPIC",
    "-w",
    "-fvisibility=hidden",
    // Otherwise two libraries would share their `__shared__` arrays.
    "-fno-gnu-unique",
    "-U_FORTIFY_SOURCE",
    "-fsanitize=alignment,bounds,integer-divide-by-zero",
    "-fno-sanitize-recover=all",
];

/// Must match `Launch` of `fibers.hpp`.
#[repr(C)]
pub(super) struct Launch {
    pub body: Body,
    pub args: *mut *mut c_void,
    pub grid: [u32; 3],
    pub threads: u32,
    pub seed: u64,
    pub shared: *mut u8,
    pub shared_bytes: usize,
    pub stacks: *mut u8,
    pub stack_bytes: usize,
    pub error: *mut c_char,
    pub error_bytes: usize,
}

type Body = unsafe extern "C" fn(*mut *mut c_void);
type Run = unsafe extern "C" fn(*const Launch) -> c_int;

/// A callable kernel.
pub(super) struct Kernel {
    pub body: Body,
    pub run: Run,
    /// A letter for each argument: pointer, 32-bit integer, 64-bit integer (`l`), float.
    pub signature: String,
    /// Keeps the library of the functions loaded.
    _library: Arc<Library>,
}

type Loaded = Arc<OnceLock<Result<Vec<Arc<Kernel>>, String>>>;

/// Compiles kernels of a source, which includes its prelude, in one unit.
pub(super) fn kernels(source: &str, names: &[&str]) -> Result<Vec<Arc<Kernel>>, String> {
    static LOADED: LazyLock<Mutex<HashMap<String, Loaded>>> = LazyLock::new(Mutex::default);
    let unit = unit(source, names)?;
    let hash = hash(&[&HEADER, SCHEDULER, &unit]);
    let loaded = LOADED.lock().expect("no panic").entry(hash.clone()).or_default().clone();
    loaded.get_or_init(|| load(&compiled(&unit, &hash)?, names.len())).clone()
}

fn hash(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in FLAGS.iter().chain(parts) {
        hash.update(part.len().to_le_bytes());
        hash.update(part);
    }
    hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

const FIBERS: &str = include_str!("fibers.hpp");
const SCHEDULER: &str = include_str!("fibers.cpp");

/// The beginning of every unit.
static HEADER: LazyLock<String> = LazyLock::new(|| {
    let files =
        [("fibers.hpp", FIBERS), ("cuda.hpp", include_str!("cuda.hpp")), ("prelude.cuh", PRELUDE)];
    files.map(|(file, text)| format!("#line 1 \"{file}\"\n{text}\n")).concat()
});

/// The text of a unit after the header.
fn unit(source: &str, names: &[&str]) -> Result<String, String> {
    let kernels = source.strip_prefix(PRELUDE).unwrap_or(source);
    let mut unit = with_dynamic_memory(kernels)?;
    for (i, name) in names.iter().enumerate() {
        unit += &format!("\nPHALANX_KERNEL({i}, {name})");
    }
    Ok(unit + "\n")
}

/// Turns `extern __shared__ T name[];` into a pointer to the launch's shared memory.
fn with_dynamic_memory(source: &str) -> Result<String, String> {
    const WORDS: &str = "extern __shared__";
    let mut parts = source.split(WORDS);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let declared = part.split_once(';').and_then(|(declared, rest)| {
            let words = match declared.trim().strip_prefix("__align__(") {
                Some(aligned) => aligned.split_once(')')?.1,
                None => declared,
            };
            let (elem, name) = words.trim().strip_suffix("[]")?.trim().rsplit_once(' ')?;
            Some((elem, name, rest))
        });
        let Some((elem, name, rest)) = declared else {
            let line = part.lines().next().unwrap_or_default();
            return Err(format!("expected '{WORDS} T name[];', received '{WORDS}{line}'"));
        };
        out += &format!("{elem}* {name} = ({elem}*)emu::run->launch->shared;{rest}");
    }
    Ok(out)
}

/// The cache of libraries: next to the directory of the running test program.
fn cache_directory() -> PathBuf {
    let program = std::env::current_exe().ok();
    let deps = program.as_deref().and_then(Path::parent).filter(|d| d.ends_with("deps"));
    let beside = deps.and_then(Path::parent).map(Path::to_owned);
    beside.unwrap_or_else(std::env::temp_dir).join("phalanx-emulator")
}

/// The precompiled header, and the scheduler as an object file.
struct Toolkit {
    header: PathBuf,
    scheduler: PathBuf,
}

impl Toolkit {
    fn get() -> Result<&'static Toolkit, String> {
        static TOOLKIT: OnceLock<Result<Toolkit, String>> = OnceLock::new();
        TOOLKIT.get_or_init(Toolkit::make).as_ref().map_err(String::clone)
    }

    fn make() -> Result<Toolkit, String> {
        let directory = cache_directory();
        std::fs::create_dir_all(&directory).map_err(|e| failed(&directory, &e))?;
        let header = directory.join(format!("{}.hpp", hash(&[&HEADER])));
        create_once(&header, |new| write(new, &HEADER))?;
        let precompiled = header.with_extension("hpp.gch");
        create_once(&precompiled, |new| {
            run(Command::new("g++")
                .args(FLAGS)
                .args(["-x", "c++-header", "-o"])
                .args([new, &header]))
        })?;
        let scheduler = directory.join(format!("{}.o", hash(&[FIBERS, SCHEDULER])));
        create_once(&scheduler, |new| {
            let source = new.with_extension("cpp");
            let text = SCHEDULER.replace("#include \"fibers.hpp\"", FIBERS);
            write(&source, &text)?;
            let result =
                run(Command::new("g++").args(FLAGS).args(["-c", "-o"]).args([new, &source]));
            remove(&source);
            result
        })?;
        Ok(Toolkit { header, scheduler })
    }
}

/// The library of a unit.
fn compiled(unit: &str, hash: &str) -> Result<PathBuf, String> {
    let library = cache_directory().join(format!("{hash}.so"));
    if library.exists() {
        return Ok(library);
    }
    let toolkit = Toolkit::get()?;
    create_once(&library, |new| {
        let source = new.with_extension("cpp");
        write(&source, &format!("#include \"{}\"\n{unit}", toolkit.header.display()))?;
        let mut compile = Command::new("g++");
        // The flags enable checks whose handlers are in the scheduler, so no runtime library is
        // needed.
        compile.args(FLAGS).args(["-nostdlib", "-shared", "-o"]).arg(new);
        let result = run(compile.args([&source, &toolkit.scheduler]).args(["-lm", "-lc"]));
        remove(&source);
        result
    })?;
    Ok(library)
}

/// Creates a file unless it exists. Other processes may create it at the same time: each renames
/// its own file.
fn create_once(path: &Path, make: impl FnOnce(&Path) -> Result<(), String>) -> Result<(), String> {
    if path.exists() {
        return Ok(());
    }
    let mut new = path.as_os_str().to_owned();
    new.push(format!(".{}", std::process::id()));
    let new = PathBuf::from(new);
    make(&new)?;
    std::fs::rename(&new, path).map_err(|e| failed(path, &e))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|e| failed(path, &e))
}

fn remove(path: &Path) {
    // A leftover file is harmless.
    let _ = std::fs::remove_file(path);
}

fn failed(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", path.display())
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|e| format!("g++ cannot be started: {e}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("g++ refuses:\n{}", String::from_utf8_lossy(&output.stderr))),
    }
}

fn load(path: &Path, kernels: usize) -> Result<Vec<Arc<Kernel>>, String> {
    let failed = |e: libloading::Error| format!("{}: {e}", path.display());
    // SAFETY: compiled from sources of this crate; loading it runs nothing.
    let library = Arc::new(unsafe { Library::new(path) }.map_err(failed)?);
    // SAFETY: `fibers.cpp` defines it with this type.
    let run = *unsafe { library.get::<Run>(b"phalanx_launch") }.map_err(failed)?;
    let kernel = |i: usize| {
        let (body, letters) = (format!("phalanx_body_{i}"), format!("phalanx_letters_{i}"));
        // SAFETY: `PHALANX_KERNEL` defines it with this type.
        let body = *unsafe { library.get::<Body>(body.as_bytes()) }.map_err(failed)?;
        type SignatureFn = unsafe extern "C" fn() -> *const c_char;
        // SAFETY: as above.
        let letters = *unsafe { library.get::<SignatureFn>(letters.as_bytes()) }.map_err(failed)?;
        // SAFETY: it returns a zero-terminated constant of the library.
        let letters = unsafe { CStr::from_ptr(letters()) }.to_string_lossy().into_owned();
        Ok(Arc::new(Kernel { body, run, signature: letters, _library: library.clone() }))
    };
    (0..kernels).map(kernel).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dynamic_memory_becomes_a_pointer() {
        let source = "a; extern __shared__ __align__(16) unsigned char bytes[]; b;";
        let want = "a; unsigned char* bytes = (unsigned char*)emu::run->launch->shared; b;";
        assert_eq!(with_dynamic_memory(source).unwrap(), want);
        let text = with_dynamic_memory("extern __shared__ float x[4];").unwrap_err();
        assert!(text.starts_with("expected 'extern __shared__ T name[];'"), "{text}");
    }
}
