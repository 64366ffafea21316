//! Elementwise ops: broadcasting, derivatives, and the tape that fuses them.
//!
//! Activations, losses, optimizers and preprocessing are composed of these few primitives, so an executor
//! has to optimize one interpreter instead of many kernels.

mod derivative;
mod infer;
mod tape;

pub use derivative::{binary_derivative, select_derivative, unary_derivative};
pub use infer::{access, broadcast_dims, infer_binary, infer_fused, infer_select, infer_unary};
pub use tape::{Access, Instr, Tape};

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
    /// `cos x`
    Cos,
    /// The angle between -π/2 and π/2 whose tangent is `x`
    Atan,
    /// The nearest integer, the even one if two are equally near
    Round,
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
    /// The remainder of `a / b` rounded towards zero, with the sign of `a`
    Rem,
    /// 1 where `a > b`, else 0
    Gt,
    /// 1 where `a >= b`, else 0
    Ge,
    /// 1 where `a == b`, else 0
    Eq,
}

impl Unary {
    /// All variants.
    pub const ALL: [Unary; 20] = [
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
        Unary::Cos,
        Unary::Atan,
        Unary::Round,
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
            Unary::Cos => "cos",
            Unary::Atan => "atan",
            Unary::Round => "round",
        }
    }
}

impl Binary {
    /// All variants.
    pub const ALL: [Binary; 11] = [
        Binary::Add,
        Binary::Sub,
        Binary::Mul,
        Binary::Div,
        Binary::Max,
        Binary::Min,
        Binary::Pow,
        Binary::Rem,
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
            Binary::Rem => "rem",
            Binary::Gt => "gt",
            Binary::Ge => "ge",
            Binary::Eq => "eq",
        }
    }
}
