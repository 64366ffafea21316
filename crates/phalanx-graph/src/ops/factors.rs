//! The axes that an op works on independently: along such an axis the devices of a replica can hold parts of operands
//! and result. A label names an axis; it is *free* if the result has it, and *summed* if it has not. An axis without a label
//! is needed whole.
//!
//! An op without a rule here needs whole operands. That is always right, and costs a gather.

use super::{Binary, Op, ReduceKind, Unary, operand};
use crate::error::Result;
use crate::types::{ModelSpace, Type};

/// The label of an axis, if it has one.
pub type Label = Option<u16>;

/// The labels of all axes of an op.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Factors {
    /// By operand and axis.
    pub inputs: Vec<Vec<Label>>,
    /// By axis of the result.
    pub output: Vec<Label>,
}

/// Labels for `n` axes, from `first` on.
fn fresh(first: usize, n: usize) -> Vec<Label> {
    (first..first + n).map(|label| Some(label as u16)).collect()
}

fn whole(n: usize) -> Vec<Label> {
    vec![None; n]
}

/// Labels of `lead` axes, then these.
fn with(lead: &[Label], last: &[Label]) -> Vec<Label> {
    [lead, last].concat()
}

/// Labels that no axis of the other operand has by its position.
const K: Label = Some(1000);
const N: Label = Some(1001);

impl Factors {
    /// The factors of an op on operands `x` with result `y`.
    pub fn of(op: &Op, x: &[&Type], y: &Type) -> Factors {
        let found = layout(op, x, y).or_else(|| product(op, x)).or_else(|| lookup(op, x));
        let fitting = found.or_else(|| window(op, x, y)).filter(|factors| factors.fit(x, y));
        fitting.unwrap_or_else(|| Factors {
            inputs: x.iter().map(|t| whole(t.dims.len())).collect(),
            output: whole(y.dims.len()),
        })
    }

    /// The same labels for all operands and the result.
    fn same(labels: Vec<Label>, operands: usize) -> Factors {
        Factors { inputs: vec![labels.clone(); operands], output: labels }
    }

    /// Whether there is a label for every axis.
    fn fit(&self, x: &[&Type], y: &Type) -> bool {
        let fits = |labels: &Vec<Label>, t: &&Type| labels.len() == t.dims.len();
        self.inputs.iter().zip(x).all(|(labels, t)| fits(labels, t)) && fits(&self.output, &y)
    }
}

/// Labels of all axes of a type but the last.
fn lead(t: &Type) -> Vec<Label> {
    fresh(0, t.dims.len().saturating_sub(1))
}

/// Ops on single elements, and ops that move or combine elements along some of the axes.
fn layout(op: &Op, x: &[&Type], y: &Type) -> Option<Factors> {
    Some(match op {
        Op::Unary(_) | Op::Binary(_) | Op::Select | Op::Fused(_) | Op::Broadcast { .. } => {
            elementwise(x, y)
        }
        Op::Cast { .. }
        | Op::SumRows
        | Op::AllReduce { .. }
        | Op::ReplicaMean
        | Op::BatchStats { .. } => Factors::same(fresh(0, y.dims.len()), x.len()),
        Op::Dropout { noise, .. } => {
            // Along an axis that shares its mask, parts have the same one.
            let shared = |(axis, size): (usize, &usize)| {
                Some(axis as u16).filter(|_| *size == 1 && y.dims[axis] > 1)
            };
            Factors::same(noise.iter().enumerate().map(shared).collect(), 1)
        }
        Op::Reduce { axes, .. } => {
            let input = fresh(0, x[0].dims.len());
            let stays = |(axis, label): (usize, &Label)| label.filter(|_| !axes.contains(&axis));
            let output = input.iter().enumerate().map(stays).collect();
            Factors { inputs: vec![input], output }
        }
        Op::Reshape { dims } => reshape(&x[0].dims, dims),
        Op::Transpose { perm } => {
            let input = fresh(0, x[0].dims.len());
            let output = perm.iter().map(|axis| input[*axis]).collect();
            Factors { inputs: vec![input], output }
        }
        Op::Concat { axis }
        | Op::Slice { axis, .. }
        | Op::Stride { axis, .. }
        | Op::Dilate { axis, .. } => {
            let mut labels = fresh(0, y.dims.len());
            labels[*axis] = None;
            Factors::same(labels, x.len())
        }
        Op::Pad { before, after } => {
            let kept =
                |axis: usize| Some(axis as u16).filter(|_| before[axis] == 0 && after[axis] == 0);
            Factors::same((0..x[0].dims.len()).map(kept).collect(), 1)
        }
        _ => return None,
    })
}

/// Products of two operands.
fn product(op: &Op, x: &[&Type]) -> Option<Factors> {
    Some(match op {
        Op::Dot(e) => {
            let mut inputs = vec![with(&lead(x[0]), &[K]), vec![K, N]];
            if e.bias {
                inputs.push(vec![N]);
            }
            Factors { inputs, output: with(&lead(x[0]), &[N]) }
        }
        Op::DotGradInput => Factors {
            inputs: vec![with(&lead(x[0]), &[N]), vec![K, N]],
            output: with(&lead(x[0]), &[K]),
        },
        Op::DotGradKernel => Factors {
            inputs: vec![with(&lead(x[0]), &[K]), with(&lead(x[1]), &[N])],
            output: vec![K, N],
        },
        Op::MatMul(c) => {
            let labels = |labels: &[u8]| labels.iter().map(|l| Some(u16::from(*l))).collect();
            Factors { inputs: vec![labels(&c.left), labels(&c.right)], output: labels(&c.result) }
        }
        Op::Conv(geom, e) if geom.groups == 1 => {
            let mut inputs = vec![vec![None, None, K], vec![None, None, K, N]];
            if e.bias {
                inputs.push(vec![N]);
            }
            Factors { inputs, output: vec![None, None, N] }
        }
        Op::ConvGradInput(geom) if geom.groups == 1 => Factors {
            inputs: vec![vec![None, None, N], vec![None, None, K, N]],
            output: vec![None, None, K],
        },
        Op::ConvGradKernel(geom) if geom.groups == 1 => Factors {
            inputs: vec![vec![None, None, K], vec![None, None, N]],
            output: vec![None, None, K, N],
        },
        _ => return None,
    })
}

/// Ops that pick elements by number, or number them.
fn lookup(op: &Op, x: &[&Type]) -> Option<Factors> {
    let classes = || with(&lead(x[0]), &[None]);
    Some(match op {
        Op::SparseXent | Op::InTopK { .. } => {
            Factors { inputs: vec![classes(), lead(x[0])], output: lead(x[0]) }
        }
        Op::SparseXentGrad => {
            Factors { inputs: vec![classes(), lead(x[0]), lead(x[0])], output: classes() }
        }
        Op::Gather => {
            let index = fresh(0, x[1].dims.len());
            // Words that a device does not hold are zero.
            Factors { inputs: vec![vec![K, N], index.clone()], output: with(&index, &[N]) }
        }
        Op::GatherGrad { .. } => {
            let index = fresh(0, x[0].dims.len());
            Factors { inputs: vec![index.clone(), with(&index, &[N])], output: vec![None, N] }
        }
        Op::OneHot { .. } => {
            let index = fresh(0, x[0].dims.len());
            Factors { output: with(&index, &[None]), inputs: vec![index] }
        }
        Op::ArgMax => Factors { inputs: vec![classes()], output: lead(x[0]) },
        _ => return None,
    })
}

/// Ops over whole rows, and ops over pixels that treat channels independently.
fn window(op: &Op, x: &[&Type], y: &Type) -> Option<Factors> {
    Some(match op {
        Op::Softmax
        | Op::SoftmaxGrad
        | Op::LogSoftmax
        | Op::LayerNorm(_)
        | Op::LayerNormGrad(_) => Factors::same(with(&lead(x[0]), &[None]), x.len()),
        Op::Pool(..)
        | Op::PoolGrad(..)
        | Op::Upsample { .. }
        | Op::UpsampleGrad { .. }
        | Op::Moments
        | Op::BatchNorm(_)
        | Op::BatchNormGradSums(_)
        | Op::BatchNormGradInput(_) => channels(x, y),
        _ => return None,
    })
}

/// Axes aligned at the end, as in NumPy; those of size one that are broadcast have no label.
fn elementwise(x: &[&Type], y: &Type) -> Factors {
    let rank = y.dims.len();
    let of = |t: &&Type| -> Vec<Label> {
        let skip = rank - t.dims.len();
        let label = |(axis, d): (usize, &usize)| {
            Some((axis + skip) as u16).filter(|_| *d == y.dims[axis + skip])
        };
        t.dims.iter().enumerate().map(label).collect()
    };
    Factors { inputs: x.iter().map(of).collect(), output: fresh(0, rank) }
}

/// The last axis of operands and result, which are channels; everything else is needed whole.
fn channels(x: &[&Type], y: &Type) -> Factors {
    let last = |t: &Type| with(&whole(t.dims.len().saturating_sub(1)), &[Some(0)]);
    Factors { inputs: x.iter().map(|t| last(t)).collect(), output: last(y) }
}

/// An axis corresponds to the first axis of the result that begins at the same element. So merged axes are split at the
/// outermost of them, and a split axis too.
fn reshape(from: &[usize], to: &[usize]) -> Factors {
    let before = |dims: &[usize], axis: usize| -> usize { dims[..axis].iter().product() };
    let mut output = whole(to.len());
    let mut input = whole(from.len());
    for axis in (0..from.len()).filter(|axis| from[*axis] > 1) {
        let begins = |o: &usize| to[*o] > 1 && before(to, *o) == before(from, axis);
        if let Some(o) = (0..to.len()).find(begins) {
            (input[axis], output[o]) = (Some(axis as u16), Some(axis as u16));
        }
    }
    Factors { inputs: vec![input], output }
}

/// Whether the op is linear in the operands that are partial sums, all others being equal on all devices.
pub fn is_linear_in(op: &Op, partial: &[bool]) -> bool {
    let all = partial.iter().all(|p| *p);
    match op {
        Op::Unary(Unary::Neg) => true,
        Op::Binary(Binary::Add | Binary::Sub) => all,
        Op::Binary(Binary::Mul) => !all,
        Op::Binary(Binary::Div) => partial == [true, false],
        // Partial sums were checked before fusion.
        Op::Fused(_) => true,
        Op::Select => partial == [false, true, true],
        Op::Broadcast { .. }
        | Op::Reshape { .. }
        | Op::Transpose { .. }
        | Op::Concat { .. }
        | Op::Slice { .. }
        | Op::Stride { .. }
        | Op::Dilate { .. }
        | Op::Pad { .. }
        | Op::SumRows
        | Op::AllReduce { .. }
        | Op::ReplicaMean
        | Op::Dropout { .. }
        | Op::Reduce { kind: ReduceKind::Sum, .. } => all,
        Op::MatMul(_) | Op::DotGradKernel => !all,
        Op::Dot(e) => partial[0] && !partial[1] && !e.bias && !e.relu,
        Op::DotGradInput | Op::ConvGradInput(_) => partial == [true, false],
        _ => false,
    }
}

/// Whether the op adds up what it computes along a summed axis.
pub fn sums(op: &Op) -> bool {
    match op {
        Op::Dot(e) | Op::Conv(_, e) => !e.bias && !e.relu,
        Op::DotGradInput
        | Op::DotGradKernel
        | Op::MatMul(_)
        | Op::ConvGradInput(_)
        | Op::ConvGradKernel(_)
        | Op::Moments
        | Op::Gather
        | Op::GatherGrad { .. }
        | Op::Reduce { kind: ReduceKind::Sum, .. } => true,
        _ => false,
    }
}

/// How the devices of a replica share the result of an op.
pub fn infer_model(op: &Op, x: &[&Type], y: &Type) -> Result<ModelSpace> {
    if let Op::Model(op) = op {
        return op.result(x[0]);
    }
    if x.iter().all(|t| t.model == ModelSpace::Mirrored) {
        return Ok(ModelSpace::Mirrored);
    }
    let fail = |i: usize, expected: String| Err(operand(op.name(), expected, x[i]));
    let partial: Vec<bool> = x.iter().map(|t| t.model == ModelSpace::Partial).collect();
    if let Some(i) = partial.iter().position(|p| *p) {
        let whole = |t: &&Type| matches!(t.model, ModelSpace::Partial | ModelSpace::Mirrored);
        return match x.iter().position(|t| !whole(t)) {
            Some(other) => fail(other, "a whole value beside a partial sum".into()),
            None if is_linear_in(op, &partial) => Ok(ModelSpace::Partial),
            None => fail(i, "a value already summed over the model axis".into()),
        };
    }
    let factors = Factors::of(op, x, y);
    let mut found: Label = None;
    for (i, t) in x.iter().enumerate() {
        let ModelSpace::Partitioned(axis) = t.model else {
            if t.model == ModelSpace::PartialMax {
                return fail(i, "a maximum already taken over the model axis".into());
            }
            continue;
        };
        let label = factors.inputs[i][axis];
        if label.is_none() || found.is_some() && found != label {
            return fail(i, format!("a whole axis {axis}"));
        }
        found = label;
    }
    for (i, t) in x.iter().enumerate() {
        if let Some(axis) = factors.inputs[i].iter().position(|label| *label == found)
            && t.model != ModelSpace::Partitioned(axis)
        {
            return fail(i, format!("parts along axis {axis}"));
        }
    }
    match factors.output.iter().position(|label| *label == found) {
        Some(axis) => Ok(ModelSpace::Partitioned(axis)),
        None if sums(op) => Ok(ModelSpace::Partial),
        None if matches!(op, Op::Reduce { kind: ReduceKind::Max, .. }) => {
            Ok(ModelSpace::PartialMax)
        }
        None => fail(0, "a whole value: the op adds nothing up".into()),
    }
}
