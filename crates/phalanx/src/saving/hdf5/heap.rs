//! The global heap: text of any length.

use super::bytes::{Cursor, utf8};
use super::{Fault, Result};

/// Text that an element of 16 bytes refers to.
pub(super) fn text(bytes: &[u8], element: &[u8]) -> Result<String> {
    let mut at = Cursor::new(element, 0)?;
    let (length, address, index) = (at.u32()? as usize, at.u64()?, at.u32()?);
    if length == 0 {
        return Ok(String::new());
    }
    let mut at = Cursor::new(bytes, address)?;
    at.signature(b"GCOL")?;
    at.skip(4)?;
    let size = at.u64()?;
    let inner = usize::try_from(size).ok().and_then(|size| size.checked_sub(16));
    let inner = inner.ok_or_else(|| Fault(format!("a heap of {size} bytes")))?;
    let mut at = Cursor::new(at.take(inner)?, 0)?;
    while at.left() >= 16 {
        let found = at.u16()?;
        at.skip(6)?;
        let size = at.u64()?;
        let size = usize::try_from(size).map_err(|_| Fault("an entry too long".into()))?;
        if found == 0 {
            break;
        }
        let data = at.take(size)?;
        if u32::from(found) == index {
            let text = data.get(..length);
            return utf8(text.ok_or_else(|| Fault("text longer than its entry".into()))?)
                .map(|text| text.trim_end_matches('\0').into());
        }
        // The last entry may lack its padding.
        at.skip((size.next_multiple_of(8) - size).min(at.left()))?;
    }
    Err(Fault(format!("text {index} missing from its heap")))
}
