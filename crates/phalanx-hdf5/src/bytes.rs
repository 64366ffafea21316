//! Bounds-checked reading of little-endian numbers.

use crate::error::{Result, damaged};

/// An undefined address.
pub(crate) const UNDEFINED: u64 = u64::MAX;

/// A position in the bytes of a file.
#[derive(Clone, Copy)]
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    /// Starts at an address of the file.
    pub fn new(bytes: &'a [u8], address: u64) -> Result<Cursor<'a>> {
        match usize::try_from(address) {
            Ok(at) if at <= bytes.len() => Ok(Cursor { bytes, at }),
            _ => Err(damaged(format!("address {address} in {} bytes", bytes.len()))),
        }
    }

    /// The current position.
    pub fn position(&self) -> usize {
        self.at
    }

    /// Number of bytes to the end.
    pub fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The next `n` bytes.
    pub fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        let end = self.at.checked_add(n).filter(|end| *end <= self.bytes.len());
        let end = end.ok_or_else(|| {
            damaged(format!("an end after {} bytes where {n} more belong", self.bytes.len()))
        })?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    /// Skips `n` bytes.
    pub fn skip(&mut self, n: usize) -> Result<()> {
        self.take(n).map(|_| ())
    }

    /// Skips the padding of `length` to a multiple of eight.
    pub fn pad(&mut self, length: usize) -> Result<()> {
        self.skip(length.next_multiple_of(8) - length)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    pub fn u8(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    pub fn u16(&mut self) -> Result<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// A number of `width` bytes, at most eight.
    pub fn unsigned(&mut self, width: usize) -> Result<u64> {
        let mut out = [0; 8];
        let width = width.min(8);
        out[..width].copy_from_slice(self.take(width)?);
        Ok(u64::from_le_bytes(out))
    }

    /// Checks the four-byte signature of a structure.
    pub fn signature(&mut self, expected: &[u8; 4]) -> Result<()> {
        let found = self.take(4)?;
        if found == expected {
            return Ok(());
        }
        let (expected, found) = (expected.escape_ascii(), found.escape_ascii());
        Err(damaged(format!("'{found}' where '{expected}' belongs")))
    }

    /// A zero-terminated string.
    pub fn text(&mut self) -> Result<String> {
        let rest = &self.bytes[self.at..];
        let Some(end) = rest.iter().position(|b| *b == 0) else {
            return Err(damaged("a name without an end"));
        };
        self.at += end + 1;
        utf8(&rest[..end])
    }
}

/// Converts bytes to a string.
pub(crate) fn utf8(bytes: &[u8]) -> Result<String> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text.into()),
        Err(_) => Err(damaged("text that is not UTF-8")),
    }
}
