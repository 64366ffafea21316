//! Tapes: several elementwise ops in one pass.

use super::{Binary, Unary};
use crate::error::{GraphError, Result};
use std::fmt;

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
