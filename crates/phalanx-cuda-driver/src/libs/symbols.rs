//! The functions in use of each library. The bindings panic if one is missing, so all are looked up
//! when a library is opened.

use super::Lib;

impl Lib {
    /// The required functions.
    pub(super) fn symbols(self) -> &'static [&'static str] {
        match self {
            Lib::Driver => DRIVER,
            Lib::Nvrtc => NVRTC,
            Lib::CublasLt => CUBLAS_LT,
            Lib::Cudnn => CUDNN,
            Lib::Nccl => NCCL,
        }
    }
}

const DRIVER: &[&str] = &[
    "cuCtxSetCurrent",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDeviceTotalMem_v2",
    "cuDriverGetVersion",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventElapsedTime_v2",
    "cuEventQuery",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuFuncSetAttribute",
    "cuGetErrorString",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuInit",
    "cuLaunchKernel",
    "cuMemAlloc_v2",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemGetInfo_v2",
    "cuMemHostAlloc",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoH_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyHtoD_v2",
    "cuMemsetD8Async",
    "cuMemsetD8_v2",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuStreamBeginCapture_v2",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamEndCapture",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
];

const NVRTC: &[&str] = &[
    "nvrtcAddNameExpression",
    "nvrtcCompileProgram",
    "nvrtcCreateProgram",
    "nvrtcDestroyProgram",
    "nvrtcGetCUBIN",
    "nvrtcGetCUBINSize",
    "nvrtcGetLoweredName",
    "nvrtcGetProgramLog",
    "nvrtcGetProgramLogSize",
    "nvrtcVersion",
];

const CUBLAS_LT: &[&str] = &[
    "cublasLtCreate",
    "cublasLtDestroy",
    "cublasLtGetVersion",
    "cublasLtMatmul",
    "cublasLtMatmulAlgoConfigGetAttribute",
    "cublasLtMatmulAlgoGetHeuristic",
    "cublasLtMatmulDescCreate",
    "cublasLtMatmulDescDestroy",
    "cublasLtMatmulDescSetAttribute",
    "cublasLtMatmulPreferenceCreate",
    "cublasLtMatmulPreferenceDestroy",
    "cublasLtMatmulPreferenceSetAttribute",
    "cublasLtMatrixLayoutCreate",
    "cublasLtMatrixLayoutDestroy",
    "cublasLtMatrixLayoutSetAttribute",
];

const CUDNN: &[&str] = &[
    "cudnnBackendCreateDescriptor",
    "cudnnBackendDestroyDescriptor",
    "cudnnBackendExecute",
    "cudnnBackendFinalize",
    "cudnnBackendGetAttribute",
    "cudnnBackendSetAttribute",
    "cudnnCreate",
    "cudnnDestroy",
    "cudnnGetErrorString",
    "cudnnGetVersion",
    "cudnnSetStream",
];

const NCCL: &[&str] = &[
    "ncclAllReduce",
    "ncclCommAbort",
    "ncclCommDestroy",
    "ncclCommGetAsyncError",
    "ncclCommInitRank",
    "ncclGetErrorString",
    "ncclGetLastError",
    "ncclGetUniqueId",
    "ncclGetVersion",
    "ncclGroupEnd",
    "ncclGroupStart",
    "ncclRecv",
    "ncclSend",
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// The library of a function of the bindings, or `None` for types and constants.
    fn library(name: &str) -> Option<Lib> {
        let types = ["nvrtcProgram", "nvrtcResult"];
        if name.ends_with("_t") || types.contains(&name) {
            return None;
        }
        let prefixes = [
            ("cublasLt", Lib::CublasLt),
            ("cudnn", Lib::Cudnn),
            ("nvrtc", Lib::Nvrtc),
            ("nccl", Lib::Nccl),
            ("cu", Lib::Driver),
        ];
        let owns = |prefix: &str| {
            name.strip_prefix(prefix).is_some_and(|n| n.starts_with(char::is_uppercase))
        };
        prefixes.into_iter().find(|(prefix, _)| owns(prefix)).map(|(_, lib)| lib)
    }

    /// Names after `cu!(`, `nccl!(` and `sys::`, which is how functions are called, and those of tables of functions.
    fn called(text: &str) -> Vec<String> {
        let marks =
            ["cu!(", "nccl!(", "sys::", "= \""].iter().flat_map(|mark| text.split(mark).skip(1));
        let word = |c: char| c.is_alphanumeric() || c == '_';
        marks.map(|rest| rest.chars().take_while(|c| word(*c)).collect()).collect()
    }

    fn sources(folder: &Path, out: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, out);
            } else if path.extension().is_some_and(|e| e == "rs") {
                out.push(std::fs::read_to_string(path).unwrap());
            }
        }
    }

    #[test]
    fn every_called_function_is_looked_up() {
        let mut texts = vec![];
        for krate in ["phalanx-cuda-driver", "phalanx-distributed", "phalanx-cuda"] {
            let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
            sources(&crates.join(krate).join("src"), &mut texts);
        }
        let mut counts = [0; Lib::ALL.len()];
        for name in texts.iter().flat_map(|text| called(text)) {
            let Some(lib) = library(&name) else { continue };
            assert!(lib.symbols().contains(&name.as_str()), "{name} is not in the list of {lib}");
            counts[lib as usize] += 1;
        }
        assert!(counts.iter().all(|n| *n >= 10), "{counts:?}");
    }
}
