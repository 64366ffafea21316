//! Fusion of a tape's steps. Every step saved saves a pass over the tile.

use super::plan::{Action, Quaternary, Ternary};
use phalanx_graph::ops::{Access, Binary, Instr, Tape, Unary};

/// The steps of a tape after fusion.
pub(super) struct Fused {
    /// The action that computes each register. `None` for an operand, a constant, an unused register, or one
    /// fused into the step that uses it.
    pub actions: Vec<Option<Action<u16>>>,
    /// Outputs that the step of another register also computes: `(output, register)`.
    pub extra_outputs: Vec<(u16, u16)>,
}

/// Fuses a tape into as few steps as possible.
pub(super) fn fuse(tape: &Tape) -> Fused {
    let uses = uses(tape);
    let mut f = Fusion { tape, uses, actions: vec![None; tape.instrs.len()] };
    let mut extra_outputs = vec![];
    for (r, instr) in tape.instrs.iter().enumerate().filter(|(r, _)| f.uses[*r] > 0) {
        let (action, fused) = match *instr {
            Instr::Input(_) | Instr::Const(_) => continue,
            Instr::Unary(u, a) => (Action::Unary(u, a), vec![]),
            Instr::Select(c, a, b) => (Action::Ternary(Ternary::Select, c, a, b), vec![]),
            Instr::Binary(op, a, b) => f.binary(op, a, b),
        };
        let averages = f.averages(action);
        let (action, moments) = averages.unwrap_or((action, vec![]));
        f.actions[r] = Some(action);
        extra_outputs.extend(moments.iter().map(|m| (*m, r as u16)));
        let fused = fused.into_iter().chain(moments);
        fused.for_each(|r| f.actions[usize::from(r)] = None);
    }
    Fused { actions: f.actions, extra_outputs }
}

/// How often each register is read by steps that contribute to an output.
fn uses(tape: &Tape) -> Vec<u32> {
    let mut uses = vec![0; tape.instrs.len()];
    tape.outputs.iter().for_each(|r| uses[usize::from(*r)] += 1);
    for (r, instr) in tape.instrs.iter().enumerate().rev() {
        if uses[r] == 0 {
            continue;
        }
        let mut read = |x: u16| uses[usize::from(x)] += 1;
        match *instr {
            Instr::Input(_) | Instr::Const(_) => {}
            Instr::Unary(_, a) => read(a),
            Instr::Binary(_, a, b) => [a, b].into_iter().for_each(read),
            Instr::Select(c, a, b) => [c, a, b].into_iter().for_each(read),
        }
    }
    uses
}

/// A step and the registers fused into it.
type Step = (Action<u16>, Vec<u16>);

struct Fusion<'a> {
    tape: &'a Tape,
    uses: Vec<u32>,
    actions: Vec<Option<Action<u16>>>,
}

impl Fusion<'_> {
    /// The action that computes a register, if it is read exactly once.
    fn single_use(&self, r: u16) -> Option<Action<u16>> {
        self.actions[usize::from(r)].filter(|_| self.uses[usize::from(r)] == 1)
    }

    fn product(&self, r: u16) -> Option<(u16, u16)> {
        match self.single_use(r)? {
            Action::Binary(Binary::Mul, a, b) => Some((a, b)),
            Action::Unary(Unary::Square, a) => Some((a, a)),
            _ => None,
        }
    }

    fn comparison(&self, r: u16) -> Option<(u16, u16)> {
        match self.single_use(r)? {
            Action::Binary(Binary::Gt, a, b) => Some((a, b)),
            _ => None,
        }
    }

    fn constant(&self, r: u16) -> Option<f64> {
        match self.tape.instrs[usize::from(r)] {
            Instr::Const(bits) => Some(f64::from_bits(bits)),
            _ => None,
        }
    }

    /// Whether a register is the same number for all elements.
    fn is_scalar(&self, r: u16) -> bool {
        match self.tape.instrs[usize::from(r)] {
            Instr::Const(_) => true,
            Instr::Input(i) => self.tape.inputs[usize::from(i)] == Access::Scalar,
            _ => false,
        }
    }

    /// Whether a register is an operand with fewer elements than the tape has.
    fn repeats(&self, r: u16) -> bool {
        match self.tape.instrs[usize::from(r)] {
            Instr::Input(i) => self.tape.inputs[usize::from(i)] != Access::Full,
            _ => false,
        }
    }

    fn binary(&self, op: Binary, l: u16, r: u16) -> Step {
        let plain = (Action::Binary(op, l, r), vec![]);
        match op {
            Binary::Add => self.blend(l, r).or_else(|| self.sum(l, r)).unwrap_or(plain),
            Binary::Sub => self.root_step(l, r).or_else(|| self.difference(l, r)).unwrap_or(plain),
            Binary::Mul => self.masked(l, r).unwrap_or(plain),
            Binary::Pow if self.constant(r) == Some(2.0) => {
                (Action::Unary(Unary::Square, l), vec![])
            }
            Binary::Pow if self.constant(r) == Some(-1.0) => {
                (Action::Unary(Unary::Recip, l), vec![])
            }
            _ => plain,
        }
    }

    /// The sum of two products.
    fn blend(&self, l: u16, r: u16) -> Option<Step> {
        if l == r {
            return None;
        }
        let ((a, b), (c, d)) = (self.product(l)?, self.product(r)?);
        let square = match self.single_use(c) {
            Some(Action::Unary(Unary::Square, x)) => Some(x),
            _ => None,
        };
        Some(match square {
            Some(x) => (Action::Quaternary(Quaternary::BlendSquare, [a, b, x, d]), vec![l, r, c]),
            None => (Action::Quaternary(Quaternary::Blend, [a, b, c, d]), vec![l, r]),
        })
    }

    fn sum(&self, l: u16, r: u16) -> Option<Step> {
        let fused =
            |(a, b), c, fused_in| (Action::Ternary(Ternary::MulAdd, a, b, c), vec![fused_in]);
        let left = self.product(l).map(|p| fused(p, r, l));
        left.or_else(|| self.product(r).map(|p| fused(p, l, r)))
    }

    fn difference(&self, l: u16, r: u16) -> Option<Step> {
        let fused = |kind, (a, b), c, fused_in| (Action::Ternary(kind, a, b, c), vec![fused_in]);
        let left = self.product(l).map(|p| fused(Ternary::MulSub, p, r, l));
        left.or_else(|| self.product(r).map(|p| fused(Ternary::SubMul, p, l, r)))
    }

    fn masked(&self, l: u16, r: u16) -> Option<Step> {
        let fused =
            |x, (a, b), fused_in| (Action::Ternary(Ternary::MulGt, x, a, b), vec![fused_in]);
        let right = self.comparison(r).map(|c| fused(l, c, r));
        right.or_else(|| self.comparison(l).map(|c| fused(r, c, l)))
    }

    /// `w - m * rate / (√v + ε)`.
    fn root_step(&self, w: u16, change: u16) -> Option<Step> {
        let Action::Binary(Binary::Div, top, bottom) = self.single_use(change)? else {
            return None;
        };
        let Action::Binary(Binary::Add, root, epsilon) = self.single_use(bottom)? else {
            return None;
        };
        let Action::Unary(Unary::Sqrt, v) = self.single_use(root)? else { return None };
        let Some(Action::Binary(Binary::Mul, m, rate)) = self.single_use(top) else { return None };
        Some((Action::RootStep([w, m, rate, v, epsilon]), vec![change, bottom, root, top]))
    }

    /// Fuses a root step with the moving averages it uses, if these are otherwise only outputs (Adam).
    fn averages(&self, step: Action<u16>) -> Option<Step> {
        let Action::RootStep([w, m, rate, v, epsilon]) = step else { return None };
        let is_output = |r: u16| self.tape.outputs.contains(&r) && self.uses[usize::from(r)] == 2;
        let of = |r: u16| self.actions[usize::from(r)].filter(|_| is_output(r));
        let Action::Quaternary(Quaternary::Blend, [a, b, c, d]) = of(m)? else { return None };
        let Action::Quaternary(Quaternary::BlendSquare, [f, g, h, i]) = of(v)? else { return None };
        let (full, splat) = ([w, a, f, c], [b, d, g, i, rate, epsilon]);
        let per_element = |r: &u16| !self.is_scalar(*r) && !self.repeats(*r);
        let fits =
            c == h && full.iter().all(per_element) && splat.iter().all(|r| self.is_scalar(*r));
        fits.then(|| (Action::Adam { full, splat }, vec![m, v]))
    }
}
