//! Counter-based random numbers (Philox4x32-10).
//!
//! Each number is a pure function of a key and a counter. Dropout, shuffling and augmentation therefore
//! give the same results for any number of replicas, threads and workers, and resuming a run needs only
//! the counters.

/// The four random words of a key and a counter.
pub fn philox(key: [u32; 2], counter: [u32; 4]) -> [u32; 4] {
    let (mut k, mut c) = (key, counter);
    for _ in 0..10 {
        let p0 = u64::from(c[0]) * 0xD251_1F53;
        let p1 = u64::from(c[2]) * 0xCD9E_8D57;
        c = [
            (p1 >> 32) as u32 ^ c[1] ^ k[0],
            p1 as u32,
            (p0 >> 32) as u32 ^ c[3] ^ k[1],
            p0 as u32,
        ];
        k = [k[0].wrapping_add(0x9E37_79B9), k[1].wrapping_add(0xBB67_AE85)];
    }
    c
}

/// The position of a random draw in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draw {
    /// The run's seed.
    pub seed: u64,
    /// The training step.
    pub step: u64,
    /// The stream: one per layer or purpose.
    pub stream: u32,
}

impl Draw {
    /// Words `4 * block..4 * block + 4` for a sample of the global batch.
    pub fn words(&self, row: u32, block: u32) -> [u32; 4] {
        let key = [self.seed as u32, (self.seed >> 32) as u32 ^ (self.step >> 32) as u32];
        philox(key, [block, row, self.step as u32, self.stream])
    }
}

/// Converts a word to a number in `[0, 1)`.
pub fn unit(word: u32) -> f32 {
    (word >> 8) as f32 * (1.0 / (1 << 24) as f32)
}

/// An endless stream of words for host-side use: initial weights, shuffling, generated data.
#[derive(Clone, Debug)]
pub struct Stream {
    draw: Draw,
    row: u32,
    next: u64,
    block: [u32; 4],
}

impl Stream {
    /// The stream for one purpose.
    pub fn new(seed: u64, step: u64, stream: u32, row: u32) -> Stream {
        Stream { draw: Draw { seed, step, stream }, row, next: 0, block: [0; 4] }
    }

    /// The next word.
    pub fn word(&mut self) -> u32 {
        let lane = (self.next % 4) as usize;
        if lane == 0 {
            self.block = self.draw.words(self.row, (self.next / 4) as u32);
        }
        self.next += 1;
        self.block[lane]
    }

    /// The next number in `[0, 1)`, with 53 random bits.
    pub fn unit(&mut self) -> f64 {
        let bits = u64::from(self.word()) << 32 | u64::from(self.word());
        (bits >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// The next sample of the standard normal distribution (Box-Muller).
    pub fn normal(&mut self) -> f64 {
        let (u, v) = (1.0 - self.unit(), self.unit());
        (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
    }

    /// An integer below `n`, uniform to within 2⁻³².
    pub fn below(&mut self, n: u64) -> u64 {
        let bits = u64::from(self.word()) << 32 | u64::from(self.word());
        ((u128::from(bits) * u128::from(n)) >> 64) as u64
    }
}

/// A permutation of `0..n` that depends only on the seed, the epoch and the stream.
pub fn permutation(n: usize, seed: u64, epoch: u64, stream: u32) -> Vec<u32> {
    let mut order: Vec<u32> = (0..n as u32).collect();
    let mut rng = Stream::new(seed, epoch, stream, 0);
    for i in (1..n).rev() {
        order.swap(i, rng.below(i as u64 + 1) as usize);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    // Known answers from the Random123 distribution.
    #[test]
    fn philox_known_answers() {
        assert_eq!(philox([0; 2], [0; 4]), [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]);
        let ones = u32::MAX;
        assert_eq!(philox([ones; 2], [ones; 4]), [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]);
    }

    #[test]
    fn permutation_has_every_index_once() {
        let mut p = permutation(1000, 7, 3, 1);
        assert_ne!(p, permutation(1000, 7, 4, 1));
        p.sort_unstable();
        assert!(p.iter().copied().eq(0..1000));
    }

    #[test]
    fn normal_has_mean_zero_and_variance_one() {
        let mut s = Stream::new(1, 0, 0, 0);
        let v: Vec<f64> = (0..20_000).map(|_| s.normal()).collect();
        let mean = v.iter().sum::<f64>() / v.len() as f64;
        let var = v.iter().map(|x| x * x).sum::<f64>() / v.len() as f64;
        assert!(mean.abs() < 0.03 && (var - 1.0).abs() < 0.03, "{mean} {var}");
    }
}
