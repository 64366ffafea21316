//! Invalid archives, and archives with inconsistent entries.

use super::Case;
use super::build::{ESCAPED, chain, dense, packed, weights, zip_of};
use zip::CompressionMethod::Deflated;

pub fn cases() -> Vec<Case> {
    let (config, weights) = (chain(dense()).to_string().into_bytes(), weights());
    let (config, weights) = (("config.json", &config[..]), ("model.weights.h5", &weights[..]));
    let good = zip_of(&[config, weights]);
    let zeros = vec![0; 100_000_000];
    let spaces = vec![b' '; 70_000_000];
    let numbers = format!("[0{}]", ",0".repeat(7_000_000)).into_bytes();
    let half = good.len() / 2;
    let table = [
        ("nothing", vec![], "a broken archive"),
        ("text", b"no archive at all".to_vec(), "a broken archive"),
        ("an end alone", b"PK\x05\x06".to_vec(), "a broken archive"),
        ("an empty archive", zip_of(&[]), "without config.json"),
        ("half an archive", good[..half].to_vec(), "a broken archive"),
        ("the other half", good[half..].to_vec(), "a broken archive"),
        ("no config", zip_of(&[weights]), "without config.json"),
        ("no weights", zip_of(&[config]), "without model.weights.h5"),
        ("weights of text", zip_of(&[config, ("model.weights.h5", b"no")]), "HDF5"),
        ("metadata of text", zip_of(&[config, weights, ("metadata.json", b"no")]), "metadata.json"),
        ("two configs", twice(config, weights, false), "a name twice"),
        ("two configs and a lie", twice(config, weights, true), "a name twice"),
        ("a way up", zip_of(&[config, weights, ("../escaped", b"x")]), "../escaped"),
        ("an asset's way up", zip_of(&[config, weights, ("assets/../../up", b"x")]), "assets/../"),
        ("a way down", zip_of(&[config, weights, (ESCAPED, b"x")]), ESCAPED),
        ("another system's way up", zip_of(&[config, weights, ("..\\up", b"x")]), "up"),
        ("a drive", zip_of(&[config, weights, ("C:\\up", b"x")]), "C:"),
        ("weights of zeros", packed(&[config, ("model.weights.h5", &zeros)], Deflated), "packed"),
        ("config of spaces", packed(&[("config.json", &spaces), weights], Deflated), "packed"),
        ("config of numbers", packed(&[("config.json", &numbers), weights], Deflated), "packed"),
        ("a wrong sum", changed(&good, b"Sequential", 0, b's'), "config.json"),
        ("a size too large", sized(&good, 24, 1 << 20), "config.json"),
        ("a size too small", sized(&good, 24, 10), "config.json"),
        ("a packed size too large", sized(&good, 20, u32::MAX - 1), "config.json"),
        ("an unknown packing", central(&good, 10, &[99, 0]), "a broken archive"),
        ("a password", central(&good, 8, &[1, 0]), "config.json"),
        ("a place beyond the end", central(&good, 42, &[0, 0, 0, 0x7f]), "bad.keras"),
    ];
    table.into_iter().map(|(n, bytes, cause)| Case::new(n, "bad.keras", bytes, cause)).collect()
}

fn find(bytes: &[u8], what: &[u8]) -> usize {
    bytes.windows(what.len()).position(|w| w == what).unwrap()
}

/// Changes the byte at an offset after a pattern.
fn changed(bytes: &[u8], pattern: &[u8], offset: usize, value: u8) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let at = find(&bytes, pattern);
    bytes[at + offset] = value;
    bytes
}

/// Changes bytes of the first entry of the central directory.
fn central(bytes: &[u8], offset: usize, value: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let at = find(&bytes, b"PK\x01\x02") + offset;
    bytes[at..at + value.len()].copy_from_slice(value);
    bytes
}

/// Changes a size of the first entry.
fn sized(bytes: &[u8], offset: usize, size: u32) -> Vec<u8> {
    central(bytes, offset, &size.to_le_bytes())
}

/// Gives the second entry the name of the first. The end record may leave the number of entries open.
fn twice(config: (&str, &[u8]), weights: (&str, &[u8]), open: bool) -> Vec<u8> {
    let mut bytes = zip_of(&[config, ("konfig.json", config.1), weights]);
    while let Some(at) = bytes.windows(11).position(|w| w == b"konfig.json") {
        bytes[at] = b'c';
    }
    if open {
        let at = bytes.len() - 22;
        let start = u64::from(u32::from_le_bytes(bytes[at + 16..at + 20].try_into().unwrap()));
        let size = u64::from(u32::from_le_bytes(bytes[at + 12..at + 16].try_into().unwrap()));
        bytes[at + 8..at + 12].fill(0xff);
        let end = bytes.split_off(at);
        bytes.extend(b"PK\x06\x06\x2c\0\0\0\0\0\0\0\x2d\0\x2d\0\0\0\0\0\0\0\0\0");
        [3, 3, size, start].iter().for_each(|n| bytes.extend(n.to_le_bytes()));
        bytes.extend(b"PK\x06\x07\0\0\0\0");
        bytes.extend((at as u64).to_le_bytes());
        bytes.extend(1u32.to_le_bytes());
        bytes.extend(end);
    }
    bytes
}
