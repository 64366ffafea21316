//! Places to write to, tried before hours of work and not after.

use anyhow::{Context, Result, bail};
use phalanx::saving::latest_intact_checkpoint;
use phalanx::text::shown;
use std::fs::{File, Metadata, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A flag and the path it names, if it does.
pub type Named<'a> = (&'a str, Option<&'a Path>);

/// A file that will be written by a flag, with one of these extensions where there are any.
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
    writable(path).with_context(|| format!("{flag}: {shown}"))
}

/// A file, or `-` for the standard output.
pub fn check_stream(flag: &str, path: Option<&Path>) -> Result<()> {
    check_file(flag, path.filter(|path| !is_stdout(Some(path))), &[])
}

/// Whether a path stands for the standard output.
pub fn is_stdout(path: Option<&Path>) -> bool {
    path.is_some_and(|path| path.as_os_str() == "-")
}

/// Refuses a path that another flag names as well, however it is spelled. Any number of flags may
/// name `/dev/null`.
pub fn check_apart((flag, path): Named, others: &[Named]) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    let place = Place::of(path);
    if !is_stdout(Some(path)) && place == Place::of(Path::new("/dev/null")) {
        return Ok(());
    }
    for (other, taken) in others {
        if taken.is_some_and(|taken| Place::of(taken) == place) {
            let shown = shown(path.display());
            bail!("{flag}: expected a path of its own, received {shown}, which {other} names too");
        }
    }
    Ok(())
}

/// What a path leads to.
#[derive(PartialEq)]
enum Place {
    /// What is there: its device and number there.
    Taken(u64, u64),
    /// A free name, in a directory by its real path.
    Free(PathBuf),
}

impl Place {
    fn of(path: &Path) -> Place {
        let path = if is_stdout(Some(path)) { Path::new("/dev/stdout") } else { path };
        let taken = |about: Metadata| Place::Taken(about.dev(), about.ino());
        let free = || {
            let name = path.file_name().unwrap_or_default();
            Place::Free(parent(path).canonicalize().map_or(path.into(), |dir| dir.join(name)))
        };
        std::fs::metadata(path).map_or_else(|_| free(), taken)
    }
}

/// The directory that a path is in.
fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// A directory that will be written into by a flag; made where it is not there.
pub fn check_directory(flag: &str, path: Option<&Path>) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    let named = || format!("{flag}: {}", shown(path.display()));
    std::fs::create_dir_all(path).with_context(named)?;
    writable(&path.join(format!(".phalanx-{}", std::process::id()))).with_context(named)
}

/// A file of weights: the path itself, or the newest checkpoint of a directory that is whole.
pub fn weights(path: &Path) -> Result<PathBuf> {
    if !path.is_dir() {
        return Ok(path.into());
    }
    let newest = latest_intact_checkpoint(path)?;
    newest.with_context(|| {
        format!("{}: expected a checkpoint in it, received none", shown(path.display()))
    })
}

/// Whether a file can be written: one that is there keeps its content, another is gone again.
fn writable(path: &Path) -> Result<()> {
    match std::fs::metadata(path) {
        // Opening a pipe would wait for its reader.
        Ok(there) if !there.is_file() && !path.starts_with("/dev") => {
            bail!("expected a file, received a pipe or a device")
        }
        Ok(there) if there.is_file() => {
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
