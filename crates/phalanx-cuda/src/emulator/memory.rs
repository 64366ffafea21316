//! The memory of an emulated GPU. Every block lies between guards. While a work item runs, all
//! memory that it did not declare is hidden: reads there return NaN, and writes are detected.

use crate::launch::{Block, Elem, Ptr, Span};
use crate::work_item::WorkItem;
use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, handle_alloc_error};
use std::collections::BTreeMap;
use std::ops::Range;
use std::slice::{from_raw_parts, from_raw_parts_mut};

/// NaN in every float type, -1 in integers.
const POISON: u8 = 0xff;
const GUARD: usize = 4096;
/// A guard that nothing was written to.
const INTACT_GUARD: [u8; GUARD] = [POISON; GUARD];
/// Undeclared memory above this size, in bytes, is not hidden: it would take too long.
const MAX_HIDDEN: usize = 16 << 20;

/// Bytes that kernels access by address.
pub(super) struct Bytes {
    at: *mut u8,
    len: usize,
}

// SAFETY: it owns the memory that it points to.
unsafe impl Send for Bytes {}

impl Bytes {
    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len.max(1), 4096).expect("a size that fits into memory")
    }

    /// Allocates zeroed bytes.
    pub fn zeroed(len: usize) -> Bytes {
        // SAFETY: the size is not zero.
        Bytes::checked(unsafe { alloc_zeroed(Bytes::layout(len)) }, len)
    }

    /// Allocates bytes of undefined content, which cost nothing until touched.
    pub fn untouched(len: usize) -> Bytes {
        // SAFETY: the size is not zero.
        Bytes::checked(unsafe { alloc(Bytes::layout(len)) }, len)
    }

    fn checked(at: *mut u8, len: usize) -> Bytes {
        if at.is_null() {
            handle_alloc_error(Bytes::layout(len));
        }
        Bytes { at, len }
    }

    pub fn address(&self) -> *mut u8 {
        self.at
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.at, Bytes::layout(self.len)) }
    }
}

/// A block between its guards.
struct Guarded {
    bytes: Bytes,
    len: usize,
}

impl Guarded {
    fn new(len: usize) -> Guarded {
        let mut new = Guarded { bytes: Bytes::zeroed(len + 2 * GUARD), len };
        new.whole_mut()[..GUARD].fill(POISON);
        new.whole_mut()[GUARD + len..].fill(POISON);
        new
    }

    fn whole(&self) -> &[u8] {
        // SAFETY: all bytes were zeroed, and no kernel runs while they are borrowed.
        unsafe { from_raw_parts(self.bytes.at, self.len + 2 * GUARD) }
    }

    fn whole_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed exclusively.
        unsafe { from_raw_parts_mut(self.bytes.at, self.len + 2 * GUARD) }
    }

    fn data(&self) -> &[u8] {
        &self.whole()[GUARD..GUARD + self.len]
    }

    fn data_mut(&mut self) -> &mut [u8] {
        let end = GUARD + self.len;
        &mut self.whole_mut()[GUARD..end]
    }

    /// The first damaged guard byte, as its distance to the block's start.
    fn damage(&self) -> Option<isize> {
        let whole = self.whole();
        let outside = (0..GUARD).chain(GUARD + self.len..whole.len());
        let (front, back) = (&whole[..GUARD], &whole[GUARD + self.len..]);
        if front == INTACT_GUARD && back == INTACT_GUARD {
            return None;
        }
        let mut hit = outside.filter(|i| whole[*i] != POISON);
        hit.next().map(|i| i as isize - GUARD as isize)
    }
}

/// What a work item may do with a byte.
#[derive(Clone, Copy, PartialEq)]
enum Access {
    Hidden,
    Read,
    Write,
}

/// Bytes that a work item must not change, and their content.
struct Protected {
    place: (usize, Block),
    range: Range<usize>,
    bytes: Vec<u8>,
    hidden: bool,
}

/// The memory that [`Memory::hide`] has hidden.
pub(super) struct Hidden(Vec<Protected>);

/// All blocks of all replicas.
#[derive(Default)]
pub(super) struct Memory {
    blocks: BTreeMap<(usize, Block), Guarded>,
}

impl Memory {
    /// Bytes of all blocks.
    pub fn total_bytes(&self) -> usize {
        self.blocks.values().map(|b| b.len).sum()
    }

    /// Bytes of all blocks after growing one of them to at least `bytes`.
    pub fn total_bytes_with(&self, replica: usize, block: Block, bytes: usize) -> usize {
        let own = self.blocks.get(&(replica, block)).map_or(0, |b| b.len);
        self.total_bytes() + bytes.saturating_sub(own)
    }

    /// Frees a block.
    pub fn free(&mut self, replica: usize, block: Block) {
        self.blocks.remove(&(replica, block));
    }

    /// Grows a block to at least `bytes`. Returns whether it was relocated.
    pub fn reserve(&mut self, replica: usize, block: Block, bytes: usize) -> bool {
        let old = self.blocks.get(&(replica, block));
        if old.is_some_and(|b| b.len >= bytes) {
            return false;
        }
        let mut new = Guarded::new(bytes);
        let moved = old.is_some();
        if let Some(old) = old {
            new.data_mut()[..old.len].copy_from_slice(old.data());
        }
        self.blocks.insert((replica, block), new);
        moved
    }

    /// Replicas that have memory.
    pub fn replicas(&self) -> std::ops::Range<usize> {
        0..self.blocks.keys().map(|(replica, _)| replica + 1).max().unwrap_or(0)
    }

    /// The bytes of a block from an address on.
    fn from(&self, at: Ptr) -> Result<&[u8], String> {
        let block = self.blocks.get(&(at.replica, at.block));
        let data = block.map(Guarded::data).and_then(|d| d.get(at.offset..));
        data.ok_or_else(|| format!("{at} lies outside its block"))
    }

    pub fn bytes(&self, at: Ptr, len: usize) -> Result<&[u8], String> {
        let rest = self.from(at)?;
        let short = || format!("{len} bytes at {at} reach {} too far", len - rest.len());
        rest.get(..len).ok_or_else(short)
    }

    pub fn bytes_mut(&mut self, at: Ptr, len: usize) -> Result<&mut [u8], String> {
        self.bytes(at, len)?;
        let block = self.blocks.get_mut(&(at.replica, at.block)).expect("found above");
        Ok(&mut block.data_mut()[at.offset..at.offset + len])
    }

    /// The address that kernels see.
    pub fn address(&self, at: Ptr) -> Result<u64, String> {
        self.from(at).map(|rest| rest.as_ptr() as u64)
    }

    /// Loads an element as a number.
    pub fn load(&self, at: Ptr, elem: Elem) -> Result<f64, String> {
        let b = self.bytes(at, elem.bytes())?;
        Ok(match elem {
            Elem::F32 => f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
            Elem::I32 => f64::from(i32::from_le_bytes([b[0], b[1], b[2], b[3]])),
            Elem::F64 => f64::from_le_bytes(b.try_into().expect("eight bytes")),
            Elem::Bf16 => super::narrow::from_bf16(u16::from_le_bytes([b[0], b[1]])),
            Elem::F16 => super::narrow::from_half(u16::from_le_bytes([b[0], b[1]])),
        })
    }

    /// Rounds a number to an element and stores it.
    pub fn store(&mut self, at: Ptr, elem: Elem, v: f64) -> Result<(), String> {
        let bytes = self.bytes_mut(at, elem.bytes())?;
        match elem {
            Elem::F32 => bytes.copy_from_slice(&(v as f32).to_le_bytes()),
            Elem::I32 => bytes.copy_from_slice(&(v as i32).to_le_bytes()),
            Elem::F64 => bytes.copy_from_slice(&v.to_le_bytes()),
            Elem::Bf16 => bytes.copy_from_slice(&super::narrow::to_bf16(v).to_le_bytes()),
            Elem::F16 => bytes.copy_from_slice(&super::narrow::to_half(v).to_le_bytes()),
        }
        Ok(())
    }

    /// Poisons activations and partial sums, which are undefined at the start of a step.
    pub fn poison_arenas(&mut self) {
        for ((_, block), guarded) in &mut self.blocks {
            if matches!(block, Block::Arena | Block::Scratch) {
                guarded.data_mut().fill(POISON);
            }
        }
    }

    /// Fails if a guard was overwritten.
    pub fn check_guards(&self) -> Result<(), String> {
        for ((replica, block), guarded) in &self.blocks {
            if let Some(at) = guarded.damage() {
                let len = guarded.len;
                return Err(format!(
                    "writes outside of {block:?} (replica {replica}, {len} bytes), at byte {at}"
                ));
            }
        }
        Ok(())
    }

    /// Hides memory that a work item did not declare. Scratch memory is private to an item and
    /// inputs are never written, so neither needs to be declared.
    pub fn hide(&mut self, work: &WorkItem) -> Hidden {
        let mut protected = vec![];
        if self.total_bytes() > MAX_HIDDEN {
            return Hidden(protected);
        }
        for (place, guarded) in &mut self.blocks {
            let other = match place.1 {
                Block::Scratch | Block::Counters => continue,
                Block::Inputs => Access::Read,
                _ => Access::Hidden,
            };
            for (range, access) in protected_ranges(*place, guarded.len, work, other) {
                let bytes = guarded.data()[range.clone()].to_vec();
                let hidden = access == Access::Hidden;
                if hidden {
                    guarded.data_mut()[range.clone()].fill(POISON);
                }
                protected.push(Protected { place: *place, range, bytes, hidden });
            }
        }
        Hidden(protected)
    }

    /// Restores hidden memory. Fails if it was changed.
    pub fn restore(&mut self, hidden: Hidden) -> Result<(), String> {
        let mut result = Ok(());
        for Protected { place, range, bytes, hidden } in hidden.0 {
            let data =
                &mut self.blocks.get_mut(&place).expect("still there").data_mut()[range.clone()];
            let changed = match hidden {
                true => data.iter().position(|b| *b != POISON),
                false => data.iter().zip(&bytes).position(|(a, b)| a != b),
            };
            data.copy_from_slice(&bytes);
            if let Some(i) = changed {
                let at = Ptr::new(place.0, place.1, (range.start + i) / 4 * 4);
                result = Err(format!("writes at {at}, which is not among its writes"));
            }
        }
        result
    }
}

/// The parts of a block that a work item must not write.
fn protected_ranges(
    (replica, block): (usize, Block),
    len: usize,
    work: &WorkItem,
    other: Access,
) -> Vec<(Range<usize>, Access)> {
    let mut access = vec![other; len];
    let mut mark = |spans: &[Span], kind: Access| {
        for s in spans.iter().filter(|s| (s.at.replica, s.at.block) == (replica, block)) {
            let end = (s.at.offset + s.bytes).min(len);
            for start in (s.at.offset..end).step_by(s.pitch.max(1)) {
                access[start..(start + s.width).min(end)].fill(kind);
            }
        }
    };
    mark(&work.reads, Access::Read);
    mark(&work.writes, Access::Write);
    let mut parts = vec![];
    let mut start = 0;
    for run in access.chunk_by(|a, b| a == b) {
        if run[0] != Access::Write {
            parts.push((start..start + run.len(), run[0]));
        }
        start += run.len();
    }
    parts
}
