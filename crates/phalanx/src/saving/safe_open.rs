//! Opening of files with safety checks, for reading and for writing in place.

use crate::error::{Error, Result};
use std::fs::{File, Metadata};
use std::path::Path;

/// Opens a regular file for reading. Other kinds are rejected, because opening a pipe would block.
/// `expected` describes the content for error messages.
pub(crate) fn open_file(path: &Path, expected: &str) -> Result<File> {
    let io = |source| Error::io(path, source);
    let there = std::fs::metadata(path).map_err(io)?;
    if !there.is_file() {
        let received = if there.is_dir() { "a directory" } else { "a device or pipe" };
        return Err(Error::file(path, expected, received));
    }
    File::open(path).map_err(io)
}

/// Opens or creates a file for reading and writing in place. Symbolic links are rejected, because they
/// may lead to a foreign file.
pub(crate) fn open_no_follow(path: &Path) -> Result<File> {
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

/// Identifies a file independently of its name: device and inode.
#[cfg(unix)]
pub(super) fn identity(about: &Metadata) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt;
    (about.dev(), about.ino())
}

/// On other systems files cannot be distinguished.
#[cfg(not(unix))]
pub(super) fn identity(_about: &Metadata) -> (u64, u64) {
    (0, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn links_are_never_followed() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        std::fs::write(at("precious"), "content").unwrap();
        for target in ["precious", "missing"] {
            let link = at(&format!("to-{target}"));
            std::os::unix::fs::symlink(target, &link).unwrap();
            let error = open_no_follow(&link).unwrap_err().to_string();
            assert!(error.ends_with("expected a file, received a link"), "{error}");
        }
        assert!(!at("missing").exists());
        assert!(open_no_follow(directory.path()).unwrap_err().to_string().contains("directory"));
        let device = open_no_follow(Path::new("/dev/null")).unwrap_err().to_string();
        assert!(device.ends_with("expected a file, received a device or pipe"), "{device}");
        // An existing file keeps its content.
        assert_eq!(open_no_follow(&at("precious")).unwrap().metadata().unwrap().len(), 7);
        open_no_follow(&at("new")).unwrap();
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
