//! Elementwise ops: broadcasting, derivatives, and the tape that fuses them.
//!
//! Activations, losses, optimizers and preprocessing are composed of these few primitives, so an executor
//! has to optimize one interpreter instead of many kernels.

use super::{Backward, Cotangents, operand};
use crate::error::{GraphError, Result};
use crate::graph::Graph;
use crate::types::{DType, Space, Type};
use std::fmt;

/// Unary functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unary {
    /// `-x`
    Neg,
    /// `|x|`
    Abs,
    /// -1, 0 or 1
    Sign,
    /// `1 / x`
    Recip,
    /// `x * x`
    Square,
    /// `√x`
    Sqrt,
    /// `1 / √x`
    Rsqrt,
    /// `eˣ`
    Exp,
    /// `eˣ - 1`, accurate near zero
    Expm1,
    /// `ln x`
    Log,
    /// `ln(1 + x)`, accurate near zero
    Log1p,
    /// `tanh x`
    Tanh,
    /// `1 / (1 + e⁻ˣ)`
    Sigmoid,
    /// The error function
    Erf,
    /// `max(x, 0)`
    Relu,
    /// The largest integer not above `x`
    Floor,
    /// `sin x`
    Sin,
}

/// Binary functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Binary {
    /// `a + b`
    Add,
    /// `a - b`
    Sub,
    /// `a * b`
    Mul,
    /// `a / b`
    Div,
    /// The larger; NaN if either is
    Max,
    /// The smaller; NaN if either is
    Min,
    /// `aᵇ`
    Pow,
    /// 1 where `a > b`, else 0
    Gt,
    /// 1 where `a >= b`, else 0
    Ge,
    /// 1 where `a == b`, else 0
    Eq,
}

impl Unary {
    /// All variants.
    pub const ALL: [Unary; 17] = [
        Unary::Neg,
        Unary::Abs,
        Unary::Sign,
        Unary::Recip,
        Unary::Square,
        Unary::Sqrt,
        Unary::Rsqrt,
        Unary::Exp,
        Unary::Expm1,
        Unary::Log,
        Unary::Log1p,
        Unary::Tanh,
        Unary::Sigmoid,
        Unary::Erf,
        Unary::Relu,
        Unary::Floor,
        Unary::Sin,
    ];

    /// Name in programs.
    pub fn name(self) -> &'static str {
        match self {
            Unary::Neg => "neg",
            Unary::Abs => "abs",
            Unary::Sign => "sign",
            Unary::Recip => "recip",
            Unary::Square => "square",
            Unary::Sqrt => "sqrt",
            Unary::Rsqrt => "rsqrt",
            Unary::Exp => "exp",
            Unary::Expm1 => "expm1",
            Unary::Log => "log",
            Unary::Log1p => "log1p",
            Unary::Tanh => "tanh",
            Unary::Sigmoid => "sigmoid",
            Unary::Erf => "erf",
            Unary::Relu => "relu",
            Unary::Floor => "floor",
            Unary::Sin => "sin",
        }
    }
}

impl Binary {
    /// All variants.
    pub const ALL: [Binary; 10] = [
        Binary::Add,
        Binary::Sub,
        Binary::Mul,
        Binary::Div,
        Binary::Max,
        Binary::Min,
        Binary::Pow,
        Binary::Gt,
        Binary::Ge,
        Binary::Eq,
    ];

    /// Name in programs.
    pub fn name(self) -> &'static str {
        match self {
            Binary::Add => "add",
            Binary::Sub => "sub",
            Binary::Mul => "mul",
            Binary::Div => "div",
            Binary::Max => "max",
            Binary::Min => "min",
            Binary::Pow => "pow",
            Binary::Gt => "gt",
            Binary::Ge => "ge",
            Binary::Eq => "eq",
        }
    }
}

/// How a tape reads an operand as it iterates over the elements of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Element by element.
    Full,
    /// One number for all elements.
    Scalar,
    /// Repeated with this period: a vector over the trailing axes, such as a bias.
    Suffix(usize),
    /// Each number covers this many consecutive elements: one per row or per pixel.
    Prefix(usize),
}

/// An instruction of a tape; its result is the register with its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Instr {
    /// Reads operand `i`.
    Input(u16),
    /// A constant (bits of an f64).
    Const(u64),
    /// A unary function of a register.
    Unary(Unary, u16),
    /// A binary function of two registers.
    Binary(Binary, u16, u16),
    /// Selects between registers; operands `c, a, b`.
    Select(u16, u16, u16),
}

/// Maximum number of instructions of a tape: registers and constants have 16-bit indices.
const MAX_INSTRS: usize = 1 << 15;

/// A straight-line program over the elements of a value, in single-assignment form.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tape {
    /// How each operand is read.
    pub inputs: Vec<Access>,
    /// The instructions.
    pub instrs: Vec<Instr>,
    /// The output registers: one for graph nodes, several for optimizer updates.
    pub outputs: Vec<u16>,
}

impl Tape {
    /// Fails if an instruction reads a missing operand or a register that is not yet written.
    pub fn check(&self) -> Result<()> {
        let fail = |what: String| {
            let expected = "operands that it has and registers that were written before";
            Err(GraphError::mismatch("tape", expected, what))
        };
        if self.instrs.len() > MAX_INSTRS {
            let expected = format!("at most {MAX_INSTRS} steps");
            return Err(GraphError::mismatch("tape", expected, self.instrs.len().to_string()));
        }
        for (i, instr) in self.instrs.iter().enumerate() {
            let before = |r: &u16| usize::from(*r) < i;
            let fits = match instr {
                Instr::Input(k) => usize::from(*k) < self.inputs.len(),
                Instr::Const(_) => true,
                Instr::Unary(_, a) => before(a),
                Instr::Binary(_, l, r) => before(l) && before(r),
                Instr::Select(c, a, b) => before(c) && before(a) && before(b),
            };
            if !fits {
                return fail(format!("{instr:?} as step {i}"));
            }
        }
        match self.outputs.iter().find(|r| usize::from(**r) >= self.instrs.len()) {
            Some(r) => fail(format!("register {r} as a result")),
            None => Ok(()),
        }
    }

    fn expr(&self, reg: u16) -> String {
        match self.instrs[reg as usize] {
            Instr::Input(i) => match self.inputs[i as usize] {
                Access::Full => format!("x{i}"),
                Access::Scalar => format!("s{i}"),
                Access::Suffix(_) => format!("v{i}"),
                Access::Prefix(_) => format!("p{i}"),
            },
            Instr::Const(bits) => format!("{}", f64::from_bits(bits)),
            Instr::Unary(u, a) => format!("{}({})", u.name(), self.expr(a)),
            Instr::Binary(b, l, r) => {
                let (l, r) = (self.expr(l), self.expr(r));
                match b {
                    Binary::Add => format!("({l} + {r})"),
                    Binary::Sub => format!("({l} - {r})"),
                    Binary::Mul => format!("{l} * {r}"),
                    Binary::Div => format!("{l} / {r}"),
                    _ => format!("{}({l}, {r})", b.name()),
                }
            }
            Instr::Select(c, a, b) => {
                format!("select({}, {}, {})", self.expr(c), self.expr(a), self.expr(b))
            }
        }
    }
}

/// Prints a short tape as one expression and a long one instruction by instruction.
impl fmt::Display for Tape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.outputs.len() == 1 && self.instrs.len() <= 12 {
            return f.write_str(&self.expr(self.outputs[0]));
        }
        for (i, instr) in self.instrs.iter().enumerate() {
            match instr {
                Instr::Input(k) => write!(f, "r{i}=x{k}")?,
                Instr::Const(bits) => write!(f, "r{i}={}", f64::from_bits(*bits))?,
                Instr::Unary(u, a) => write!(f, "r{i}={}(r{a})", u.name())?,
                Instr::Binary(b, l, r) => write!(f, "r{i}={}(r{l},r{r})", b.name())?,
                Instr::Select(c, a, b) => write!(f, "r{i}=select(r{c},r{a},r{b})")?,
            }
            f.write_str("; ")?;
        }
        let outs: Vec<String> = self.outputs.iter().map(|o| format!("r{o}")).collect();
        write!(f, "-> {}", outs.join(","))
    }
}

/// The dimensions that two operands broadcast to, aligned at the end as in NumPy.
pub fn broadcast_dims(a: &[usize], b: &[usize]) -> Option<Vec<usize>> {
    let rank = a.len().max(b.len());
    let at = |d: &[usize], i: usize| (i + d.len()).checked_sub(rank).map_or(1, |k| d[k]);
    (0..rank)
        .map(|i| match (at(a, i), at(b, i)) {
            (x, y) if x == y => Some(x),
            (1, y) => Some(y),
            (x, 1) => Some(x),
            _ => None,
        })
        .collect()
}

/// How a tape over `out` reads an operand of type `x`; `None` if it must be broadcast first.
pub fn access(out: &Type, x: &Type) -> Option<Access> {
    let rank = out.dims.len();
    let lead = rank.checked_sub(x.dims.len())?;
    let aligned: Vec<usize> =
        (0..rank).map(|i| if i < lead { 1 } else { x.dims[i - lead] }).collect();
    let same_kind = out.is_rows() == x.is_rows();
    if same_kind && aligned == out.dims {
        return Some(Access::Full);
    }
    if !x.is_rows() && x.len() == 1 {
        return Some(Access::Scalar);
    }
    if same_kind {
        let k = (0..rank).take_while(|i| aligned[*i] == out.dims[*i]).count();
        if aligned[k..].iter().all(|d| *d == 1) {
            return Some(Access::Prefix(out.dims[k..].iter().product()));
        }
    }
    if !x.is_rows() {
        let k = aligned.iter().take_while(|d| **d == 1).count();
        if aligned[k..] == out.dims[k..] {
            return Some(Access::Suffix(x.len()));
        }
    }
    None
}

/// The space of a result. Partial sums allow only linear operations.
fn join_spaces(op: &str, a: &Type, b: &Type) -> Result<Space> {
    use Space::*;
    match (a.space, b.space) {
        (Partial, Partial) if op == "add" || op == "sub" => Ok(Partial),
        (Partial, Mirrored) if op == "mul" || op == "div" => Ok(Partial),
        (Mirrored, Partial) if op == "mul" => Ok(Partial),
        (Partial, _) => Err(operand(op, "a value already reduced", a)),
        (_, Partial) => Err(operand(op, "a value already reduced", b)),
        (Rows, _) | (_, Rows) => Ok(Rows),
        (Device, _) | (_, Device) => Ok(Device),
        (Mirrored, Mirrored) => Ok(Mirrored),
    }
}

fn need_float(op: &str, x: &Type) -> Result<()> {
    if x.dtype == DType::F32 { Ok(()) } else { Err(operand(op, "f32", x)) }
}

/// Shape rule of unary ops.
pub fn infer_unary(u: Unary, x: &Type) -> Result<Type> {
    need_float(u.name(), x)?;
    if x.space == Space::Partial && u != Unary::Neg {
        return Err(operand(u.name(), "a value already reduced", x));
    }
    Ok(x.clone())
}

fn broadcast_types(op: &str, a: &Type, b: &Type) -> Result<Type> {
    need_float(op, a)?;
    need_float(op, b)?;
    let dims = broadcast_dims(&a.dims, &b.dims).ok_or_else(|| {
        GraphError::mismatch(
            format!("inputs of {op}"),
            "shapes that broadcast together",
            format!("{} and {}", a.shape_text(), b.shape_text()),
        )
    })?;
    Ok(Type::new(DType::F32, join_spaces(op, a, b)?, dims))
}

fn check_access(op: &str, out: Type, x: &[&Type]) -> Result<Type> {
    match x.iter().find(|t| access(&out, t).is_none()) {
        None => Ok(out),
        Some(t) => Err(operand(op, format!("a value broadcast to {out} beforehand"), t)),
    }
}

/// Shape rule of binary ops. Operands must be readable without a copy: the builder inserts a `Broadcast`
/// where necessary.
pub fn infer_binary(op: Binary, a: &Type, b: &Type) -> Result<Type> {
    check_access(op.name(), broadcast_types(op.name(), a, b)?, &[a, b])
}

/// Shape rule of `Select`.
pub fn infer_select(x: &[&Type]) -> Result<Type> {
    let out = broadcast_types("select", &broadcast_types("select", x[0], x[1])?, x[2])?;
    check_access("select", out, x)
}

/// Shape rule of a fused tape: the broadcast of all operands, each with the access of the tape.
pub fn infer_fused(tape: &Tape, x: &[&Type]) -> Result<Type> {
    if x.is_empty() || tape.outputs.len() != 1 {
        let received = format!("{} and {}", x.len(), tape.outputs.len());
        return Err(GraphError::mismatch("fused", "operands and one result", received));
    }
    tape.check()?;
    x.iter().try_for_each(|t| need_float("fused", t))?;
    let mut out = x[0].clone();
    for t in &x[1..] {
        // Partial sums were checked before fusion; a tape with a partial operand is partial.
        let space = match (out.space, t.space) {
            (Space::Partial, _) | (_, Space::Partial) => Space::Partial,
            _ => join_spaces("fused", &out, t)?,
        };
        let dims = broadcast_dims(&out.dims, &t.dims)
            .ok_or_else(|| operand("fused", format!("something like {out}"), t))?;
        out = Type::new(DType::F32, space, dims);
    }
    for (t, how) in x.iter().zip(&tape.inputs) {
        if access(&out, t) != Some(*how) {
            return Err(operand("fused", format!("{how:?} access over {out}"), t));
        }
    }
    Ok(out)
}

/// `dx = f'(x) · dy`, in terms of `x` and the result `y`.
pub fn unary_derivative(u: Unary, g: &mut Graph, b: &Backward<'_>) -> Cotangents {
    let (x, y, dy) = (b.inputs[0], b.y, b.dy);
    let dx = match u {
        Unary::Neg => g.neg(dy)?,
        // sign(x)
        Unary::Abs => {
            let s = g.unary(Unary::Sign, x)?;
            g.mul(dy, s)?
        }
        Unary::Sign | Unary::Floor => return Ok(vec![None]),
        // -y²
        Unary::Recip => {
            let y2 = g.unary(Unary::Square, y)?;
            let t = g.mul(dy, y2)?;
            g.neg(t)?
        }
        // 2x
        Unary::Square => {
            let two = g.scalar(2.0);
            let t = g.mul(x, two)?;
            g.mul(dy, t)?
        }
        // 1 / 2y
        Unary::Sqrt => {
            let half = g.scalar(0.5);
            let t = g.div(half, y)?;
            g.mul(dy, t)?
        }
        // -y³ / 2
        Unary::Rsqrt => {
            let y2 = g.unary(Unary::Square, y)?;
            let y3 = g.mul(y2, y)?;
            let c = g.scalar(-0.5);
            let t = g.mul(y3, c)?;
            g.mul(dy, t)?
        }
        // y
        Unary::Exp => g.mul(dy, y)?,
        // y + 1
        Unary::Expm1 => {
            let one = g.scalar(1.0);
            let t = g.add(y, one)?;
            g.mul(dy, t)?
        }
        // 1 / x
        Unary::Log => g.div(dy, x)?,
        // 1 / (1 + x)
        Unary::Log1p => {
            let one = g.scalar(1.0);
            let t = g.add(x, one)?;
            g.div(dy, t)?
        }
        // 1 - y²
        Unary::Tanh => {
            let one = g.scalar(1.0);
            let y2 = g.unary(Unary::Square, y)?;
            let t = g.sub(one, y2)?;
            g.mul(dy, t)?
        }
        // y (1 - y)
        Unary::Sigmoid => {
            let one = g.scalar(1.0);
            let t = g.sub(one, y)?;
            let t = g.mul(y, t)?;
            g.mul(dy, t)?
        }
        // cos x = sin(x + π/2)
        Unary::Sin => {
            let t = g.offset(x, std::f64::consts::FRAC_PI_2)?;
            let c = g.unary(Unary::Sin, t)?;
            g.mul(dy, c)?
        }
        // 2/√π · e^(-x²)
        Unary::Erf => {
            let x2 = g.unary(Unary::Square, x)?;
            let n = g.neg(x2)?;
            let e = g.unary(Unary::Exp, n)?;
            let c = g.scalar(std::f64::consts::FRAC_2_SQRT_PI);
            let t = g.mul(e, c)?;
            g.mul(dy, t)?
        }
        // y > 0
        Unary::Relu => {
            let zero = g.scalar(0.0);
            let mask = g.binary(Binary::Gt, y, zero)?;
            g.mul(dy, mask)?
        }
    };
    Ok(vec![Some(dx)])
}

/// Derivatives of binary ops, summed over the axes along which an operand was broadcast.
pub fn binary_derivative(op: Binary, g: &mut Graph, b: &Backward<'_>) -> Cotangents {
    let (l, r, y, dy) = (b.inputs[0], b.inputs[1], b.y, b.dy);
    let mut out = vec![None, None];
    if b.wanted[0] {
        let dl = match op {
            Binary::Add | Binary::Sub => dy,
            Binary::Mul => g.mul(dy, r)?,
            Binary::Div => g.div(dy, r)?,
            // A tie gives half to each side, as in other frameworks.
            Binary::Max | Binary::Min => tie_weighted(op, g, l, r, dy)?,
            // b · a^(b-1)
            Binary::Pow => {
                let one = g.scalar(1.0);
                let e = g.sub(r, one)?;
                let p = g.binary(Binary::Pow, l, e)?;
                let t = g.mul(r, p)?;
                g.mul(dy, t)?
            }
            Binary::Gt | Binary::Ge | Binary::Eq => return Ok(out),
        };
        let ty = g.ty(l).clone();
        out[0] = Some(g.reduce_to(dl, &ty)?);
    }
    if b.wanted[1] {
        let dr = match op {
            Binary::Add => dy,
            Binary::Sub => g.neg(dy)?,
            Binary::Mul => g.mul(dy, l)?,
            // -y / b
            Binary::Div => {
                let t = g.div(y, r)?;
                let t = g.mul(dy, t)?;
                g.neg(t)?
            }
            Binary::Max | Binary::Min => tie_weighted(op, g, r, l, dy)?,
            // ln a · y
            Binary::Pow => {
                let ln = g.unary(Unary::Log, l)?;
                let t = g.mul(ln, y)?;
                g.mul(dy, t)?
            }
            Binary::Gt | Binary::Ge | Binary::Eq => return Ok(out),
        };
        let ty = g.ty(r).clone();
        out[1] = Some(g.reduce_to(dr, &ty)?);
    }
    Ok(out)
}

/// `dy` times the weight of `mine` in `max(mine, other)`: 1 if it wins, ½ if they tie.
fn tie_weighted(
    op: Binary,
    g: &mut Graph,
    mine: crate::NodeId,
    other: crate::NodeId,
    dy: crate::NodeId,
) -> Result<crate::NodeId> {
    let (hi, lo) = if op == Binary::Max { (mine, other) } else { (other, mine) };
    let wins = g.binary(Binary::Gt, hi, lo)?;
    let ties = g.binary(Binary::Ge, hi, lo)?;
    let both = g.add(wins, ties)?;
    let half = g.scalar(0.5);
    let weight = g.mul(both, half)?;
    g.mul(dy, weight)
}

/// `da = dy` where the condition holds, `db = dy` elsewhere.
pub fn select_derivative(g: &mut Graph, b: &Backward<'_>) -> Cotangents {
    let c = b.inputs[0];
    let zero = g.scalar(0.0);
    // A partial sum may be scaled but not selected from, so it is multiplied by a mask of 0 and 1.
    let partial = g.ty(b.dy).space == Space::Partial;
    let source = if partial { g.scalar(1.0) } else { b.dy };
    let mut out = vec![None, None, None];
    for (i, slot) in out.iter_mut().enumerate().skip(1) {
        if b.wanted[i] {
            let d = if i == 1 { g.select(c, source, zero)? } else { g.select(c, zero, source)? };
            let d = if partial { g.mul(b.dy, d)? } else { d };
            let ty = g.ty(b.inputs[i]).clone();
            *slot = Some(g.reduce_to(d, &ty)?);
        }
    }
    Ok(out)
}
