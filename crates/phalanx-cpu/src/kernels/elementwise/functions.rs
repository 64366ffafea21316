//! The loops of the steps: each step's function over the elements of a tile, compiled separately.

use std::marker::PhantomData;

use phalanx_graph::ops::{Binary, Unary};

use super::plan::{Action, MAX_RESULTS, Quaternary, Ternary};
use crate::kernels::math;
use crate::simd::{Kernel, Simd};

/// A tile of an operand: contiguous, or one vector used for all elements.
#[derive(Clone, Copy)]
pub(super) struct Source {
    pub ptr: *const f32,
    pub splat: bool,
}

/// Runs one step over one tile.
#[inline(always)]
pub(super) unsafe fn execute<S: Simd>(
    action: Action<Source>,
    n: usize,
    y: [*mut f32; MAX_RESULTS],
) {
    macro_rules! each {
        ($f:ty, $($x:expr),+) => {
            S::enter(Loop::<$f, _> { n, x: [$($x),+], y: y[0], f: PhantomData })
        };
    }
    // SAFETY: the caller's contract.
    unsafe {
        match action {
            Action::Copy(a) => each!(Identity, a),
            Action::Unary(u, a) => match u {
                Unary::Neg => each!(Neg, a),
                Unary::Abs => each!(Abs, a),
                Unary::Sign => each!(Sign, a),
                Unary::Recip => each!(Recip, a),
                Unary::Square => each!(Square, a),
                Unary::Sqrt => each!(Sqrt, a),
                Unary::Rsqrt => each!(Rsqrt, a),
                Unary::Exp => each!(Exp, a),
                Unary::Expm1 => each!(Expm1, a),
                Unary::Log => each!(Log, a),
                Unary::Log1p => each!(Log1p, a),
                Unary::Tanh => each!(Tanh, a),
                Unary::Sigmoid => each!(Sigmoid, a),
                Unary::Erf => each!(Erf, a),
                Unary::Relu => each!(Relu, a),
                Unary::Floor => each!(Floor, a),
                Unary::Sin => each!(Sin, a),
                Unary::Cos => each!(Cos, a),
                Unary::Atan => each!(Atan, a),
                Unary::Round => each!(Round, a),
            },
            Action::Binary(op, a, b) => match op {
                Binary::Add => each!(Add, a, b),
                Binary::Sub => each!(Sub, a, b),
                Binary::Mul => each!(Mul, a, b),
                Binary::Div => each!(Div, a, b),
                Binary::Max => each!(Max, a, b),
                Binary::Min => each!(Min, a, b),
                Binary::Pow => each!(Pow, a, b),
                Binary::Rem => each!(Rem, a, b),
                Binary::Gt => each!(Gt, a, b),
                Binary::Ge => each!(Ge, a, b),
                Binary::Eq => each!(Eq, a, b),
            },
            Action::Ternary(op, a, b, c) => match op {
                Ternary::MulAdd => each!(MulAdd, a, b, c),
                Ternary::MulSub => each!(MulSub, a, b, c),
                Ternary::SubMul => each!(SubMul, a, b, c),
                Ternary::MulGt => each!(MulGt, a, b, c),
                Ternary::Select => each!(Select, a, b, c),
            },
            Action::Quaternary(op, [a, b, c, d]) => match op {
                Quaternary::Blend => each!(Blend, a, b, c, d),
                Quaternary::BlendSquare => each!(BlendSquare, a, b, c, d),
            },
            Action::RootStep([a, b, c, d, e]) => each!(RootStep, a, b, c, d, e),
            Action::Adam { full, splat } => S::enter(Adam { n, full, splat, y }),
        }
    }
}

/// A function of `N` vectors.
trait Function<const N: usize> {
    /// Vectors per loop iteration: several if the function is short.
    const UNROLL: usize;
    unsafe fn apply<S: Simd>(x: [S::V; N]) -> S::V;
}

/// A function over `n` elements, compiled separately.
struct Loop<F, const N: usize> {
    n: usize,
    x: [Source; N],
    y: *mut f32,
    f: PhantomData<F>,
}

impl<F: Function<N>, const N: usize> Kernel for Loop<F, N> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Loop { n, x, mut y, .. } = self;
        let mut from = [std::ptr::null(); N];
        let mut stride = [0; N];
        for k in 0..N {
            from[k] = x[k].ptr;
            stride[k] = if x[k].splat { 0 } else { S::LANES };
        }
        let mut left = n;
        // SAFETY: sources hold a vector or `n` floats, and the result takes `n` floats. If it is also a
        // source, every vector is read before it is written.
        unsafe {
            let mut v = [S::zero(); N];
            while left >= F::UNROLL * S::LANES {
                for _ in 0..F::UNROLL {
                    for k in 0..N {
                        v[k] = S::load(from[k]);
                        from[k] = from[k].add(stride[k]);
                    }
                    S::store(y, F::apply::<S>(v));
                    y = y.add(S::LANES);
                }
                left -= F::UNROLL * S::LANES;
            }
            while left > 0 {
                let m = left.min(S::LANES);
                for k in 0..N {
                    v[k] = S::load_partial(from[k], m);
                    from[k] = from[k].wrapping_add(stride[k]);
                }
                S::store_partial(y, F::apply::<S>(v), m);
                y = y.wrapping_add(S::LANES);
                left -= m;
            }
        }
    }
}

macro_rules! functions {
    ($($name:ident<$n:literal, $unroll:literal> = |$($x:ident),+| $value:expr;)+) => {$(
        struct $name;
        impl Function<$n> for $name {
            const UNROLL: usize = $unroll;
            #[inline(always)]
            #[allow(unused_unsafe)]
            unsafe fn apply<S: Simd>([$($x),+]: [S::V; $n]) -> S::V {
                // SAFETY: the caller's contract.
                unsafe { $value }
            }
        }
    )+};
}

functions! {
    Identity<1, 4> = |a| a;
    Neg<1, 4> = |a| S::neg(a);
    Abs<1, 4> = |a| S::abs(a);
    Sign<1, 4> = |a| math::sign::<S>(a);
    Recip<1, 4> = |a| S::div(S::splat(1.0), a);
    Square<1, 4> = |a| S::mul(a, a);
    Sqrt<1, 4> = |a| S::sqrt(a);
    Rsqrt<1, 2> = |a| S::div(S::splat(1.0), S::sqrt(a));
    Exp<1, 2> = |a| S::exp(a);
    Expm1<1, 1> = |a| math::expm1::<S>(a);
    Log<1, 1> = |a| S::log(a);
    Log1p<1, 1> = |a| math::log1p::<S>(a);
    Tanh<1, 1> = |a| math::tanh::<S>(a);
    Sigmoid<1, 2> = |a| math::sigmoid::<S>(a);
    Erf<1, 1> = |a| math::erf::<S>(a);
    Relu<1, 4> = |a| S::max(S::zero(), a);
    Floor<1, 4> = |a| S::floor(a);
    Sin<1, 1> = |a| math::sin::<S>(a);
    Cos<1, 1> = |a| math::cos::<S>(a);
    Atan<1, 1> = |a| math::atan::<S>(a);
    Round<1, 4> = |a| S::round(a);
    Add<2, 4> = |a, b| S::add(a, b);
    Sub<2, 4> = |a, b| S::sub(a, b);
    Mul<2, 4> = |a, b| S::mul(a, b);
    Div<2, 4> = |a, b| S::div(a, b);
    Max<2, 4> = |a, b| math::max::<S>(a, b);
    Min<2, 4> = |a, b| math::min::<S>(a, b);
    Pow<2, 1> = |a, b| math::pow::<S>(a, b);
    Rem<2, 1> = |a, b| math::rem::<S>(a, b);
    Gt<2, 4> = |a, b| S::select(S::gt(a, b), S::splat(1.0), S::zero());
    Ge<2, 4> = |a, b| S::select(S::ge(a, b), S::splat(1.0), S::zero());
    Eq<2, 4> = |a, b| S::select(S::eq(a, b), S::splat(1.0), S::zero());
    MulAdd<3, 4> = |a, b, c| S::fmadd(a, b, c);
    MulSub<3, 4> = |a, b, c| S::fmadd(a, b, S::neg(c));
    SubMul<3, 4> = |a, b, c| S::fmadd(S::neg(a), b, c);
    MulGt<3, 4> = |a, b, c| S::mul(a, S::select(S::gt(b, c), S::splat(1.0), S::zero()));
    Blend<4, 4> = |a, b, c, d| S::fmadd(a, b, S::mul(c, d));
    BlendSquare<4, 4> = |a, b, c, d| S::fmadd(a, b, S::mul(S::mul(c, c), d));
    RootStep<5, 2> = |a, b, c, d, e| S::sub(a, S::div(S::mul(b, c), S::add(S::sqrt(d), e)));
    Select<3, 4> = |a, b, c| S::select(S::eq(a, S::zero()), c, b);
}

/// Adam over `n` elements. The latency of its divisions hides everything else.
struct Adam {
    n: usize,
    /// Weight, first moment, second moment and gradient.
    full: [Source; 4],
    /// Decay of the first moment and weight of the gradient, the same for the second moment and the squared
    /// gradient, then learning rate and epsilon.
    splat: [Source; 6],
    /// New weight, first moment and second moment.
    y: [*mut f32; MAX_RESULTS],
}

impl Kernel for Adam {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Adam { n, full: [w, m, v, g], splat, y } = self;
        // SAFETY: sources hold a vector or `n` floats, and results take `n` floats. If one is also a
        // source, every vector is read before it is written.
        unsafe {
            let mut c = [S::zero(); 6];
            for k in 0..6 {
                c[k] = S::load(splat[k].ptr);
            }
            let mut at = 0;
            while at < n {
                let lanes = S::LANES.min(n - at);
                let whole = lanes == S::LANES;
                let mut x = [S::zero(); 4];
                for (k, from) in [w.ptr, m.ptr, v.ptr, g.ptr].into_iter().enumerate() {
                    let from = from.add(at);
                    x[k] = if whole { S::load(from) } else { S::load_partial(from, lanes) };
                }
                let m = Blend::apply::<S>([x[1], c[0], x[3], c[1]]);
                let v = BlendSquare::apply::<S>([x[2], c[2], x[3], c[3]]);
                let w = RootStep::apply::<S>([x[0], m, c[4], v, c[5]]);
                for (k, result) in [w, m, v].into_iter().enumerate() {
                    let to = y[k].add(at);
                    // The following elements are often needed soon.
                    math::prefetch(to.wrapping_add(n));
                    if whole { S::store(to, result) } else { S::store_partial(to, result, lanes) }
                }
                at += lanes;
            }
        }
    }
}
