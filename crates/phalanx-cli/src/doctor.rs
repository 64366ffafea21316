//! `phalanx doctor`: checks NVIDIA's libraries, the caches and the system settings.

use crate::devices;
use crate::report::format_bytes;
use crate::terminal;
use anyhow::{Result, bail};
use phalanx_cuda::libs::{self, Lib};
use std::io::Write;
use std::path::Path;

/// The state of a library.
struct Finding {
    lib: Lib,
    /// Version and file, or the reason why it cannot be used.
    state: Result<(String, String), String>,
    remedy: String,
}

impl Finding {
    fn check(lib: Lib) -> Finding {
        let driver = libs::find(Lib::Driver).ok().map(|found| found.version);
        let state = match libs::find(lib) {
            Ok(found) => Ok((found.version.to_string(), found.path.display().to_string())),
            Err(missing) => Err(missing.reason),
        };
        Finding { lib, state, remedy: lib.install_hint(driver) }
    }
}

/// Prints all findings; fails if `train` without flags would fail.
pub fn run() -> Result<()> {
    let gpus = phalanx_cuda::gpus();
    let findings = Lib::ALL.map(Finding::check);
    let mut out = terminal::stdout();
    writeln!(out, "processor   {}", devices::processor())?;
    writeln!(
        out,
        "huge pages  {}",
        huge_pages(&read(HUGE_PAGES), std::env::var("PHALANX_HUGE").ok())
    )?;
    match &gpus {
        Ok([]) => writeln!(out, "gpus        none: the driver finds none")?,
        Ok(found) => {
            let names: Vec<String> =
                found.iter().map(|gpu| format!("gpu:{} {}", gpu.index, gpu.name)).collect();
            writeln!(out, "gpus        {}", names.join(", "))?;
        }
        Err(reason) => writeln!(out, "gpus        none: {reason}")?,
    }
    writeln!(out, "cache       {}", cache(phalanx_cuda::cache_folder().as_deref()))?;
    writeln!(out)?;
    table(&findings).iter().try_for_each(|line| writeln!(out, "{line}"))?;
    let unusable = unusable(gpus.map_or(0, <[_]>::len), &findings);
    if unusable.is_empty() {
        return Ok(());
    }
    bail!(
        "train would fail on the GPU: {} cannot be used (--replicas 1 trains on the CPU)",
        unusable.join(", ")
    )
}

/// The kernel's setting of transparent huge pages.
const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// Whether huge pages are used: as the system is configured, unless the user disables them.
fn huge_pages(system: &str, setting: Option<String>) -> String {
    if setting.is_some_and(|v| v == "0") {
        return "turned off by PHALANX_HUGE=0".into();
    }
    match system.split(['[', ']']).nth(1) {
        Some("always" | "madvise") => "used".into(),
        Some(other) => format!("not used: {HUGE_PAGES} says {other}; training is slower"),
        None => "not supported by this system".into(),
    }
}

/// The cache folder of compiled kernels and plans, and its size.
fn cache(folder: Option<&Path>) -> String {
    let Some(folder) = folder else {
        return "none: neither PHALANX_CACHE, XDG_CACHE_HOME nor HOME is set".into();
    };
    let (files, bytes) = cache_usage(folder);
    let word = if files == 1 { "file" } else { "files" };
    match files {
        0 => format!("{}, empty", folder.display()),
        _ => format!("{}, {files} {word}, {}", folder.display(), format_bytes(bytes)),
    }
}

/// The subfolders of the GPU caches. Datasets may be next to them.
const CACHE_SUBFOLDERS: [&str; 2] = ["kernels", "plans"];

/// The number of files in the GPU caches, and their total size in bytes.
fn cache_usage(folder: &Path) -> (usize, usize) {
    let inside = |kind: &str| std::fs::read_dir(folder.join(kind)).into_iter().flatten().flatten();
    let files = CACHE_SUBFOLDERS.into_iter().flat_map(inside);
    let sizes = files.filter_map(|file| file.metadata().ok()).filter(std::fs::Metadata::is_file);
    sizes.fold((0, 0), |(n, bytes), meta| (n + 1, bytes + meta.len() as usize))
}

/// The libraries, one line each, with a second line for each missing one.
fn table(findings: &[Finding]) -> Vec<String> {
    let row = |a: &str, b: &str, c: &str, d: &str| format!("{a:<19}{b:<24}{c:<10}{d}");
    let mut lines = vec![row("library", "for", "version", "file")];
    for Finding { lib, state, remedy } in findings {
        let name = lib.to_string();
        match state {
            Ok((version, file)) => lines.push(row(&name, lib.purpose(), version, file)),
            Err(reason) => {
                lines.push(row(&name, lib.purpose(), "-", reason));
                let note = if *lib == Lib::Nccl { "not needed for one GPU; " } else { "" };
                lines.push(format!("{:<19}{note}{remedy}", ""));
            }
        }
    }
    lines
}

/// The libraries that training on this number of GPUs needs but cannot use.
pub fn missing(gpus: usize) -> Vec<String> {
    match gpus {
        0 => vec![],
        _ => unusable(gpus, &Lib::ALL.map(Finding::check)),
    }
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
            remedy: lib.install_hint(None),
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

    #[test]
    fn huge_pages_follow_the_system_setting() {
        assert_eq!(huge_pages("always [madvise] never\n", None), "used");
        assert!(huge_pages("always madvise [never]\n", None).contains("says never"));
        assert_eq!(huge_pages("", None), "not supported by this system");
        assert!(huge_pages("[always]", Some("0".into())).contains("PHALANX_HUGE=0"));
        assert_eq!(huge_pages("[always]", Some("1".into())), "used");
    }

    #[test]
    fn the_cache_size_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        assert!(cache(Some(&dir.path().join("nowhere"))).ends_with("nowhere, empty"));
        std::fs::create_dir(dir.path().join("kernels")).unwrap();
        std::fs::write(dir.path().join("kernels/a"), [0; 1024]).unwrap();
        std::fs::create_dir(dir.path().join("plans")).unwrap();
        std::fs::write(dir.path().join("plans/b"), [0; 2048]).unwrap();
        // A partially downloaded dataset does not count.
        std::fs::create_dir(dir.path().join("mnist")).unwrap();
        std::fs::write(dir.path().join("mnist/train.gz.part"), [0; 4096]).unwrap();
        assert!(cache(Some(dir.path())).ends_with(", 2 files, 3.0 KiB"));
        assert!(cache(None).starts_with("none"));
    }
}
