//! Eight floats as an array: plain Rust that the compiler vectorises for the target's baseline.

use super::{Kernel, Simd};

/// No particular instruction set.
#[derive(Clone, Copy, Debug)]
pub struct Portable;

const LANES: usize = 8;

type V = [f32; LANES];

/// The bits of `sqrt(1/2)`, the boundary between two exponents in [`Simd::split2`].
pub(super) const SQRT_HALF_BITS: i32 = 0x3f35_04f3;

/// Applies an expression lane by lane. It is a plain loop, because a closure might not be inlined.
macro_rules! lanes {
    ($i:ident => $value:expr) => {{
        let mut out = [Default::default(); LANES];
        for $i in 0..LANES {
            out[$i] = $value;
        }
        out
    }};
}

/// `2^n` for `n` in `-126..=127`, built by writing the exponent.
#[inline(always)]
fn power2(n: i32) -> f32 {
    f32::from_bits(((n + 127) as u32) << 23)
}

// SAFETY (all blocks below): the trait's contract. Pointers are valid for the floats accessed.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Simd for Portable {
    type V = V;
    type M = [bool; LANES];
    const LANES: usize = LANES;
    // An array takes two to four registers on 64-bit targets.
    const REGISTERS: usize = 8;

    #[inline(always)]
    unsafe fn enter<K: Kernel>(kernel: K) -> K::Output {
        #[inline(never)]
        unsafe fn compiled<K: Kernel>(kernel: K) -> K::Output {
            unsafe { kernel.run::<Portable>() }
        }
        unsafe { compiled(kernel) }
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> V {
        [x; LANES]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> V {
        unsafe { p.cast::<V>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: V) {
        unsafe { p.cast::<V>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn load_partial(p: *const f32, n: usize) -> V {
        let mut v = [0.0; LANES];
        unsafe { std::ptr::copy_nonoverlapping(p, v.as_mut_ptr(), n) };
        v
    }
    #[inline(always)]
    unsafe fn store_partial(p: *mut f32, v: V, n: usize) {
        unsafe { std::ptr::copy_nonoverlapping(v.as_ptr(), p, n) }
    }
    #[inline(always)]
    unsafe fn add(a: V, b: V) -> V {
        lanes!(i => a[i] + b[i])
    }
    #[inline(always)]
    unsafe fn sub(a: V, b: V) -> V {
        lanes!(i => a[i] - b[i])
    }
    #[inline(always)]
    unsafe fn mul(a: V, b: V) -> V {
        lanes!(i => a[i] * b[i])
    }
    #[inline(always)]
    unsafe fn div(a: V, b: V) -> V {
        lanes!(i => a[i] / b[i])
    }
    #[inline(always)]
    unsafe fn max(a: V, b: V) -> V {
        lanes!(i => if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    unsafe fn min(a: V, b: V) -> V {
        lanes!(i => if a[i] < b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    unsafe fn fmadd(a: V, b: V, c: V) -> V {
        // Not `mul_add`: without hardware support it is a call into libm per lane.
        lanes!(i => a[i] * b[i] + c[i])
    }
    #[inline(always)]
    unsafe fn sqrt(a: V) -> V {
        lanes!(i => a[i].sqrt())
    }
    #[inline(always)]
    unsafe fn abs(a: V) -> V {
        lanes!(i => a[i].abs())
    }
    #[inline(always)]
    unsafe fn floor(a: V) -> V {
        lanes!(i => a[i].floor())
    }
    #[inline(always)]
    unsafe fn round(a: V) -> V {
        lanes!(i => a[i].round_ties_even())
    }
    #[inline(always)]
    unsafe fn gt(a: V, b: V) -> [bool; LANES] {
        lanes!(i => a[i] > b[i])
    }
    #[inline(always)]
    unsafe fn ge(a: V, b: V) -> [bool; LANES] {
        lanes!(i => a[i] >= b[i])
    }
    #[inline(always)]
    unsafe fn eq(a: V, b: V) -> [bool; LANES] {
        lanes!(i => a[i] == b[i])
    }
    #[inline(always)]
    unsafe fn select(m: [bool; LANES], a: V, b: V) -> V {
        lanes!(i => if m[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    unsafe fn sum(a: V) -> f32 {
        let four = [a[0] + a[4], a[1] + a[5], a[2] + a[6], a[3] + a[7]];
        (four[0] + four[2]) + (four[1] + four[3])
    }
    #[inline(always)]
    unsafe fn max_lane(a: V) -> f32 {
        let mut largest = a[0];
        for x in a {
            largest = if x > largest { x } else { largest };
        }
        largest
    }
    #[inline(always)]
    unsafe fn scale2(a: V, n: V) -> V {
        // In two steps, because 2^n may not be a normal float even if the result is.
        let n: [i32; LANES] = lanes!(i => n[i] as i32);
        lanes!(i => a[i] * power2(n[i] >> 1) * power2(n[i] - (n[i] >> 1)))
    }
    #[inline(always)]
    unsafe fn split2(a: V) -> (V, V) {
        let moved: [i32; LANES] = lanes!(i => (a[i].to_bits() as i32).wrapping_sub(SQRT_HALF_BITS));
        let m = lanes!(i => f32::from_bits(((moved[i] & 0x007f_ffff) + SQRT_HALF_BITS) as u32));
        (m, lanes!(i => (moved[i] >> 23) as f32))
    }
    #[inline(always)]
    unsafe fn transpose(src: *const f32, src_ld: usize, dst: *mut f32, dst_ld: usize) {
        for i in 0..LANES {
            for j in 0..LANES {
                unsafe { *dst.add(j * dst_ld + i) = *src.add(i * src_ld + j) };
            }
        }
    }
}
