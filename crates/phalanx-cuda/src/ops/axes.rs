//! Nested loops over elements as template arguments of kernels, and the number of elements that a
//! thread moves at once.

use crate::launch::{Elem, Ptr};

/// The address and type of elements.
pub(crate) type TypedPtr = (Ptr, Elem);

/// Maximum bytes per load or store of a thread.
const MAX_ACCESS_BYTES: usize = 16;

/// One loop of a copy: its count, and its strides in source and destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Loop {
    pub count: usize,
    pub src: usize,
    pub dst: usize,
}

/// Appends an inner loop. A loop that continues the last one contiguously is merged into it.
pub(crate) fn push(loops: &mut Vec<Loop>, count: usize, src: usize, dst: usize) {
    if count == 1 {
        return;
    }
    match loops.last_mut() {
        Some(outer) if outer.src == count * src && outer.dst == count * dst => {
            *outer = Loop { count: outer.count * count, src, dst };
        }
        _ => loops.push(Loop { count, src, dst }),
    }
}

/// Strides of every axis, and of the rows.
pub(crate) fn strides(dims: &[usize], ld: usize) -> (Vec<usize>, usize) {
    let mut strides = vec![1; dims.len()];
    let mut next = ld;
    for i in (0..dims.len().saturating_sub(1)).rev() {
        strides[i] = next;
        next *= dims[i];
    }
    (strides, next)
}

/// The integer type in which kernels divide numbers up to `n`.
pub(crate) fn index_type(n: usize) -> &'static str {
    if n < 1 << 31 { "u32" } else { "u64" }
}

/// Elements that can be loaded and stored at once: all addresses are aligned to them, and they
/// divide every size and stride.
pub(crate) fn pack_width(places: &[TypedPtr], sizes: &[usize]) -> usize {
    let fits = |w: &usize| {
        let aligned = |(ptr, elem): &TypedPtr| {
            w * elem.bytes() <= MAX_ACCESS_BYTES && ptr.offset.is_multiple_of(w * elem.bytes())
        };
        places.iter().all(aligned) && sizes.iter().all(|n| n.is_multiple_of(*w))
    };
    [8, 4, 2].into_iter().find(fits).unwrap_or(1)
}

/// The item types of a copy of `width` elements at once, on both sides: raw words if the types are
/// equal.
pub(crate) fn items(x: Elem, y: Elem, width: usize) -> String {
    if x == y {
        let word = match x.bytes() * width {
            2 => "u16",
            4 => "u32",
            8 => "u64",
            _ => "uint4",
        };
        return format!("{word}, {word}");
    }
    let name = |e: Elem| match width {
        1 => e.c_name().into(),
        _ => format!("Pack<{}, {width}>", e.c_name()),
    };
    format!("{}, {}", name(x), name(y))
}

/// Sizes as a template argument. Kernels ignore the outermost size, which often counts rows: it is
/// set to 1, so that one kernel serves all batches.
pub(crate) fn sizes(numbers: impl IntoIterator<Item = usize>) -> String {
    axes([1].into_iter().chain(numbers.into_iter().skip(1)))
}

/// Strides as a template argument.
pub(crate) fn axes(numbers: impl IntoIterator<Item = usize>) -> String {
    let list: Vec<String> = numbers.into_iter().map(|n| n.to_string()).collect();
    format!("Axes<{}>", list.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::Block;

    #[test]
    fn contiguous_loops_are_merged() {
        let mut loops = vec![];
        for (count, src, dst) in [(8, 60, 120), (1, 7, 7), (3, 20, 40), (4, 5, 10), (5, 1, 1)] {
            push(&mut loops, count, src, dst);
        }
        assert_eq!(loops, [Loop { count: 96, src: 5, dst: 10 }, Loop { count: 5, src: 1, dst: 1 }]);
    }

    #[test]
    fn packs_are_aligned() {
        let at = |offset, elem| (Ptr::new(0, Block::Arena, offset), elem);
        assert_eq!(pack_width(&[at(64, Elem::F32)], &[12]), 4);
        assert_eq!(pack_width(&[at(64, Elem::Bf16)], &[16]), 8);
        assert_eq!(pack_width(&[at(64, Elem::F32), at(64, Elem::Bf16)], &[16]), 4);
        assert_eq!(pack_width(&[at(8, Elem::F32)], &[12]), 2);
        assert_eq!(pack_width(&[at(4, Elem::F32)], &[12]), 1);
        assert_eq!(pack_width(&[at(64, Elem::F32)], &[12, 10]), 2);
        assert_eq!(pack_width(&[at(64, Elem::F32)], &[12, 7]), 1);
    }
}
