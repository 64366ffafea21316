//! Chunked datasets: their index (a v1 B-tree) and their filters.

use crate::bytes::{Cursor, UNDEFINED};
use crate::error::{Result, damaged, unsupported};
use crate::types::count;
use flate2::read::ZlibDecoder;
use std::collections::HashSet;
use std::io::Read;

/// Arrays up to this size in bytes are exempt from the limit of the compression ratio.
const UNLIMITED_RATIO_BYTES: usize = 16_000_000;
/// Maximum ratio of the size of a larger array to that of its file.
const MAX_RATIO: usize = 64;

/// A filter applied to each chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filter {
    /// Compressed by deflate.
    Deflate,
    /// Bytes of equal significance grouped.
    Shuffle,
    /// Followed by a checksum of four bytes.
    Checksum,
}

/// Parses a filter pipeline message. Filters are in the order of application.
pub(crate) fn filters(data: &[u8]) -> Result<Vec<Filter>> {
    let mut at = Cursor::new(data, 0)?;
    let (version, n) = (at.u8()?, at.u8()?);
    match version {
        1 => at.skip(6)?,
        2 => {}
        _ => return Err(unsupported(format!("version {version} of a list of filters"))),
    }
    let mut out = vec![];
    for _ in 0..n {
        let id = at.u16()?;
        let name = if version == 1 || id >= 256 { at.u16()? as usize } else { 0 };
        at.skip(2)?;
        let values = at.u16()? as usize;
        at.skip(name)?;
        if version == 1 {
            at.pad(name)?;
        }
        at.skip(values * 4)?;
        if version == 1 && values % 2 == 1 {
            at.skip(4)?;
        }
        out.push(match id {
            1 => Filter::Deflate,
            2 => Filter::Shuffle,
            3 => Filter::Checksum,
            _ => return Err(unsupported(format!("filter {id}, which is not known"))),
        });
    }
    Ok(out)
}

/// The index and the filters of a chunked dataset.
#[derive(Debug)]
pub(crate) struct Chunked {
    tree: u64,
    dims: Vec<usize>,
    filters: Vec<Filter>,
}

/// One chunk: its bytes, the mask of skipped filters, its offset in the array.
struct Chunk<'a> {
    data: &'a [u8],
    mask: u32,
    start: Vec<usize>,
}

impl Chunked {
    /// Parses the rest of a layout message.
    pub fn parse(mut at: Cursor<'_>, rank: usize, filters: Vec<Filter>) -> Result<Chunked> {
        let axes = at.u8()? as usize;
        if axes != rank + 1 {
            return Err(damaged(format!("chunks of {axes} axes for an array of {rank}")));
        }
        let tree = at.u64()?;
        let dims = (0..rank).map(|_| Ok(at.u32()? as usize)).collect::<Result<Vec<_>>>()?;
        if dims.contains(&0) {
            return Err(damaged("empty chunks"));
        }
        Ok(Chunked { tree, dims, filters })
    }

    /// Reads the whole array of `length` bytes.
    pub fn read(
        &self,
        bytes: &[u8],
        dims: &[usize],
        element: usize,
        length: usize,
    ) -> Result<Vec<u8>> {
        let plausible =
            |size: usize| size <= UNLIMITED_RATIO_BYTES || size / MAX_RATIO <= bytes.len();
        if !plausible(length) {
            return Err(damaged(format!("{length} bytes of data in a file of {}", bytes.len())));
        }
        let size = count(&self.dims)?.checked_mul(element);
        let size = size.filter(|size| plausible(*size));
        let size = size.ok_or_else(|| damaged(format!("chunks of {:?}", self.dims)))?;
        if self.tree == UNDEFINED {
            return Err(damaged("a dataset that was never written"));
        }
        let mut chunks = vec![];
        self.collect(bytes, self.tree, None, &mut HashSet::new(), &mut chunks)?;
        let most = dims.iter().zip(&self.dims).map(|(n, c)| n.div_ceil(*c)).product::<usize>();
        if chunks.len() != most {
            return Err(damaged(format!("{} chunks where {most} belong", chunks.len())));
        }
        let stored: usize = chunks.iter().map(|chunk| chunk.data.len()).sum();
        if stored > bytes.len() || !most.checked_mul(size).is_some_and(plausible) {
            return Err(damaged(format!(
                "{most} chunks of {:?} in {} bytes",
                self.dims,
                bytes.len()
            )));
        }
        let mut out = vec![0; length];
        for chunk in chunks {
            let data = self.unpack(&chunk, element, size)?;
            copy_chunk(&mut out, dims, &data, &self.dims, &chunk.start, element);
        }
        Ok(out)
    }

    fn collect<'a>(
        &self,
        bytes: &'a [u8],
        address: u64,
        level: Option<u8>,
        seen: &mut HashSet<u64>,
        out: &mut Vec<Chunk<'a>>,
    ) -> Result<()> {
        if !seen.insert(address) {
            return Err(damaged("a tree of chunks that meets itself"));
        }
        let mut at = Cursor::new(bytes, address)?;
        at.signature(b"TREE")?;
        let (kind, height) = (at.u8()?, at.u8()?);
        if kind != 1 || level.is_some_and(|level| height != level - 1) {
            return Err(damaged("a tree of chunks of another kind"));
        }
        let used = at.u16()?;
        at.skip(16)?;
        for _ in 0..used {
            let (size, mask) = (at.u32()? as usize, at.u32()?);
            let start = self.dims.iter().map(|_| Ok(at.u64()? as usize));
            let start = start.collect::<Result<Vec<_>>>()?;
            at.skip(8)?;
            let child = at.u64()?;
            if height > 0 {
                self.collect(bytes, child, Some(height), seen, out)?;
            } else if seen.insert(child) {
                let data = Cursor::new(bytes, child)?.take(size)?;
                out.push(Chunk { data, mask, start });
            } else {
                return Err(damaged("a chunk in two places"));
            }
        }
        Ok(())
    }

    /// Reverses the filters. The result has `size` bytes.
    fn unpack(&self, chunk: &Chunk<'_>, element: usize, size: usize) -> Result<Vec<u8>> {
        let mut data = chunk.data.to_vec();
        for (i, filter) in self.filters.iter().enumerate().rev() {
            if i < 32 && chunk.mask & (1 << i) != 0 {
                continue;
            }
            data = match filter {
                Filter::Checksum => {
                    let end = data.len().checked_sub(4);
                    data.truncate(end.ok_or_else(|| damaged("a chunk too short"))?);
                    data
                }
                Filter::Deflate => {
                    let mut out = vec![];
                    let most = size as u64 + 5;
                    let unpacked = ZlibDecoder::new(&data[..]).take(most).read_to_end(&mut out);
                    unpacked.map_err(|e| damaged(format!("a chunk that does not unpack: {e}")))?;
                    out
                }
                Filter::Shuffle => unshuffle(&data, element),
            };
        }
        if data.len() == size {
            return Ok(data);
        }
        Err(damaged(format!("a chunk of {} bytes where {size} belong", data.len())))
    }
}

/// Reverses the shuffle filter.
fn unshuffle(data: &[u8], element: usize) -> Vec<u8> {
    let n = data.len() / element;
    let mut out = data.to_vec();
    for (i, whole) in out.chunks_exact_mut(element).enumerate() {
        for (b, byte) in whole.iter_mut().enumerate() {
            *byte = data[b * n + i];
        }
    }
    out
}

/// Copies a chunk into the array row by row, without the part outside it.
fn copy_chunk(
    out: &mut [u8],
    dims: &[usize],
    data: &[u8],
    chunk: &[usize],
    start: &[usize],
    element: usize,
) {
    let Some((last, lead)) = chunk.split_last() else {
        out.copy_from_slice(data);
        return;
    };
    let axis = lead.len();
    if start[axis] >= dims[axis] {
        return;
    }
    let width = (*last).min(dims[axis] - start[axis]) * element;
    for (row, line) in data.chunks_exact(last * element).enumerate() {
        let (mut rest, mut target, mut stride) = (row, start[axis], dims[axis]);
        let mut inside = true;
        for a in (0..axis).rev() {
            let at = start[a].saturating_add(rest % chunk[a]);
            rest /= chunk[a];
            inside &= at < dims[a];
            if inside {
                target += at * stride;
                stride *= dims[a];
            }
        }
        if inside {
            out[target * element..][..width].copy_from_slice(&line[..width]);
        }
    }
}
