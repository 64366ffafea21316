//! Atomic and durable file writes: a file is written completely or not at all.
//!
//! Data goes to a temporary file in the same directory, is synced to disk, and is then renamed to the
//! final name. A crash at any moment leaves either the old file or the new one. A writer holds a lock on
//! its temporary file, so leftovers of killed writers can be distinguished from files still being
//! written.

use crate::error::{Error, Result};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Suffix of temporary files.
const SUFFIX: &str = ".phalanx.tmp";
/// Size of the write buffer in bytes.
const BUFFER_BYTES: usize = 1 << 20;
/// Maximum number of attempts to create a temporary file.
const MAX_ATTEMPTS: u32 = 16;

/// Writes a file atomically: `write` writes to a temporary file in the same directory, which is synced
/// to disk and then replaces `path`.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = std::env::temp_dir();
/// # let path = directory.join(format!("phalanx-doc-{}.txt", std::process::id()));
/// phalanx::saving::write_atomic(&path, |out| out.write_all(b"whole"))?;
/// assert_eq!(std::fs::read(&path)?, b"whole");
/// # std::fs::remove_file(&path)?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Errors of the system or of `write`, naming `path`. An existing file stays unchanged.
pub fn write_atomic(
    path: impl AsRef<Path>,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<()> {
    let path = path.as_ref();
    replace(path, write).map_err(|source| Error::io(path, source))
}

/// Creates a directory and its parents. New entries are on disk when the call returns.
pub(crate) fn create_directory(path: &Path) -> Result<()> {
    let io = |source| Error::io(path, source);
    let missing = path.ancestors().take_while(|p| !p.as_os_str().is_empty() && !p.exists());
    let parents: Vec<PathBuf> = missing.filter_map(|p| p.parent().map(Path::to_path_buf)).collect();
    fs::create_dir_all(path).map_err(io)?;
    for parent in parents {
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { &parent };
        sync_directory(parent).map_err(io)?;
    }
    Ok(())
}

fn replace(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut file = AtomicFile::create(path)?;
    write(&mut file)?;
    file.finish()
}

/// A file that gets its name when it is finished. If it is dropped before, nothing remains.
pub(crate) struct AtomicFile {
    out: BufWriter<File>,
    temporary: PathBuf,
    target: PathBuf,
    named: bool,
}

impl AtomicFile {
    pub(crate) fn create(path: &Path) -> io::Result<AtomicFile> {
        let target = target(path)?;
        let name = target.file_name().ok_or_else(|| {
            io::Error::new(ErrorKind::InvalidInput, "expected the name of a file, received none")
        })?;
        let directory = directory(&target);
        remove_stale(directory);
        let (temporary, file) = temporary(directory, name)?;
        let out = BufWriter::with_capacity(BUFFER_BYTES, file);
        Ok(AtomicFile { out, temporary, target, named: false })
    }

    /// Syncs the data to disk and renames the file.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.out.flush()?;
        self.out.get_ref().sync_all()?;
        fs::rename(&self.temporary, &self.target)?;
        self.named = true;
        sync_directory(directory(&self.target))
    }
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if !self.named {
            // A file that cannot be removed now is removed as stale later.
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

/// The directory of a file.
fn directory(target: &Path) -> &Path {
    match target.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Resolves links. Fails if the path exists and is not a file.
fn target(path: &Path) -> io::Result<PathBuf> {
    match fs::metadata(path) {
        Ok(there) if there.is_file() => fs::canonicalize(path),
        Ok(there) => {
            let what = if there.is_dir() { "a directory" } else { "a device, pipe or socket" };
            let message = format!("expected a file or a free name, received {what}");
            Err(io::Error::new(ErrorKind::InvalidInput, message))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(path.to_path_buf()),
        Err(error) => Err(error),
    }
}

/// Creates a temporary file for `name`, locked while it is open.
fn temporary(directory: &Path, name: &OsStr) -> io::Result<(PathBuf, File)> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let mut last = io::Error::from(ErrorKind::AlreadyExists);
    for _ in 0..MAX_ATTEMPTS {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let mut temporary = OsString::from(".");
        temporary.push(name);
        temporary.push(format!(".{}-{number}{SUFFIX}", std::process::id()));
        let temporary = directory.join(temporary);
        match OpenOptions::new().write(true).create_new(true).open(&temporary) {
            Ok(file) => {
                // Another writer may have considered the file stale before it was locked.
                let taken = matches!(file.try_lock(), Err(fs::TryLockError::WouldBlock));
                if !taken && fs::exists(&temporary).unwrap_or(false) {
                    return Ok((temporary, file));
                }
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

/// Syncs a directory, which makes renames in it durable.
fn sync_directory(directory: &Path) -> io::Result<()> {
    if !cfg!(unix) {
        return Ok(());
    }
    match File::open(directory)?.sync_all() {
        // Some network file systems do not support this call on directories.
        Err(e) if matches!(e.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) => Ok(()),
        done => done,
    }
}

/// Removes leftovers of killed writers: temporary files that are not locked. Errors are ignored, because
/// they must not prevent a write.
fn remove_stale(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for path in entries.flatten().map(|e| e.path()).filter(|p| is_temporary(p)) {
        let regular = fs::symlink_metadata(&path).is_ok_and(|m| m.is_file());
        let Some(file) = regular.then(|| File::open(&path).ok()).flatten() else { continue };
        if file.try_lock().is_ok() {
            let _ = fs::remove_file(&path);
        }
    }
}

/// Whether a path is a temporary file of an [`AtomicFile`], which readers must ignore.
pub(crate) fn is_temporary(path: &Path) -> bool {
    let name = path.file_name().map(OsStr::to_string_lossy).unwrap_or_default();
    name.starts_with('.') && name.ends_with(SUFFIX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let name = |e: io::Result<fs::DirEntry>| e.unwrap().file_name().into_string().unwrap();
        let mut names: Vec<String> = fs::read_dir(directory).unwrap().map(name).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_appears_whole_and_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("weights");
        for content in ["first", "second, longer", "3"] {
            write_atomic(&path, |out| {
                assert_eq!(
                    names(directory.path()).iter().filter(|n| n.ends_with(SUFFIX)).count(),
                    1
                );
                out.write_all(content.as_bytes())
            })
            .unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), content);
            assert_eq!(names(directory.path()), ["weights"]);
        }
    }

    #[test]
    fn a_failed_write_leaves_the_old_file_and_no_other() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("weights");
        write_atomic(&path, |out| out.write_all(b"old")).unwrap();
        let error = write_atomic(&path, |out| {
            out.write_all(&[0; 100_000])?;
            Err(io::Error::from(ErrorKind::StorageFull))
        });
        let error = error.unwrap_err().to_string();
        assert!(error.contains("weights: no storage space"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(names(directory.path()), ["weights"]);
    }

    #[test]
    fn errors_name_the_path_and_the_cause() {
        let directory = tempfile::tempdir().unwrap();
        let write = |path: &Path| write_atomic(path, |out| out.write_all(b"x")).unwrap_err();
        let missing = directory.path().join("missing/weights");
        let error = write(&missing).to_string();
        assert!(error.contains("missing/weights: No such file"), "{error}");
        let error = write(directory.path()).to_string();
        assert!(error.contains("received a directory"), "{error}");
        assert!(write(Path::new("/dev/null")).to_string().contains("/dev/null: expected a file"));
        assert!(write(Path::new("")).to_string().contains("expected the name of a file"));
        assert_eq!(names(directory.path()), [] as [&str; 0]);
    }

    #[cfg(unix)]
    #[test]
    fn links_are_followed_and_loops_refused() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::write(at("real"), "old").unwrap();
        std::os::unix::fs::symlink("real", at("link")).unwrap();
        write_atomic(at("link"), |out| out.write_all(b"new")).unwrap();
        assert_eq!(fs::read(at("real")).unwrap(), b"new");
        assert!(fs::symlink_metadata(at("link")).unwrap().is_symlink());
        std::os::unix::fs::symlink("loop", at("loop")).unwrap();
        assert!(write_atomic(at("loop"), |_| Ok(())).is_err());
    }

    #[test]
    fn leftovers_of_killed_writers_are_removed_and_files_being_written_are_not() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let (live, _lock) = temporary(directory.path(), OsStr::new("live")).unwrap();
        fs::write(at(&format!(".dead.1-0{SUFFIX}")), "half").unwrap();
        fs::write(at("mine.tmp"), "not ours").unwrap();
        write_atomic(at("weights"), |out| out.write_all(b"x")).unwrap();
        let live = live.file_name().unwrap().to_str().unwrap();
        assert_eq!(names(directory.path()), [live, "mine.tmp", "weights"]);
        assert!(is_temporary(&at(live)) && !is_temporary(&at("mine.tmp")));
    }
}
