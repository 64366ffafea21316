//! Checks of output paths, made before training rather than after it.

use anyhow::{Context, Result, bail};
use phalanx::plots;
use phalanx::saving::latest_intact_checkpoint;
use phalanx::text::shown;
use std::fs::{File, Metadata, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A flag and its path, if given.
pub type NamedPath<'a> = (&'a str, Option<&'a Path>);

/// Checks that the file of a flag can be written and has one of these extensions, if any are listed.
pub fn check_file(flag: &str, path: Option<&Path>, kinds: &[&str]) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    let shown = shown(path.display());
    if !parent(path).is_dir() {
        bail!("{flag}: expected a file in a directory that exists, received {shown}");
    }
    if path.is_dir() {
        bail!("{flag}: expected a file, received the directory {shown}");
    }
    let kind = path.extension().map(|e| e.to_string_lossy().to_lowercase());
    if !kinds.is_empty() && !kind.as_deref().is_some_and(|kind| kinds.contains(&kind)) {
        bail!("{flag}: expected a name ending in .{}, received {shown}", kinds.join(" or ."));
    }
    check_writable(path).with_context(|| format!("{flag}: {shown}"))
}

/// Checks that a plot can be written to the file of a flag.
pub fn check_plot(flag: &str, path: Option<&Path>) -> Result<()> {
    check_file(flag, path, &["png", "svg"])?;
    path.map_or(Ok(()), |path| plots::check(path).with_context(|| flag.to_string()))
}

/// Checks the file of a flag, or `-` for standard output.
pub fn check_stream(flag: &str, path: Option<&Path>) -> Result<()> {
    check_file(flag, path.filter(|path| !is_stdout(Some(path))), &[])
}

/// Whether a path means standard output.
pub fn is_stdout(path: Option<&Path>) -> bool {
    path.is_some_and(|path| path.as_os_str() == "-")
}

/// Rejects a path that another flag names as well, under any spelling. Several flags may name `/dev/null`.
pub fn check_distinct((flag, path): NamedPath, others: &[NamedPath]) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    let id = FileId::of(path);
    if !is_stdout(Some(path)) && id == FileId::of(Path::new("/dev/null")) {
        return Ok(());
    }
    for (other, taken) in others {
        if taken.is_some_and(|taken| FileId::of(taken) == id) {
            let shown = shown(path.display());
            bail!("{flag}: expected a different path from {other}, received {shown}");
        }
    }
    Ok(())
}

/// The identity of a file, independent of the spelling of its path.
#[derive(PartialEq)]
enum FileId {
    /// An existing file: its device and inode.
    Existing(u64, u64),
    /// A file that does not exist yet: its canonical path.
    Absent(PathBuf),
}

impl FileId {
    fn of(path: &Path) -> FileId {
        let path = if is_stdout(Some(path)) { Path::new("/dev/stdout") } else { path };
        let existing = |meta: Metadata| FileId::Existing(meta.dev(), meta.ino());
        let absent = || {
            let name = path.file_name().unwrap_or_default();
            FileId::Absent(parent(path).canonicalize().map_or(path.into(), |dir| dir.join(name)))
        };
        std::fs::metadata(path).map_or_else(|_| absent(), existing)
    }
}

/// The directory of a path.
fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Checks that the directory of a flag can be written to; creates it if necessary.
pub fn check_directory(flag: &str, path: Option<&Path>) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    let named = || format!("{flag}: {}", shown(path.display()));
    std::fs::create_dir_all(path).with_context(named)?;
    check_writable(&path.join(format!(".phalanx-{}", std::process::id()))).with_context(named)
}

/// Resolves a weights file: the path itself, or the newest intact checkpoint of a directory.
pub fn resolve_weights(path: &Path) -> Result<PathBuf> {
    if !path.is_dir() {
        return Ok(path.into());
    }
    let newest = latest_intact_checkpoint(path)?;
    newest.with_context(|| {
        format!("{}: expected a checkpoint in it, received none", shown(path.display()))
    })
}

/// Checks that a file can be written. An existing file keeps its content; a new one is removed again.
fn check_writable(path: &Path) -> Result<()> {
    match std::fs::metadata(path) {
        // Opening a pipe would block until it has a reader.
        Ok(meta) if !meta.is_file() && !path.starts_with("/dev") => {
            bail!("expected a file, received a pipe or a device")
        }
        Ok(meta) if meta.is_file() => {
            OpenOptions::new().append(true).open(path)?;
        }
        Ok(_) => {}
        Err(_) => {
            File::create_new(path)?;
            std::fs::remove_file(path)?;
        }
    }
    Ok(())
}
