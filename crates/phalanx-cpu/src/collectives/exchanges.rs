//! Exchanges of numbers between processes: sums in rank order, and gathers.

use super::async_reduce::CopyRange;
use super::exchange_layout::GroupLayout;
use super::sum_slices;
use phalanx_distributed::{PeerError, ProcessGroup};
use std::ops::Range;

/// Up to this many floats an all-reduce is one all-gather. Above, it is a reduce-scatter followed by an
/// all-gather.
pub(super) const ALLGATHER_MAX_FLOATS: usize = 4096;

/// Sums floats over all processes, in place. Above [`ALLGATHER_MAX_FLOATS`] each process sums its part, in
/// rank order, and sends it to the others. `received` is scratch memory.
pub(crate) fn all_reduce(
    peers: &dyn ProcessGroup,
    tree: bool,
    values: &mut [f32],
    parts: &[Range<usize>],
    received: &mut Vec<f32>,
) -> Result<(), PeerError> {
    let (rank, size, len) = (peers.rank(), peers.size(), values.len());
    if len > ALLGATHER_MAX_FLOATS {
        reduce_scatter(peers, tree, values, parts, received)?;
        return gather_parts(peers, values, parts, received);
    }
    received.resize(size * len, 0.0);
    let mut into = split_evenly(received, len, size);
    into[rank].copy_from_slice(values);
    let out = vec![bytes(values); size];
    peers.exchange(&out, &mut into.iter_mut().map(|v| bytes_mut(v)).collect::<Vec<_>>())?;
    let sources: Vec<&[f32]> = into.iter().map(|v| &**v).collect();
    sum_slices(tree, &sources, values);
    Ok(())
}

/// Sums floats over all processes. Each process gets the sum of its part; the others keep their addends.
pub(crate) fn reduce_scatter(
    peers: &dyn ProcessGroup,
    tree: bool,
    values: &mut [f32],
    parts: &[Range<usize>],
    received: &mut Vec<f32>,
) -> Result<(), PeerError> {
    let (rank, size) = (peers.rank(), peers.size());
    let mine = parts[rank].clone();
    received.resize(size * mine.len(), 0.0);
    let mut into = split_evenly(received, mine.len(), size);
    into[rank].copy_from_slice(&values[mine.clone()]);
    let out: Vec<&[u8]> = parts.iter().map(|part| bytes(&values[part.clone()])).collect();
    peers.exchange(&out, &mut into.iter_mut().map(|v| bytes_mut(v)).collect::<Vec<_>>())?;
    let sources: Vec<&[f32]> = into.iter().map(|v| &**v).collect();
    sum_slices(tree, &sources, &mut values[mine]);
    Ok(())
}

/// Sends each process's part to the others.
pub(crate) fn gather_parts(
    peers: &dyn ProcessGroup,
    values: &mut [f32],
    parts: &[Range<usize>],
    scratch: &mut Vec<f32>,
) -> Result<(), PeerError> {
    let mine = parts[peers.rank()].clone();
    scratch.clear();
    scratch.extend_from_slice(&values[mine]);
    let mut into = split_ranges(values, parts.iter().cloned());
    let mut into: Vec<&mut [u8]> = into.iter_mut().map(|v| bytes_mut(v)).collect();
    peers.exchange(&vec![bytes(scratch); peers.size()], &mut into)
}

/// Gathers a group of weights from all processes.
///
/// # Safety
/// `weights` and `to` are valid for the runs of the layout, and nobody else accesses `to`.
pub(crate) unsafe fn gather_group(
    peers: &dyn ProcessGroup,
    (weights, to): (*const f32, *mut f32),
    layout: &GroupLayout,
    scratch: &mut Vec<f32>,
) -> Result<(), PeerError> {
    let len = |runs: &[CopyRange]| runs.last().map_or(0, |run| run.from + run.len);
    let sizes: Vec<usize> = layout.received.iter().map(|runs| len(runs)).collect();
    let before: usize = sizes[..peers.rank()].iter().sum();
    scratch.resize(sizes.iter().sum(), 0.0);
    for run in &layout.sent {
        // SAFETY: the caller's contract.
        let from = unsafe { std::slice::from_raw_parts(weights.add(run.from), run.len) };
        scratch[before + run.to..before + run.to + run.len].copy_from_slice(from);
    }
    let own = scratch[before..before + sizes[peers.rank()]].to_vec();
    let mut into = split_ranges(scratch, sizes.iter().map(|len| 0..*len));
    let mut into: Vec<&mut [u8]> = into.iter_mut().map(|v| bytes_mut(v)).collect();
    peers.exchange(&vec![bytes(&own); sizes.len()], &mut into)?;
    let mut rest = &scratch[..];
    for (runs, size) in layout.received.iter().zip(&sizes) {
        let (message, others) = rest.split_at(*size);
        rest = others;
        for run in runs {
            let from = &message[run.from..run.from + run.len];
            // SAFETY: the caller's contract.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.add(run.to), run.len) };
        }
    }
    Ok(())
}

/// Splits `values` into consecutive ranges.
pub(super) fn split_ranges(
    mut values: &mut [f32],
    parts: impl Iterator<Item = Range<usize>>,
) -> Vec<&mut [f32]> {
    let mut out = vec![];
    for part in parts {
        let (first, rest) = values.split_at_mut(part.len());
        out.push(first);
        values = rest;
    }
    out
}

/// Splits `values` into `parts` slices of `len` floats.
pub(super) fn split_evenly(values: &mut [f32], len: usize, parts: usize) -> Vec<&mut [f32]> {
    split_ranges(values, (0..parts).map(|i| i * len..(i + 1) * len))
}

/// Types without padding bytes for which every bit pattern is valid.
pub(super) trait Plain: Copy {}
impl Plain for f32 {}
impl Plain for u64 {}

pub(super) fn bytes<T: Plain>(values: &[T]) -> &[u8] {
    // SAFETY: plain numbers have no padding, and bytes need no alignment.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

pub(super) fn bytes_mut<T: Plain>(values: &mut [T]) -> &mut [u8] {
    // SAFETY: as above; every bit pattern is a valid number.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values)) }
}

pub(super) fn floats(words: &[u64]) -> &[f32] {
    // SAFETY: a word holds two floats, which need less alignment, and every bit pattern is a float.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), words.len() * 2) }
}

pub(super) fn floats_mut(words: &mut [u64]) -> &mut [f32] {
    // SAFETY: as above.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), words.len() * 2) }
}

pub(super) fn doubles(words: &[u64]) -> &[f64] {
    // SAFETY: as above, word by word.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), words.len()) }
}

pub(super) fn doubles_mut(words: &mut [u64]) -> &mut [f64] {
    // SAFETY: as above.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), words.len()) }
}
