//! Fingerprints of data, used to detect that workers or a resumed run see different data. They are fast
//! (well under a second per gigabyte) and not cryptographic.

use super::Samples;
use phalanx_graph::{Data, Tensor};
use std::ops::Range;

/// Version prefix of stored fingerprints. Must change whenever the input of the fingerprint changes.
const SCHEME: u32 = 1;

/// Words mixed in parallel; a single chain would be latency-bound.
const LANES: usize = 4;

/// Formats a fingerprint for storage and display; `None` if there is none.
pub(crate) fn format_digest(digest: u64) -> Option<String> {
    (digest != 0).then(|| format!("{SCHEME}-{digest:016x}"))
}

/// Whether two formatted fingerprints have the same version, so that different values mean different
/// data.
pub(crate) fn same_scheme(one: &str, other: &str) -> bool {
    let scheme = |text: &str| text.split('-').next().map(str::to_string);
    scheme(one) == scheme(other)
}

fn mix(state: u64, word: u64) -> u64 {
    let mixed = (state ^ word).wrapping_mul(0x0100_0000_01b3);
    // Without this shift, high bits would never influence low ones.
    mixed ^ (mixed >> 32)
}

/// FNV-1a over 64-bit words.
#[derive(Clone, Copy, Debug)]
pub struct Digest(u64);

impl Default for Digest {
    fn default() -> Digest {
        Digest(0xcbf2_9ce4_8422_2325)
    }
}

impl Digest {
    /// Adds a word.
    pub fn word(&mut self, word: u64) {
        self.0 = mix(self.0, word);
    }

    /// Adds bytes, preceded by their length.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.word(bytes.len() as u64);
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|w| self.word(u64::from_le_bytes(*w)));
        rest.iter().for_each(|b| self.word(u64::from(*b)));
    }

    /// Adds the bits of floats.
    pub fn floats(&mut self, values: &[f32]) {
        self.words32(values, |v| v.to_bits());
    }

    /// Adds a tensor.
    pub fn tensor(&mut self, tensor: &Tensor) {
        self.rows_of_tensor(tensor, 0..tensor.rows());
    }

    /// Adds samples.
    pub fn samples(&mut self, samples: &Samples) {
        self.rows(samples, 0..samples.rows());
    }

    /// Adds a range of samples.
    pub(super) fn rows(&mut self, samples: &Samples, rows: Range<usize>) {
        match samples {
            Samples::Tensor(tensor) => self.rows_of_tensor(tensor, rows),
            Samples::Pixels(pixels) => {
                let width = samples.row_len();
                samples.dims().iter().skip(1).for_each(|d| self.word(*d as u64));
                self.word(u64::from(pixels.divisor().to_bits()));
                let (bytes, offset) = pixels.shared();
                offset.iter().for_each(|offset| self.floats(offset));
                self.bytes(&bytes[rows.start * width..rows.end * width]);
            }
            Samples::Text(text) => {
                samples.dims().iter().skip(1).for_each(|d| self.word(*d as u64));
                text.slice_rows(rows).iter().for_each(|string| self.bytes(string.as_bytes()));
            }
            Samples::External(external) => {
                rows.for_each(|row| self.tensor(&external.copy_rows(row, 1)));
            }
        }
    }

    /// Adds a range of rows of a tensor.
    pub(super) fn rows_of_tensor(&mut self, tensor: &Tensor, rows: Range<usize>) {
        tensor.dims().iter().skip(1).for_each(|d| self.word(*d as u64));
        let width = tensor.row_len();
        let part = rows.start * width..rows.end * width;
        match tensor.data() {
            Data::F32(values) => self.floats(&values[part]),
            Data::I32(values) => {
                self.word(u64::MAX);
                self.words32(&values[part], |v| v as u32);
            }
        }
    }

    /// Adds 32-bit numbers, preceded by their count.
    fn words32<T: Copy>(&mut self, values: &[T], bits: impl Fn(T) -> u32) {
        self.word(values.len() as u64);
        let (blocks, rest) = values.as_chunks::<{ 2 * LANES }>();
        let mut lanes: [u64; LANES] = std::array::from_fn(|lane| mix(self.0, lane as u64));
        for block in blocks {
            for (lane, pair) in lanes.iter_mut().zip(block.as_chunks::<2>().0) {
                let [low, high] = pair.map(|v| u64::from(bits(v)));
                *lane = mix(*lane, low | high << 32);
            }
        }
        lanes.iter().for_each(|lane| self.word(*lane));
        rest.iter().for_each(|v| self.word(u64::from(bits(*v))));
    }

    /// The fingerprint.
    pub fn end(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Pixels;

    fn digest(of: impl Fn(&mut Digest)) -> u64 {
        let mut digest = Digest::default();
        of(&mut digest);
        digest.end()
    }

    #[test]
    fn every_value_its_position_and_its_type_change_the_digest() {
        let numbers: Vec<f32> = (0..37).map(|i| i as f32).collect();
        let of = |values: &[f32]| digest(|d| d.floats(values));
        let whole = of(&numbers);
        for i in 0..numbers.len() {
            let mut other = numbers.clone();
            other[i] += 0.5;
            assert_ne!(of(&other), whole, "number {i}");
            other = numbers.clone();
            other.swap(i, (i + 8) % 37);
            assert_ne!(of(&other), whole, "number {i} elsewhere");
        }
        assert_ne!(of(&numbers[..36]), whole);
        let zeros = |d: &mut Digest| d.tensor(&Tensor::zeros([3, 2]));
        let whole_zeros = |d: &mut Digest| d.tensor(&Tensor::new([3, 2], vec![0i32; 6]).unwrap());
        assert_ne!(digest(zeros), digest(whole_zeros));
    }

    #[test]
    fn divisor_and_offset_of_pixels_change_the_digest() {
        let pixels = |divisor| Pixels::new([2, 2], vec![1, 2, 3, 4], divisor).unwrap();
        let of = |pixels: Pixels| digest(|d| d.samples(&pixels.clone().into()));
        let plain = of(pixels(1.0));
        assert_ne!(of(pixels(255.0)), plain);
        let mean = Tensor::new([2], vec![1.0, 0.0]).unwrap();
        let centred = Samples::from(pixels(1.0)).subtract(&mean).unwrap();
        assert_ne!(digest(|d| d.samples(&centred)), plain);
    }

    #[test]
    fn a_range_of_rows_has_the_digest_of_a_dataset_of_these_rows() {
        let numbers: Vec<f32> = (0..30).map(|i| i as f32).collect();
        let all = Tensor::new([10, 3], numbers.clone()).unwrap();
        let some = Tensor::new([4, 3], numbers[6..18].to_vec()).unwrap();
        assert_eq!(digest(|d| d.rows_of_tensor(&all, 2..6)), digest(|d| d.tensor(&some)));
    }
}
