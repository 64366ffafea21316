//! How files are opened: to be read, and those of our own that are written in place.

use crate::error::{Error, Result};
use std::fs::{File, Metadata};
use std::path::Path;

/// Opens a file, which must be one: opening a pipe would wait for its writer. `expected` says what it
/// should hold.
pub(crate) fn open_file(path: &Path, expected: &str) -> Result<File> {
    let io = |source| Error::io(path, source);
    let there = std::fs::metadata(path).map_err(io)?;
    if !there.is_file() {
        let received = if there.is_dir() { "a directory" } else { "a device or pipe" };
        return Err(Error::file(path, expected, received));
    }
    File::open(path).map_err(io)
}

/// Opens a file of our own to read and write it in place, or makes it. A link there is refused: it
/// would lead to somebody else's file.
pub(crate) fn open_own(path: &Path) -> Result<File> {
    let mut options = File::options();
    options.create(true).read(true).write(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NOFOLLOW);
    let io = |source| Error::io(path, source);
    let file = options.open(path).map_err(|source| {
        match std::fs::symlink_metadata(path).is_ok_and(|there| there.is_symlink()) {
            true => Error::file(path, "a file", "a link"),
            false => io(source),
        }
    })?;
    match file.metadata().map_err(io)?.is_file() {
        true => Ok(file),
        false => Err(Error::file(path, "a file", "a device or pipe")),
    }
}

/// What tells a file from all others, whatever its name: its device and number there.
#[cfg(unix)]
pub(super) fn identity(about: &Metadata) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt;
    (about.dev(), about.ino())
}

/// Elsewhere files cannot be told apart.
#[cfg(not(unix))]
pub(super) fn identity(_about: &Metadata) -> (u64, u64) {
    (0, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn a_file_of_our_own_is_never_opened_through_a_link() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        std::fs::write(at("precious"), "content").unwrap();
        for target in ["precious", "missing"] {
            let link = at(&format!("to-{target}"));
            std::os::unix::fs::symlink(target, &link).unwrap();
            let error = open_own(&link).unwrap_err().to_string();
            assert!(error.ends_with("expected a file, received a link"), "{error}");
        }
        assert!(!at("missing").exists());
        assert!(open_own(directory.path()).unwrap_err().to_string().contains("directory"));
        let device = open_own(Path::new("/dev/null")).unwrap_err().to_string();
        assert!(device.ends_with("expected a file, received a device or pipe"), "{device}");
        // What is there stays.
        assert_eq!(open_own(&at("precious")).unwrap().metadata().unwrap().len(), 7);
        open_own(&at("new")).unwrap();
    }

    #[test]
    fn only_files_are_opened() {
        let directory = tempfile::tempdir().unwrap();
        let refuse = |path: &Path| open_file(path, "a model").unwrap_err().to_string();
        assert!(refuse(directory.path()).ends_with("expected a model, received a directory"));
        assert!(refuse(Path::new("/dev/null")).ends_with("received a device or pipe"));
        let path = directory.path().join("model");
        assert!(refuse(&path).contains("model: No such file"));
        std::fs::write(&path, "x").unwrap();
        open_file(&path, "a model").unwrap();
    }
}
