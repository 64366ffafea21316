//! Dense storage of groups with many members and objects with many attributes, used by newer HDF5:
//! messages in a fractal heap, indexed by a v2 B-tree.

use crate::bytes::Cursor;
use crate::error::{Result, damaged, unsupported};

/// Maximum number of messages of an index.
const MAX_RECORDS: u64 = 1_000_000;
/// Maximum depth of trees and heaps.
const MAX_DEPTH: u16 = 16;

/// The kind of an index, which determines where its records refer to the heap.
#[derive(Clone, Copy)]
pub(crate) enum Index {
    /// Links by name: after the hash.
    Links,
    /// Attributes by name: at the start.
    Attributes,
}

/// The messages of a heap that an index lists.
pub(crate) fn messages(bytes: &[u8], heap: u64, tree: u64, index: Index) -> Result<Vec<Vec<u8>>> {
    let heap = Heap::parse(bytes, heap)?;
    let mut out = vec![];
    let mut total = 0usize;
    for record in records(bytes, tree)? {
        let (start, end) = match index {
            Index::Links => (4, 4 + heap.id_size),
            Index::Attributes => (0, heap.id_size),
        };
        let id = record.get(start..end).ok_or_else(|| damaged("an index too narrow"))?;
        let message = heap.object(bytes, id)?;
        total += message.len();
        if total > bytes.len() {
            return Err(damaged("messages that overlap"));
        }
        out.push(message.to_vec());
    }
    Ok(out)
}

/// Number of bytes of integers up to a limit.
fn width(limit: u64) -> usize {
    (limit.max(1).ilog2() / 8 + 1) as usize
}

/// Layout of a tree: records of `size` bytes, nodes of `node` bytes.
struct Tree {
    node: usize,
    size: usize,
    /// For each depth: the maximum number of records of a node, and of its subtree.
    max_records: Vec<(u64, u64)>,
}

/// All records of a tree.
fn records(bytes: &[u8], address: u64) -> Result<Vec<&[u8]>> {
    let mut at = Cursor::new(bytes, address)?;
    at.signature(b"BTHD")?;
    at.skip(2)?;
    let (node, size, depth) = (at.u32()? as usize, at.u16()? as usize, at.u16()?);
    at.skip(2)?;
    let (root, used, total) = (at.u64()?, at.u16()?, at.u64()?);
    let most = MAX_RECORDS.min(bytes.len() as u64);
    if depth > MAX_DEPTH || total > most || size == 0 || node < 10 + size {
        return Err(damaged("an index of unusual size"));
    }
    let mut tree = Tree { node, size, max_records: vec![] };
    let leaf = ((node - 10) / size) as u64;
    tree.max_records.push((leaf, leaf));
    for level in 1..=usize::from(depth) {
        let pointer = tree.pointer(level);
        let most = ((node - 10).saturating_sub(pointer) / (size + pointer)) as u64;
        let below = tree.max_records[level - 1].1;
        tree.max_records.push((most, (most + 1).saturating_mul(below).saturating_add(most)));
    }
    let mut out = vec![];
    if total > 0 {
        tree.walk(bytes, root, u64::from(used), usize::from(depth), total, &mut out)?;
    }
    Ok(out)
}

impl Tree {
    /// Size in bytes of a pointer in a node at a depth.
    fn pointer(&self, depth: usize) -> usize {
        let all = if depth > 1 { width(self.max_records[depth - 1].1) } else { 0 };
        8 + width(self.max_records[0].0) + all
    }

    fn walk<'a>(
        &self,
        bytes: &'a [u8],
        address: u64,
        used: u64,
        depth: usize,
        total: u64,
        out: &mut Vec<&'a [u8]>,
    ) -> Result<()> {
        let mut at = Cursor::new(Cursor::new(bytes, address)?.take(self.node)?, 0)?;
        at.signature(if depth == 0 { b"BTLF" } else { b"BTIN" })?;
        at.skip(2)?;
        for _ in 0..used {
            out.push(at.take(self.size)?);
            if out.len() as u64 > total {
                return Err(damaged("an index with more records than it says"));
            }
        }
        if depth == 0 {
            return Ok(());
        }
        for _ in 0..=used {
            let child = at.u64()?;
            let below = at.unsigned(width(self.max_records[0].0))?;
            at.skip(self.pointer(depth) - 8 - width(self.max_records[0].0))?;
            self.walk(bytes, child, below, depth - 1, total, out)?;
        }
        Ok(())
    }
}

/// A fractal heap.
struct Heap {
    id_size: usize,
    offset_size: usize,
    length_size: usize,
    table_width: u64,
    start: u64,
    largest: u64,
    root: u64,
    rows: u16,
}

impl Heap {
    fn parse(bytes: &[u8], address: u64) -> Result<Heap> {
        let mut at = Cursor::new(bytes, address)?;
        at.signature(b"FRHP")?;
        at.skip(1)?;
        let (id_size, filters) = (at.u16()? as usize, at.u16()?);
        at.skip(1)?;
        let managed = u64::from(at.u32()?);
        at.skip(12 * 8)?;
        let (table_width, start, largest) = (u64::from(at.u16()?), at.u64()?, at.u64()?);
        let bits = at.u16()? as usize;
        at.skip(2)?;
        let (root, rows) = (at.u64()?, at.u16()?);
        if filters != 0 {
            return Err(unsupported("a packed heap, which is not read"));
        }
        if table_width == 0 || !start.is_power_of_two() || !largest.is_power_of_two() {
            return Err(damaged("a heap of unusual sizes"));
        }
        let offset_size = bits.div_ceil(8);
        let length_size = (largest.ilog2() as usize).div_ceil(8).min(width(managed));
        let heap =
            Heap { id_size, offset_size, length_size, table_width, start, largest, root, rows };
        match offset_size {
            1..=8 if id_size <= 32 => Ok(heap),
            _ => Err(damaged("a heap of unusual sizes")),
        }
    }

    /// An object by its identifier.
    fn object<'a>(&self, bytes: &'a [u8], id: &'a [u8]) -> Result<&'a [u8]> {
        let mut at = Cursor::new(id, 0)?;
        let kind = at.u8()?;
        match kind >> 4 {
            0 => {
                let offset = at.unsigned(self.offset_size)?;
                let length = at.unsigned(self.length_size)? as usize;
                let address = match self.rows {
                    0 => self.root.checked_add(offset),
                    rows => self.find(bytes, self.root, u64::from(rows), offset, 0)?,
                };
                let address = address.ok_or_else(|| damaged("an object outside its heap"))?;
                Cursor::new(bytes, address)?.take(length)
            }
            2 => at.take((kind & 0x0f) as usize + 1),
            _ => Err(unsupported("a huge object, which is not read")),
        }
    }

    /// The address of an offset below an indirect block.
    fn find(
        &self,
        bytes: &[u8],
        block: u64,
        rows: u64,
        offset: u64,
        depth: u16,
    ) -> Result<Option<u64>> {
        let row_bytes = self.table_width.saturating_mul(self.start);
        let row = if offset < row_bytes { 0 } else { u64::from((offset / row_bytes).ilog2()) + 1 };
        if depth > MAX_DEPTH || row >= rows || row > 50 {
            return Ok(None);
        }
        let scale = 1u64 << row.saturating_sub(1);
        let size = self.start.saturating_mul(scale);
        let first = if row == 0 { 0 } else { row_bytes.saturating_mul(scale) };
        let column = (offset - first) / size;
        let within = (offset - first) % size;
        let mut at = Cursor::new(bytes, block)?;
        at.signature(b"FHIB")?;
        at.skip(9 + self.offset_size)?;
        at.skip(((row * self.table_width + column) * 8) as usize)?;
        let child = at.u64()?;
        if size <= self.largest {
            return Ok(child.checked_add(within));
        }
        // The number of rows of a child follows from the bytes it spans.
        let below = u64::from((size / row_bytes).max(1).ilog2()) + 1;
        self.find(bytes, child, below, within, depth + 1)
    }
}
