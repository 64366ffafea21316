//! A fingerprint of data, to see that workers have the same. Fast, and no protection against malice.

use super::Samples;
use phalanx_graph::{Data, Tensor};

/// FNV-1a over words.
#[derive(Clone, Copy, Debug)]
pub struct Digest(u64);

impl Default for Digest {
    fn default() -> Digest {
        Digest(0xcbf2_9ce4_8422_2325)
    }
}

impl Digest {
    /// Adds a number.
    pub fn word(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x0100_0000_01b3);
        // High bits must reach the low ones, or they would never be mixed.
        self.0 ^= self.0 >> 32;
    }

    /// Adds bytes and their number.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.word(bytes.len() as u64);
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|w| self.word(u64::from_le_bytes(*w)));
        rest.iter().for_each(|b| self.word(u64::from(*b)));
    }

    /// Adds floats by their bits.
    pub fn floats(&mut self, values: &[f32]) {
        self.word(values.len() as u64);
        values.iter().for_each(|v| self.word(u64::from(v.to_bits())));
    }

    /// Adds a tensor.
    pub fn tensor(&mut self, tensor: &Tensor) {
        tensor.dims().iter().for_each(|d| self.word(*d as u64));
        match tensor.data() {
            Data::F32(values) => self.floats(values),
            Data::I32(values) => values.iter().for_each(|v| self.word(*v as u32 as u64)),
        }
    }

    /// Adds samples.
    pub fn samples(&mut self, samples: &Samples) {
        match samples {
            Samples::Tensor(tensor) => self.tensor(tensor),
            Samples::Pixels(pixels) => {
                samples.dims().iter().for_each(|d| self.word(*d as u64));
                self.word(u64::from(pixels.divisor().to_bits()));
                self.bytes(pixels.bytes());
            }
        }
    }

    /// The fingerprint.
    pub fn end(self) -> u64 {
        self.0
    }
}
