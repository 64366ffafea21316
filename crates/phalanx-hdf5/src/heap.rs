//! The global heap: variable-length strings.

use crate::bytes::{Cursor, utf8};
use crate::error::{Result, damaged};
use std::collections::HashMap;
use std::ops::Range;

/// The collections read so far, by address. Each is parsed once.
#[derive(Debug, Default)]
pub(crate) struct Heaps {
    collections: HashMap<u64, Collection>,
    /// Total number of entries, bounded so that overlapping collections cannot add up.
    entries: usize,
}

/// Byte ranges of the strings of a collection, by index.
type Collection = HashMap<u32, Range<usize>>;

impl Heaps {
    /// The string that an element of 16 bytes refers to.
    pub fn text(&mut self, bytes: &[u8], element: &[u8]) -> Result<String> {
        let mut at = Cursor::new(element, 0)?;
        let (length, address, index) = (at.u32()? as usize, at.u64()?, at.u32()?);
        if length == 0 {
            return Ok(String::new());
        }
        if !self.collections.contains_key(&address) {
            let collection = collection(bytes, address)?;
            // An entry takes at least 16 bytes.
            self.entries += collection.len();
            if self.entries > bytes.len() / 16 {
                return Err(damaged("heaps that overlap"));
            }
            self.collections.insert(address, collection);
        }
        let range = self.collections[&address].get(&index);
        let range = range.ok_or_else(|| damaged(format!("text {index} missing from its heap")))?;
        let text = bytes[range.clone()].get(..length);
        let text = utf8(text.ok_or_else(|| damaged("text longer than its entry"))?)?;
        Ok(text.trim_end_matches('\0').into())
    }
}

/// The strings of the collection at an address.
fn collection(bytes: &[u8], address: u64) -> Result<Collection> {
    let mut out = HashMap::new();
    let mut at = Cursor::new(bytes, address)?;
    at.signature(b"GCOL")?;
    at.skip(4)?;
    let size = at.u64()?;
    let inner = usize::try_from(size).ok().and_then(|size| size.checked_sub(16));
    let inner = inner.ok_or_else(|| damaged(format!("a heap of {size} bytes")))?;
    let start = at.position();
    let mut at = Cursor::new(at.take(inner)?, 0)?;
    while at.left() >= 16 {
        let found = at.u16()?;
        at.skip(6)?;
        let size = at.u64()?;
        let size = usize::try_from(size).map_err(|_| damaged("an entry too long"))?;
        if found == 0 {
            break;
        }
        let offset = start + at.position();
        at.skip(size)?;
        out.entry(u32::from(found)).or_insert(offset..offset + size);
        // The last entry may lack its padding.
        at.skip((size.next_multiple_of(8) - size).min(at.left()))?;
    }
    Ok(out)
}
