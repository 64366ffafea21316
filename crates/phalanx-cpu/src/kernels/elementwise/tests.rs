//! Comparison of tapes with a scalar interpreter in f64.

use super::*;
use crate::kernels::math::testing::{close, numbers, spread, unspread};
use phalanx_graph::ops::{Binary, Instr, Tape, Unary};

fn unary(u: Unary, x: f64) -> f64 {
    match u {
        Unary::Neg => -x,
        Unary::Abs => x.abs(),
        Unary::Sign if x == 0.0 || x.is_nan() => x,
        Unary::Sign => x.signum(),
        Unary::Recip => 1.0 / x,
        Unary::Square => x * x,
        Unary::Sqrt => x.sqrt(),
        Unary::Rsqrt => 1.0 / x.sqrt(),
        Unary::Exp => x.exp(),
        Unary::Expm1 => x.exp_m1(),
        Unary::Log => x.ln(),
        Unary::Log1p => x.ln_1p(),
        Unary::Tanh => x.tanh(),
        Unary::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Unary::Erf => crate::kernels::math::testing::erf64(x),
        Unary::Relu if x.is_nan() => x,
        Unary::Relu => x.max(0.0),
        Unary::Floor => x.floor(),
        Unary::Sin => x.sin(),
        Unary::Cos => x.cos(),
        Unary::Atan => x.atan(),
        Unary::Round => x.round_ties_even(),
    }
}

fn binary(op: Binary, a: f64, b: f64) -> f64 {
    let nan = a.is_nan() || b.is_nan();
    match op {
        Binary::Add => a + b,
        Binary::Sub => a - b,
        Binary::Mul => a * b,
        Binary::Div => a / b,
        Binary::Max | Binary::Min if nan => f64::NAN,
        Binary::Max => a.max(b),
        Binary::Min => a.min(b),
        Binary::Pow => a.powf(b),
        Binary::Rem => a % b,
        Binary::Gt => f64::from(u8::from(a > b)),
        Binary::Ge => f64::from(u8::from(a >= b)),
        Binary::Eq => f64::from(u8::from(a == b)),
    }
}

/// All outputs, element by element.
fn interpret(tape: &Tape, elements: usize, inputs: &[Vec<f32>]) -> Vec<Vec<f64>> {
    let mut out = vec![vec![]; tape.outputs.len()];
    for e in 0..elements {
        let mut r: Vec<f64> = Vec::new();
        for instr in &tape.instrs {
            let at = |i: u16| r[usize::from(i)];
            let v = match *instr {
                Instr::Input(i) => {
                    let x = &inputs[usize::from(i)];
                    f64::from(match tape.inputs[usize::from(i)] {
                        Access::Full => x[e],
                        Access::Scalar => x[0],
                        Access::Suffix(p) => x[e % p],
                        Access::Prefix(g) => x[e / g],
                    })
                }
                Instr::Const(bits) => f64::from_bits(bits),
                Instr::Unary(u, a) => unary(u, at(a)),
                Instr::Binary(op, a, b) => binary(op, at(a), at(b)),
                Instr::Select(c, a, b) => at(if at(c) != 0.0 { a } else { b }),
            };
            r.push(v);
        }
        for (o, reg) in out.iter_mut().zip(&tape.outputs) {
            o.push(r[usize::from(*reg)]);
        }
    }
    out
}

/// Runs the tape on contiguous copies, twice, checks that the bits agree, and returns its outputs.
fn run_flat(isa: Isa, tape: &Tape, width: usize, elements: usize, x: &[Vec<f32>]) -> Vec<Vec<f32>> {
    let run = || run_strided(isa, tape, [width; 3], elements, x);
    let (a, b) = (run(), run());
    for (a, b) in a.iter().flatten().zip(b.iter().flatten()) {
        assert_eq!(a.to_bits(), b.to_bits());
    }
    a
}

/// As `run_flat`, with full inputs and outputs spread to the pixel distances `ld_in` and `ld_out`.
fn run_strided(
    isa: Isa,
    tape: &Tape,
    [width, ld_in, ld_out]: [usize; 3],
    elements: usize,
    x: &[Vec<f32>],
) -> Vec<Vec<f32>> {
    let plan = TapePlan::new(tape);
    let spread_x: Vec<Vec<f32>> = x
        .iter()
        .zip(&tape.inputs)
        .map(|(x, a)| if *a == Access::Full { spread(x, width, ld_in) } else { x.clone() })
        .collect();
    let zeros = vec![0.0; elements];
    let mut y: Vec<Vec<f32>> = tape.outputs.iter().map(|_| spread(&zeros, width, ld_out)).collect();
    let inputs: Vec<TapeInput> =
        spread_x.iter().map(|x| TapeInput { ptr: x.as_ptr(), ld: ld_in }).collect();
    let outputs: Vec<TapeOutput> =
        y.iter_mut().map(|y| TapeOutput { ptr: y.as_mut_ptr(), ld: ld_out }).collect();
    let mut scratch = vec![f32::NAN; plan.scratch_len()];
    // In pieces of uneven length, like workers that share a value.
    for piece in [0..elements / 3, elements / 3..elements] {
        // SAFETY: the vectors hold `elements` floats at their strides.
        unsafe { plan.run(isa, width, piece, &inputs, &outputs, &mut scratch) };
    }
    y.iter().map(|y| unspread(y, width, ld_out)).collect()
}

fn single(instrs: Vec<Instr>, inputs: Vec<Access>) -> Tape {
    let last = instrs.len() as u16 - 1;
    Tape { inputs, instrs, outputs: vec![last] }
}

const SPECIAL: [f32; 12] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    2.0,
    -3.0,
    0.5,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
    1e-30,
    -1e30,
];

#[test]
fn every_function_of_every_isa() {
    let mut a = numbers(531, 1);
    let mut b = numbers(531, 2);
    for x in SPECIAL {
        for y in SPECIAL {
            a.push(x);
            b.push(y);
        }
    }
    let n = a.len();
    for isa in Isa::available() {
        for u in Unary::ALL {
            let tape = single(vec![Instr::Input(0), Instr::Unary(u, 0)], vec![Access::Full]);
            let x = [a.clone()];
            let want: Vec<f64> = interpret(&tape, n, &x).remove(0);
            let want: Vec<f64> = want.iter().map(|w| f64::from(*w as f32)).collect();
            close(isa, u.name(), &run_flat(isa, &tape, n, n, &x)[0], &want, 4e-7);
        }
        for op in Binary::ALL {
            let tape = single(
                vec![Instr::Input(0), Instr::Input(1), Instr::Binary(op, 0, 1)],
                vec![Access::Full; 2],
            );
            let x = [a.clone(), b.clone()];
            let want: Vec<f64> = interpret(&tape, n, &x).remove(0);
            let want: Vec<f64> = want.iter().map(|w| f64::from(*w as f32)).collect();
            close(isa, op.name(), &run_flat(isa, &tape, n, n, &x)[0], &want, 4e-7);
        }
        let tape = single(
            vec![
                Instr::Input(0),
                Instr::Input(1),
                Instr::Const(5f64.to_bits()),
                Instr::Select(0, 1, 2),
            ],
            vec![Access::Full; 2],
        );
        let x = [a.clone(), b.clone()];
        let want = interpret(&tape, n, &x).remove(0);
        close(isa, "select", &run_flat(isa, &tape, n, n, &x)[0], &want, 0.0);
    }
}

/// `(x * v + p) - s * x`, and two more outputs: an operand and a constant.
fn mixed(period: usize, group: usize) -> Tape {
    Tape {
        inputs: vec![Access::Full, Access::Suffix(period), Access::Prefix(group), Access::Scalar],
        instrs: vec![
            Instr::Input(0),
            Instr::Input(1),
            Instr::Binary(Binary::Mul, 0, 1),
            Instr::Input(2),
            Instr::Binary(Binary::Add, 2, 3),
            Instr::Input(3),
            Instr::Binary(Binary::Mul, 5, 0),
            Instr::Binary(Binary::Sub, 4, 6),
            Instr::Const(2.5f64.to_bits()),
            Instr::Unary(Unary::Tanh, 7),
            Instr::Binary(Binary::Pow, 9, 8),
            Instr::Unary(Unary::Exp, 9),
        ],
        outputs: vec![7, 0, 8, 7, 11],
    }
}

#[test]
fn every_access_with_and_without_gaps() {
    for isa in Isa::available() {
        for (width, pixels, period, group) in [
            (7, 300, 7, 7),
            (64, 40, 64, 64 * 8),
            (200, 11, 600, 1),
            (3, 1, 3, 3),
            (33, 65, 1, 33 * 5),
        ] {
            let n = width * pixels;
            let tape = mixed(period, group);
            let x = [numbers(n, 3), numbers(period, 4), numbers(n.div_ceil(group), 5), vec![0.7]];
            let want = interpret(&tape, n, &x);
            for (ld_in, ld_out) in
                [(width, width), (width + 5, width), (width, width + 3), (width + 1, width + 9)]
            {
                let got = run_strided(isa, &tape, [width, ld_in, ld_out], n, &x);
                for (g, w) in got.iter().zip(&want) {
                    close(isa, &format!("width {width} ld {ld_in}, {ld_out}"), g, w, 2e-6);
                }
            }
        }
    }
}

/// Adam's update: inputs `w, g, m, v, rate`, outputs `w, m, v`.
fn adam() -> Tape {
    let c = |x: f64| Instr::Const(x.to_bits());
    Tape {
        inputs: vec![Access::Full, Access::Full, Access::Full, Access::Full, Access::Scalar],
        instrs: vec![
            Instr::Input(0),                    // w
            Instr::Input(1),                    // g
            Instr::Input(2),                    // m
            Instr::Input(3),                    // v
            Instr::Input(4),                    // rate
            c(0.9),                             // 5
            Instr::Binary(Binary::Mul, 2, 5),   // 6
            c(0.1),                             // 7
            Instr::Binary(Binary::Mul, 1, 7),   // 8
            Instr::Binary(Binary::Add, 6, 8),   // 9: m
            Instr::Unary(Unary::Square, 1),     // 10
            c(0.999),                           // 11
            Instr::Binary(Binary::Mul, 3, 11),  // 12
            c(0.001),                           // 13
            Instr::Binary(Binary::Mul, 10, 13), // 14
            Instr::Binary(Binary::Add, 12, 14), // 15: v
            Instr::Unary(Unary::Sqrt, 15),      // 16
            c(1e-7),                            // 17
            Instr::Binary(Binary::Add, 16, 17), // 18
            Instr::Binary(Binary::Mul, 9, 4),   // 19
            Instr::Binary(Binary::Div, 19, 18), // 20
            Instr::Binary(Binary::Sub, 0, 20),  // 21: w
        ],
        outputs: vec![21, 9, 15],
    }
}

#[test]
fn updates_in_place() {
    let n = 1237;
    let tape = adam();
    let plan = TapePlan::new(&tape);
    assert_eq!(plan.steps.len(), 1, "one pass for all results: {:?}", plan.steps);
    for isa in Isa::available() {
        let mut x = [numbers(n, 1), numbers(n, 2), numbers(n, 3), numbers(n, 4), vec![0.01]];
        x[3].iter_mut().for_each(|v| *v = v.abs());
        let want = interpret(&tape, n, &x);
        let p: Vec<*mut f32> = x.iter_mut().map(|x| x.as_mut_ptr()).collect();
        let inputs: Vec<_> = p.iter().map(|p| TapeInput { ptr: *p, ld: n }).collect();
        let outputs = [0, 2, 3].map(|i| TapeOutput { ptr: p[i], ld: n });
        let mut scratch = vec![0.0; plan.scratch_len()];
        // SAFETY: outputs are inputs with the same stride, or overlap nothing.
        unsafe { plan.run(isa, n, 0..n, &inputs, &outputs, &mut scratch) };
        for (i, w) in [0, 2, 3].into_iter().zip(&want) {
            close(isa, "adam", &x[i], w, 1e-6);
        }
    }
}

/// Products and roots with a second reader are not fused.
#[test]
fn a_register_with_two_readers_is_computed_once() {
    let mut tape = adam();
    for extra in [6, 8, 9, 10, 12, 14, 15, 16, 18, 19, 20] {
        tape.outputs.push(extra);
        let n = 777;
        let mut x = vec![numbers(n, 1), numbers(n, 2), numbers(n, 3), numbers(n, 4), vec![0.01]];
        x[3].iter_mut().for_each(|v| *v = v.abs());
        let want = interpret(&tape, n, &x);
        for isa in Isa::available() {
            for (got, want) in run_flat(isa, &tape, n, n, &x).iter().zip(&want) {
                close(isa, &format!("register {extra} leaves as well"), got, want, 1e-6);
            }
        }
    }
}

#[test]
fn an_output_is_not_written_before_its_memory_was_read() {
    // Swaps two values and doubles the first of them, all in place.
    let tape = Tape {
        inputs: vec![Access::Full, Access::Full],
        instrs: vec![
            Instr::Input(0),
            Instr::Input(1),
            Instr::Binary(Binary::Add, 1, 1),
            Instr::Unary(Unary::Neg, 0),
        ],
        outputs: vec![2, 3],
    };
    let plan = TapePlan::new(&tape);
    for isa in Isa::available() {
        let (mut a, mut b) = (numbers(700, 1), numbers(700, 2));
        let x = [a.clone(), b.clone()];
        let (pa, pb) = (a.as_mut_ptr(), b.as_mut_ptr());
        let inputs = [TapeInput { ptr: pa, ld: 700 }, TapeInput { ptr: pb, ld: 700 }];
        let outputs = [TapeOutput { ptr: pa, ld: 700 }, TapeOutput { ptr: pb, ld: 700 }];
        let mut scratch = vec![0.0; plan.scratch_len()];
        // SAFETY: outputs are inputs with the same stride.
        unsafe { plan.run(isa, 700, 0..700, &inputs, &outputs, &mut scratch) };
        let want = interpret(&tape, 700, &x);
        close(isa, "a", &a, &want[0], 0.0);
        close(isa, "b", &b, &want[1], 0.0);
    }
}

#[test]
fn no_elements_touch_nothing() {
    let plan = TapePlan::new(&adam());
    let mut scratch = vec![0.0; plan.scratch_len()];
    let inputs = [TapeInput { ptr: std::ptr::null(), ld: 0 }; 5];
    let outputs = [TapeOutput { ptr: std::ptr::null_mut(), ld: 0 }; 3];
    // SAFETY: there are no elements.
    unsafe { plan.run(Isa::PORTABLE, 0, 0..0, &inputs, &outputs, &mut scratch) };
}
