//! Files that are damaged, inconsistent or malicious. Each gives a one-line error that names the file
//! and the cause, quickly, with memory in proportion to the file and without side effects.

mod archives;
mod attacks;
mod build;
mod configs;
mod hdf5;
mod tensors;

use crate::meter;
use build::network;
use phalanx::prelude::*;
use phalanx::saving::{convert, describe};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Maximum allocation: this many bytes plus a multiple of the file.
const MAX_BASE_BYTES: usize = 64 << 20;
const MAX_FILE_MULTIPLE: usize = 64;
/// Maximum time for a file of a few bytes.
const MAX_TIME: Duration = Duration::from_secs(20);

/// A file and the expected error.
pub struct Case {
    name: String,
    file: &'static str,
    bytes: Vec<u8>,
    cause: &'static str,
}

impl Case {
    /// The extension selects the parser. The error must contain `cause`.
    pub fn new(name: &str, file: &'static str, bytes: Vec<u8>, cause: &'static str) -> Case {
        Case { name: name.into(), file, bytes, cause }
    }

    /// Opens the file in all possible ways, and returns everything that went wrong.
    fn faults(&self) -> Vec<String> {
        let outside = tempfile::tempdir().unwrap();
        let inside = outside.path().join("a/b");
        std::fs::create_dir_all(&inside).unwrap();
        let path = inside.join(self.file);
        std::fs::write(&path, &self.bytes).unwrap();
        let files_before = files(outside.path());
        let (before, began) = (meter::start(), meter::cpu_time());
        let weights = self.file.contains(".weights");
        let error =
            if weights { network().load_weights(&path).err() } else { load_model(&path).err() };
        let _ = describe(&path).map(|description| description.to_string());
        let converted = convert(&path, inside.join("to.safetensors"));
        let (peak, time) = (meter::peak(before), meter::cpu_time() - began);
        let limit = MAX_BASE_BYTES + MAX_FILE_MULTIPLE * self.bytes.len();
        let error = error.map(|error| error.to_string());
        let faults = [
            (converted.is_ok(), "converted"),
            (peak >= limit, &format!("{peak} bytes allocated for {}", self.bytes.len())),
            (time >= MAX_TIME, &format!("took {time:?}")),
            (files_before != files(outside.path()), "files came or went"),
            (Path::new(build::ESCAPED).exists(), "a file outside"),
            (error.is_none(), "accepted"),
            (error.is_some_and(|e| !self.explained(&e)), "not explained"),
        ];
        let faults = faults.into_iter().filter(|(bad, _)| *bad);
        faults.map(|(_, what)| format!("{}: {what}", self.name)).collect()
    }

    /// Whether an error is one line with the file and the cause.
    fn explained(&self, error: &str) -> bool {
        let good = error.contains(self.file) && error.contains(self.cause);
        let good = good && !error.contains(char::is_control) && error.len() < 2000;
        if !good {
            println!(
                "expected '{}' in: {}",
                self.cause,
                error.chars().take(2000).collect::<String>()
            );
        }
        good
    }
}

/// All files below a directory.
fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = vec![];
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        }
        found.push(path);
    }
    found.sort();
    found
}

/// A single test, because memory is counted over all threads.
#[test]
fn bad_files_give_errors_within_bounds() {
    let _exclusive = meter::exclusive();
    let tables: [fn() -> Vec<Case>; 5] =
        [configs::cases, archives::cases, hdf5::cases, tensors::cases, attacks::cases];
    let cases: Vec<Case> = tables.iter().flat_map(|table| table()).collect();
    let faults: Vec<String> = cases.iter().flat_map(Case::faults).collect();
    println!("{} files", cases.len());
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    hdf5::numbers_of_other_kinds_are_read();
}
