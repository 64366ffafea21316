//! The zip archive of a `.keras` file: `metadata.json`, `config.json`, `model.weights.h5`, and vocabularies in `assets`.

use super::assets::{ASSETS, Assets, VOCABULARY};
use crate::error::{Error, Result};
use crate::memory;
use crate::saving::open_file;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Cursor, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::rc::Rc;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, DateTime, ZipArchive, ZipWriter};

/// The expected format, for error messages.
const EXPECTED: &str = "a .keras file";
const METADATA: &str = "metadata.json";
const CONFIG: &str = "config.json";
const WEIGHTS: &str = "model.weights.h5";

/// Maximum size of a config in bytes. That of twenty thousand layers is smaller.
const MAX_CONFIG: u64 = 100_000_000;
/// Weights up to this size in bytes are exempt from the limit of the compression ratio.
const UNLIMITED_RATIO_BYTES: u64 = 16_000_000;
/// The same for text, whose parsed form is many times larger.
const UNLIMITED_RATIO_TEXT_BYTES: u64 = 1_000_000;
/// Maximum size of all vocabularies in bytes.
const MAX_ASSETS: u64 = 500_000_000;
/// Maximum entry count that the end record of an archive can hold.
const MAX_ENTRY_COUNT: usize = u16::MAX as usize;
/// Maximum compression ratio of larger members.
const MAX_RATIO: u64 = 32;

/// The members of an archive.
pub(super) struct Archive {
    pub config: Vec<u8>,
    pub weights: Vec<u8>,
    pub metadata: Option<Vec<u8>>,
    /// The vocabularies.
    pub assets: Assets,
}

/// A file that records I/O errors, because the zip reader reports them as damage.
struct ErrorTrackingFile {
    file: File,
    failed: Rc<Cell<Option<i32>>>,
}

impl Read for ErrorTrackingFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.file.read(buffer).inspect_err(|error| {
            if error.kind() != io::ErrorKind::Interrupted {
                self.failed.set(error.raw_os_error());
            }
        })
    }
}

impl Seek for ErrorTrackingFile {
    fn seek(&mut self, position: SeekFrom) -> io::Result<u64> {
        // A damaged archive may seek to before its start, which is not an I/O error.
        self.file.seek(position)
    }
}

/// Reads the members, and ignores everything else in the archive.
pub(super) fn read(path: &Path) -> Result<Archive> {
    read_open(path, open_file(path, EXPECTED)?)
}

fn read_open(path: &Path, file: File) -> Result<Archive> {
    let failed = Rc::new(Cell::new(None));
    let archive = members(path, ErrorTrackingFile { file, failed: failed.clone() });
    match failed.get() {
        Some(code) => Err(Error::io(path, io::Error::from_raw_os_error(code))),
        None => archive,
    }
}

fn members(path: &Path, mut file: ErrorTrackingFile) -> Result<Archive> {
    let io = |source| Error::io(path, source);
    let wrong = |received: String| Error::file(path, EXPECTED, received);
    let entries = entries(&mut file).map_err(io)?;
    let mut zip = ZipArchive::new(file).map_err(|e| wrong(format!("a broken archive: {e}")))?;
    if entries.is_some_and(|n| n != zip.len().min(MAX_ENTRY_COUNT)) {
        return Err(wrong("an archive with a name twice".into()));
    }
    if let Some(name) = zip.file_names().find(|name| escapes_directory(name)) {
        return Err(wrong(format!(
            "an archive with the entry '{}'",
            crate::saving::truncate(name)
        )));
    }
    let is_vocabulary =
        |name: &&str| name.starts_with(ASSETS) && name.rsplit('/').next() == Some(VOCABULARY);
    let vocabularies: Vec<String> =
        zip.file_names().filter(is_vocabulary).map(String::from).collect();
    let mut member = |name: &str, small: u64, most: u64| -> Result<Option<Vec<u8>>> {
        let mut member = match zip.by_name(name) {
            Ok(member) => member,
            Err(zip::result::ZipError::FileNotFound) => return Ok(None),
            Err(error) => return Err(wrong(format!("{name}: {error}"))),
        };
        let (size, packed) = (member.size(), member.compressed_size());
        if size > most || size > small && size / MAX_RATIO > packed {
            return Err(wrong(format!("{name} of {size} bytes packed into {packed}")));
        }
        memory::check_file(path, size)?;
        let mut bytes = vec![];
        let read = (&mut member).take(size + 1).read_to_end(&mut bytes);
        read.map_err(|error| wrong(format!("{name}: {error}")))?;
        if bytes.len() as u64 != size {
            return Err(wrong(format!("{name} of {} bytes instead of {size}", bytes.len())));
        }
        Ok(Some(bytes))
    };
    let metadata = member(METADATA, UNLIMITED_RATIO_TEXT_BYTES, MAX_CONFIG)?;
    let config = member(CONFIG, UNLIMITED_RATIO_TEXT_BYTES, MAX_CONFIG)?;
    let weights = member(WEIGHTS, UNLIMITED_RATIO_BYTES, u64::MAX / 2)?;
    let mut assets = Assets::new();
    let mut total = 0u64;
    for name in vocabularies {
        let bytes = member(&name, UNLIMITED_RATIO_TEXT_BYTES, MAX_CONFIG)?.unwrap_or_default();
        total = total.saturating_add(bytes.len() as u64);
        if total > MAX_ASSETS {
            return Err(wrong(format!("vocabularies of more than {MAX_ASSETS} bytes")));
        }
        assets.insert(name, bytes);
    }
    Ok(Archive {
        assets,
        config: config.ok_or_else(|| wrong(format!("an archive without {CONFIG}")))?,
        weights: weights.ok_or_else(|| wrong(format!("an archive without {WEIGHTS}")))?,
        metadata,
    })
}

/// Whether an entry would be extracted outside the target directory.
fn escapes_directory(name: &str) -> bool {
    let drive = name.as_bytes().get(1) == Some(&b':');
    drive || name.starts_with(['/', '\\']) || name.split(['/', '\\']).any(|part| part == "..")
}

/// The entry count of the end record, which saturates; `None` without an end record.
fn entries(file: &mut ErrorTrackingFile) -> io::Result<Option<usize>> {
    // The end record and the longest comment.
    const MAX_END_BYTES: u64 = 22 + 65_535;
    let size = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(size.saturating_sub(MAX_END_BYTES)))?;
    let mut tail = vec![];
    file.take(MAX_END_BYTES).read_to_end(&mut tail)?;
    let start = tail.windows(12).rposition(|w| w.starts_with(b"PK\x05\x06"));
    let count = start.map(|at| u16::from_le_bytes([tail[at + 10], tail[at + 11]]));
    Ok(count.map(usize::from))
}

/// Writes the members uncompressed and without timestamps: equal models make equal files.
pub(super) fn write(
    out: &mut dyn Write,
    notes: &BTreeMap<String, String>,
    config: &str,
    weights: &[u8],
    assets: &[(String, String)],
) -> io::Result<()> {
    let mut metadata = serde_json::json!({
        "keras_version": super::KERAS_VERSION,
        "phalanx_version": env!("CARGO_PKG_VERSION"),
    });
    if !notes.is_empty() {
        metadata[super::NOTES] = serde_json::json!(notes);
    }
    let mut zip = ZipWriter::new(Cursor::new(Vec::with_capacity(weights.len() + config.len())));
    let options = SimpleFileOptions::default()
        .compression_method(CompressionMethod::Stored)
        .last_modified_time(DateTime::default())
        .large_file(weights.len() >= u32::MAX as usize);
    let members =
        [(METADATA, metadata.to_string().into_bytes()), (CONFIG, config.as_bytes().to_vec())];
    let weights = (WEIGHTS, weights);
    let members = members.iter().map(|(name, bytes)| (*name, &bytes[..])).chain([weights]);
    let assets = assets.iter().map(|(path, content)| (path.as_str(), content.as_bytes()));
    for (name, bytes) in members.chain(assets) {
        zip.start_file(name, options).map_err(io::Error::other)?;
        zip.write_all(bytes)?;
    }
    let bytes = zip.finish().map_err(io::Error::other)?;
    out.write_all(bytes.get_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreadable_archive_is_not_reported_as_damaged() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("model.keras");
        let mut out = vec![];
        write(&mut out, &BTreeMap::new(), "{}", b"weights", &[]).unwrap();
        std::fs::write(&path, &out).unwrap();
        read(&path).map(|archive| assert_eq!(archive.weights, b"weights")).unwrap();
        // A file opened only for writing cannot be read.
        let unreadable = File::options().write(true).open(&path).unwrap();
        let error = read_open(&path, unreadable).map(|_| ()).unwrap_err();
        assert!(matches!(error, Error::Io { .. }), "{error}");
        std::fs::write(&path, &out[..out.len() / 2]).unwrap();
        let error = read(&path).map(|_| ()).unwrap_err();
        assert!(matches!(error, Error::File { .. }), "{error}");
    }
}
