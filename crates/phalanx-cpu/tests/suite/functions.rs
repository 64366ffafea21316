//! Values of the composed functions, by the reference evaluator.

use phalanx_cpu::reference::{Value, evaluate};
use phalanx_graph::functions::index::{take, take_along, top_k};
use phalanx_graph::functions::layout::{PadMode, pad};
use phalanx_graph::{DType, Graph, NodeId, Space, Type};
use phalanx_testing::cases::{Build, FUNCTIONS, FUNCTIONS_OF_TWO};

/// A mirrored value of one axis.
fn vector(b: &mut Build, x: &[f64]) -> NodeId {
    b.feed(Type::mirrored([x.len()]), Value::float([x.len()], x.to_vec()))
}

fn integers(b: &mut Build, x: &[i32]) -> NodeId {
    let ty = Type::new(DType::I32, Space::Mirrored, [x.len()]);
    b.feed(ty, Value::int([x.len()], x.to_vec()))
}

fn value(b: &Build, y: NodeId) -> Vec<f64> {
    evaluate(&b.g, &[y], &b.bindings, &b.context).remove(0).floats().to_vec()
}

#[track_caller]
fn close(what: &str, got: &[f64], want: &[f64]) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let same = g == w || g.is_nan() && w.is_nan() || (g - w).abs() <= 1e-12 * w.abs();
        assert!(same, "{what} [{i}]: expected {w}, received {g}");
    }
}

#[test]
fn functions_match_the_standard_library() {
    let truth = |t: bool| if t { 1.0 } else { 0.0 };
    let want = |name: &str, x: f64| match name {
        "ceil" => x.ceil(),
        "trunc" => x.trunc(),
        "tan" => x.tan(),
        "asin" => x.asin(),
        "acos" => x.acos(),
        "sinh" => x.sinh(),
        "cosh" => x.cosh(),
        "asinh" => x.asinh(),
        "acosh" => x.acosh(),
        "atanh" => x.atanh(),
        "logical_not" => truth(x == 0.0),
        "truth" => truth(x != 0.0),
        "is_nan" => truth(x.is_nan()),
        "is_inf" => truth(x.is_infinite()),
        "is_finite" => truth(x.is_finite()),
        other => panic!("no such function: {other}"),
    };
    let inf = f64::INFINITY;
    let x = [0.0, 1.0, -1.0, 0.5, -0.3, 1.7, -2.5, 30.0, -30.0, 2e10, -2e10, inf, -inf, f64::NAN];
    for (name, f, _) in FUNCTIONS {
        let mut b = Build::new(name, 1);
        let input = vector(&mut b, &x);
        let y = f(&mut b.g, input).expect("fits");
        let want: Vec<f64> = x.iter().map(|x| want(name, *x)).collect();
        close(name, &value(&b, y), &want);
    }
}

#[test]
fn functions_of_two_match_the_standard_library() {
    let truth = |t: bool| if t { 1.0 } else { 0.0 };
    let want = |name: &str, l: f64, r: f64| match name {
        "less" => truth(l < r),
        "less_equal" => truth(l <= r),
        "not_equal" => truth(l != r),
        "logical_and" => truth(l != 0.0 && r != 0.0),
        "logical_or" => truth(l != 0.0 || r != 0.0),
        "logical_xor" => truth((l != 0.0) != (r != 0.0)),
        "modulo" => l - r * (l / r).floor(),
        "floor_divide" => (l / r).floor(),
        "atan2" => l.atan2(r),
        other => panic!("no such function: {other}"),
    };
    let l = [3.5, -3.5, 3.5, -3.5, 0.0, 0.0, 2.0, -2.0, 6.0, -6.0];
    let r = [2.0, 2.0, -2.0, -2.0, 1.0, -1.0, 2.0, 4.0, 3.0, 3.0];
    for (name, f) in FUNCTIONS_OF_TWO {
        let mut b = Build::new(name, 1);
        let (x, y) = (vector(&mut b, &l), vector(&mut b, &r));
        let z = f(&mut b.g, x, y).expect("fits");
        let want: Vec<f64> = l.iter().zip(r).map(|(l, r)| want(name, *l, r)).collect();
        close(name, &value(&b, z), &want);
    }
    // On the axes, and at the origin.
    let mut b = Build::new("atan2", 1);
    let y = vector(&mut b, &[1.0, -1.0, 0.0, 0.0, 0.0]);
    let x = vector(&mut b, &[0.0, 0.0, 1.0, -1.0, 0.0]);
    let angle = phalanx_graph::functions::math::atan2(&mut b.g, y, x).expect("fits");
    let half = std::f64::consts::FRAC_PI_2;
    close("atan2", &value(&b, angle), &[half, -half, 0.0, 2.0 * half, 0.0]);
}

#[test]
fn padding_repeats_elements() {
    let run = |mode, before, after| {
        let mut b = Build::new("pad", 1);
        let x = vector(&mut b, &[1.0, 2.0, 3.0]);
        let y = pad(&mut b.g, x, &[before], &[after], mode).expect("fits");
        value(&b, y)
    };
    close("constant", &run(PadMode::Constant(7.0), 1, 2), &[7.0, 1.0, 2.0, 3.0, 7.0, 7.0]);
    close("edge", &run(PadMode::Edge, 2, 1), &[1.0, 1.0, 1.0, 2.0, 3.0, 3.0]);
    close("reflect", &run(PadMode::Reflect, 3, 2), &[2.0, 3.0, 2.0, 1.0, 2.0, 3.0, 2.0, 1.0]);
    close("symmetric", &run(PadMode::Symmetric, 2, 1), &[2.0, 1.0, 1.0, 2.0, 3.0, 3.0]);
    close("wrap", &run(PadMode::Wrap, 1, 4), &[3.0, 1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 1.0]);
}

#[test]
fn positions_below_zero_count_from_the_end_and_others_give_nan() {
    let mut b = Build::new("take", 1);
    let (x, index) = (vector(&mut b, &[1.0, 2.0, 3.0]), integers(&mut b, &[0, -1, -3, 3, -4]));
    let y = take(&mut b.g, x, index, 0).expect("fits");
    let nan = f64::NAN;
    close("take", &value(&b, y), &[1.0, 3.0, 1.0, nan, nan]);
    let y = take_along(&mut b.g, x, index, 0).expect("fits");
    close("take_along", &value(&b, y), &[1.0, 3.0, 1.0, nan, nan]);
}

#[test]
fn of_equal_elements_the_first_is_best() {
    let mut b = Build::new("top_k", 1);
    let x = vector(&mut b, &[1.0, 5.0, 3.0, 5.0, 3.0]);
    let (best, at) = top_k(&mut b.g, x, 4).expect("fits");
    close("values", &value(&b, best), &[5.0, 5.0, 3.0, 3.0]);
    let at = b.g.cast(at, DType::F32).expect("fits");
    close("positions", &value(&b, at), &[1.0, 3.0, 2.0, 4.0]);
    assert!(top_k(&mut b.g, x, 6).is_err());
}

/// `einsum` against sums over all labels.
#[test]
fn einsum_sums_over_all_labels() {
    let mut b = Build::new("einsum", 1);
    let (l, r) = (b.param(&[2, 3]), b.param(&[3, 2]));
    let numbers = |b: &Build, i: usize| b.bindings.params[i].floats().to_vec();
    let (x, w) = (numbers(&b, 0), numbers(&b, 1));
    let mut run = |equation: &str, operands: &[NodeId]| {
        let g: &mut Graph = &mut b.g;
        let y = g.einsum(equation, operands).expect(equation);
        value(&b, y)
    };
    let product: Vec<f64> =
        (0..4).map(|i| (0..3).map(|k| x[i / 2 * 3 + k] * w[k * 2 + i % 2]).sum()).collect();
    close("ij,jk", &run("ij,jk", &[l, r]), &product);
    close("trace", &run("ij,ji->", &[l, r]), &[product[0] + product[3]]);
    let outer: Vec<f64> = (0..36).map(|i| x[i / 6] * w[i % 6]).collect();
    close("outer", &run("ij,kl->ijkl", &[l, r]), &outer);
    let sum: f64 = w.iter().sum();
    let scaled: Vec<f64> = x.iter().map(|x| x * sum).collect();
    close("lone labels", &run("ij,kl->ij", &[l, r]), &scaled);
    let turned: Vec<f64> = (0..6).map(|i| x[i % 2 * 3 + i / 2]).collect();
    close("ij->ji", &run("ij->ji", &[l]), &turned);
    let both: Vec<f64> = (0..6).map(|i| x[i] * w[i % 3 * 2 + i / 3]).collect();
    close("elementwise", &run("ij,ji->ij", &[l, r]), &both);
}
