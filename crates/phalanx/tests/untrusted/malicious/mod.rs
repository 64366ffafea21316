//! Files that are broken, lie or attack: each gives an error of one line that names the file and the cause,
//! soon, with memory in proportion to the file, and without a trace anywhere else.

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

/// Bytes that may be held at once beyond a multiple of the file.
const SPARE: usize = 64 << 20;
const TIMES: usize = 64;
/// Longer than any file of a few bytes may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// A file and what is said about it.
pub struct Case {
    name: String,
    file: &'static str,
    bytes: Vec<u8>,
    cause: &'static str,
}

impl Case {
    /// The name of a file chooses its parser; the error holds the cause.
    pub fn new(name: &str, file: &'static str, bytes: Vec<u8>, cause: &'static str) -> Case {
        Case { name: name.into(), file, bytes, cause }
    }

    /// Opens the file in every way there is; what is wrong with that.
    fn faults(&self) -> Vec<String> {
        let outside = tempfile::tempdir().unwrap();
        let inside = outside.path().join("a/b");
        std::fs::create_dir_all(&inside).unwrap();
        let path = inside.join(self.file);
        std::fs::write(&path, &self.bytes).unwrap();
        let before = files(outside.path());
        let (held, began) = (meter::start(), meter::worked());
        let weights = self.file.contains(".weights");
        let error =
            if weights { network().load_weights(&path).err() } else { load_model(&path).err() };
        let _ = describe(&path).map(|description| description.to_string());
        let converted = convert(&path, inside.join("to.safetensors"));
        let (peak, time) = (meter::peak(held), meter::worked() - began);
        let limit = SPARE + TIMES * self.bytes.len();
        let error = error.map(|error| error.to_string());
        let faults = [
            (converted.is_ok(), "converted"),
            (peak >= limit, &format!("{peak} bytes held for {}", self.bytes.len())),
            (time >= PATIENCE, &format!("took {time:?}")),
            (before != files(outside.path()), "files came or went"),
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

/// Every file below a directory.
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

/// One test, since the memory of all threads is counted together.
#[test]
fn bad_files_give_errors_within_bounds() {
    let _alone = meter::alone();
    let tables: [fn() -> Vec<Case>; 5] =
        [configs::cases, archives::cases, hdf5::cases, tensors::cases, attacks::cases];
    let cases: Vec<Case> = tables.iter().flat_map(|table| table()).collect();
    let faults: Vec<String> = cases.iter().flat_map(Case::faults).collect();
    println!("{} files", cases.len());
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    hdf5::numbers_of_other_kinds_are_read();
}
