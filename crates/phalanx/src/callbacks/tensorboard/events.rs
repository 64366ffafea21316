//! TensorBoard event files: protocol buffer records, framed as by TensorFlow.

use super::proto::{self, Message};
use crate::callbacks::log_file::{LogFile, Mark};
use crate::error::Result;
use phalanx_distributed::launch;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// An open event file. Every call writes complete records, so that neither a reader nor a crash finds a partial
/// one.
#[derive(Debug)]
pub(super) struct EventFile(LogFile);

impl EventFile {
    /// Opens an event file on a log. An empty one starts with the version and the event of `first`, in the
    /// order of their times.
    pub(super) fn new(log: LogFile, first: impl FnOnce() -> Option<Message>) -> Result<EventFile> {
        let new = log.is_empty()?;
        let mut events = EventFile(log);
        if new {
            events.write(&[proto::file_version(now())])?;
            events.write(first().as_slice())?;
        }
        Ok(events)
    }

    pub(super) fn mark(&self) -> Result<Option<Mark>> {
        self.0.mark()
    }

    /// Appends records.
    pub(super) fn write(&mut self, events: &[Message]) -> Result<()> {
        let records: Vec<u8> = events.iter().flat_map(|e| record(e.as_bytes())).collect();
        self.0.write(&records)
    }
}

/// A unique name for an event file.
pub(super) fn new_name() -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let (time, host, process) = (now() as u64, host(), std::process::id());
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    format!("events.out.tfevents.{time:010}.{host}.{process}.{number}")
}

/// Seconds since 1970.
pub(super) fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

/// The host name, restricted to characters allowed in a file name.
fn host() -> String {
    let name = launch::host().unwrap_or_default();
    let safe = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
    let name: String = name.chars().filter(|c| safe(*c)).take(64).collect();
    if name.is_empty() { "localhost".into() } else { name }
}

/// A record: length, checksum of the length, bytes, checksum of the bytes.
fn record(bytes: &[u8]) -> Vec<u8> {
    let length = (bytes.len() as u64).to_le_bytes();
    let mut record = length.to_vec();
    record.extend(masked_crc(&length).to_le_bytes());
    record.extend(bytes);
    record.extend(masked_crc(bytes).to_le_bytes());
    record
}

/// A masked checksum, because checksums of data that contain checksums are weak.
fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// CRC-32C (Castagnoli), a byte at a time.
fn crc32c(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = table();
    let step = |crc: u32, byte: &u8| TABLE[usize::from(crc as u8 ^ byte)] ^ (crc >> 8);
    !bytes.iter().fold(!0, step)
}

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = (crc >> 1) ^ (0x82f6_3b78 * (crc & 1));
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_castagnolis() {
        // From RFC 3720, B.4, and the usual check value.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        let rising: Vec<u8> = (0..32).collect();
        assert_eq!(crc32c(&rising), 0x46dd_794e);
    }

    #[test]
    fn files_of_one_second_have_names_of_their_own() {
        let directory = tempfile::tempdir().unwrap();
        let names: Vec<String> = (0..3).map(|_| new_name()).collect();
        assert!(names[0] != names[1] && names[1] != names[2]);
        for name in names {
            assert!(name.starts_with("events.out.tfevents.") && !name.contains('\n'), "{name}");
            let path = directory.path().join(name);
            let size = || std::fs::metadata(&path).unwrap().len();
            let file = EventFile::new(LogFile::create_new(&path).unwrap(), || None).unwrap();
            // One record: the version.
            assert_eq!(size(), 8 + 4 + (9 + 2 + 13) + 4);
            // A continued file already has it.
            let mark = file.mark().unwrap().unwrap();
            EventFile::new(LogFile::resume(&path, &mark).unwrap(), || None).unwrap();
            assert_eq!(size(), 8 + 4 + (9 + 2 + 13) + 4);
        }
    }
}
