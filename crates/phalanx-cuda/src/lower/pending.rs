//! Small things that are put off until there are many, and then done in one launch: copies of
//! statistics into gradients and weights, filters' gradients on their way back to Keras' order,
//! moving averages.

use crate::launch::{Arg, Elem, Launch, Ptr, Span, Word};
use crate::task::{Task, Work};

/// Blocks that share one copy.
const BLOCKS: usize = 4;

/// A copy into floats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Move {
    pub from: Ptr,
    pub elem: Elem,
    pub to: Ptr,
    pub len: usize,
}

impl Move {
    pub fn reads(&self) -> Span {
        Span::whole(self.from, self.len * self.elem.bytes())
    }

    pub fn writes(&self) -> Span {
        Span::whole(self.to, self.len * 4)
    }
}

/// All copies in one launch.
pub(crate) fn copy_many(moves: &[Move]) -> Work {
    let mut table = vec![];
    for m in moves {
        let kind = match m.elem {
            Elem::F32 => 0,
            Elem::F64 => 1,
            Elem::I32 => 2,
            Elem::Bf16 => 3,
            Elem::F16 => 4,
        };
        let numbers = [Word::I64(m.len as i64), Word::I64(kind)];
        table.extend([Word::Ptr(m.from), Word::Ptr(m.to)].into_iter().chain(numbers));
    }
    let longest = moves.iter().map(|m| m.len).max().unwrap_or(0);
    let blocks = longest.div_ceil(256 * 4).clamp(1, BLOCKS.max(longest >> 14));
    let launch = Launch::blocks("collective", "copy_many", moves.len() * blocks, 256)
        .arg(Arg::Table(table))
        .arg(blocks);
    Work {
        label: format!("{} small copies", moves.len()),
        instr: 0,
        tasks: vec![Task::Launch(launch)],
        reads: moves.iter().map(Move::reads).collect(),
        writes: moves.iter().map(Move::writes).collect(),
    }
}
