//! Conversion of convolutions' filters between the layout of the weights and that of the vendor's library.

use super::THREADS;
use crate::launch::{Elem, Launch, Ptr, Word};

/// Side of a tile of a transposed matrix, as `SIDE` of the kernels.
const SIDE: usize = 64;

/// A convolution's filters in both layouts: `[k][f]` of the weights, `[f][k]` of the vendor's
/// library.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Filters {
    /// `height * width * channels / groups`
    pub k: usize,
    pub f: usize,
    /// The weights or their gradient.
    pub weights: Ptr,
    pub packed: Ptr,
}

/// All convolutions' weights as `[f][k]` of another type, in one launch.
pub(crate) fn pack_filters(filters: &[Filters], elem: Elem) -> Vec<Launch> {
    let kernel = format!("transpose_many<float, {}>", elem.c_name());
    transpose_many(kernel, filters.iter().map(|w| (w.weights, w.packed, w.k, w.f)))
}

/// All convolutions' gradients converted back to the layout of the weights, in one launch.
pub(crate) fn unpack_gradients(filters: &[Filters], elem: Elem) -> Vec<Launch> {
    let kernel = format!("transpose_many<{}, float>", elem.c_name());
    transpose_many(kernel, filters.iter().map(|w| (w.packed, w.weights, w.f, w.k)))
}

fn transpose_many(
    kernel: String,
    matrices: impl Iterator<Item = (Ptr, Ptr, usize, usize)>,
) -> Vec<Launch> {
    let mut table: Vec<Word> = vec![];
    for (from, to, rows, columns) in matrices {
        for top in (0..rows).step_by(SIDE) {
            for left in (0..columns).step_by(SIDE) {
                table.extend([Word::Ptr(from), Word::Ptr(to)]);
                table.extend([rows, columns, top, left].map(Word::from));
            }
        }
    }
    if table.is_empty() {
        return vec![];
    }
    vec![Launch::blocks("update", kernel, table.len() / 6, THREADS as u32).arg(table)]
}

#[cfg(all(test, feature = "emulator"))]
mod tests {
    use super::*;
    use crate::launch::Block;
    use crate::ops::harness::{Harness, SEEDS, close, numbers};

    #[phalanx_testing::needs(gxx)]
    #[test]
    fn filters_survive_packing_and_unpacking() {
        for seed in SEEDS {
            let mut harness = Harness::new(seed, 1);
            let shapes = [(27, 96), (130, 65), (1, 1)];
            let filters: Vec<Filters> = shapes
                .iter()
                .enumerate()
                .map(|(i, (k, f))| {
                    let weights = Ptr::new(0, Block::Params, i << 16);
                    harness.write(weights, &numbers(k * f, i as u64));
                    Filters { k: *k, f: *f, weights, packed: Ptr::new(0, Block::Slot(0), i << 16) }
                })
                .collect();
            harness.run(|_, _| pack_filters(&filters, Elem::F32));
            for (i, w) in filters.iter().enumerate() {
                let (from, got) = (numbers(w.k * w.f, i as u64), harness.read(w.packed, w.k * w.f));
                let turned = |e: usize| f64::from(from[e % w.k * w.f + e / w.k]);
                close("packed", &got, &(0..w.k * w.f).map(turned).collect::<Vec<_>>(), 0.0);
                harness.write(w.weights, &vec![0.0; w.k * w.f]);
            }
            harness.run(|_, _| unpack_gradients(&filters, Elem::F32));
            for (i, w) in filters.iter().enumerate() {
                assert_eq!(harness.read(w.weights, w.k * w.f), numbers(w.k * w.f, i as u64));
            }
        }
    }
}
