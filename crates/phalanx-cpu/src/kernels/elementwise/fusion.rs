//! Which steps of a tape become one: every step saved is a pass over the tile saved.

use super::plan::{Action, Quaternary, Ternary};
use phalanx_graph::ops::{Access, Binary, Instr, Tape, Unary};

/// A tape's steps.
pub(super) struct Fused {
    /// What computes each register, `None` where it is an operand, a constant, unused, or absorbed by
    /// the step that uses it.
    pub actions: Vec<Option<Action<u16>>>,
    /// Outputs that another register's step makes as well: `(output, register)`.
    pub beside: Vec<(u16, u16)>,
}

/// Makes as few steps of a tape as it can.
pub(super) fn fuse(tape: &Tape) -> Fused {
    let uses = uses(tape);
    let mut f = Fusion { tape, uses, actions: vec![None; tape.instrs.len()] };
    let mut beside = vec![];
    for (r, instr) in tape.instrs.iter().enumerate().filter(|(r, _)| f.uses[*r] > 0) {
        let (action, absorbed) = match *instr {
            Instr::Input(_) | Instr::Const(_) => continue,
            Instr::Unary(u, a) => (Action::Unary(u, a), vec![]),
            Instr::Select(c, a, b) => (Action::Ternary(Ternary::Select, c, a, b), vec![]),
            Instr::Binary(op, a, b) => f.binary(op, a, b),
        };
        let averages = f.averages(action);
        let (action, made) = averages.unwrap_or((action, vec![]));
        f.actions[r] = Some(action);
        beside.extend(made.iter().map(|m| (*m, r as u16)));
        let absorbed = absorbed.into_iter().chain(made);
        absorbed.for_each(|r| f.actions[usize::from(r)] = None);
    }
    Fused { actions: f.actions, beside }
}

/// How often each register is read, by what leaves the tape in the end.
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

/// A step and the registers that need none of their own any more.
type Step = (Action<u16>, Vec<u16>);

struct Fusion<'a> {
    tape: &'a Tape,
    uses: Vec<u32>,
    actions: Vec<Option<Action<u16>>>,
}

impl Fusion<'_> {
    /// What computes a register that nothing else reads.
    fn only(&self, r: u16) -> Option<Action<u16>> {
        self.actions[usize::from(r)].filter(|_| self.uses[usize::from(r)] == 1)
    }

    fn product(&self, r: u16) -> Option<(u16, u16)> {
        match self.only(r)? {
            Action::Binary(Binary::Mul, a, b) => Some((a, b)),
            Action::Unary(Unary::Square, a) => Some((a, a)),
            _ => None,
        }
    }

    fn above(&self, r: u16) -> Option<(u16, u16)> {
        match self.only(r)? {
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
    fn one_number(&self, r: u16) -> bool {
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
        let square = match self.only(c) {
            Some(Action::Unary(Unary::Square, x)) => Some(x),
            _ => None,
        };
        Some(match square {
            Some(x) => (Action::Quaternary(Quaternary::BlendSquare, [a, b, x, d]), vec![l, r, c]),
            None => (Action::Quaternary(Quaternary::Blend, [a, b, c, d]), vec![l, r]),
        })
    }

    fn sum(&self, l: u16, r: u16) -> Option<Step> {
        let fused = |(a, b), c, gone| (Action::Ternary(Ternary::MulAdd, a, b, c), vec![gone]);
        let left = self.product(l).map(|p| fused(p, r, l));
        left.or_else(|| self.product(r).map(|p| fused(p, l, r)))
    }

    fn difference(&self, l: u16, r: u16) -> Option<Step> {
        let fused = |kind, (a, b), c, gone| (Action::Ternary(kind, a, b, c), vec![gone]);
        let left = self.product(l).map(|p| fused(Ternary::MulSub, p, r, l));
        left.or_else(|| self.product(r).map(|p| fused(Ternary::SubMul, p, l, r)))
    }

    fn masked(&self, l: u16, r: u16) -> Option<Step> {
        let fused = |x, (a, b), gone| (Action::Ternary(Ternary::MulGt, x, a, b), vec![gone]);
        let right = self.above(r).map(|c| fused(l, c, r));
        right.or_else(|| self.above(l).map(|c| fused(r, c, l)))
    }

    /// `w - m * rate / (√v + ε)`.
    fn root_step(&self, w: u16, change: u16) -> Option<Step> {
        let Action::Binary(Binary::Div, top, bottom) = self.only(change)? else { return None };
        let Action::Binary(Binary::Add, root, epsilon) = self.only(bottom)? else { return None };
        let Action::Unary(Unary::Sqrt, v) = self.only(root)? else { return None };
        let Some(Action::Binary(Binary::Mul, m, rate)) = self.only(top) else { return None };
        Some((Action::RootStep([w, m, rate, v, epsilon]), vec![change, bottom, root, top]))
    }

    /// A root step together with the averages it is made of, where these only leave the tape.
    fn averages(&self, step: Action<u16>) -> Option<Step> {
        let Action::RootStep([w, m, rate, v, epsilon]) = step else { return None };
        let leaves = |r: u16| self.tape.outputs.contains(&r) && self.uses[usize::from(r)] == 2;
        let of = |r: u16| self.actions[usize::from(r)].filter(|_| leaves(r));
        let Action::Quaternary(Quaternary::Blend, [a, b, c, d]) = of(m)? else { return None };
        let Action::Quaternary(Quaternary::BlendSquare, [f, g, h, i]) = of(v)? else { return None };
        let (full, splat) = ([w, a, f, c], [b, d, g, i, rate, epsilon]);
        let many = |r: &u16| !self.one_number(*r) && !self.repeats(*r);
        let fits = c == h && full.iter().all(many) && splat.iter().all(|r| self.one_number(*r));
        fits.then(|| (Action::Adam { full, splat }, vec![m, v]))
    }
}
