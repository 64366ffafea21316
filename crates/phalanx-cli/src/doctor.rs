//! `phalanx doctor`: checks NVIDIA's libraries, the caches and the system settings.

use crate::devices;
use crate::gpu_libraries::{Libraries, cache_folder};
use crate::report::format_bytes;
use crate::terminal;
use anyhow::{Result, bail};
use std::io::Write;
use std::path::Path;

/// Prints all findings; fails if `train` without flags would fail.
pub fn run() -> Result<()> {
    let gpus = devices::gpus();
    let libraries = Libraries::find();
    let mut out = terminal::stdout();
    writeln!(out, "processor   {}", devices::processor())?;
    writeln!(
        out,
        "huge pages  {}",
        huge_pages(&read(HUGE_PAGES), std::env::var("PHALANX_HUGE").ok())
    )?;
    match &gpus {
        Ok(found) if found.is_empty() => writeln!(out, "gpus        none: the driver finds none")?,
        Ok(found) => {
            let names: Vec<String> =
                found.iter().map(|gpu| format!("gpu:{} {}", gpu.index, gpu.name)).collect();
            writeln!(out, "gpus        {}", names.join(", "))?;
        }
        Err(reason) => writeln!(out, "gpus        none: {reason}")?,
    }
    writeln!(out, "cache       {}", cache(cache_folder().as_deref()))?;
    writeln!(out)?;
    libraries.table().iter().try_for_each(|line| writeln!(out, "{line}"))?;
    let unusable = libraries.unusable(gpus.map_or(0, |found| found.len()));
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

/// The cache folder of compiled kernels, and its size.
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

/// The subfolder of compiled kernels. Datasets may be next to it.
const KERNELS: &str = "kernels";

/// The number of compiled kernels, and their total size in bytes.
fn cache_usage(folder: &Path) -> (usize, usize) {
    let files = std::fs::read_dir(folder.join(KERNELS)).into_iter().flatten().flatten();
    let sizes = files.filter_map(|file| file.metadata().ok()).filter(std::fs::Metadata::is_file);
    sizes.fold((0, 0), |(n, bytes), meta| (n + 1, bytes + meta.len() as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

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
        std::fs::write(dir.path().join("kernels/b"), [0; 2048]).unwrap();
        // A partially downloaded dataset does not count.
        std::fs::create_dir(dir.path().join("mnist")).unwrap();
        std::fs::write(dir.path().join("mnist/train.gz.part"), [0; 4096]).unwrap();
        assert!(cache(Some(dir.path())).ends_with(", 2 files, 3.0 KiB"));
        assert!(cache(None).starts_with("none"));
    }
}
