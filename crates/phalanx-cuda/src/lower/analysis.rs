//! Analysis of a program before lowering: which instructions can be fused or left out.

use phalanx_graph::ops::{Op, ReduceKind};
use phalanx_graph::program::{Instr, Location, Program, ValueId};
use phalanx_graph::{Scope, Space};
use std::collections::{HashMap, HashSet};

/// Statistics that the moments kernel can compute itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct FusedStats {
    pub stats: ValueId,
    pub positions: usize,
}

/// Results of the analysis.
#[derive(Debug, Default)]
pub(crate) struct FusionFacts {
    /// Convolutions whose bias is added by the readers of their result, and the bias.
    pub deferred_bias: HashMap<ValueId, ValueId>,
    /// Moments, and the statistics computed from them alone.
    pub fused_stats: HashMap<ValueId, FusedStats>,
    /// Sums over pixels whose only use is a sum over rows: by instruction, the final result.
    pub column_sums: HashMap<usize, ValueId>,
    /// Gradients of a batch norm's input whose sums over rows and pixels are computed in the same
    /// kernel.
    pub fused_column_sums: HashMap<ValueId, ValueId>,
    /// Casts of integers that tapes read uncast, and the integers.
    pub casts: HashMap<ValueId, ValueId>,
    /// Sums over rows of values that were concatenated only to be summed: by instruction, the parts
    /// and the first column of each.
    pub concat_sums: HashMap<usize, Vec<(ValueId, usize)>>,
    /// Instructions whose work another instruction does as well.
    pub covered: HashSet<usize>,
}

impl FusionFacts {
    /// Analyses a program. `alone` says whether this is the only replica.
    pub fn of(program: &Program, alone: bool) -> FusionFacts {
        let mut facts = FusionFacts::default();
        for (i, instr) in program.instrs().iter().enumerate() {
            let Instr::Compute { op, inputs, output, .. } = instr else { continue };
            match op {
                Op::Conv(_, e)
                    if e.bias && !e.relu && only_read_by_batch_norms(program, i, *output) =>
                {
                    facts.deferred_bias.insert(*output, inputs[2]);
                }
                Op::Moments => facts.find_fused_stats(program, i, *output, alone),
                Op::Reduce { kind: ReduceKind::Sum, axes } => {
                    facts.find_column_sums(program, i, axes, inputs[0], *output);
                }
                Op::SumRows => facts.find_concat_sums(program, i, inputs[0]),
                _ => {}
            }
        }
        facts.find_casts(program);
        facts
    }

    /// `moments → all_reduce → batch_stats` with no other replica to reduce with.
    fn find_fused_stats(&mut self, program: &Program, from: usize, moments: ValueId, alone: bool) {
        let reduced = program.instrs().iter().enumerate().skip(from).find_map(|(i, x)| match x {
            Instr::AllReduce { scope, input, output } if *input == moments => {
                (alone || *scope == Scope::Device).then_some((i, *output))
            }
            _ => None,
        });
        let Some((at, reduced)) = reduced else { return };
        let users = readers(program, reduced);
        let [(stats_at, Op::BatchStats { positions, .. }, stats)] = users[..] else { return };
        if matches!(program.value(stats).location, Location::Shared(_)) {
            self.fused_stats.insert(moments, FusedStats { stats, positions: *positions });
            self.covered.extend([at, stats_at]);
        }
    }

    /// `reduce_sum` over all pixels, then `sum_rows`: a convolution's bias gradient.
    fn find_column_sums(
        &mut self,
        program: &Program,
        at: usize,
        axes: &[usize],
        x: ValueId,
        y: ValueId,
    ) {
        let ty = &program.value(x).ty;
        let all_but_last = axes.len() + 1 == ty.dims.len()
            && (0..axes.len()).all(|a| axes.contains(&a))
            && ty.space == Space::Rows;
        if !all_but_last {
            return;
        }
        let users = readers(program, y);
        if let [(sum_at, Op::SumRows, sums)] = users[..]
            && only_read_by(program, at, y, |op, _| matches!(op, Op::SumRows))
        {
            self.covered.insert(sum_at);
            let made_by = program.instrs()[..at].iter().rev().find_map(|i| match i {
                Instr::Compute { op, output, .. } if *output == x => Some(op),
                _ => None,
            });
            let persists = matches!(program.value(sums).location, Location::Gradient(_));
            if persists && matches!(made_by, Some(Op::BatchNormGradInput(_))) {
                self.fused_column_sums.insert(x, sums);
                self.covered.insert(at);
            } else {
                self.column_sums.insert(at, sums);
            }
        }
    }
}

/// Instructions that read a value by its own id, with their results.
pub(super) fn readers(program: &Program, value: ValueId) -> Vec<(usize, &Op, ValueId)> {
    let each = program.instrs().iter().enumerate();
    each.filter_map(|(i, x)| match x {
        Instr::Compute { op, inputs, output, .. } if inputs.contains(&value) => {
            Some((i, op, *output))
        }
        _ => None,
    })
    .collect()
}

/// Whether a convolution's result is read only by batch norms, as the value they normalise.
fn only_read_by_batch_norms(program: &Program, at: usize, value: ValueId) -> bool {
    let normalises = |op: &Op, operand: usize| match op {
        Op::Moments | Op::BatchNorm(_) => operand == 0,
        Op::BatchNormGradSums(_) | Op::BatchNormGradInput(_) => operand == 1,
        _ => false,
    };
    !readers(program, value).is_empty() && only_read_by(program, at, value, normalises)
}

/// Whether a value is read only by its own id and only by `allowed` readers, until its bytes are
/// overwritten.
pub(super) fn only_read_by(
    program: &Program,
    at: usize,
    value: ValueId,
    allowed: impl Fn(&Op, usize) -> bool,
) -> bool {
    let touches = |id: ValueId| may_overlap(program, value, id);
    for instr in &program.instrs()[at + 1..] {
        let may_read = |(i, x): (usize, &ValueId)| match instr {
            Instr::Compute { op, .. } => *x == value && allowed(op, i),
            _ => false,
        };
        if instr.inputs().iter().enumerate().any(|x| touches(*x.1) && !may_read(x)) {
            return false;
        }
        if instr.output().is_some_and(touches) {
            return true;
        }
    }
    true
}

/// Whether a value is intact after the instructions from `from` (exclusive) to `until` (inclusive).
/// Instructions that write an `unwritten` value are ignored.
pub(super) fn survives(
    program: &Program,
    value: ValueId,
    (from, until): (usize, usize),
    unwritten: impl Fn(ValueId) -> bool,
) -> bool {
    program.instrs()[from + 1..=until].iter().all(|instr| match (instr, instr.output()) {
        (_, Some(output)) => unwritten(output) || !may_overlap(program, value, output),
        (Instr::Update | Instr::Assign { .. }, None) => {
            !matches!(program.value(value).location, Location::Param(_))
        }
        (_, None) => true,
    })
}

/// Whether two values may overlap in memory.
fn may_overlap(program: &Program, value: ValueId, other: ValueId) -> bool {
    match (program.value(value).location, program.value(other).location) {
        (Location::Arena(a), Location::Arena(b)) => {
            a < b + buffer_bytes(program, other) && b < a + buffer_bytes(program, value)
        }
        (a, b) => a == b,
    }
}

/// Maximum bytes of a value's buffer, including the gaps between its pixels.
fn buffer_bytes(program: &Program, id: ValueId) -> usize {
    let v = program.value(id);
    let rows = if v.ty.is_rows() {
        program.options().mesh.max_rows(program.options().max_batch)
    } else {
        1
    };
    let pixels = v.ty.len() / v.ty.last().max(1) * rows;
    (v.offset + pixels * v.ld) * v.ty.dtype.bytes()
}
