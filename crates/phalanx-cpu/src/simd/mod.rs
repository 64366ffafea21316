//! One vector type per instruction set, and the dispatch to code compiled for it.
//!
//! Kernels are written once, generic over [`Simd`], and compiled per instruction set. The instruction
//! set is a run-time choice ([`Isa::detect`]), so a kernel is a value implementing [`Kernel`] and
//! [`dispatch`] enters a `#[target_feature]` function into which the kernel's body is inlined. Every
//! function in between is `#[inline(always)]`: a function that is not inlined would be compiled for the
//! baseline and pass its vectors through memory. For the same reason hot code uses plain loops, not
//! closures: a closure is its own function and does not inherit the attribute.
//!
//! AVX-512 and AVX2 both fuse multiply-add, so a kernel that does not sum across lanes gives the same
//! bits on both; the portable path rounds twice.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

use phalanx_exec::ExecError;
use std::ffi::OsStr;
use std::fmt;
use std::sync::OnceLock;

#[cfg(target_arch = "x86_64")]
pub use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub use avx512::Avx512;
pub use portable::Portable;

/// The widest vector of any instruction set, in floats. Buffer sizes are rounded up to it.
pub const MAX_LANES: usize = 16;

/// An instruction set that the kernels are compiled for and that this machine has. A value exists only if its
/// instructions were detected, so holding one is proof that they can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Isa(Set);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Set {
    /// 16 floats, 32 registers.
    Avx512,
    /// 8 floats, 16 registers, fused multiply-add.
    Avx2,
    /// Plain Rust, compiled for the baseline of the target.
    Portable,
}

impl Isa {
    /// Plain Rust, which runs on every machine.
    pub const PORTABLE: Isa = Isa(Set::Portable);

    /// The best instruction set of this machine, or the one that `PHALANX_ISA` names. Decided once per
    /// process.
    ///
    /// # Errors
    /// An unknown name, or an instruction set that this processor lacks.
    pub fn detect() -> Result<Isa, ExecError> {
        static ISA: OnceLock<Result<Isa, ExecError>> = OnceLock::new();
        let wanted = || std::env::var_os("PHALANX_ISA").filter(|name| !name.is_empty());
        let choose = || Isa::choose(wanted().as_deref().map(OsStr::to_string_lossy).as_deref());
        ISA.get_or_init(choose).clone()
    }

    /// The instruction sets of this machine, best first; never empty.
    pub fn available() -> Vec<Isa> {
        [Set::Avx512, Set::Avx2, Set::Portable].into_iter().filter_map(Set::detected).collect()
    }

    /// The same instruction set, but AVX2 instead of AVX-512.
    pub fn without_avx512(self) -> Isa {
        match self.0 {
            // The detection of AVX-512 includes AVX2.
            Set::Avx512 | Set::Avx2 => Isa(Set::Avx2),
            Set::Portable => self,
        }
    }

    fn choose(wanted: Option<&str>) -> Result<Isa, ExecError> {
        let available = Isa::available();
        let Some(name) = wanted else { return Ok(available[0]) };
        let named = |isa: &&Isa| isa.to_string().eq_ignore_ascii_case(name);
        available.iter().find(named).copied().ok_or_else(|| {
            let names: Vec<String> = available.iter().map(Isa::to_string).collect();
            ExecError::InstructionSet { available: names.join(", "), received: name.into() }
        })
    }
}

impl Set {
    /// The instruction set, if this machine has it.
    fn detected(self) -> Option<Isa> {
        self.is_available().then_some(Isa(self))
    }

    /// Miri supports few of the instructions, so it uses the portable code.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    fn is_available(self) -> bool {
        let avx2 = || is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
        match self {
            Set::Avx512 => {
                avx2()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512bw")
            }
            Set::Avx2 => avx2(),
            Set::Portable => true,
        }
    }

    #[cfg(any(not(target_arch = "x86_64"), miri))]
    fn is_available(self) -> bool {
        self == Set::Portable
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Set::Avx512 => "avx512",
            Set::Avx2 => "avx2",
            Set::Portable => "portable",
        })
    }
}

/// Code that can be compiled for any instruction set. Mark `run` `#[inline(always)]`.
pub trait Kernel {
    /// The result.
    type Output;

    /// Runs the kernel with vectors of `S`.
    ///
    /// # Safety
    /// The machine has the instructions of `S`, and the requirements of the kernel itself hold. The caller of
    /// [`dispatch`] guarantees the latter.
    unsafe fn run<S: Simd>(self) -> Self::Output;
}

/// Runs `kernel` compiled for `isa`. An [`Isa`] is proof that this machine has its instructions.
///
/// # Safety
/// The requirements of the kernel itself hold: its pointers are valid for all elements it reads and writes.
pub unsafe fn dispatch<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
    // SAFETY: the instructions were detected when the `Isa` was created. The rest is the caller's contract.
    unsafe {
        match isa.0 {
            #[cfg(target_arch = "x86_64")]
            Set::Avx512 => Avx512::enter(kernel),
            #[cfg(target_arch = "x86_64")]
            Set::Avx2 => Avx2::enter(kernel),
            _ => Portable::enter(kernel),
        }
    }
}

/// A vector of floats of one instruction set. All functions are inlined into their caller.
///
/// # Safety
/// Every function may be called only if the machine has the instructions. Loads and stores also require a
/// pointer that is valid for the floats they access; it need not be aligned.
#[allow(clippy::missing_safety_doc)] // One contract for all, above.
pub trait Simd: Copy + 'static {
    /// The vector.
    type V: Copy;
    /// One truth value per lane.
    type M: Copy;
    /// Floats in a vector, at most [`MAX_LANES`].
    const LANES: usize;
    /// Vectors that fit into registers; register-blocked kernels size their tiles by it.
    const REGISTERS: usize;

    /// Runs `kernel` as a separate function compiled for this instruction set, for large bodies that should not
    /// be inlined into every caller.
    unsafe fn enter<K: Kernel>(kernel: K) -> K::Output;

    /// All lanes `x`.
    unsafe fn splat(x: f32) -> Self::V;
    /// `LANES` floats from `p`.
    unsafe fn load(p: *const f32) -> Self::V;
    /// `LANES` floats to `p`.
    unsafe fn store(p: *mut f32, v: Self::V);
    /// The first `n <= LANES` floats from `p`, zeros after them; reads nothing beyond.
    unsafe fn load_partial(p: *const f32, n: usize) -> Self::V;
    /// The first `n <= LANES` lanes to `p`; writes nothing beyond.
    unsafe fn store_partial(p: *mut f32, v: Self::V, n: usize);
    /// `a + b`.
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    /// `a - b`.
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    /// `a * b`.
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    /// `a / b`.
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V;
    /// `a > b ? a : b`: the second operand if either is NaN, so `max(zero, x)` propagates NaN.
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    /// `a < b ? a : b`: the second operand if either is NaN.
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, rounded once if the instruction set supports it.
    unsafe fn fmadd(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// Square root.
    unsafe fn sqrt(a: Self::V) -> Self::V;
    /// Absolute value.
    unsafe fn abs(a: Self::V) -> Self::V;
    /// The largest integer not above `a`.
    unsafe fn floor(a: Self::V) -> Self::V;
    /// Nearest integer, ties to even.
    unsafe fn round(a: Self::V) -> Self::V;
    /// `a > b`, false for NaN.
    unsafe fn gt(a: Self::V, b: Self::V) -> Self::M;
    /// `a >= b`, false for NaN.
    unsafe fn ge(a: Self::V, b: Self::V) -> Self::M;
    /// `a == b`, false for NaN.
    unsafe fn eq(a: Self::V, b: Self::V) -> Self::M;
    /// `m ? a : b`.
    unsafe fn select(m: Self::M, a: Self::V, b: Self::V) -> Self::V;
    /// Sum over lanes. Halves are added until one lane is left, so the order is fixed.
    unsafe fn sum(a: Self::V) -> f32;
    /// Largest lane; unspecified if a lane is NaN.
    unsafe fn max_lane(a: Self::V) -> f32;
    /// `a * 2^n` for integral `n` in `-252..=254`, overflowing to infinity and rounding to denormals.
    unsafe fn scale2(a: Self::V, n: Self::V) -> Self::V;
    /// Splits a positive normal `a` into `m * 2^e` with `m` in `[1/sqrt2, sqrt2)`; returns `(m, e)`.
    unsafe fn split2(a: Self::V) -> (Self::V, Self::V);
    /// Writes the transpose of the `LANES x LANES` block at `src` (rows `src_ld` apart) to `dst`
    /// (rows `dst_ld` apart).
    unsafe fn transpose(src: *const f32, src_ld: usize, dst: *mut f32, dst_ld: usize);

    /// Prefetches the cache line at `p`, which may be any address. Does nothing if the instruction set lacks
    /// prefetching.
    #[inline(always)]
    unsafe fn prefetch(_p: *const f32) {}

    /// All lanes zero.
    #[inline(always)]
    unsafe fn zero() -> Self::V {
        // SAFETY: the trait's contract.
        unsafe { Self::splat(0.0) }
    }

    /// `-a`.
    #[inline(always)]
    unsafe fn neg(a: Self::V) -> Self::V {
        // SAFETY: the trait's contract.
        unsafe { Self::sub(Self::splat(-0.0), a) }
    }

    /// `e^a` within 2 ulp. Overflows to infinity, underflows gradually to zero, propagates NaN.
    #[inline(always)]
    unsafe fn exp(a: Self::V) -> Self::V {
        // Cephes: a = n ln2 + r with |r| <= ln2/2; e^r by a polynomial; ln2 in two parts so that the
        // subtraction is exact.
        // SAFETY: the trait's contract.
        unsafe {
            let a = Self::min(Self::splat(89.0), Self::max(Self::splat(-104.5), a));
            let n = Self::round(Self::mul(a, Self::splat(std::f32::consts::LOG2_E)));
            let r = Self::fmadd(n, Self::splat(-0.693_359_4), a);
            let r = Self::fmadd(n, Self::splat(2.121_944_4e-4), r);
            let mut p = Self::splat(1.987_569_2e-4);
            for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
                p = Self::fmadd(p, r, Self::splat(c));
            }
            let p = Self::fmadd(Self::mul(r, r), p, r);
            Self::scale2(Self::add(p, Self::splat(1.0)), n)
        }
    }

    /// Natural logarithm within 2 ulp. Minus infinity at zero, NaN below; propagates infinity and NaN.
    #[inline(always)]
    unsafe fn log(a: Self::V) -> Self::V {
        // FreeBSD's logf: with f = m - 1 and s = f / (2 + f), log(1 + f) = f - f²/2 + s(f²/2 + R(s²)).
        // SAFETY: the trait's contract.
        unsafe {
            let denormal = Self::gt(Self::splat(f32::MIN_POSITIVE), a);
            let x = Self::select(denormal, Self::mul(a, Self::splat(33_554_432.0)), a);
            let (m, e) = Self::split2(x);
            let e = Self::select(denormal, Self::sub(e, Self::splat(25.0)), e);
            let f = Self::sub(m, Self::splat(1.0));
            let s = Self::div(f, Self::add(Self::splat(2.0), f));
            let z = Self::mul(s, s);
            let w = Self::mul(z, z);
            let odd = Self::fmadd(w, Self::splat(0.242_790_79), Self::splat(0.400_009_72));
            let even = Self::fmadd(w, Self::splat(0.284_987_87), Self::splat(0.666_666_6));
            let r = Self::fmadd(w, odd, Self::mul(z, even));
            let half = Self::mul(Self::splat(0.5), Self::mul(f, f));
            let low = Self::mul(e, Self::splat(9.058_001e-6));
            let y = Self::fmadd(s, Self::add(half, r), low);
            let y = Self::add(Self::sub(y, half), f);
            let y = Self::fmadd(e, Self::splat(0.693_138_1), y);
            let zero = Self::zero();
            let y = Self::select(Self::gt(a, zero), y, Self::splat(f32::NAN));
            let y = Self::select(Self::eq(a, zero), Self::splat(f32::NEG_INFINITY), y);
            Self::select(Self::eq(a, Self::splat(f32::INFINITY)), a, y)
        }
    }
}

#[cfg(test)]
mod tests;
