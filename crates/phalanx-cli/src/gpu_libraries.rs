//! NVIDIA's libraries: which were found, and what is wrong with the others.

use phalanx_cuda_driver::libs::{self, Lib};

/// The state of a library.
struct Finding {
    lib: Lib,
    /// Version and file, or the reason why it cannot be used.
    state: Result<(String, String), String>,
    hint: String,
}

impl Finding {
    fn check(lib: Lib) -> Finding {
        let driver = libs::find(Lib::Driver).ok().map(|found| found.version);
        let state = match libs::find(lib) {
            Ok(found) => Ok((found.version.to_string(), found.path.display().to_string())),
            Err(missing) => Err(missing.reason),
        };
        Finding { lib, state, hint: lib.install_hint(driver) }
    }
}

/// The libraries that were looked for.
pub struct Libraries([Finding; Lib::ALL.len()]);

impl Libraries {
    /// Looks for all libraries.
    pub fn find() -> Libraries {
        Libraries(Lib::ALL.map(Finding::check))
    }

    /// The libraries, one line each, with a second line for each missing one.
    pub fn table(&self) -> Vec<String> {
        table(&self.0)
    }

    /// The libraries that training on this number of GPUs needs but cannot use.
    pub fn unusable(&self, gpus: usize) -> Vec<String> {
        unusable(gpus, &self.0)
    }
}

/// The version of the driver, if any.
pub fn driver_version() -> Option<String> {
    phalanx_cuda::driver_version()
}

/// The folder of compiled kernels.
pub fn cache_folder() -> Option<std::path::PathBuf> {
    phalanx_cuda::cache_folder()
}

/// The libraries, one line each, with a second line for each missing one.
fn table(findings: &[Finding]) -> Vec<String> {
    let row = |a: &str, b: &str, c: &str, d: &str| format!("{a:<19}{b:<24}{c:<10}{d}");
    let mut lines = vec![row("library", "for", "version", "file")];
    for Finding { lib, state, hint } in findings {
        let name = lib.to_string();
        match state {
            Ok((version, file)) => lines.push(row(&name, lib.purpose(), version, file)),
            Err(reason) => {
                lines.push(row(&name, lib.purpose(), "-", reason));
                let note = if *lib == Lib::Nccl { "not needed for one GPU; " } else { "" };
                lines.push(format!("{:<19}{note}{hint}", ""));
            }
        }
    }
    lines
}

/// The libraries that training on this number of GPUs needs, among these findings, but cannot use.
fn unusable(gpus: usize, findings: &[Finding]) -> Vec<String> {
    let needed = |lib: Lib| match lib {
        Lib::Driver | Lib::Nvrtc | Lib::CublasLt | Lib::Cudnn => gpus > 0,
        Lib::Nccl => gpus > 1,
    };
    let failed = findings.iter().filter(|f| f.state.is_err() && needed(f.lib));
    failed.map(|f| f.lib.to_string()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(missing: &[Lib]) -> Vec<Finding> {
        let of = |lib: Lib| Finding {
            lib,
            state: match missing.contains(&lib) {
                true => Err("not found in the system's library path".into()),
                false => Ok(("9.1".into(), format!("/usr/lib/{lib}"))),
            },
            hint: lib.install_hint(None),
        };
        Lib::ALL.map(of).into()
    }

    #[test]
    fn only_libraries_that_train_needs_count() {
        let without = findings(&[Lib::Cudnn, Lib::Nccl]);
        assert!(unusable(0, &without).is_empty());
        assert_eq!(unusable(1, &without), ["libcudnn.so.9"]);
        assert_eq!(unusable(2, &without), ["libcudnn.so.9", "libnccl.so.2"]);
        assert!(unusable(8, &findings(&[])).is_empty());
    }

    #[test]
    fn a_missing_library_has_reason_and_remedy() {
        let lines = table(&findings(&[Lib::Nvrtc]));
        assert_eq!(lines.len(), 1 + Lib::ALL.len() + 1);
        assert!(lines[1].contains("9.1") && lines[1].ends_with("/usr/lib/libcuda.so.1"));
        assert!(lines[2].contains("not found in"), "{}", lines[2]);
        assert!(lines[3].contains("pip install nvidia-cuda-nvrtc"), "{}", lines[3]);
        let lines = table(&findings(&[Lib::Nccl]));
        assert!(
            lines[6].contains("not needed for one GPU; pip install nvidia-nccl"),
            "{}",
            lines[6]
        );
    }
}
