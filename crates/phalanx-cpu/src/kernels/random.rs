//! Dropout and random numbers. Both are pure functions of (seed, step, global row, key, element): no state is
//! stored, and the number of workers does not matter.

use phalanx_graph::rng::{Draw, unit};

use crate::simd::{Isa, Kernel, Simd, dispatch};

/// Philox blocks computed in parallel; the compiler turns each round into vector instructions.
const BLOCKS: usize = 16;

/// Random words computed at once.
const WORDS: usize = 4 * BLOCKS;

/// Fills rows of `len` numbers in `[0, 1)`. The first is row `first_row` of the global batch.
pub fn uniform(draw: &Draw, first_row: usize, len: usize, y: &mut [f32]) {
    for (r, row) in y.chunks_exact_mut(len.max(1)).enumerate() {
        for (block, four) in row.chunks_mut(4).enumerate() {
            let words = draw.words((first_row + r) as u32, block as u32);
            four.iter_mut().zip(words).for_each(|(y, word)| *y = unit(word));
        }
    }
}

/// The parameters of dropout.
#[derive(Clone, Copy, Debug)]
pub struct Dropout<'a> {
    /// The random stream.
    pub draw: Draw,
    /// The fraction of elements set to zero.
    pub rate: f32,
    /// Dimensions of a row.
    pub dims: &'a [usize],
    /// Dimensions of a row's mask: as `dims`, or 1 along axes that share it.
    pub noise: &'a [usize],
}

/// Zeroes elements of `rows` rows and scales the others by `1 / (1 - rate)`. The first is row `first_row` of the
/// global batch.
///
/// # Safety
/// `x` and `y` are valid for `rows` rows; they may be the same, otherwise they do not overlap.
pub unsafe fn dropout(
    isa: Isa,
    d: &Dropout<'_>,
    first_row: usize,
    rows: usize,
    x: *const f32,
    y: *mut f32,
) {
    let len: usize = d.dims.iter().product();
    if d.rate <= 0.0 {
        // SAFETY: the caller's contract; `copy` allows both to be the same.
        return unsafe { std::ptr::copy(x, y, rows * len) };
    }
    let mask = Mask {
        draw: d.draw,
        // Comparing the upper 24 bits of a word is equivalent to comparing the fraction with the rate.
        threshold: (f64::from(d.rate) * f64::from(1 << 24)).ceil() as u32,
        scale: (1.0 / (1.0 - f64::from(d.rate))) as f32,
    };
    // Measured: Philox as compiled for AVX2 is 1.5 times as fast as for AVX-512.
    let isa = isa.without_avx512();
    for r in 0..rows {
        let row = (first_row + r) as u32;
        let mut walk = Walk { isa, mask, row, x, y, at: r * len };
        // SAFETY: the row exists.
        unsafe { walk.axes(d.dims, d.noise, 0) };
    }
}

/// The threshold of words that retain their element, and the scale of retained elements.
#[derive(Clone, Copy)]
struct Mask {
    draw: Draw,
    threshold: u32,
    scale: f32,
}

/// An iteration over a row in order; `at` is the next element.
struct Walk {
    isa: Isa,
    mask: Mask,
    row: u32,
    x: *const f32,
    y: *mut f32,
    at: usize,
}

impl Walk {
    /// Processes all elements whose leading axes map to `element` of the mask.
    unsafe fn axes(&mut self, dims: &[usize], noise: &[usize], element: usize) {
        let len: usize = dims.iter().product();
        // SAFETY: the walk covers each element of the row once.
        unsafe {
            if dims == noise {
                self.apply(element * len, len, false);
            } else if noise.iter().all(|n| *n == 1) {
                self.apply(element, len, true);
            } else {
                for i in 0..dims[0] {
                    let next = element * noise[0] + if noise[0] == 1 { 0 } else { i };
                    self.axes(&dims[1..], &noise[1..], next);
                }
            }
        }
    }

    /// Processes the next `len` elements, with the words from `word` on or, if `shared`, all with that word.
    unsafe fn apply(&mut self, word: usize, len: usize, shared: bool) {
        // SAFETY: the elements exist.
        unsafe {
            let (x, y) = (self.x.add(self.at), self.y.add(self.at));
            let (mask, row) = (self.mask, self.row);
            dispatch(self.isa, Apply { mask, row, word, len, shared, x, y });
        }
        self.at += len;
    }
}

/// Dropout of `len` elements.
struct Apply {
    mask: Mask,
    row: u32,
    word: usize,
    len: usize,
    shared: bool,
    x: *const f32,
    y: *mut f32,
}

impl Kernel for Apply {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Apply { mask, row, word, len, shared, x, y } = self;
        let (mut at, mut block, mut skip) = (0, (word / 4) as u32, word % 4);
        let mut words = [0; WORDS];
        if shared {
            words = [mask.draw.words(row, block)[skip]; WORDS];
        }
        while at < len {
            if !shared {
                words = draw_words(&mask.draw, row, block);
            }
            let n = (WORDS - skip).min(len - at);
            // SAFETY: `n` elements are left, and the words from `skip` on are enough for them.
            unsafe {
                let (x, y) = (x.add(at), y.add(at));
                if n == WORDS {
                    // Through an array, so that the compiler need not assume that `x` and `y` overlap.
                    let values =
                        apply_mask(x.cast::<[f32; WORDS]>().read_unaligned(), &words, &mask);
                    y.cast::<[f32; WORDS]>().write_unaligned(values);
                } else {
                    for i in 0..n {
                        *y.add(i) = apply_mask([*x.add(i)], &[words[skip + i]], &mask)[0];
                    }
                }
            }
            at += n;
            block = block.wrapping_add(BLOCKS as u32);
            skip = 0;
        }
    }
}

/// Scales the elements that the words retain and zeroes the others.
#[inline(always)]
fn apply_mask<const N: usize>(mut x: [f32; N], words: &[u32; N], mask: &Mask) -> [f32; N] {
    for i in 0..N {
        x[i] = if words[i] >> 8 >= mask.threshold { x[i] * mask.scale } else { 0.0 };
    }
    x
}

/// The words of `BLOCKS` blocks from `block` on, equal to [`Draw::words`] of each.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // Four arrays in lockstep.
fn draw_words(draw: &Draw, row: u32, block: u32) -> [u32; WORDS] {
    const LOW: u64 = 0xffff_ffff;
    // Words are stored in the low halves of 64-bit lanes, so that products need no unpacking. The next
    // product ignores the high halves.
    let high = (draw.seed >> 32) as u32 ^ (draw.step >> 32) as u32;
    let mut k = [draw.seed as u32, high];
    let (row, stream) = (u64::from(row), u64::from(draw.stream));
    let mut c = [[0; BLOCKS], [row; BLOCKS], [draw.step; BLOCKS], [stream; BLOCKS]];
    for (i, c) in c[0].iter_mut().enumerate() {
        *c = u64::from(block.wrapping_add(i as u32));
    }
    for _ in 0..10 {
        for i in 0..BLOCKS {
            let p0 = (c[0][i] & LOW) * 0xD251_1F53;
            let p1 = (c[2][i] & LOW) * 0xCD9E_8D57;
            c[0][i] = (p1 >> 32) ^ c[1][i] ^ u64::from(k[0]);
            c[1][i] = p1;
            c[2][i] = (p0 >> 32) ^ c[3][i] ^ u64::from(k[1]);
            c[3][i] = p0;
        }
        k = [k[0].wrapping_add(0x9E37_79B9), k[1].wrapping_add(0xBB67_AE85)];
    }
    let mut words = [0; WORDS];
    for i in 0..BLOCKS {
        // Two words per lane, so that lanes are combined instead of split.
        let pair = [c[0][i] & LOW | c[1][i] << 32, c[2][i] & LOW | c[3][i] << 32];
        for (k, pair) in pair.iter().enumerate() {
            words[4 * i + 2 * k] = *pair as u32;
            words[4 * i + 2 * k + 1] = (*pair >> 32) as u32;
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::math::testing::{close, numbers};
    use phalanx_graph::rng::unit;

    #[test]
    fn masks_follow_the_draw() {
        let draw = Draw { seed: 0x1234_5678_9abc_def0, step: 0x1_0000_0007, stream: 5 };
        for isa in Isa::available() {
            for (dims, noise) in [
                (vec![203], vec![203]),
                (vec![4, 5, 33], vec![4, 5, 33]),
                (vec![4, 5, 33], vec![1, 1, 33]),
                (vec![4, 5, 7], vec![4, 1, 1]),
                (vec![4, 5, 7], vec![1, 5, 1]),
                (vec![4, 5, 7], vec![4, 1, 7]),
                (vec![3], vec![1]),
                (vec![], vec![]),
            ] {
                for rate in [0.0, 0.25, 0.3, 0.999, 1.0] {
                    check(isa, &Dropout { draw, rate, dims: &dims, noise: &noise });
                }
            }
        }
    }

    fn check(isa: Isa, d: &Dropout<'_>) {
        let (rows, first) = (3, 1000);
        let len: usize = d.dims.iter().product();
        let x = numbers(rows * len, 1);
        let want: Vec<f64> = (0..x.len())
            .map(|i| {
                let (mut rest, mut e, mut scale) = (i % len, 0, 1);
                for a in (0..d.dims.len()).rev() {
                    e += if d.noise[a] == 1 { 0 } else { rest % d.dims[a] * scale };
                    scale *= d.noise[a];
                    rest /= d.dims[a];
                }
                let word = d.draw.words((first + i / len) as u32, (e / 4) as u32)[e % 4];
                let kept = unit(word) >= d.rate;
                if kept { f64::from(x[i]) / (1.0 - f64::from(d.rate)) } else { 0.0 }
            })
            .collect();
        let mut y = vec![9.0; x.len()];
        // SAFETY: both hold three rows.
        unsafe { dropout(isa, d, first, rows, x.as_ptr(), y.as_mut_ptr()) };
        close(isa, &format!("{d:?}"), &y, &want, 1e-6);
        y.copy_from_slice(&x);
        // The same in place and row by row, as with several workers.
        for r in 0..rows {
            let p = y[r * len..].as_mut_ptr();
            // SAFETY: one row, in place.
            unsafe { dropout(isa, d, first + r, 1, p, p) };
        }
        close(isa, "in place", &y, &want, 1e-6);
    }

    #[test]
    fn words_are_those_of_the_draw() {
        let draw = Draw { seed: u64::MAX - 3, step: 77, stream: 9 };
        for block in [0, 12, u32::MAX - 4] {
            let words = draw_words(&draw, 31, block);
            for (i, four) in words.chunks(4).enumerate() {
                assert_eq!(four, draw.words(31, block.wrapping_add(i as u32)));
            }
        }
    }
}
