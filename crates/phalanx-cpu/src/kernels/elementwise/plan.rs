//! From a tape to steps: fusion, the places of registers, and the order outputs may be written in.

use phalanx_graph::ops::{Access, Binary, Instr, Tape, Unary};

use super::TILE;
use super::fusion::fuse;

/// Where the value of a register lies during a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Const(u16),
    Input(u16),
    Temp(u16),
    Output(u16),
}

/// Functions of four registers, made by fusion: moving averages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quaternary {
    /// `a * b + c * d`
    Blend,
    /// `a * b + c * c * d`
    BlendSquare,
}

/// Functions of three registers, all but the last made by fusion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ternary {
    /// `a * b + c`
    MulAdd,
    /// `a * b - c`
    MulSub,
    /// `c - a * b`
    SubMul,
    /// `a` times 1 where `b > c`, times 0 elsewhere: what the derivative of ReLU is made of.
    MulGt,
    /// `a` chooses between `b` and `c`.
    Select,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action<T> {
    /// The operand itself, which is to leave the tape.
    Copy(T),
    Unary(Unary, T),
    Binary(Binary, T, T),
    Ternary(Ternary, T, T, T),
    Quaternary(Quaternary, [T; 4]),
    /// `a - b * c / (√d + e)`, where adaptive optimizers end.
    RootStep([T; 5]),
}

impl<T: Copy> Action<T> {
    pub fn args(&self) -> impl Iterator<Item = T> + use<T> {
        let args = match *self {
            Action::Copy(a) | Action::Unary(_, a) => [Some(a), None, None, None, None],
            Action::Binary(_, a, b) => [Some(a), Some(b), None, None, None],
            Action::Ternary(_, a, b, c) => [Some(a), Some(b), Some(c), None, None],
            Action::Quaternary(_, [a, b, c, d]) => [Some(a), Some(b), Some(c), Some(d), None],
            Action::RootStep(x) => x.map(Some),
        };
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
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Step {
    pub action: Action<Place>,
    pub dest: Place,
}

/// A tape made ready to run: fused, with every register placed.
#[derive(Clone, Debug)]
pub struct TapePlan {
    pub(super) inputs: Vec<Access>,
    pub(super) consts: Vec<f32>,
    pub(super) steps: Vec<Step>,
    /// For each output, the operands read after its step: it must not overwrite them early.
    pub(super) read_later: Vec<Vec<u16>>,
    pub(super) temps: usize,
    /// Elements of a tile, a multiple of every period that fits.
    pub(super) tile: usize,
    /// No step but one, and nothing to repeat: tiles would only cost.
    pub(super) single: bool,
}

impl TapePlan {
    /// Plans `tape`.
    pub fn new(tape: &Tape) -> TapePlan {
        let mut actions = fuse(tape);
        // Every output is the destination of exactly one step; repeats and bare operands are copied.
        let mut dest: Vec<Option<Place>> = vec![None; actions.len()];
        for (o, r) in tape.outputs.iter().enumerate() {
            let r = usize::from(*r);
            if actions[r].is_some() && dest[r].is_none() {
                dest[r] = Some(Place::Output(o as u16));
            } else {
                actions.push(Some(Action::Copy(r as u16)));
                dest.push(Some(Place::Output(o as u16)));
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
        let mut place: Vec<Option<Place>> = vec![None; actions.len()];
        let (mut free, mut temps) = (Vec::new(), 0);
        for (r, action) in actions.iter().enumerate() {
            let Some(action) = action else {
                place[r] = match tape.instrs[r] {
                    Instr::Input(i) => Some(Place::Input(i)),
                    Instr::Const(bits) if last_use[r] > 0 => {
                        consts.push(f64::from_bits(bits) as f32);
                        Some(Place::Const(consts.len() as u16 - 1))
                    }
                    _ => None,
                };
                continue;
            };
            let placed = action.map(|a| place[usize::from(a)].expect("operands come first"));
            // An operand's last reader may take over its tile: elements do not mix.
            for a in action.args().map(usize::from) {
                if let Some(Place::Temp(t)) = place[a]
                    && last_use[a] == r
                    && !free.contains(&t)
                {
                    free.push(t);
                }
            }
            let dest = dest[r].unwrap_or_else(|| {
                Place::Temp(free.pop().unwrap_or_else(|| {
                    temps += 1;
                    temps - 1
                }))
            });
            place[r] = Some(dest);
            steps.push(Step { action: placed, dest });
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

/// A period of one is a scalar.
fn simplify(access: Access) -> Access {
    if access == Access::Suffix(1) { Access::Scalar } else { access }
}

/// The largest tile that is a whole number of every period, where there is one.
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

fn read_later(steps: &[Step], outputs: usize) -> Vec<Vec<u16>> {
    let mut later = vec![Vec::new(); outputs];
    for (at, step) in steps.iter().enumerate() {
        if let Place::Output(o) = step.dest {
            for arg in steps[at + 1..].iter().flat_map(|s| s.action.args()) {
                if let Place::Input(i) = arg {
                    later[usize::from(o)].push(i);
                }
            }
        }
    }
    later
}
