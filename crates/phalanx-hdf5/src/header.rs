//! Object headers: the messages that describe a group or a dataset, in both versions.

use crate::bytes::Cursor;
use crate::error::{Result, damaged, unsupported};

pub(crate) const DATASPACE: u16 = 0x01;
pub(crate) const LINK_INFO: u16 = 0x02;
pub(crate) const DATATYPE: u16 = 0x03;
pub(crate) const FILL: u16 = 0x05;
pub(crate) const LINK: u16 = 0x06;
pub(crate) const LAYOUT: u16 = 0x08;
pub(crate) const GROUP_INFO: u16 = 0x0a;
pub(crate) const FILTERS: u16 = 0x0b;
pub(crate) const ATTRIBUTE: u16 = 0x0c;
pub(crate) const CONTINUATION: u16 = 0x10;
pub(crate) const SYMBOL_TABLE: u16 = 0x11;
pub(crate) const ATTRIBUTE_INFO: u16 = 0x15;

/// Flag of a message whose content is stored elsewhere.
const SHARED: u8 = 0x02;

/// A message: its type and content.
pub(crate) struct Message<'a> {
    pub kind: u16,
    pub data: &'a [u8],
}

/// The messages of the object at an address.
pub(crate) fn messages(bytes: &[u8], address: u64) -> Result<Vec<Message<'_>>> {
    let mut at = Cursor::new(bytes, address)?;
    if bytes[at.position()..].starts_with(b"OHDR") {
        parse_v2(bytes, at)
    } else {
        parse_v1(bytes, &mut at)
    }
}

/// Version 1: a prefix of 16 bytes, messages aligned to eight bytes.
fn parse_v1<'a>(bytes: &'a [u8], at: &mut Cursor<'a>) -> Result<Vec<Message<'a>>> {
    let version = at.u8()?;
    if version != 1 {
        return Err(unsupported(format!("version {version} of an object header")));
    }
    at.skip(7)?;
    let size = at.u32()? as usize;
    at.skip(4)?;
    let mut blocks = vec![at.take(size)?];
    let mut out = vec![];
    let mut next = 0;
    while let Some(block) = blocks.get(next).copied() {
        next += 1;
        let mut at = Cursor::new(block, 0)?;
        while at.left() >= 8 {
            let (kind, size) = (at.u16()?, at.u16()? as usize);
            let flags = at.u8()?;
            at.skip(3)?;
            let data = at.take(size)?;
            if kind == CONTINUATION {
                let (address, length) = continuation(data)?;
                blocks.push(Cursor::new(bytes, address)?.take(length)?);
                check(&blocks, bytes)?;
            }
            push(&mut out, kind, flags, data)?;
        }
    }
    Ok(out)
}

/// Version 2: signatures and checksums around unaligned messages.
fn parse_v2<'a>(bytes: &'a [u8], mut at: Cursor<'a>) -> Result<Vec<Message<'a>>> {
    at.signature(b"OHDR")?;
    let (version, flags) = (at.u8()?, at.u8()?);
    if version != 2 {
        return Err(unsupported(format!("version {version} of an object header")));
    }
    at.skip(if flags & 0x20 != 0 { 16 } else { 0 })?;
    at.skip(if flags & 0x10 != 0 { 4 } else { 0 })?;
    let size = at.unsigned(1 << (flags & 3))?;
    let size = usize::try_from(size).map_err(|_| damaged("an object header too long"))?;
    let mut blocks = vec![at.take(size)?];
    let order = if flags & 0x04 != 0 { 2 } else { 0 };
    let mut out = vec![];
    let mut next = 0;
    while let Some(block) = blocks.get(next).copied() {
        next += 1;
        let mut at = Cursor::new(block, 0)?;
        while at.left() >= 4 + order {
            let (kind, size) = (u16::from(at.u8()?), at.u16()? as usize);
            let flags = at.u8()?;
            at.skip(order)?;
            let data = at.take(size)?;
            if kind == CONTINUATION {
                let (address, length) = continuation(data)?;
                let mut block = Cursor::new(bytes, address)?;
                block.signature(b"OCHK")?;
                let inner = length.checked_sub(8);
                let inner = inner.ok_or_else(|| damaged("a block of a header too short"))?;
                blocks.push(block.take(inner)?);
                check(&blocks, bytes)?;
            }
            push(&mut out, kind, flags, data)?;
        }
    }
    Ok(out)
}

fn continuation(data: &[u8]) -> Result<(u64, usize)> {
    let mut at = Cursor::new(data, 0)?;
    let (address, length) = (at.u64()?, at.u64()?);
    let length = usize::try_from(length).map_err(|_| damaged("a block too long"))?;
    Ok((address, length))
}

/// Rejects overlapping blocks, which could make a huge header out of a few bytes.
fn check(blocks: &[&[u8]], bytes: &[u8]) -> Result<()> {
    // Empty blocks count too.
    let total = blocks.iter().fold(0usize, |sum, block| sum.saturating_add(block.len() + 8));
    if total <= bytes.len() {
        return Ok(());
    }
    Err(damaged("an object header that does not end"))
}

fn push<'a>(out: &mut Vec<Message<'a>>, kind: u16, flags: u8, data: &'a [u8]) -> Result<()> {
    if flags & SHARED != 0 && matches!(kind, DATASPACE | DATATYPE | FILL | FILTERS | ATTRIBUTE) {
        return Err(unsupported("a shared (named) type, which is not read"));
    }
    out.push(Message { kind, data });
    Ok(())
}
