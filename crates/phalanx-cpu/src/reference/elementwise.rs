//! Elementwise ops. All of them are tapes; a plain op is a tape with one step.

use super::{Data, Value};
use phalanx_graph::ops::elementwise::access;
use phalanx_graph::ops::{Access, Binary, Instr, Tape, Unary};
use phalanx_graph::{DType, Type};

/// The larger number; NaN if either is.
pub(super) fn max(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) }
}

fn min(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.min(b) }
}

fn unary_number(u: Unary, x: f64) -> f64 {
    match u {
        Unary::Neg => -x,
        Unary::Abs => x.abs(),
        // The sign of zero is zero, the sign of NaN is NaN.
        Unary::Sign => {
            if x == 0.0 || x.is_nan() {
                x
            } else {
                x.signum()
            }
        }
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
        Unary::Erf => libm::erf(x),
        Unary::Relu => max(x, 0.0),
        Unary::Floor => x.floor(),
        Unary::Sin => x.sin(),
        Unary::Cos => x.cos(),
        Unary::Atan => x.atan(),
        Unary::Round => x.round_ties_even(),
    }
}

fn binary_number(b: Binary, l: f64, r: f64) -> f64 {
    let truth = |t: bool| if t { 1.0 } else { 0.0 };
    match b {
        Binary::Add => l + r,
        Binary::Sub => l - r,
        Binary::Mul => l * r,
        Binary::Div => l / r,
        Binary::Max => max(l, r),
        Binary::Min => min(l, r),
        Binary::Pow => l.powf(r),
        Binary::Rem => l % r,
        Binary::Gt => truth(l > r),
        Binary::Ge => truth(l >= r),
        Binary::Eq => truth(l == r),
    }
}

/// Interprets a tape over `len` elements; one vector for each of its outputs.
pub fn run_tape(tape: &Tape, inputs: &[&[f64]], len: usize) -> Vec<Vec<f64>> {
    let mut outputs = vec![Vec::with_capacity(len); tape.outputs.len()];
    for e in 0..len {
        let mut registers: Vec<f64> = Vec::with_capacity(tape.instrs.len());
        for instr in &tape.instrs {
            let r = |i: u16| registers[usize::from(i)];
            let result = match *instr {
                Instr::Input(i) => {
                    let at = match tape.inputs[usize::from(i)] {
                        Access::Full => e,
                        Access::Scalar => 0,
                        Access::Suffix(period) => e % period,
                        Access::Prefix(run) => e / run,
                    };
                    inputs[usize::from(i)][at]
                }
                Instr::Const(bits) => f64::from_bits(bits),
                Instr::Unary(u, a) => unary_number(u, r(a)),
                Instr::Binary(b, x, y) => binary_number(b, r(x), r(y)),
                Instr::Select(c, a, b) => {
                    if r(c) != 0.0 {
                        r(a)
                    } else {
                        r(b)
                    }
                }
            };
            registers.push(result);
        }
        for (out, register) in outputs.iter_mut().zip(&tape.outputs) {
            out.push(registers[usize::from(*register)]);
        }
    }
    outputs
}

/// Runs a tape that has one output.
pub(super) fn fused(tape: &Tape, x: &[&Value], dims: Vec<usize>) -> Value {
    let inputs: Vec<&[f64]> = x.iter().map(|v| v.floats()).collect();
    let mut outputs = run_tape(tape, &inputs, dims.iter().product());
    assert_eq!(outputs.len(), 1, "a node has one result");
    Value::float(dims, outputs.remove(0))
}

/// The tape that reads its operands into registers `0..n` and applies one instruction to them.
fn tape_of(last: Instr, out: &Type, types: &[&Type]) -> Tape {
    let read = |t: &&Type| access(out, t).expect("verified: operands can be read in place");
    let n = types.len() as u16;
    let mut instrs: Vec<Instr> = (0..n).map(Instr::Input).collect();
    instrs.push(last);
    Tape { inputs: types.iter().map(read).collect(), instrs, outputs: vec![n] }
}

/// `u(x)`
pub(super) fn unary(u: Unary, x: &Value) -> Value {
    Value::float(x.dims.clone(), x.floats().iter().map(|v| unary_number(u, *v)).collect())
}

/// `b(l, r)`
pub(super) fn binary(
    b: Binary,
    out: &Type,
    x: &[&Value],
    types: &[&Type],
    dims: Vec<usize>,
) -> Value {
    fused(&tape_of(Instr::Binary(b, 0, 1), out, types), x, dims)
}

/// `if c != 0 { a } else { b }`
pub(super) fn select(out: &Type, x: &[&Value], types: &[&Type], dims: Vec<usize>) -> Value {
    fused(&tape_of(Instr::Select(0, 1, 2), out, types), x, dims)
}

/// Converts the element type. Floats are rounded towards zero when converted to integers.
pub(super) fn cast(dtype: DType, x: &Value) -> Value {
    let data = match (dtype, &x.data) {
        (DType::Bf16 | DType::F16, _) => unreachable!("no graph has 16-bit floats before its plan"),
        (DType::F32 | DType::F64, Data::Int(v)) => {
            Data::Float(v.iter().map(|i| f64::from(*i)).collect())
        }
        (DType::I32, Data::Float(v)) => Data::Int(v.iter().map(|f| *f as i32).collect()),
        (DType::F32 | DType::F64, Data::Float(_)) | (DType::I32, Data::Int(_)) => x.data.clone(),
    };
    Value { dims: x.dims.clone(), data }
}
