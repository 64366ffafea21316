//! Log files that grow with the run and are truncated when the run resumes at an earlier step.

use crate::error::{Error, Result};
use phalanx_distributed::warnings::warning;
use phalanx_graph::text::shown;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// The path that means standard output.
const STDOUT: &str = "-";

/// An open log. Every write is a single call to the system, so that a crash leaves only complete entries. The
/// path `-` means standard output.
#[derive(Debug)]
pub(super) struct LogFile {
    path: PathBuf,
    /// `None` for standard output.
    file: Option<File>,
}

/// The length of a log when the run was saved.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Mark {
    path: PathBuf,
    bytes: u64,
}

impl LogFile {
    /// Creates a file, replacing an existing one.
    pub(super) fn create(path: &Path) -> Result<LogFile> {
        LogFile::open(path, OpenOptions::new().create(true).write(true).truncate(true))
    }

    /// Creates a file that must not exist yet.
    pub(super) fn create_new(path: &Path) -> Result<LogFile> {
        LogFile::open(path, OpenOptions::new().create_new(true).write(true))
    }

    /// Opens a file for appending.
    pub(super) fn append(path: &Path) -> Result<LogFile> {
        LogFile::open(path, OpenOptions::new().create(true).append(true))
    }

    fn open(path: &Path, options: &OpenOptions) -> Result<LogFile> {
        let file = match path.as_os_str() == STDOUT {
            true => None,
            false => Some(options.open(path).map_err(|source| Error::io(path, source))?),
        };
        Ok(LogFile { path: path.into(), file })
    }

    /// Appends an entry. If the write fails, for example on a full disk, no part of the entry remains.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        if let Some(file) = &mut self.file {
            let io = |source| Error::io(&self.path, source);
            let metadata = file.metadata().map_err(io)?;
            let written = file.write_all(bytes);
            if written.is_err() && metadata.is_file() {
                // The error of the write is reported. If the truncation fails too, the file stays as it
                // is.
                let _ = file.set_len(metadata.len()).and_then(|()| file.seek(SeekFrom::End(0)));
            }
            return written.map_err(io);
        }
        let mut out = io::stdout().lock();
        let written = out.write_all(bytes).and_then(|()| out.flush());
        written.map_err(|source| Error::io("standard output", source))
    }

    /// Whether nothing can be read back: an empty file, a device or standard output.
    pub(super) fn is_empty(&self) -> Result<bool> {
        let Some(file) = &self.file else { return Ok(true) };
        let metadata = file.metadata().map_err(|source| Error::io(&self.path, source))?;
        Ok(!metadata.is_file() || metadata.len() == 0)
    }

    /// The current length; `None` for standard output. The contents are on disk when this returns.
    pub(super) fn mark(&self) -> Result<Option<Mark>> {
        let Some(file) = &self.file else { return Ok(None) };
        let io = |source| Error::io(&self.path, source);
        let metadata = file.metadata().map_err(io)?;
        if metadata.is_file() {
            file.sync_data().map_err(io)?;
        }
        Ok(Some(Mark { path: self.path.clone(), bytes: metadata.len() }))
    }

    /// Continues at a mark. Later contents are truncated, because the run will write them again. The file is
    /// opened at `path`, which may differ from its old path.
    pub(super) fn resume(path: &Path, mark: &Mark) -> Result<LogFile> {
        let options = OpenOptions::new().create(true).write(true).truncate(false).clone();
        let mut log = LogFile::open(path, &options)?;
        let Some(file) = &mut log.file else { return Ok(log) };
        let io = |source| Error::io(path, source);
        let metadata = file.metadata().map_err(io)?;
        if !metadata.is_file() {
            return Ok(log);
        }
        if metadata.len() < mark.bytes {
            let (path, received, expected) = (shown(path.display()), metadata.len(), mark.bytes);
            warning!("{path}: expected {expected} bytes of an earlier run, received {received}");
        } else {
            file.set_len(mark.bytes).map_err(io)?;
        }
        file.seek(SeekFrom::End(0)).map_err(io)?;
        Ok(log)
    }
}

impl Mark {
    /// The mark of an empty file.
    pub(super) fn begin(path: PathBuf) -> Mark {
        Mark { path, bytes: 0 }
    }

    /// The file name without the directory.
    pub(super) fn name(&self) -> Option<String> {
        self.path.file_name()?.to_str().map(str::to_string)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_after_the_mark_is_written_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let mut log = LogFile::create(&path).unwrap();
        log.write(b"one\n").unwrap();
        let mark = log.mark().unwrap().unwrap();
        log.write(b"lost\n").unwrap();
        drop(log);
        let mut log = LogFile::resume(&path, &mark).unwrap();
        log.write(b"two\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one\ntwo\n");
        // A log that was shortened in the meantime continues at its end; one that was removed starts
        // again.
        std::fs::write(&path, "o").unwrap();
        LogFile::resume(&path, &mark).unwrap().write(b"2").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "o2");
        std::fs::remove_file(&path).unwrap();
        LogFile::resume(&path, &mark).unwrap().write(b"2").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "2");
        assert!(LogFile::create_new(&path).is_err());
        assert_eq!(Mark::begin(path.clone()).name().as_deref(), Some("log"));
        assert!(!LogFile::append(&path).unwrap().is_empty().unwrap());
        // Standard output continues unchanged.
        let log = LogFile::resume(Path::new("-"), &mark).unwrap();
        assert!(log.is_empty().unwrap() && log.mark().unwrap().is_none());
    }
}
