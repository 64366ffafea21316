//! 8 floats per vector, 16 registers, masks are vectors.

// Arrays of registers are indexed in lockstep. Iterators would bring closures, which are not compiled for
// the instruction set.
#![allow(clippy::needless_range_loop)]

use std::arch::x86_64::*;

use super::{Kernel, Simd};

/// AVX2 with fused multiply-add.
#[derive(Clone, Copy, Debug)]
pub struct Avx2;

/// Eight ones, then eight zeros. A window of eight is the mask of the first `n` lanes.
static LEADING: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

#[inline(always)]
unsafe fn first(n: usize) -> __m256i {
    debug_assert!(n <= 8);
    // SAFETY: n <= 8, so eight integers follow.
    unsafe { _mm256_loadu_si256(LEADING.as_ptr().add(8 - n).cast()) }
}

/// Sum over lanes, halves first.
#[inline(always)]
pub(super) unsafe fn sum(a: __m256) -> f32 {
    // SAFETY: the caller has AVX.
    unsafe {
        let v = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
        let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
        _mm_cvtss_f32(_mm_add_ss(v, _mm_shuffle_ps::<1>(v, v)))
    }
}

/// Largest lane.
#[inline(always)]
pub(super) unsafe fn max_lane(a: __m256) -> f32 {
    // SAFETY: the caller has AVX.
    unsafe {
        let v = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
        let v = _mm_max_ps(v, _mm_movehl_ps(v, v));
        _mm_cvtss_f32(_mm_max_ss(v, _mm_shuffle_ps::<1>(v, v)))
    }
}

/// `2^n` for integral `n` in `-126..=127`, built by writing the exponent.
#[inline(always)]
unsafe fn power2(n: __m256i) -> __m256 {
    // SAFETY: the caller has AVX2.
    unsafe {
        let biased = _mm256_add_epi32(n, _mm256_set1_epi32(127));
        _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
    }
}

// SAFETY (all blocks below): the trait's contract. The machine has the instructions, and pointers are valid
// for the floats accessed.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Simd for Avx2 {
    type V = __m256;
    type M = __m256;
    const LANES: usize = 8;
    const REGISTERS: usize = 16;

    #[inline(always)]
    unsafe fn enter<K: Kernel>(kernel: K) -> K::Output {
        #[inline(never)]
        #[target_feature(enable = "avx2,fma")]
        unsafe fn compiled<K: Kernel>(kernel: K) -> K::Output {
            unsafe { kernel.run::<Avx2>() }
        }
        unsafe { compiled(kernel) }
    }

    #[inline(always)]
    unsafe fn prefetch(p: *const f32) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> __m256 {
        unsafe { _mm256_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m256 {
        unsafe { _mm256_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m256) {
        unsafe { _mm256_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn load_partial(p: *const f32, n: usize) -> __m256 {
        unsafe { _mm256_maskload_ps(p, first(n)) }
    }
    #[inline(always)]
    unsafe fn store_partial(p: *mut f32, v: __m256, n: usize) {
        unsafe { _mm256_maskstore_ps(p, first(n), v) }
    }
    #[inline(always)]
    unsafe fn add(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_sub_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn div(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_div_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn max(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_max_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn min(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_min_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fmadd(a: __m256, b: __m256, c: __m256) -> __m256 {
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn sqrt(a: __m256) -> __m256 {
        unsafe { _mm256_sqrt_ps(a) }
    }
    #[inline(always)]
    unsafe fn abs(a: __m256) -> __m256 {
        unsafe { _mm256_andnot_ps(_mm256_set1_ps(-0.0), a) }
    }
    #[inline(always)]
    unsafe fn floor(a: __m256) -> __m256 {
        unsafe { _mm256_floor_ps(a) }
    }
    #[inline(always)]
    unsafe fn round(a: __m256) -> __m256 {
        unsafe { _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }
    #[inline(always)]
    unsafe fn gt(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_cmp_ps::<_CMP_GT_OQ>(a, b) }
    }
    #[inline(always)]
    unsafe fn ge(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_cmp_ps::<_CMP_GE_OQ>(a, b) }
    }
    #[inline(always)]
    unsafe fn eq(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_cmp_ps::<_CMP_EQ_OQ>(a, b) }
    }
    #[inline(always)]
    unsafe fn select(m: __m256, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_blendv_ps(b, a, m) }
    }
    #[inline(always)]
    unsafe fn sum(a: __m256) -> f32 {
        unsafe { sum(a) }
    }
    #[inline(always)]
    unsafe fn max_lane(a: __m256) -> f32 {
        unsafe { max_lane(a) }
    }
    #[inline(always)]
    unsafe fn scale2(a: __m256, n: __m256) -> __m256 {
        // In two steps, because 2^n may not be a normal float even if the result is.
        unsafe {
            let n = _mm256_cvtps_epi32(n);
            let half = _mm256_srai_epi32::<1>(n);
            let a = _mm256_mul_ps(a, power2(half));
            _mm256_mul_ps(a, power2(_mm256_sub_epi32(n, half)))
        }
    }
    #[inline(always)]
    unsafe fn split2(a: __m256) -> (__m256, __m256) {
        unsafe {
            let bits = _mm256_castps_si256(a);
            let low = _mm256_set1_epi32(super::portable::SQRT_HALF_BITS);
            let moved = _mm256_sub_epi32(bits, low);
            let e = _mm256_cvtepi32_ps(_mm256_srai_epi32::<23>(moved));
            let m = _mm256_and_si256(moved, _mm256_set1_epi32(0x007f_ffff));
            (_mm256_castsi256_ps(_mm256_add_epi32(m, low)), e)
        }
    }
    #[inline(always)]
    unsafe fn transpose(src: *const f32, src_ld: usize, dst: *mut f32, dst_ld: usize) {
        unsafe {
            let mut r = [_mm256_setzero_ps(); 8];
            let mut t = r;
            for i in 0..8 {
                r[i] = _mm256_loadu_ps(src.add(i * src_ld));
            }
            for i in 0..4 {
                t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
                t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
            }
            for i in 0..2 {
                r[4 * i] = _mm256_shuffle_ps::<0x44>(t[4 * i], t[4 * i + 2]);
                r[4 * i + 1] = _mm256_shuffle_ps::<0xee>(t[4 * i], t[4 * i + 2]);
                r[4 * i + 2] = _mm256_shuffle_ps::<0x44>(t[4 * i + 1], t[4 * i + 3]);
                r[4 * i + 3] = _mm256_shuffle_ps::<0xee>(t[4 * i + 1], t[4 * i + 3]);
            }
            for j in 0..4 {
                t[j] = _mm256_permute2f128_ps::<0x20>(r[j], r[4 + j]);
                t[4 + j] = _mm256_permute2f128_ps::<0x31>(r[j], r[4 + j]);
            }
            for i in 0..8 {
                _mm256_storeu_ps(dst.add(i * dst_ld), t[i]);
            }
        }
    }
}
