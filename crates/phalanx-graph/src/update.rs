//! Optimizer update rules as tapes.
//!
//! An optimizer is written once, as arithmetic on (weight, gradient, slots, scalars of the step). Every
//! executor evaluates the tape over the flat parameter buffers in one pass.

use crate::error::{GraphError, Result};
use crate::ops::{Access, Binary, Instr, Tape, Unary};

/// A per-weight state buffer of the optimizer, such as a momentum.
#[derive(Clone, Debug, PartialEq)]
pub struct Slot {
    /// Keras' name of the slot.
    pub name: String,
    /// Its initial value.
    pub init: SlotInit,
}

/// The initial value of a slot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SlotInit {
    /// A constant.
    Value(f32),
    /// A copy of the weight.
    Weight,
}

/// Gradient clipping, applied before the rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Clip {
    /// Each weight's gradient is scaled to at most this L2 norm.
    Norm(f32),
    /// All gradients together are scaled to at most this L2 norm.
    GlobalNorm(f32),
    /// Each element is clamped to `-v..=v`.
    Value(f32),
}

/// An optimizer's update rule. The tape's operands are, in order: the weight, the gradient, every slot
/// (all read element by element), then the scalars of the step. Its outputs are the weight, then every slot.
#[derive(Clone, Debug, PartialEq)]
pub struct UpdateRule {
    /// Name, used for printing.
    pub name: String,
    /// The slots.
    pub slots: Vec<Slot>,
    /// Number of scalars that the host computes for every step.
    pub scalars: usize,
    /// Gradient clipping, if any.
    pub clip: Option<Clip>,
    /// The arithmetic.
    pub tape: Tape,
}

impl UpdateRule {
    /// Fails unless the operands and outputs of the tape match the slots and scalars.
    pub fn check(&self) -> Result<()> {
        self.tape.check()?;
        let full = 2 + self.slots.len();
        let expected = |i: usize| if i < full { Access::Full } else { Access::Scalar };
        let reads = self.tape.inputs.iter().enumerate().all(|(i, how)| *how == expected(i));
        let (inputs, outputs) = (self.tape.inputs.len(), self.tape.outputs.len());
        if reads && full.checked_add(self.scalars) == Some(inputs) && outputs == full - 1 {
            return Ok(());
        }
        let what = format!("optimizer '{}'", self.name);
        let expected = format!("weight, gradient, {} slots and {} scalars", full - 2, self.scalars);
        Err(GraphError::mismatch(what, expected, format!("{inputs} operands, {outputs} results")))
    }
}

/// A register of a rule under construction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reg(u16);

/// Builds an [`UpdateRule`].
#[derive(Clone, Debug)]
pub struct RuleBuilder {
    slots: Vec<Slot>,
    scalars: usize,
    instrs: Vec<Instr>,
}

impl RuleBuilder {
    /// A rule with the given slots and number of scalars.
    pub fn new(slots: Vec<Slot>, scalars: usize) -> RuleBuilder {
        let inputs = slots.len().saturating_add(scalars).saturating_add(2);
        let inputs = u16::try_from(inputs).expect("operands of 16 bits");
        let instrs = (0..inputs).map(Instr::Input).collect();
        RuleBuilder { slots, scalars, instrs }
    }

    /// The weight.
    pub fn weight(&self) -> Reg {
        Reg(0)
    }

    /// The gradient, reduced and clipped.
    pub fn gradient(&self) -> Reg {
        Reg(1)
    }

    /// Slot `i`.
    pub fn slot(&self, i: usize) -> Reg {
        assert!(i < self.slots.len(), "the rule has no slot {i}");
        Reg(2 + i as u16)
    }

    /// Scalar `i` of the step.
    pub fn scalar(&self, i: usize) -> Reg {
        assert!(i < self.scalars, "the rule has no scalar {i}");
        Reg((2 + self.slots.len() + i) as u16)
    }

    fn push(&mut self, instr: Instr) -> Reg {
        let register = u16::try_from(self.instrs.len()).expect("registers of 16 bits");
        self.instrs.push(instr);
        Reg(register)
    }

    /// A constant.
    pub fn constant(&mut self, v: f64) -> Reg {
        self.push(Instr::Const(v.to_bits()))
    }

    /// A unary function.
    pub fn unary(&mut self, u: Unary, a: Reg) -> Reg {
        self.push(Instr::Unary(u, a.0))
    }

    /// A binary function.
    pub fn binary(&mut self, b: Binary, l: Reg, r: Reg) -> Reg {
        self.push(Instr::Binary(b, l.0, r.0))
    }

    /// `l + r`
    pub fn add(&mut self, l: Reg, r: Reg) -> Reg {
        self.binary(Binary::Add, l, r)
    }

    /// `l - r`
    pub fn sub(&mut self, l: Reg, r: Reg) -> Reg {
        self.binary(Binary::Sub, l, r)
    }

    /// `l * r`
    pub fn mul(&mut self, l: Reg, r: Reg) -> Reg {
        self.binary(Binary::Mul, l, r)
    }

    /// `l / r`
    pub fn div(&mut self, l: Reg, r: Reg) -> Reg {
        self.binary(Binary::Div, l, r)
    }

    /// `a * c`
    pub fn scale(&mut self, a: Reg, c: f64) -> Reg {
        let c = self.constant(c);
        self.mul(a, c)
    }

    /// `if c != 0 { a } else { b }`
    pub fn select(&mut self, c: Reg, a: Reg, b: Reg) -> Reg {
        self.push(Instr::Select(c.0, a.0, b.0))
    }

    /// `a * keep + b * (1 - keep)`: a moving average.
    pub fn blend(&mut self, keep: f64, a: Reg, b: Reg) -> Reg {
        let a = self.scale(a, keep);
        let b = self.scale(b, 1.0 - keep);
        self.add(a, b)
    }

    /// The rule that assigns `weight` and `slots`.
    pub fn finish(self, name: &str, clip: Option<Clip>, weight: Reg, slots: &[Reg]) -> UpdateRule {
        assert_eq!(slots.len(), self.slots.len(), "every slot needs its new value");
        let full = 2 + self.slots.len();
        let inputs = (0..full + self.scalars)
            .map(|i| if i < full { Access::Full } else { Access::Scalar })
            .collect();
        let outputs = std::iter::once(weight).chain(slots.iter().copied()).map(|r| r.0).collect();
        UpdateRule {
            name: name.into(),
            slots: self.slots,
            scalars: self.scalars,
            clip,
            tape: Tape { inputs, instrs: self.instrs, outputs },
        }
    }
}
