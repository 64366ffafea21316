//! Mutations that imitate damage and attacks.

use phalanx::Stream;

/// Bytes that are critical for parsers: limits of numbers, brackets, quotes.
const BYTES: [u8; 16] = *b"\0\x01\x7f\x80\xff{}[]\",:-9e\n";
/// Numbers at their limits.
const NUMBERS: [u64; 10] = [
    0,
    1,
    0x7f,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    0x1_0000_0000,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    u64::MAX,
];

/// Mutates a file in one to four positions.
pub fn mutated(seed: &[u8], number: u64) -> Vec<u8> {
    let mut rng = Stream::new(0x0f22, number, 0, 0);
    let mut bytes = seed.to_vec();
    for _ in 0..=rng.below(4) {
        damage(&mut bytes, &mut rng);
    }
    bytes
}

fn damage(bytes: &mut Vec<u8>, rng: &mut Stream) {
    if bytes.is_empty() {
        bytes.push(rng.word() as u8);
        return;
    }
    // Half of the mutations hit the header, which holds the critical numbers.
    let reach = if rng.below(2) == 0 { bytes.len().min(256) } else { bytes.len() };
    let at = rng.below(reach as u64) as usize;
    let length = 1 + rng.below(16) as usize;
    let end = (at + length).min(bytes.len());
    match rng.below(8) {
        0 => bytes[at] ^= 1 << rng.below(8),
        1 => bytes[at] = BYTES[rng.below(BYTES.len() as u64) as usize],
        2 => bytes.truncate(at),
        3 => drop(bytes.drain(at..end)),
        4 => {
            let copy = bytes[at..end].to_vec();
            let times = 1 + rng.below(8);
            (0..times).for_each(|_| drop(bytes.splice(at..at, copy.iter().copied())));
        }
        5 => number(&mut bytes[at..], rng),
        6 => {
            let value = BYTES[rng.below(BYTES.len() as u64) as usize];
            drop(bytes.splice(at..at, [value]));
        }
        _ => bytes.extend((0..length).map(|_| rng.word() as u8)),
    }
}

/// Writes a number at its limit, in either byte order and in various widths.
fn number(to: &mut [u8], rng: &mut Stream) {
    let value = NUMBERS[rng.below(NUMBERS.len() as u64) as usize];
    let width = to.len().min([1, 2, 4, 8][rng.below(4) as usize]);
    let little = value.to_le_bytes();
    for (i, byte) in to[..width].iter_mut().enumerate() {
        *byte = little[i];
    }
    if rng.below(2) == 0 {
        to[..width].reverse();
    }
}
