//! The cases of recurrent cells over a sequence.

use super::{Build, Case, case};
use phalanx_graph::ops::{Binary, RecurrentAttrs, RecurrentCell};
use phalanx_graph::{NodeId, Op};

/// Forwards, from states that are zero.
fn plain(cell: RecurrentCell) -> RecurrentAttrs {
    let (reverse, keep, bias, initial, masked) = (false, false, false, false, false);
    RecurrentAttrs { cell, reverse, keep, bias, initial, masked }
}

/// A recurrent op of five steps and three units, or of many units.
fn recurrent(b: &mut Build, attrs: RecurrentAttrs, units: usize) -> NodeId {
    let steps = if units > 3 { 3 } else { 5 };
    let columns = attrs.cell.gates() * units;
    let mut operands = vec![b.rows(&[steps, columns]), b.param(&[units, columns])];
    if attrs.bias {
        operands.push(b.param(&[columns]));
    }
    if attrs.initial {
        operands.extend((0..attrs.cell.states()).map(|_| b.rows(&[units])));
    }
    if attrs.masked {
        let random = b.push(Op::Uniform { key: 9, dims: vec![steps] }, &[]);
        let limit = b.g.scalar(0.4);
        operands.push(b.g.binary(Binary::Gt, random, limit).expect("fits"));
    }
    b.push(Op::Recurrent(attrs), &operands)
}

/// More units than one block of a GPU holds the kernel of. Finite differences of that many weights would be slow.
pub fn wide_recurrent_cases() -> Vec<Case> {
    let one = |cell: RecurrentCell| {
        let bias = cell == RecurrentCell::Gru;
        let attrs = RecurrentAttrs { bias, initial: true, masked: true, ..plain(cell) };
        let reverse = RecurrentAttrs { reverse: true, ..plain(cell) };
        [attrs, reverse].map(|attrs| {
            let name = format!("recurrent{attrs} of 100 units");
            case(name, move |b| recurrent(b, attrs, 100))
        })
    };
    [RecurrentCell::Lstm, RecurrentCell::Gru].into_iter().flat_map(one).collect()
}

/// Both cells in both directions, with and without each optional operand; the states of all steps, or `h` alone, or both
/// states of the last step.
pub fn recurrent_cases() -> Vec<Case> {
    let mut cases = vec![];
    for cell in [RecurrentCell::Lstm, RecurrentCell::Gru] {
        let bias = cell == RecurrentCell::Gru;
        let plain = RecurrentAttrs { bias, ..plain(cell) };
        let forms = [
            plain,
            RecurrentAttrs { reverse: true, bias: false, ..plain },
            RecurrentAttrs { initial: true, ..plain },
            RecurrentAttrs { masked: true, ..plain },
            RecurrentAttrs { reverse: true, initial: true, masked: true, ..plain },
        ];
        for (i, attrs) in forms.into_iter().enumerate() {
            let name = format!("recurrent{attrs} form {i}");
            cases.push(case(name, move |b| recurrent(b, attrs, 3)));
            let kept = RecurrentAttrs { keep: true, ..attrs };
            cases.push(case(format!("recurrent{kept} form {i}, h"), move |b| {
                let y = recurrent(b, kept, 3);
                b.push(Op::Slice { axis: 1, start: 0, len: 3 }, &[y])
            }));
        }
    }
    let attrs = RecurrentAttrs { reverse: true, keep: true, ..plain(RecurrentCell::Lstm) };
    cases.push(case("recurrent, the last c", move |b| {
        let y = recurrent(b, attrs, 3);
        let c = b.push(Op::Slice { axis: 1, start: 3, len: 3 }, &[y]);
        b.push(Op::Slice { axis: 0, start: 0, len: 1 }, &[c])
    }));
    cases.push(case("recurrent, h and the last c", move |b| {
        let y = recurrent(b, attrs, 3);
        let h = b.push(Op::Slice { axis: 1, start: 0, len: 3 }, &[y]);
        let c = b.push(Op::Slice { axis: 1, start: 3, len: 3 }, &[y]);
        let c = b.push(Op::Slice { axis: 0, start: 0, len: 1 }, &[c]);
        b.g.mul(h, c).expect("fits")
    }));
    cases
}
