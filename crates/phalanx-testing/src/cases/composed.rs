//! The cases of lookups, sorting, composed functions and sums over the batch.

use super::table::{Operand, on_both};
use super::{Build, Case, case};
use phalanx_graph::functions::batch::{all_rows, rows_at, shuffled_index};
use phalanx_graph::functions::index::{min_axes, prod_axes, sort, take, top_k};
use phalanx_graph::functions::math;
use phalanx_graph::ops::{Epilogue, TakeAxis, Unary};
use phalanx_graph::{DType, Graph, NodeId, Op, Scope};

/// Rows and parameters at the positions of rows and of mirrored values, of which some count from the end.
pub(super) fn take_cases() -> Vec<Case> {
    use Operand::{Param, Rows};
    let dims = [3, 4, 2];
    let mut cases = vec![];
    for (name, x) in [("rows", Rows(&[3, 4, 2])), ("a parameter", Param(&[3, 4, 2]))] {
        for axis in 0..3 {
            for along in [false, true] {
                for of_rows in [false, true] {
                    let name = format!("take of {name} axis {axis} along {along} rows {of_rows}");
                    cases.push(case(name, move |b| {
                        let x = x.add(b);
                        let mut at = if along { dims.to_vec() } else { vec![2, 3] };
                        if along {
                            at[axis] = 5;
                        }
                        let n = dims[axis];
                        let index = match of_rows {
                            true => b.labels(&at, n as u64),
                            false => b.mirrored_integers(&at, (-(n as i32), n as i32)),
                        };
                        let y = b.push(Op::Take(TakeAxis { axis, along }), &[x, index]);
                        times_rows(b, y)
                    }));
                }
            }
        }
    }
    cases.push(case("take of rows of a table", |b| {
        let (table, index) = (b.param(&[5, 2, 2]), b.labels(&[3], 5));
        let index = b.g.offset(index, -3.0).expect("fits");
        let index = b.g.cast(index, DType::I32).expect("fits");
        take(&mut b.g, table, index, 0).expect("fits")
    }));
    cases
}

/// `y`, or its product with rows if it has none: the cotangent of a parameter is then a sum over rows.
pub(super) fn times_rows(b: &mut Build, y: NodeId) -> NodeId {
    if b.g.ty(y).is_rows() {
        return y;
    }
    let dims = b.g.ty(y).dims.clone();
    let x = b.rows(&dims);
    b.g.mul(x, y).expect("fits")
}

pub(super) fn sort_cases() -> Vec<Case> {
    let mut cases = vec![];
    for product in [false, true] {
        for (axis, reverse) in [(0, false), (1, true), (2, false), (2, true)] {
            let name = format!("cumulative {product} axis {axis} reversed {reverse}");
            cases.extend(on_both(&name, Op::Cumulative { axis, product, reverse }, &[2, 4, 3]));
        }
    }
    cases.push(case("cumulative product with zeros", |b| {
        let (x, w, v) = (b.rows(&[5]), b.param(&[5]), b.param(&[5]));
        let mut zeros = b.bindings.params[1].clone();
        for i in [1, 3] {
            zeros.floats_mut()[i] = b.bindings.params[0].floats()[i];
        }
        b.bindings.params[1] = zeros;
        let d = b.g.sub(w, v).expect("fits");
        let product = b.push(Op::Cumulative { axis: 0, product: true, reverse: false }, &[d]);
        b.g.mul(x, product).expect("fits")
    }));
    for axis in 0..2 {
        cases.push(case(format!("sort on axis {axis}"), move |b| {
            let (x, w) = (b.rows(&[3, 4]), b.param(&[3, 4]));
            let (x, w) = (sort(&mut b.g, x, axis), sort(&mut b.g, w, axis));
            b.g.mul(x.expect("fits"), w.expect("fits")).expect("fits")
        }));
    }
    cases.push(case("top_k", |b| {
        let x = b.rows(&[2, 6]);
        let (best, at) = top_k(&mut b.g, x, 2).expect("fits");
        let at = b.g.cast(at, DType::F32).expect("fits");
        b.g.mul(best, at).expect("fits")
    }));
    cases.push(case("min and product along axes", |b| {
        let (x, w) = (b.rows(&[2, 3, 2]), b.param(&[2, 3, 2]));
        let x = min_axes(&mut b.g, x, &[1]).expect("fits");
        let w = prod_axes(&mut b.g, w, &[0, 1]).expect("fits");
        b.g.mul(x, w).expect("fits")
    }));
    cases
}

/// A function of a node.
type Function = fn(&mut Graph, NodeId) -> phalanx_graph::Result<NodeId>;

/// The composed functions with one operand, and a range of it.
pub const FUNCTIONS: [(&str, Function, (f64, f64)); 15] = [
    ("ceil", math::ceil, (-3.0, 3.0)),
    ("trunc", math::trunc, (-3.0, 3.0)),
    ("tan", math::tan, (-1.3, 1.3)),
    ("asin", math::asin, (-0.9, 0.9)),
    ("acos", math::acos, (-0.9, 0.9)),
    ("sinh", math::sinh, (-4.0, 4.0)),
    ("cosh", math::cosh, (-4.0, 4.0)),
    ("asinh", math::asinh, (-4.0, 4.0)),
    ("acosh", math::acosh, (1.2, 4.0)),
    ("atanh", math::atanh, (-0.8, 0.8)),
    ("logical_not", math::logical_not, (-1.0, 1.0)),
    ("truth", math::truth, (-1.0, 1.0)),
    ("is_nan", math::is_nan, (-1.0, 1.0)),
    ("is_inf", math::is_inf, (-1.0, 1.0)),
    ("is_finite", math::is_finite, (-1.0, 1.0)),
];

/// A function of two nodes.
type Function2 = fn(&mut Graph, NodeId, NodeId) -> phalanx_graph::Result<NodeId>;

/// The composed functions with two operands.
pub const FUNCTIONS_OF_TWO: [(&str, Function2); 9] = [
    ("less", math::less),
    ("less_equal", math::less_equal),
    ("not_equal", math::not_equal),
    ("logical_and", math::logical_and),
    ("logical_or", math::logical_or),
    ("logical_xor", math::logical_xor),
    ("modulo", math::modulo),
    ("floor_divide", math::floor_divide),
    ("atan2", math::atan2),
];

pub fn function_cases() -> Vec<Case> {
    let one = |(name, f, range): (&'static str, Function, (f64, f64))| {
        case(name, move |b| {
            b.range = range;
            let (x, w) = (b.rows(&[2, 3]), b.param(&[3]));
            let (x, w) = (f(&mut b.g, x).expect("fits"), f(&mut b.g, w).expect("fits"));
            b.g.mul(x, w).expect("fits")
        })
    };
    let two = |(name, f): (&'static str, Function2)| {
        case(name, move |b| {
            b.range = (-2.0, 2.0);
            let (x, w) = (b.rows(&[2, 3]), b.param(&[3]));
            let y = f(&mut b.g, x, w).expect("fits");
            let z = f(&mut b.g, w, x).expect("fits");
            b.g.add(y, z).expect("fits")
        })
    };
    FUNCTIONS.into_iter().map(one).chain(FUNCTIONS_OF_TWO.into_iter().map(two)).collect()
}

/// The largest batch that the tests run these cases with.
const MAX_BATCH: usize = 8;

/// Sums over the batch inside a model, and values of all its samples.
pub fn batch_sum_cases() -> Vec<Case> {
    let mut cases = vec![];
    for scope in [Scope::Device, Scope::All] {
        cases.push(case(format!("a sum over the batch of {scope}"), move |b| {
            let (x, w) = (b.rows(&[2, 3]), b.param(&[3]));
            let y = b.g.mul(x, w).expect("fits");
            let sum = b.push(Op::SumRows, &[y]);
            let sum = b.push(Op::AllReduce { scope }, &[sum]);
            let root = b.g.unary(Unary::Tanh, sum).expect("fits");
            b.g.mul(x, root).expect("fits")
        }));
    }
    cases.push(case("all rows", |b| {
        b.g.set_max_batch(MAX_BATCH);
        let x = b.rows(&[2, 3]);
        all_rows(&mut b.g, x).expect("fits")
    }));
    cases.push(case("products of all pairs", |b| {
        b.g.set_max_batch(MAX_BATCH);
        let (x, w) = (b.rows(&[3]), b.param(&[3]));
        let y = b.g.mul(x, w).expect("fits");
        let others = all_rows(&mut b.g, y).expect("fits");
        let others = b.push(Op::Transpose { perm: vec![1, 0] }, &[others]);
        b.push(Op::Dot(Epilogue::default()), &[y, others])
    }));
    cases.push(case("rows in a random order", |b| {
        b.g.set_max_batch(MAX_BATCH);
        let x = b.rows(&[2, 3]);
        let keys = b.push(Op::Uniform { key: 6, dims: vec![1] }, &[]);
        let index = shuffled_index(&mut b.g, keys).expect("fits");
        let y = rows_at(&mut b.g, x, index).expect("fits");
        b.g.mul(x, y).expect("fits")
    }));
    cases
}
