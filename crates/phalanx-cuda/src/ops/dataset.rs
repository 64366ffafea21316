//! Samples of a dataset that stays in device memory, picked by number.

use crate::launch::{Arg, Elem, Launch, Ptr};

/// Elements of a row that a thread has, where there are many.
const EACH: usize = 4;

/// Most blocks that share a row.
const PARTS: usize = 64;

/// What a dataset's elements are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    /// Whole numbers from 0 to 255.
    Bytes,
    Floats,
}

/// A dataset of images, `[count, height, width, channels]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Dataset {
    pub at: Ptr,
    pub stored: Stored,
    pub count: usize,
    pub size: [usize; 3],
}

/// How one image is moved, as the kernel has it: what `ImageDataGenerator` does with shifts and
/// flips and `fill_mode` "nearest".
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Motion {
    right: i32,
    down: i32,
    right_share: f32,
    down_share: f32,
    flips: i32,
}

impl Motion {
    /// Shifts in pixels, as the image is sampled: `[right, down]`.
    pub fn new(shift: [f64; 2], flip_horizontal: bool, flip_vertical: bool) -> Motion {
        // Far away is far enough, and leaves room to add.
        let whole = shift.map(|s| s.floor().clamp(-1e9, 1e9));
        let [right, down] = whole.map(|s| s as i32);
        let share = |axis: usize| (shift[axis] - shift[axis].floor()) as f32;
        let flips = i32::from(flip_horizontal) + 2 * i32::from(flip_vertical);
        Motion { right, down, right_share: share(0), down_share: share(1), flips }
    }
}

/// `to[r] = scale * data[index[r]]` for so many rows, each moved where `motions` are given.
pub(crate) fn gather_rows(
    data: &Dataset,
    (index, motions): (Ptr, Option<Ptr>),
    scale: f32,
    rows: usize,
    (to, elem): (Ptr, Elem),
) -> Vec<Launch> {
    let len: usize = data.size.iter().product();
    if rows * len == 0 {
        return vec![];
    }
    let from = match data.stored {
        Stored::Bytes => "u8",
        Stored::Floats => "float",
    };
    let kernel = format!("gather_rows<{from}, {}, {}>", elem.c_name(), motions.is_some());
    let parts = len.div_ceil(256 * EACH).min(PARTS);
    let launch = Launch::blocks("dataset", kernel, rows * parts, 256)
        .arg(data.at)
        .arg(data.count)
        .arg(index)
        .arg(Arg::from(motions))
        .arg(scale)
        .arg(to);
    let [h, w, c] = data.size;
    vec![launch.arg(h).arg(w).arg(c).arg(parts)]
}

#[cfg(all(test, feature = "emulator"))]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::ops::lab::{Lab, SEEDS, close, numbers};

    const SIZE: [usize; 3] = [5, 4, 3];
    const COUNT: usize = 6;

    /// A shift and whether it is followed by flips.
    type Move = ([f64; 2], [bool; 2]);

    const MOVES: [Move; 7] = [
        ([0.0, 0.0], [false, false]),
        ([1.0, -2.0], [false, false]),
        ([0.3, -1.6], [false, false]),
        ([-0.25, 0.5], [true, false]),
        ([0.0, 0.0], [true, true]),
        ([100.5, -100.5], [false, true]),
        ([1e300, -1e300], [false, false]),
    ];
    const INDEX: [i32; 7] = [3, 0, 5, 5, 1, 2, -1];

    /// Element by element, as `scipy.ndimage.affine_transform` has it with `mode="nearest"`.
    fn moved(image: &[f32], (shift, flips): Move) -> Vec<f64> {
        let [h, w, c] = SIZE;
        let tap = |at: usize, n: usize, flip: bool, shift: f64| {
            let at = if flip { n - 1 - at } else { at } as f64 + shift;
            let at = at.clamp(0.0, n as f64 - 1.0);
            (at as usize, (at as usize + 1).min(n - 1), at - at.floor())
        };
        let mut all = vec![];
        for e in 0..h * w * c {
            let (top, bottom, down) = tap(e / c / w, h, flips[1], shift[1]);
            let (left, right, along) = tap(e / c % w, w, flips[0], shift[0]);
            let at = |y: usize, x: usize| f64::from(image[(y * w + x) * c + e % c]);
            let line = |y: usize| at(y, left) * (1.0 - along) + at(y, right) * along;
            all.push(line(top) * (1.0 - down) + line(bottom) * down);
        }
        all
    }

    fn check(seed: Option<u64>, stored: Stored, moves: bool) {
        let (rows, len) = (INDEX.len(), SIZE.iter().product::<usize>());
        let Some(mut lab) = Lab::new(seed, rows) else { return };
        let pixels: Vec<f32> =
            numbers(COUNT * len, 1).iter().map(|v| ((v + 1.0) * 127.0).round()).collect();
        let data = lab.whole(&[COUNT * len], &pixels);
        let index = lab.whole(&[rows], &vec![0.0; rows]);
        let table = lab.whole(&[rows * 5], &vec![0.0; rows * 5]);
        let y = lab.rows(&SIZE, 0, &vec![9.0; rows * len]);
        if stored == Stored::Bytes {
            let bytes: Vec<u8> = pixels.iter().map(|v| *v as u8).collect();
            lab.gpu.write(lab.at(data), &bytes).expect("fits");
        }
        let numbers: Vec<u8> = INDEX.iter().flat_map(|i| i.to_le_bytes()).collect();
        lab.gpu.write(lab.at(index), &numbers).expect("fits");
        let words = |m: Motion| {
            let shares = [m.right_share, m.down_share].map(f32::to_bits).map(u32::cast_signed);
            [m.right, m.down, shares[0], shares[1], m.flips]
        };
        let motions: Vec<u8> = MOVES
            .iter()
            .flat_map(|(shift, [x, y])| words(Motion::new(*shift, *x, *y)))
            .flat_map(i32::to_le_bytes)
            .collect();
        lab.gpu.write(lab.at(table), &motions).expect("fits");
        let dataset = Dataset { at: lab.at(data), stored, count: COUNT, size: SIZE };
        let operands = (lab.at(index), moves.then(|| lab.at(table)));
        let to = (lab.at(y), Elem::F32);
        lab.run(|_, _| gather_rows(&dataset, operands, 0.5, rows, to));
        let mut want = vec![];
        for (i, motion) in INDEX.iter().zip(MOVES) {
            let Ok(i) = usize::try_from(*i) else {
                want.extend(vec![0.0; len]);
                continue;
            };
            let motion = if moves { motion } else { MOVES[0] };
            want.extend(moved(&pixels[i * len..][..len], motion).iter().map(|v| v * 0.5));
        }
        close(&format!("{stored:?} moved {moves}"), &lab.get(y), &want, 1e-6);
    }

    #[test]
    fn rows_are_picked_scaled_and_moved() {
        for seed in SEEDS {
            for stored in [Stored::Bytes, Stored::Floats] {
                check(seed, stored, false);
                check(seed, stored, true);
            }
        }
    }
}
