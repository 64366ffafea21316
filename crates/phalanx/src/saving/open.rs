//! The one way files are opened to be read.

use crate::error::{Error, Result};
use std::fs::File;
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

#[cfg(test)]
mod tests {
    use super::*;

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
