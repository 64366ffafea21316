//! Comparison of every operation of every available instruction set with scalar Rust.

use super::*;

/// Applies one operation to whole vectors of `a`, `b`, `c`.
struct Each<'a> {
    op: Op,
    a: &'a [f32],
    b: &'a [f32],
    out: &'a mut [f32],
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Op {
    Add,
    Sub,
    Mul,
    Div,
    Max,
    Min,
    Fmadd,
    Neg,
    Abs,
    Sqrt,
    Floor,
    Round,
    SelectGt,
    SelectGe,
    SelectEq,
    Exp,
    Log,
}

impl Kernel for Each<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        assert!(self.a.len() == self.b.len() && self.a.len() == self.out.len());
        let mut i = 0;
        while i < self.a.len() {
            let n = S::LANES.min(self.a.len() - i);
            // SAFETY: `n` floats are left in each slice.
            unsafe {
                let a = S::load_partial(self.a.as_ptr().add(i), n);
                let b = S::load_partial(self.b.as_ptr().add(i), n);
                let y = match self.op {
                    Op::Add => S::add(a, b),
                    Op::Sub => S::sub(a, b),
                    Op::Mul => S::mul(a, b),
                    Op::Div => S::div(a, b),
                    Op::Max => S::max(a, b),
                    Op::Min => S::min(a, b),
                    Op::Fmadd => S::fmadd(a, b, a),
                    Op::Neg => S::neg(a),
                    Op::Abs => S::abs(a),
                    Op::Sqrt => S::sqrt(a),
                    Op::Floor => S::floor(a),
                    Op::Round => S::round(a),
                    Op::SelectGt => S::select(S::gt(a, b), a, S::zero()),
                    Op::SelectGe => S::select(S::ge(a, b), a, S::zero()),
                    Op::SelectEq => S::select(S::eq(a, b), a, S::zero()),
                    Op::Exp => S::exp(a),
                    Op::Log => S::log(a),
                };
                S::store_partial(self.out.as_mut_ptr().add(i), y, n);
            }
            i += n;
        }
    }
}

fn each(isa: Isa, op: Op, a: &[f32], b: &[f32]) -> Vec<f32> {
    // The last partial store must not change the extra float.
    let mut out = vec![7.5; a.len() + 1];
    // SAFETY: the kernel checks its slices, or they have as many floats as the widest vector.
    unsafe { dispatch(isa, Each { op, a, b, out: &mut out[..a.len()] }) };
    assert_eq!(out.pop(), Some(7.5));
    out
}

fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

const SAMPLES: [f32; 19] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    1.5,
    2.5,
    -2.5,
    1e-40,
    3.0e38,
    -3.0e38,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
    123.456,
    -7.25,
    8_388_609.0,
    0.1,
];

#[test]
fn elementwise_operations_match_scalar_code() {
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for x in SAMPLES {
        for y in SAMPLES {
            a.push(x);
            b.push(y);
        }
    }
    for isa in Isa::available() {
        let check = |op: Op, f: fn(f32, f32) -> f32| {
            for ((&x, &y), got) in a.iter().zip(&b).zip(each(isa, op, &a, &b)) {
                assert!(same(got, f(x, y)), "{isa} {op:?}({x}, {y}) gave {got}");
            }
        };
        check(Op::Add, |x, y| x + y);
        check(Op::Sub, |x, y| x - y);
        check(Op::Mul, |x, y| x * y);
        check(Op::Div, |x, y| x / y);
        check(Op::Max, |x, y| if x > y { x } else { y });
        check(Op::Min, |x, y| if x < y { x } else { y });
        check(Op::Neg, |x, _| -x);
        check(Op::Abs, |x, _| x.abs());
        check(Op::Sqrt, |x, _| x.sqrt());
        check(Op::Floor, |x, _| x.floor());
        check(Op::Round, |x, _| x.round_ties_even());
        check(Op::SelectGt, |x, y| if x > y { x } else { 0.0 });
        check(Op::SelectGe, |x, y| if x >= y { x } else { 0.0 });
        check(Op::SelectEq, |x, y| if x == y { x } else { 0.0 });
        if isa == Isa::PORTABLE {
            check(Op::Fmadd, |x, y| x * y + x);
        } else {
            check(Op::Fmadd, |x, y| x.mul_add(y, x));
        }
    }
}

/// Distance in units in the last place, counted through zero.
fn ulps(a: f32, b: f32) -> u32 {
    let ordered = |x: f32| {
        let bits = x.to_bits() as i32;
        if bits < 0 { i32::MIN.wrapping_sub(bits) } else { bits }
    };
    if a.is_nan() && b.is_nan() { 0 } else { ordered(a).wrapping_sub(ordered(b)).unsigned_abs() }
}

#[test]
fn exp_and_log_stay_within_two_ulps() {
    let special = [
        0.0,
        -0.0,
        88.722_83,
        88.722_84,
        1e30,
        -87.3,
        -87.4,
        -103.9,
        -103.98,
        -1e30,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        -f32::NAN,
    ];
    let mut x: Vec<f32> = (-110_000..100_000).map(|i| i as f32 * 1e-3 + 3.7e-5).collect();
    x.extend(special);
    let positive: Vec<f32> = (0..0x7f80_0000u32).step_by(9973).map(f32::from_bits).collect();
    let mut log_x = positive;
    log_x.extend(special);
    log_x.extend((0..4000).map(|i| 0.9 + i as f32 * 5e-5));
    for isa in Isa::available() {
        for (&x, got) in x.iter().zip(each(isa, Op::Exp, &x, &x)) {
            let want = f64::from(x).exp() as f32;
            assert!(ulps(got, want) <= 2, "{isa} exp({x}) gave {got}, expected {want}");
        }
        for (&x, got) in log_x.iter().zip(each(isa, Op::Log, &log_x, &log_x)) {
            let want = f64::from(x).ln() as f32;
            assert!(ulps(got, want) <= 2, "{isa} log({x}) gave {got}, expected {want}");
        }
    }
}

struct Across<'a>(&'a [f32; MAX_LANES]);

impl Kernel for Across<'_> {
    type Output = (usize, f32, f32);

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> Self::Output {
        // SAFETY: the array has `MAX_LANES` floats.
        unsafe {
            let v = S::load(self.0.as_ptr());
            (S::LANES, S::sum(v), S::max_lane(v))
        }
    }
}

#[test]
fn lanes_are_summed_by_halves() {
    let x = std::array::from_fn(|i| ((i * 37 % 16) as f32 - 8.0) * 1.1);
    for isa in Isa::available() {
        // SAFETY: the kernel checks its slices, or they have as many floats as the widest vector.
        let (lanes, sum, max) = unsafe { dispatch(isa, Across(&x)) };
        let mut rest = x[..lanes].to_vec();
        while rest.len() > 1 {
            let half = rest.len() / 2;
            rest = (0..half).map(|i| rest[i] + rest[half + i]).collect();
        }
        assert_eq!((sum, max), (rest[0], x[..lanes].iter().copied().fold(f32::MIN, f32::max)));
    }
}

struct Transpose<'a>(&'a [f32], usize, &'a mut [f32], usize);

impl Kernel for Transpose<'_> {
    type Output = usize;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> usize {
        // SAFETY: the test passes blocks of `MAX_LANES` rows.
        unsafe { S::transpose(self.0.as_ptr(), self.1, self.2.as_mut_ptr(), self.3) };
        S::LANES
    }
}

#[test]
fn blocks_are_transposed() {
    let src: Vec<f32> = (0..16 * 19).map(|i| i as f32).collect();
    for isa in Isa::available() {
        let mut dst = vec![-1.0; 16 * 17];
        // SAFETY: the kernel checks its slices, or they have as many floats as the widest vector.
        let lanes = unsafe { dispatch(isa, Transpose(&src, 19, &mut dst, 17)) };
        for i in 0..16 {
            for j in 0..17 {
                let want = if i < lanes && j < lanes { src[j * 19 + i] } else { -1.0 };
                assert_eq!(dst[i * 17 + j], want, "{isa} {i} {j}");
            }
        }
    }
}

#[test]
fn an_instruction_set_can_be_selected_by_name() {
    for isa in Isa::available() {
        assert_eq!(Isa::choose(Some(&isa.to_string().to_uppercase())), Ok(isa));
    }
    assert_eq!(Isa::choose(None), Ok(Isa::available()[0]));
    assert!(Isa::available().contains(&Isa::detect().unwrap()));
}

#[test]
fn an_unavailable_instruction_set_is_refused() {
    let error = Isa::choose(Some("quantum")).unwrap_err().to_string();
    assert!(error.starts_with("PHALANX_ISA: expected one that this processor has ("), "{error}");
    assert!(error.ends_with("portable), received 'quantum'"), "{error}");
}
