//! The hashes that TensorFlow puts values into buckets with: FarmHash's fingerprint, SipHash with a key, and the
//! combination of fingerprints for crossed features.

use serde::{Deserialize, Serialize};

const K0: u64 = 0xc3a5_c85c_97cb_3127;
const K1: u64 = 0xb492_b66f_be98_f273;
const K2: u64 = 0x9ae1_6a3b_2f90_404f;

/// The key of a strong hash: two numbers, or one for both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "OneOrTwo", into = "[i64; 2]")]
pub struct Salt([i64; 2]);

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a whole number or two of them")]
enum OneOrTwo {
    One(i64),
    Two([i64; 2]),
}

impl From<OneOrTwo> for Salt {
    fn from(salt: OneOrTwo) -> Salt {
        match salt {
            OneOrTwo::One(one) => Salt([one, one]),
            OneOrTwo::Two(two) => Salt(two),
        }
    }
}

impl From<Salt> for [i64; 2] {
    fn from(salt: Salt) -> [i64; 2] {
        salt.0
    }
}

impl From<i64> for Salt {
    fn from(salt: i64) -> Salt {
        Salt([salt, salt])
    }
}

impl From<[i64; 2]> for Salt {
    fn from(salt: [i64; 2]) -> Salt {
        Salt(salt)
    }
}

/// The bucket of a string, of `buckets`.
pub(super) fn bucket(bytes: &[u8], salt: Option<Salt>, buckets: u64) -> u64 {
    let hash = match salt {
        Some(Salt([a, b])) => sip_hash(bytes, [a as u64, b as u64]),
        None => fingerprint(bytes),
    };
    hash % buckets.max(1)
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

fn half_word(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 4].iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

fn shift_mix(value: u64) -> u64 {
    value ^ value >> 47
}

fn mix16(u: u64, v: u64, mul: u64) -> u64 {
    let a = shift_mix((u ^ v).wrapping_mul(mul));
    shift_mix((v ^ a).wrapping_mul(mul)).wrapping_mul(mul)
}

/// FarmHash's 64-bit fingerprint.
pub(super) fn fingerprint(s: &[u8]) -> u64 {
    match s.len() {
        0..=16 => up_to_16(s),
        17..=32 => up_to_32(s),
        33..=64 => up_to_64(s),
        _ => long(s),
    }
}

fn up_to_16(s: &[u8]) -> u64 {
    let len = s.len() as u64;
    let mul = K2.wrapping_add(len.wrapping_mul(2));
    match s.len() {
        8.. => {
            let a = word(s, 0).wrapping_add(K2);
            let b = word(s, s.len() - 8);
            let c = b.rotate_right(37).wrapping_mul(mul).wrapping_add(a);
            let d = a.rotate_right(25).wrapping_add(b).wrapping_mul(mul);
            mix16(c, d, mul)
        }
        4..8 => {
            let a = half_word(s, 0);
            mix16(len.wrapping_add(a << 3), half_word(s, s.len() - 4), mul)
        }
        1..4 => {
            let [a, b, c] = [s[0], s[s.len() / 2], s[s.len() - 1]].map(u64::from);
            let (y, z) = (a + (b << 8), len + (c << 2));
            shift_mix(y.wrapping_mul(K2) ^ z.wrapping_mul(K0)).wrapping_mul(K2)
        }
        0 => K2,
    }
}

fn up_to_32(s: &[u8]) -> u64 {
    let n = s.len();
    let mul = K2.wrapping_add((n as u64).wrapping_mul(2));
    let a = word(s, 0).wrapping_mul(K1);
    let b = word(s, 8);
    let c = word(s, n - 8).wrapping_mul(mul);
    let d = word(s, n - 16).wrapping_mul(K2);
    let u = a.wrapping_add(b).rotate_right(43).wrapping_add(c.rotate_right(30)).wrapping_add(d);
    let v = a.wrapping_add(b.wrapping_add(K2).rotate_right(18)).wrapping_add(c);
    mix16(u, v, mul)
}

fn up_to_64(s: &[u8]) -> u64 {
    let n = s.len();
    let mul = K2.wrapping_add((n as u64).wrapping_mul(2));
    let a = word(s, 0).wrapping_mul(K2);
    let b = word(s, 8);
    let c = word(s, n - 8).wrapping_mul(mul);
    let d = word(s, n - 16).wrapping_mul(K2);
    let y = a.wrapping_add(b).rotate_right(43).wrapping_add(c.rotate_right(30)).wrapping_add(d);
    let z = mix16(y, a.wrapping_add(b.wrapping_add(K2).rotate_right(18)).wrapping_add(c), mul);
    let e = word(s, 16).wrapping_mul(mul);
    let f = word(s, 24);
    let g = y.wrapping_add(word(s, n - 32)).wrapping_mul(mul);
    let h = z.wrapping_add(word(s, n - 24)).wrapping_mul(mul);
    let u = e.wrapping_add(f).rotate_right(43).wrapping_add(g.rotate_right(30)).wrapping_add(h);
    let v = e.wrapping_add(f.wrapping_add(a).rotate_right(18)).wrapping_add(g);
    mix16(u, v, mul)
}

/// The state of the hash of a long string.
struct Long {
    x: u64,
    y: u64,
    z: u64,
    v: (u64, u64),
    w: (u64, u64),
}

impl Long {
    /// Mixes in 64 bytes. `last` is set for the last block, whose constants differ.
    fn mix(&mut self, s: &[u8], mul: u64, last: bool) {
        let weight = if last { 9 } else { 1 };
        let Long { x, y, z, v, w } = self;
        *x = x.wrapping_add(*y).wrapping_add(v.0).wrapping_add(word(s, 8));
        *x = x.rotate_right(37).wrapping_mul(mul);
        *y = y.wrapping_add(v.1).wrapping_add(word(s, 48)).rotate_right(42).wrapping_mul(mul);
        *x ^= w.1.wrapping_mul(weight);
        *y = y.wrapping_add(v.0.wrapping_mul(weight)).wrapping_add(word(s, 40));
        *z = z.wrapping_add(w.0).rotate_right(33).wrapping_mul(mul);
        *v = weak(s, 0, v.1.wrapping_mul(mul), x.wrapping_add(w.0));
        *w = weak(s, 32, z.wrapping_add(w.1), y.wrapping_add(word(s, 16)));
        std::mem::swap(z, x);
    }
}

/// A weak hash of 32 bytes with two seeds.
fn weak(s: &[u8], at: usize, a: u64, b: u64) -> (u64, u64) {
    let [w, x, y, z] = [0, 8, 16, 24].map(|offset| word(s, at + offset));
    let mut a = a.wrapping_add(w);
    let mut b = b.wrapping_add(a).wrapping_add(z).rotate_right(21);
    let c = a;
    a = a.wrapping_add(x).wrapping_add(y);
    b = b.wrapping_add(a.rotate_right(44));
    (a.wrapping_add(z), b.wrapping_add(c))
}

fn long(s: &[u8]) -> u64 {
    const SEED: u64 = 81;
    let y = SEED.wrapping_mul(K1).wrapping_add(113);
    let z = shift_mix(y.wrapping_mul(K2).wrapping_add(113)).wrapping_mul(K2);
    let x = SEED.wrapping_mul(K2).wrapping_add(word(s, 0));
    let mut state = Long { x, y, z, v: (0, 0), w: (0, 0) };
    let rest = (s.len() - 1) % 64;
    let end = s.len() - 1 - rest;
    for at in (0..end).step_by(64) {
        state.mix(&s[at..], K1, false);
    }
    let mul = K1.wrapping_add((state.z & 0xff) << 1);
    state.w.0 = state.w.0.wrapping_add(rest as u64);
    state.v.0 = state.v.0.wrapping_add(state.w.0);
    state.w.0 = state.w.0.wrapping_add(state.v.0);
    state.mix(&s[s.len() - 64..], mul, true);
    let Long { x, y, z, v, w } = state;
    let first = mix16(v.0, w.0, mul).wrapping_add(shift_mix(y).wrapping_mul(K0)).wrapping_add(z);
    mix16(first, mix16(v.1, w.1, mul).wrapping_add(x), mul)
}

/// SipHash-2-4 with a key.
fn sip_hash(bytes: &[u8], key: [u64; 2]) -> u64 {
    let mut v = [
        key[0] ^ 0x736f_6d65_7073_6575,
        key[1] ^ 0x646f_7261_6e64_6f6d,
        key[0] ^ 0x6c79_6765_6e65_7261,
        key[1] ^ 0x7465_6462_7974_6573,
    ];
    let (words, rest) = bytes.as_chunks::<8>();
    let mut last = (bytes.len() as u64) << 56;
    rest.iter().enumerate().for_each(|(i, byte)| last |= u64::from(*byte) << (8 * i));
    for m in words.iter().map(|word| u64::from_le_bytes(*word)).chain([last]) {
        v[3] ^= m;
        (0..2).for_each(|_| sip_round(&mut v));
        v[0] ^= m;
    }
    v[2] ^= 0xff;
    (0..4).for_each(|_| sip_round(&mut v));
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

fn sip_round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[2] = v[2].wrapping_add(v[3]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[1]);
    v[0] = v[0].wrapping_add(v[3]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].rotate_left(32);
}

/// Combines two fingerprints.
pub(super) fn combine(first: u64, second: u64) -> u64 {
    const MUL: u64 = 0xc6a4_a793_5bd1_e995;
    let mut result = first ^ MUL;
    result ^= shift_mix(second.wrapping_mul(MUL)).wrapping_mul(MUL);
    result = shift_mix(result.wrapping_mul(MUL)).wrapping_mul(MUL);
    shift_mix(result)
}
