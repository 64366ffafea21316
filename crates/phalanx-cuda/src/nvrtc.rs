//! Runtime compilation of kernels, with a cache on disk.

use crate::cache;
use crate::launch::Source;
use cudarc::nvrtc::sys::{self, nvrtcResult};
use phalanx_cuda_driver::driver::{Failure, Result};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString};

/// Prepended to every file.
pub(crate) const PRELUDE: &str = include_str!("kernels/prelude.cuh");

/// The kernel files, by name.
pub(crate) const FILES: &[(&str, &str)] = &[
    ("collective", include_str!("kernels/collective.cu")),
    ("conv", include_str!("kernels/conv.cu")),
    ("depthwise", include_str!("kernels/depthwise.cu")),
    ("index", include_str!("kernels/index.cu")),
    ("resident_dataset", include_str!("kernels/resident_dataset.cu")),
    ("layer_norm", include_str!("kernels/layer_norm.cu")),
    ("layout", include_str!("kernels/layout.cu")),
    ("matmul", include_str!("kernels/matmul.cu")),
    ("norm", include_str!("kernels/norm.cu")),
    ("pool", include_str!("kernels/pool.cu")),
    ("random", include_str!("kernels/random.cu")),
    ("recurrent", include_str!("kernels/recurrent.cu")),
    ("reduce", include_str!("kernels/reduce.cu")),
    ("sample", include_str!("kernels/sample.cu")),
    ("softmax", include_str!("kernels/softmax.cu")),
    ("update", include_str!("kernels/update.cu")),
];

/// The complete source of a file. `tapes` is the source generated for one program.
pub(crate) fn source(of: Source, tapes: &str) -> Result<String> {
    let body = match of {
        Source::Tapes => tapes,
        Source::File(name) => {
            let found = FILES.iter().find(|(n, _)| *n == name);
            found.map(|(_, text)| *text).ok_or_else(|| Failure(format!("no kernel file {name}")))?
        }
    };
    Ok(format!("{PRELUDE}\n#line 1 \"{}.cu\"\n{body}", of.name()))
}

/// Machine code, and the mangled names of its kernels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Compiled {
    pub names: BTreeMap<String, String>,
    pub cubin: Vec<u8>,
}

/// Like [`compile_uncached`], but cached.
pub(crate) fn compile(source: &str, kernels: &[String], capability: i32) -> Result<Compiled> {
    let mut hash = Sha256::new();
    for part in [source, &kernels.join("\n"), &format!("sm_{capability}"), &version()] {
        hash.update(part.len().to_le_bytes());
        hash.update(part);
    }
    let key = hash.finalize().iter().map(|b| format!("{b:02x}")).collect::<String>();
    if let Some(found) = cache::read("kernels", &key).and_then(|bytes| decode(&bytes)) {
        return Ok(found);
    }
    let compiled = compile_uncached(source, kernels, capability)?;
    cache::write("kernels", &key, &encode(&compiled));
    Ok(compiled)
}

fn version() -> String {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the library is open, and the call writes two numbers.
    unsafe { sys::nvrtcVersion(&mut major, &mut minor) };
    format!("{major}.{minor}")
}

fn check(what: &str, answer: nvrtcResult) -> Result<()> {
    match answer {
        nvrtcResult::NVRTC_SUCCESS => Ok(()),
        other => Err(Failure(format!("{what}: {other:?}"))),
    }
}

/// A program of the runtime compiler.
struct NvrtcProgram(sys::nvrtcProgram);

impl Drop for NvrtcProgram {
    fn drop(&mut self) {
        // SAFETY: made by `nvrtcCreateProgram`, destroyed once.
        unsafe { sys::nvrtcDestroyProgram(&mut self.0) };
    }
}

fn text(s: &str) -> Result<CString> {
    CString::new(s).map_err(|e| Failure(e.to_string()))
}

/// Compiles kernels of one source for a compute capability.
pub(crate) fn compile_uncached(
    source: &str,
    kernels: &[String],
    capability: i32,
) -> Result<Compiled> {
    let source = text(source)?;
    let mut raw = std::ptr::null_mut();
    // SAFETY: the source outlives the call; there are no headers.
    let made = unsafe {
        let (none, no_names) = (std::ptr::null(), std::ptr::null());
        sys::nvrtcCreateProgram(
            &mut raw,
            source.as_ptr(),
            c"phalanx.cu".as_ptr(),
            0,
            none,
            no_names,
        )
    };
    check("nvrtcCreateProgram", made)?;
    let program = NvrtcProgram(raw);
    let names: Vec<CString> = kernels.iter().map(|k| text(k)).collect::<Result<_>>()?;
    for name in &names {
        // SAFETY: a live program and a live string.
        let added = unsafe { sys::nvrtcAddNameExpression(program.0, name.as_ptr()) };
        check("nvrtcAddNameExpression", added)?;
    }
    let options = [text(&format!("--gpu-architecture=sm_{capability}"))?, text("--std=c++17")?];
    let pointers = options.each_ref().map(|o| o.as_ptr());
    // SAFETY: live program and options.
    let done =
        unsafe { sys::nvrtcCompileProgram(program.0, pointers.len() as i32, pointers.as_ptr()) };
    if done != nvrtcResult::NVRTC_SUCCESS {
        return Err(Failure(format!("compiling kernels: {done:?}\n{}", log(&program))));
    }
    let mut compiled = Compiled::default();
    for (kernel, name) in kernels.iter().zip(&names) {
        let mut lowered = std::ptr::null();
        // SAFETY: the name was added before compiling; the result lives as long as the program.
        let lowered = unsafe {
            let found = sys::nvrtcGetLoweredName(program.0, name.as_ptr(), &mut lowered);
            check("nvrtcGetLoweredName", found)?;
            CStr::from_ptr(lowered).to_string_lossy().into_owned()
        };
        compiled.names.insert(kernel.clone(), lowered);
    }
    let mut bytes = 0;
    // SAFETY: a compiled program; the buffer has the requested size.
    unsafe {
        check("nvrtcGetCUBINSize", sys::nvrtcGetCUBINSize(program.0, &mut bytes))?;
        compiled.cubin = vec![0; bytes];
        let to = compiled.cubin.as_mut_ptr().cast();
        check("nvrtcGetCUBIN", sys::nvrtcGetCUBIN(program.0, to))?;
    }
    Ok(compiled)
}

/// The compiler's log.
fn log(program: &NvrtcProgram) -> String {
    let mut bytes = 0;
    // SAFETY: a live program; the buffer has the requested size.
    unsafe {
        sys::nvrtcGetProgramLogSize(program.0, &mut bytes);
        let mut text = vec![0u8; bytes.max(1)];
        sys::nvrtcGetProgramLog(program.0, text.as_mut_ptr().cast());
        String::from_utf8_lossy(&text).trim_end_matches('\0').to_string()
    }
}

/// One line per kernel, an empty line, then the machine code.
fn encode(compiled: &Compiled) -> Vec<u8> {
    let mut out = vec![];
    for (kernel, lowered) in &compiled.names {
        out.extend(format!("{kernel}\t{lowered}\n").into_bytes());
    }
    out.push(b'\n');
    out.extend(&compiled.cubin);
    out
}

fn decode(bytes: &[u8]) -> Option<Compiled> {
    let mut compiled = Compiled::default();
    let mut rest = bytes;
    loop {
        let end = rest.iter().position(|b| *b == b'\n')?;
        let (line, tail) = (std::str::from_utf8(&rest[..end]).ok()?, &rest[end + 1..]);
        rest = tail;
        let Some((kernel, lowered)) = line.split_once('\t') else { break };
        compiled.names.insert(kernel.into(), lowered.into());
    }
    compiled.cubin = rest.to_vec();
    Some(compiled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compiled_kernels_survive_the_cache() {
        let names = [("pool<float>".to_string(), "_Z4poolIfE".to_string())].into();
        let compiled = Compiled { names, cubin: vec![0, b'\n', 255, b'\t'] };
        assert_eq!(decode(&encode(&compiled)), Some(compiled));
        assert_eq!(decode(b"no line end"), None);
    }
}
