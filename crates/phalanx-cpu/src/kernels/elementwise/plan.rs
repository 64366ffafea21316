//! Planning of a tape: fusion, register allocation, and the order in which outputs may be written.

use phalanx_graph::ops::{Access, Binary, Instr, Tape, Unary};

use super::TILE;
use super::fusion::{Fused, fuse};

/// The location of a register's value while a tile is processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RegisterLocation {
    Const(u16),
    Input(u16),
    Temp(u16),
    Output(u16),
}

/// Functions of four registers, created by fusion: moving averages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quaternary {
    /// `a * b + c * d`
    Blend,
    /// `a * b + c * c * d`
    BlendSquare,
}

/// Functions of three registers, all but the last created by fusion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ternary {
    /// `a * b + c`
    MulAdd,
    /// `a * b - c`
    MulSub,
    /// `c - a * b`
    SubMul,
    /// `a` times 1 where `b > c`, times 0 elsewhere: the derivative of ReLU.
    MulGt,
    /// `a` chooses between `b` and `c`.
    Select,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action<T> {
    /// The operand itself, which is an output of the tape.
    Copy(T),
    Unary(Unary, T),
    Binary(Binary, T, T),
    Ternary(Ternary, T, T, T),
    Quaternary(Quaternary, [T; 4]),
    /// `a - b * c / (√d + e)`, the last step of adaptive optimizers.
    RootStep([T; 5]),
    /// All of Adam: `m = a m + b g`, `v = c v + d g²`, `w - m e / (√v + f)`.
    Adam {
        /// `w, m, v, g`.
        full: [T; 4],
        /// `a` to `f`: each one number for all elements.
        splat: [T; 6],
    },
}

/// Maximum number of results of one step.
pub(super) const MAX_RESULTS: usize = 3;

impl<T: Copy> Action<T> {
    pub fn args(&self) -> impl Iterator<Item = T> + use<T> {
        let mut args = [None; 10];
        let mut set = |x: &[T]| args.iter_mut().zip(x).for_each(|(to, x)| *to = Some(*x));
        match *self {
            Action::Copy(a) | Action::Unary(_, a) => set(&[a]),
            Action::Binary(_, a, b) => set(&[a, b]),
            Action::Ternary(_, a, b, c) => set(&[a, b, c]),
            Action::Quaternary(_, x) => set(&x),
            Action::RootStep(x) => set(&x),
            Action::Adam { full: [w, m, v, g], splat: [a, b, c, d, e, f] } => {
                set(&[w, m, v, g, a, b, c, d, e, f]);
            }
        }
        args.into_iter().flatten()
    }

    pub fn map<U>(&self, f: impl Fn(T) -> U) -> Action<U> {
        match *self {
            Action::Copy(a) => Action::Copy(f(a)),
            Action::Unary(u, a) => Action::Unary(u, f(a)),
            Action::Binary(o, a, b) => Action::Binary(o, f(a), f(b)),
            Action::Ternary(t, a, b, c) => Action::Ternary(t, f(a), f(b), f(c)),
            Action::Quaternary(q, x) => Action::Quaternary(q, x.map(f)),
            Action::RootStep(x) => Action::RootStep(x.map(f)),
            Action::Adam { full, splat } => {
                Action::Adam { full: full.map(&f), splat: splat.map(&f) }
            }
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Step {
    pub action: Action<RegisterLocation>,
    /// Destinations of its results: one, except for Adam.
    pub dests: Vec<RegisterLocation>,
}

/// A tape ready to run: fused, with a location for every register.
#[derive(Clone, Debug)]
pub struct TapePlan {
    pub(super) inputs: Vec<Access>,
    pub(super) consts: Vec<f32>,
    pub(super) steps: Vec<Step>,
    /// For each output, the operands read after its step. It must not overwrite them.
    pub(super) read_later: Vec<Vec<u16>>,
    pub(super) temps: usize,
    /// Elements of a tile; a multiple of every period that fits.
    pub(super) tile: usize,
    /// A single step and nothing to repeat, so that tiles would only cost time.
    pub(super) single: bool,
}

impl TapePlan {
    /// Plans `tape`.
    pub fn new(tape: &Tape) -> TapePlan {
        let Fused { mut actions, extra_outputs } = fuse(tape);
        // Every output is the destination of exactly one step. Duplicates and bare operands are copied.
        let mut dests: Vec<Option<RegisterLocation>> = vec![None; actions.len()];
        for (o, r) in tape.outputs.iter().enumerate() {
            let computed =
                actions[usize::from(*r)].is_some() || extra_outputs.iter().any(|(b, _)| b == r);
            let r = usize::from(*r);
            if computed && dests[r].is_none() {
                dests[r] = Some(RegisterLocation::Output(o as u16));
            } else {
                actions.push(Some(Action::Copy(r as u16)));
                dests.push(Some(RegisterLocation::Output(o as u16)));
            }
        }
        let mut last_use = vec![0; actions.len()];
        for (at, action) in actions.iter().enumerate() {
            for r in action.iter().flat_map(Action::args) {
                last_use[usize::from(r)] = at;
            }
        }
        let mut consts = Vec::new();
        let mut steps = Vec::new();
        let mut location: Vec<Option<RegisterLocation>> = vec![None; actions.len()];
        let (mut free, mut temps) = (Vec::new(), 0);
        for (r, action) in actions.iter().enumerate() {
            let Some(action) = action else {
                location[r] = match tape.instrs[r] {
                    Instr::Input(i) => Some(RegisterLocation::Input(i)),
                    Instr::Const(bits) if last_use[r] > 0 => {
                        consts.push(f64::from_bits(bits) as f32);
                        Some(RegisterLocation::Const(consts.len() as u16 - 1))
                    }
                    _ => None,
                };
                continue;
            };
            let resolved = action.map(|a| location[usize::from(a)].expect("operands come first"));
            // The last reader of a register may reuse its tile, because elements are independent.
            for a in action.args().map(usize::from) {
                if let Some(RegisterLocation::Temp(t)) = location[a]
                    && last_use[a] == r
                    && !free.contains(&t)
                {
                    free.push(t);
                }
            }
            let dest = dests[r].unwrap_or_else(|| {
                RegisterLocation::Temp(free.pop().unwrap_or_else(|| {
                    temps += 1;
                    temps - 1
                }))
            });
            location[r] = Some(dest);
            let also = extra_outputs.iter().filter(|(_, by)| usize::from(*by) == r);
            let also = also.map(|(b, _)| dests[usize::from(*b)].expect("an output"));
            let dests = std::iter::once(dest).chain(also).collect();
            steps.push(Step { action: resolved, dests });
        }
        let inputs: Vec<Access> = tape.inputs.iter().map(|a| simplify(*a)).collect();
        let repeats = inputs.iter().any(|a| matches!(a, Access::Suffix(_) | Access::Prefix(_)));
        TapePlan {
            read_later: read_later(&steps, tape.outputs.len()),
            single: steps.len() == 1 && !repeats,
            tile: tile_len(&inputs),
            temps: usize::from(temps),
            inputs,
            consts,
            steps,
        }
    }
}

/// Treats a period of one as a scalar.
fn simplify(access: Access) -> Access {
    if access == Access::Suffix(1) { Access::Scalar } else { access }
}

/// The largest tile length that is a multiple of all periods that fit into a tile.
fn tile_len(inputs: &[Access]) -> usize {
    let mut common = 1;
    for access in inputs {
        if let Access::Suffix(p) = access {
            let (mut a, mut b) = (common, (*p).max(1));
            while b > 0 {
                (a, b) = (b, a % b);
            }
            let next = common / a * p;
            if next > 0 && next <= TILE {
                common = next;
            }
        }
    }
    TILE / common * common
}

/// For each output, the operands read after the step that writes it.
fn read_later(steps: &[Step], outputs: usize) -> Vec<Vec<u16>> {
    let mut later = vec![Vec::new(); outputs];
    for (at, step) in steps.iter().enumerate() {
        for dest in &step.dests {
            let RegisterLocation::Output(o) = dest else { continue };
            for arg in steps[at + 1..].iter().flat_map(|s| s.action.args()) {
                if let RegisterLocation::Input(i) = arg {
                    later[usize::from(*o)].push(i);
                }
            }
        }
    }
    later
}
