//! Casts from integers that are left out because tapes read the integers directly.

use super::analysis::{FusionFacts, only_read_by, readers, survives};
use phalanx_graph::ops::{Access, Tape};
use phalanx_graph::program::{Instr, Program, ValueId};
use phalanx_graph::{DType, Op};

impl FusionFacts {
    /// `cast → fused`. Goes backwards, because a cast that is left out overwrites nothing.
    pub(super) fn find_casts(&mut self, program: &Program) {
        for (at, instr) in program.instrs().iter().enumerate().rev() {
            let Instr::Compute { op: Op::Cast { .. }, inputs, output, .. } = instr else {
                continue;
            };
            if self.is_read_uncast(program, at, inputs[0], *output) {
                self.casts.insert(*output, inputs[0]);
                self.covered.insert(at);
            }
        }
    }

    /// Whether only tapes read a cast's result, and the integers are intact until the last of them.
    fn is_read_uncast(&self, program: &Program, at: usize, x: ValueId, y: ValueId) -> bool {
        let (from, to) = (program.value(x), program.value(y));
        let plain = from.ty.dtype == DType::I32 && to.ty.dtype == DType::F32;
        let alike = from.ty.dims == to.ty.dims && from.ty.space == to.ty.space;
        let users = readers(program, y);
        let Some((last, Op::Fused(tape), result)) = users.last() else { return false };
        let unwritten = |id: ValueId| {
            let takes_over = id == *result && in_place(program, *last, tape, [x, y], id);
            takes_over || self.casts.contains_key(&id)
        };
        plain
            && alike
            && survives(program, x, (at, *last), unwritten)
            && only_read_by(program, at, y, |op, _| matches!(op, Op::Fused(_)))
    }

    /// The operands of a tape with casts left out.
    pub(super) fn uncast(&self, x: &[ValueId]) -> Vec<ValueId> {
        x.iter().map(|id| self.casts.get(id).copied().unwrap_or(*id)).collect()
    }
}

/// Whether a tape that reads `x` in place of its operand `y` may write its result over `x`: it must
/// read element by element.
fn in_place(
    program: &Program,
    at: usize,
    tape: &Tape,
    [x, y]: [ValueId; 2],
    result: ValueId,
) -> bool {
    let Instr::Compute { inputs, .. } = &program.instrs()[at] else { return false };
    let mut reads = inputs.iter().zip(&tape.inputs).filter(|(id, _)| **id == y);
    let (from, to) = (program.value(x), program.value(result));
    let same = (from.location, from.offset, from.ld) == (to.location, to.offset, to.ld);
    same && from.ty.dims == to.ty.dims && reads.all(|(_, access)| *access == Access::Full)
}
