//! The transforms of Winograd's algorithm, and the kernel that applies them to tiles.
//!
//! Correlating `M` results with `R` taps needs `N = M + R - 1` products: values are interpreted as
//! polynomials, evaluated at `N - 1` points and at infinity, multiplied there and interpolated. A
//! [`Step`] is one such map along one axis. The same points serve all three passes, since filter
//! and output gradient only swap their roles: forward is `M` results of 3 taps, the kernel's
//! gradient 3 results of `M` taps.
//!
//! Tiles of four use the points 0, ±3/4, ±3/2. They and their powers are exact floats, and errors are a
//! third of those with the usual 0, ±1, ±2. Tiles of two use 0, ±1.

// Arrays of registers are indexed in lockstep. Iterators would bring closures, which are not compiled for
// the instruction set.
#![allow(clippy::needless_range_loop)]

use std::marker::PhantomData;

use crate::kernels::matrix::Epilogue;
use crate::simd::{Kernel, Simd};

/// Number of values along one axis of the largest tile.
pub(crate) const SIDE: usize = 6;

/// Pointers to the values of one tile, by row and column.
pub(crate) type Tile = [[*mut f32; SIDE]; SIDE];

/// A linear map along one axis: the first `IN` values to the first `OUT`.
pub(crate) trait Step: Copy + Default {
    const IN: usize;
    const OUT: usize;

    /// # Safety
    /// The machine has the instructions of `S`.
    unsafe fn apply<S: Simd>(x: [S::V; SIDE]) -> [S::V; SIDE];
}

/// The five maps of one tile size.
pub(crate) trait Points {
    /// Results along one axis.
    const M: usize;
    /// Points, infinity included: `M + 2`.
    const N: usize;
    /// `N` input values to their values at the points.
    type Input: Step;
    /// Three taps to their values at the points.
    type Filter: Step;
    /// Products at the points to `M` results.
    type Output: Step;
    /// `M` output gradients to their values at the points.
    type Spread: Step;
    /// Products at the points to the gradients of three taps.
    type Taps: Step;
}

/// 2 x 2 results from 4 x 4 products.
pub(crate) struct Two;

/// 4 x 4 results from 6 x 6 products.
pub(crate) struct Four;

macro_rules! steps {
    ($points:ty, $m:literal: $($name:ident $role:ident $from:literal => $to:literal;)+) => {
        $(
            #[derive(Clone, Copy, Default)]
            pub(crate) struct $name;
        )+
        impl Points for $points {
            const M: usize = $m;
            const N: usize = $m + 2;
            $(type $role = $name;)+
        }
        $(
            impl Step for $name {
                const IN: usize = $from;
                const OUT: usize = $to;

                #[inline(always)]
                unsafe fn apply<S: Simd>(x: [S::V; SIDE]) -> [S::V; SIDE] {
                    // SAFETY: the trait's contract.
                    unsafe { $name::map::<S>(x) }
                }
            }
        )+
    };
}

steps!(Two, 2:
    Input2 Input 4 => 4;
    Filter2 Filter 3 => 4;
    Output2 Output 4 => 2;
    Spread2 Spread 2 => 4;
    Taps2 Taps 4 => 3;
);

steps!(Four, 4:
    Input4 Input 6 => 6;
    Filter4 Filter 3 => 6;
    Output4 Output 6 => 4;
    Spread4 Spread 4 => 6;
    Taps4 Taps 6 => 3;
);

impl Input2 {
    #[inline(always)]
    unsafe fn map<S: Simd>(d: [S::V; SIDE]) -> [S::V; SIDE] {
        // SAFETY: the caller's contract.
        unsafe {
            let zero = S::sub(d[2], d[0]);
            let one = [S::add(d[2], d[1]), S::sub(d[2], d[1])];
            [zero, one[0], one[1], S::sub(d[3], d[1]), d[0], d[0]]
        }
    }
}

impl Filter2 {
    #[inline(always)]
    unsafe fn map<S: Simd>(g: [S::V; SIDE]) -> [S::V; SIDE] {
        // SAFETY: the caller's contract.
        unsafe {
            let half = S::splat(0.5);
            let even = S::mul(half, S::add(g[0], g[2]));
            let odd = S::mul(half, g[1]);
            [S::neg(g[0]), S::add(even, odd), S::sub(even, odd), g[2], g[0], g[0]]
        }
    }
}

impl Output2 {
    #[inline(always)]
    unsafe fn map<S: Simd>(m: [S::V; SIDE]) -> [S::V; SIDE] {
        // SAFETY: the caller's contract.
        unsafe {
            let first = S::add(m[0], S::add(m[1], m[2]));
            let second = S::add(S::sub(m[1], m[2]), m[3]);
            [first, second, first, first, first, first]
        }
    }
}

impl Spread2 {
    #[inline(always)]
    unsafe fn map<S: Simd>(g: [S::V; SIDE]) -> [S::V; SIDE] {
        // SAFETY: the caller's contract.
        unsafe {
            let half = S::splat(0.5);
            let (even, odd) = (S::mul(half, g[0]), S::mul(half, g[1]));
            [S::neg(g[0]), S::add(even, odd), S::sub(even, odd), g[1], g[0], g[0]]
        }
    }
}

impl Taps2 {
    #[inline(always)]
    unsafe fn map<S: Simd>(m: [S::V; SIDE]) -> [S::V; SIDE] {
        // SAFETY: the caller's contract.
        unsafe {
            let even = S::add(m[1], m[2]);
            let first = S::add(m[0], even);
            [first, S::sub(m[1], m[2]), S::add(even, m[3]), first, first, first]
        }
    }
}

/// The points of [`Four`] and their powers, all exact.
const A: f32 = 0.75;
const A2: f32 = A * A;
const A3: f32 = A2 * A;
const B: f32 = 1.5;
const B2: f32 = B * B;
const B3: f32 = B2 * B;

/// The reciprocal divisors of interpolation at 0, ±A and ±B.
const AT_ZERO: f32 = (1.0 / (A2 as f64 * B2 as f64)) as f32;
const AT_A: f32 = (1.0 / (2.0 * A2 as f64 * (A2 as f64 - B2 as f64))) as f32;
const AT_B: f32 = (1.0 / (2.0 * B2 as f64 * (B2 as f64 - A2 as f64))) as f32;

impl Input4 {
    /// Row `p` holds the coefficients of the polynomial that vanishes at all points but `p`.
    #[inline(always)]
    unsafe fn map<S: Simd>(d: [S::V; SIDE]) -> [S::V; SIDE] {
        // SAFETY: the caller's contract.
        unsafe {
            let (low, mid) = (S::splat(A2 * B2), S::splat(-(A2 + B2)));
            let zero = S::fmadd(low, d[0], S::fmadd(mid, d[2], d[4]));
            let end = S::fmadd(low, d[1], S::fmadd(mid, d[3], d[5]));
            let even_a = S::fmadd(S::splat(-B2), d[2], d[4]);
            let odd_a = S::fmadd(S::splat(-B2), d[1], d[3]);
            let even_b = S::fmadd(S::splat(-A2), d[2], d[4]);
            let odd_b = S::fmadd(S::splat(-A2), d[1], d[3]);
            [
                zero,
                S::fmadd(S::splat(A), odd_a, even_a),
                S::fmadd(S::splat(-A), odd_a, even_a),
                S::fmadd(S::splat(B), odd_b, even_b),
                S::fmadd(S::splat(-B), odd_b, even_b),
                end,
            ]
        }
    }
}

impl Filter4 {
    #[inline(always)]
    unsafe fn map<S: Simd>(g: [S::V; SIDE]) -> [S::V; SIDE] {
        // SAFETY: the caller's contract.
        unsafe {
            let even_a = S::mul(S::splat(AT_A), S::fmadd(S::splat(A2), g[2], g[0]));
            let odd_a = S::mul(S::splat(AT_A * A), g[1]);
            let even_b = S::mul(S::splat(AT_B), S::fmadd(S::splat(B2), g[2], g[0]));
            let odd_b = S::mul(S::splat(AT_B * B), g[1]);
            [
                S::mul(S::splat(AT_ZERO), g[0]),
                S::add(even_a, odd_a),
                S::sub(even_a, odd_a),
                S::add(even_b, odd_b),
                S::sub(even_b, odd_b),
                g[2],
            ]
        }
    }
}

impl Output4 {
    #[inline(always)]
    unsafe fn map<S: Simd>(m: [S::V; SIDE]) -> [S::V; SIDE] {
        // SAFETY: the caller's contract.
        unsafe {
            let (even_a, odd_a) = (S::add(m[1], m[2]), S::sub(m[1], m[2]));
            let (even_b, odd_b) = (S::add(m[3], m[4]), S::sub(m[3], m[4]));
            let cubes = S::fmadd(S::splat(B3), odd_b, m[5]);
            [
                S::add(m[0], S::add(even_a, even_b)),
                S::fmadd(S::splat(A), odd_a, S::mul(S::splat(B), odd_b)),
                S::fmadd(S::splat(A2), even_a, S::mul(S::splat(B2), even_b)),
                S::fmadd(S::splat(A3), odd_a, cubes),
                m[0],
                m[0],
            ]
        }
    }
}

impl Spread4 {
    #[inline(always)]
    unsafe fn map<S: Simd>(g: [S::V; SIDE]) -> [S::V; SIDE] {
        // SAFETY: the caller's contract.
        unsafe {
            let even_a = S::mul(S::splat(AT_A), S::fmadd(S::splat(A2), g[2], g[0]));
            let odd_a = S::mul(S::splat(AT_A * A), S::fmadd(S::splat(A2), g[3], g[1]));
            let even_b = S::mul(S::splat(AT_B), S::fmadd(S::splat(B2), g[2], g[0]));
            let odd_b = S::mul(S::splat(AT_B * B), S::fmadd(S::splat(B2), g[3], g[1]));
            [
                S::mul(S::splat(AT_ZERO), g[0]),
                S::add(even_a, odd_a),
                S::sub(even_a, odd_a),
                S::add(even_b, odd_b),
                S::sub(even_b, odd_b),
                g[3],
            ]
        }
    }
}

impl Taps4 {
    #[inline(always)]
    unsafe fn map<S: Simd>(m: [S::V; SIDE]) -> [S::V; SIDE] {
        // SAFETY: the caller's contract.
        unsafe {
            let (even_a, odd_a) = (S::add(m[1], m[2]), S::sub(m[1], m[2]));
            let (even_b, odd_b) = (S::add(m[3], m[4]), S::sub(m[3], m[4]));
            let squares = S::fmadd(S::splat(B2), even_b, m[5]);
            [
                S::add(m[0], S::add(even_a, even_b)),
                S::fmadd(S::splat(A), odd_a, S::mul(S::splat(B), odd_b)),
                S::fmadd(S::splat(A2), even_a, squares),
                m[0],
                m[0],
                m[0],
            ]
        }
    }
}

/// Applies a step along both axes to one tile of many channels: channel `c` of value `(i, j)` is read
/// at `from[i][j] + c` and written at `to[i][j] + c`.
pub(crate) struct Map<'a, T: Step> {
    pub from: &'a Tile,
    pub to: &'a Tile,
    /// Channels.
    pub len: usize,
    /// Its bias, if any, has at least `len` floats.
    pub epilogue: Epilogue<'a>,
    /// Floats from these pixels to those of the next tile, which are prefetched; 0 for none.
    pub ahead: usize,
    pub step: PhantomData<T>,
}

impl<'a, T: Step> Map<'a, T> {
    /// A map without an epilogue.
    #[inline(always)]
    pub fn plain(from: &'a Tile, to: &'a Tile, len: usize) -> Self {
        Map { from, to, len, epilogue: Epilogue::NONE, ahead: 0, step: PhantomData }
    }

    /// Maps `n` channels from `c` on; `FULL` guarantees a full vector.
    #[inline(always)]
    unsafe fn vector<S: Simd, const FULL: bool>(&self, c: usize, n: usize) {
        // SAFETY: the caller guarantees the pointers.
        unsafe {
            if self.ahead > 0 {
                for i in 0..T::IN {
                    // Two columns overlap.
                    for j in 2..T::IN {
                        S::prefetch(self.from[i][j].wrapping_add(c + self.ahead));
                    }
                }
            }
            let mut x = [[S::zero(); SIDE]; SIDE];
            for j in 0..T::IN {
                let mut column = [S::zero(); SIDE];
                for i in 0..T::IN {
                    let p = self.from[i][j].add(c);
                    column[i] = if FULL { S::load(p) } else { S::load_partial(p, n) };
                }
                column = T::apply::<S>(column);
                for i in 0..T::OUT {
                    x[i][j] = column[i];
                }
            }
            let bias = match self.epilogue.bias {
                Some(bias) if FULL => Some(S::load(bias.as_ptr().add(c))),
                Some(bias) => Some(S::load_partial(bias.as_ptr().add(c), n)),
                None => None,
            };
            for i in 0..T::OUT {
                let mut row = T::apply::<S>(x[i]);
                if let Some(bias) = bias {
                    for j in 0..T::OUT {
                        row[j] = S::add(row[j], bias);
                    }
                }
                if self.epilogue.relu {
                    for j in 0..T::OUT {
                        row[j] = S::max(S::zero(), row[j]);
                    }
                }
                for j in 0..T::OUT {
                    let p = self.to[i][j].add(c);
                    if FULL {
                        S::store(p, row[j]);
                    } else {
                        S::store_partial(p, row[j], n);
                    }
                }
            }
        }
    }
}

impl<T: Step> Kernel for Map<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let full = self.len / S::LANES * S::LANES;
        // SAFETY: the code that built the map guarantees `len` floats at every pointer.
        unsafe {
            for c in (0..full).step_by(S::LANES) {
                self.vector::<S, true>(c, S::LANES);
            }
            if full < self.len {
                self.vector::<S, false>(full, self.len - full);
            }
        }
    }
}
