//! 16 floats per vector, 32 registers, lane masks in separate registers.

// Arrays of registers are indexed in lockstep. Iterators would bring closures, which are not compiled for
// the instruction set.
#![allow(clippy::needless_range_loop)]

use std::arch::x86_64::*;

use super::{Kernel, Simd};

/// AVX-512 F, DQ, VL, BW.
#[derive(Clone, Copy, Debug)]
pub struct Avx512;

#[inline(always)]
fn first(n: usize) -> __mmask16 {
    ((1u32 << n) - 1) as __mmask16
}

// SAFETY (all blocks below): the trait's contract. The machine has the instructions, and pointers are valid
// for the floats accessed.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Simd for Avx512 {
    type V = __m512;
    type M = __mmask16;
    const LANES: usize = 16;
    const REGISTERS: usize = 32;

    #[inline(always)]
    unsafe fn enter<K: Kernel>(kernel: K) -> K::Output {
        #[inline(never)]
        #[target_feature(enable = "avx512f,avx512dq,avx512vl,avx512bw,fma")]
        unsafe fn compiled<K: Kernel>(kernel: K) -> K::Output {
            unsafe { kernel.run::<Avx512>() }
        }
        unsafe { compiled(kernel) }
    }

    #[inline(always)]
    unsafe fn prefetch(p: *const f32) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m512 {
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m512) {
        unsafe { _mm512_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn load_partial(p: *const f32, n: usize) -> __m512 {
        unsafe { _mm512_maskz_loadu_ps(first(n), p) }
    }
    #[inline(always)]
    unsafe fn store_partial(p: *mut f32, v: __m512, n: usize) {
        unsafe { _mm512_mask_storeu_ps(p, first(n), v) }
    }
    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn div(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn max(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn min(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fmadd(a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn sqrt(a: __m512) -> __m512 {
        unsafe { _mm512_sqrt_ps(a) }
    }
    #[inline(always)]
    unsafe fn abs(a: __m512) -> __m512 {
        unsafe { _mm512_abs_ps(a) }
    }
    #[inline(always)]
    unsafe fn floor(a: __m512) -> __m512 {
        unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC }>(a) }
    }
    #[inline(always)]
    unsafe fn round(a: __m512) -> __m512 {
        unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }
    #[inline(always)]
    unsafe fn gt(a: __m512, b: __m512) -> __mmask16 {
        unsafe { _mm512_cmp_ps_mask::<_CMP_GT_OQ>(a, b) }
    }
    #[inline(always)]
    unsafe fn ge(a: __m512, b: __m512) -> __mmask16 {
        unsafe { _mm512_cmp_ps_mask::<_CMP_GE_OQ>(a, b) }
    }
    #[inline(always)]
    unsafe fn eq(a: __m512, b: __m512) -> __mmask16 {
        unsafe { _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(a, b) }
    }
    #[inline(always)]
    unsafe fn select(m: __mmask16, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mask_blend_ps(m, b, a) }
    }
    #[inline(always)]
    unsafe fn sum(a: __m512) -> f32 {
        unsafe {
            let v = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a));
            super::avx2::sum(v)
        }
    }
    #[inline(always)]
    unsafe fn max_lane(a: __m512) -> f32 {
        unsafe {
            let v = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a));
            super::avx2::max_lane(v)
        }
    }
    #[inline(always)]
    unsafe fn scale2(a: __m512, n: __m512) -> __m512 {
        unsafe { _mm512_scalef_ps(a, n) }
    }
    #[inline(always)]
    unsafe fn split2(a: __m512) -> (__m512, __m512) {
        unsafe {
            let bits = _mm512_castps_si512(a);
            let low = _mm512_set1_epi32(super::portable::SQRT_HALF_BITS);
            let moved = _mm512_sub_epi32(bits, low);
            let e = _mm512_cvtepi32_ps(_mm512_srai_epi32::<23>(moved));
            let m = _mm512_and_si512(moved, _mm512_set1_epi32(0x007f_ffff));
            (_mm512_castsi512_ps(_mm512_add_epi32(m, low)), e)
        }
    }
    #[inline(always)]
    unsafe fn transpose(src: *const f32, src_ld: usize, dst: *mut f32, dst_ld: usize) {
        unsafe {
            let mut r = [_mm512_setzero_ps(); 16];
            let mut t = r;
            for i in 0..16 {
                r[i] = _mm512_loadu_ps(src.add(i * src_ld));
            }
            // Transpose 4x4 blocks inside the 128-bit lanes, then permute the lanes.
            for i in 0..8 {
                t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
                t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
            }
            for i in 0..4 {
                r[4 * i] = _mm512_shuffle_ps::<0x44>(t[4 * i], t[4 * i + 2]);
                r[4 * i + 1] = _mm512_shuffle_ps::<0xee>(t[4 * i], t[4 * i + 2]);
                r[4 * i + 2] = _mm512_shuffle_ps::<0x44>(t[4 * i + 1], t[4 * i + 3]);
                r[4 * i + 3] = _mm512_shuffle_ps::<0xee>(t[4 * i + 1], t[4 * i + 3]);
            }
            for j in 0..4 {
                t[j] = _mm512_shuffle_f32x4::<0x88>(r[j], r[4 + j]);
                t[4 + j] = _mm512_shuffle_f32x4::<0xdd>(r[j], r[4 + j]);
                t[8 + j] = _mm512_shuffle_f32x4::<0x88>(r[8 + j], r[12 + j]);
                t[12 + j] = _mm512_shuffle_f32x4::<0xdd>(r[8 + j], r[12 + j]);
            }
            for j in 0..8 {
                r[j] = _mm512_shuffle_f32x4::<0x88>(t[j], t[8 + j]);
                r[8 + j] = _mm512_shuffle_f32x4::<0xdd>(t[j], t[8 + j]);
            }
            for i in 0..16 {
                _mm512_storeu_ps(dst.add(i * dst_ld), r[i]);
            }
        }
    }
}
