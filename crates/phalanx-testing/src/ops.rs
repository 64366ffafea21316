//! The cases of the gradient checks, with their outputs and all derivatives, as programs on every mesh,
//! kind of executor and number of rows.

use crate::Lab;
use crate::cases::*;
use crate::harness::*;
use phalanx_cpu::reference::{Context, Value, evaluate};
use phalanx_graph::functions::index::{arg_max, arg_min};
use phalanx_graph::functions::layout::iota;
use phalanx_graph::ops::Binary;
use phalanx_graph::{DType, Fetch, Mesh, NodeId, Op, Scope, Space, Step};

/// Batch sizes: fewer rows than workers, every remainder, and no rows.
const ROWS: [usize; 6] = [0, 1, 2, 3, 4, 5];

/// A step that fetches nodes; partial sums are reduced over all workers.
pub fn fetching(b: &Build, nodes: &[NodeId]) -> Step {
    let mut step = Step::new("case", b.g.clone());
    for node in nodes {
        let mut node = *node;
        if b.g.ty(node).space == Space::Partial {
            let op = Op::AllReduce { scope: Scope::All };
            node = step.graph.push(op, &[node]).expect("a partial sum");
        }
        step.fetches.push(Fetch { name: format!("%{}", node.0), node });
    }
    step
}

/// The expected values of the nodes over all devices: rows concatenated, partial sums added.
fn expected(b: &Build, step: &Step, nodes: &[NodeId], mesh: Mesh) -> Vec<Vec<f64>> {
    let per_device = Op::AllReduce { scope: Scope::Device };
    // Without per-device statistics the number of devices does not matter.
    let devices = match b.g.nodes().iter().any(|n| n.op == per_device) {
        true => mesh.replicas,
        false => 1,
    };
    let split = Mesh::new(devices, 1);
    let mut total: Vec<Vec<f64>> = vec![];
    for device in 0..devices {
        let bindings = device_bindings(&b.bindings, step, split, device);
        let rows = split.replica_rows(b.context.rows, device).len();
        let context = Context { rows, ..b.context };
        let values: Vec<Value> = evaluate(&b.g, nodes, &bindings, &context);
        if device == 0 {
            total = values.iter().map(|v| v.floats().to_vec()).collect();
            continue;
        }
        for ((total, v), node) in total.iter_mut().zip(&values).zip(nodes) {
            match b.g.ty(*node).space {
                Space::Rows => total.extend(v.floats()),
                Space::Partial => total.iter_mut().zip(v.floats()).for_each(|(w, v)| *w += v),
                Space::Mirrored | Space::Device => {}
            }
        }
    }
    total
}

/// Compares a case, optionally with its derivatives, with the reference.
pub fn check(lab: &dyn Lab, case: &Case, differentiate: bool, meshes: &[Mesh]) {
    // The graph does not depend on the number of rows, so programs are compiled once.
    let built: Vec<(Build, Vec<NodeId>)> = ROWS
        .iter()
        .map(|rows| {
            let mut b = Build::new(&case.name, *rows);
            let y = (case.build)(&mut b);
            let mut nodes = vec![y];
            if differentiate {
                nodes.extend(b.differentiate(y).found.into_iter().flatten());
            }
            (b, nodes)
        })
        .collect();
    let step = fetching(&built[0].0, &built[0].1);
    let specs = step.graph.params();
    for mesh in meshes.iter().copied() {
        let wants: Vec<Vec<Vec<f64>>> =
            built.iter().map(|(b, nodes)| expected(b, &step, nodes, mesh)).collect();
        let largest = ROWS[ROWS.len() - 1];
        let programs = [largest, largest + 3].map(|max| compile(&step, mesh, max));
        for (kind, mut e) in lab.executors(mesh, specs) {
            for program in &programs {
                let id = e.load(program.clone()).expect("loads");
                let mut fetched = vec![];
                for ((b, nodes), want) in built.iter().zip(&wants) {
                    set_params(&mut *e, &b.bindings.params);
                    let elements = elements(&b.bindings.feeds);
                    e.run(id, &batch(&b.context, &feeds(&elements)), &mut fetched).expect("runs");
                    for ((node, got), want) in nodes.iter().zip(&fetched).zip(want) {
                        let (name, rows) = (&case.name, b.context.rows);
                        let what = format!("{name}: %{} of {rows} rows, {mesh:?}, {kind}", node.0);
                        assert_close(&what, got, want, lab.tolerances().op);
                    }
                }
            }
        }
    }
}

fn check_all(lab: &dyn Lab, cases: Vec<Case>) {
    cases.iter().for_each(|c| check(lab, c, true, &lab.meshes()));
}

pub fn unary_ops(lab: &dyn Lab) {
    check_all(lab, unary_cases());
}

pub fn binary_ops(lab: &dyn Lab) {
    check_all(lab, binary_cases());
}

pub fn select_ops(lab: &dyn Lab) {
    check_all(lab, select_cases());
}

pub fn reduce_ops(lab: &dyn Lab) {
    check_all(lab, reduce_cases());
}

pub fn layout_ops(lab: &dyn Lab) {
    check_all(lab, layout_cases());
}

pub fn dot_ops(lab: &dyn Lab) {
    check_all(lab, dot_cases());
}

pub fn matmul_ops(lab: &dyn Lab) {
    check_all(lab, matmul_cases());
}

pub fn conv_ops(lab: &dyn Lab) {
    check_all(lab, conv_cases());
}

pub fn pool_ops(lab: &dyn Lab) {
    check_all(lab, pool_cases());
}

pub fn softmax_ops(lab: &dyn Lab) {
    check_all(lab, softmax_cases());
}

pub fn index_and_random_ops(lab: &dyn Lab) {
    check_all(lab, index_and_random_cases());
}

pub fn functions(lab: &dyn Lab) {
    check_all(lab, function_cases());
}

pub fn batch_sums(lab: &dyn Lab) {
    check_all(lab, batch_sum_cases());
}

pub fn sample_ops(lab: &dyn Lab) {
    check_all(lab, sample_cases());
}

pub fn batch_norm_ops(lab: &dyn Lab) {
    check_all(lab, norm_cases());
}

pub fn recurrent_ops(lab: &dyn Lab) {
    check_all(lab, recurrent_cases());
    check_all(lab, wide_recurrent_cases());
}

pub fn shared_nodes(lab: &dyn Lab) {
    check_all(lab, shared_cases());
}

/// Ops without derivatives: metrics, casts, collectives.
fn cases_without_derivatives() -> Vec<Case> {
    vec![
        case("one_hot of arg_max", |b| {
            let x = b.rows(&[2, 5]);
            let best = b.push(Op::ArgMax, &[x]);
            b.push(Op::OneHot { depth: 5 }, &[best])
        }),
        case("cast there and back", |b| {
            let x = b.rows(&[7]);
            let x = b.g.scale(x, 10.0).expect("fits");
            let integers = b.push(Op::Cast { dtype: DType::I32 }, &[x]);
            b.push(Op::Cast { dtype: DType::F32 }, &[integers])
        }),
        case("row_index", |b| {
            let index = b.push(Op::RowIndex, &[]);
            b.push(Op::Cast { dtype: DType::F32 }, &[index])
        }),
        case("uniform", |b| b.push(Op::Uniform { key: 4, dims: vec![2, 3] }, &[])),
        case("positions of extremes", |b| {
            let (x, w) = (b.rows(&[3, 4]), b.param(&[3, 4]));
            let best = arg_max(&mut b.g, x, 0).expect("fits");
            let worst = arg_min(&mut b.g, w, 0).expect("fits");
            let worst = b.push(Op::OneHot { depth: 3 }, &[worst]);
            let best = b.push(Op::OneHot { depth: 3 }, &[best]);
            b.g.add(best, worst).expect("fits")
        }),
        case("a causal mask", |b| {
            let x = b.rows(&[5, 5]);
            let at = iota(&mut b.g, 5).expect("fits");
            let lines = b.g.reshape(at, &[5, 1]).expect("fits");
            let mask = b.g.binary(Binary::Ge, lines, at).expect("fits");
            b.g.mul(x, mask).expect("fits")
        }),
        case("integers compare as floats", |b| {
            let (l, r) = (b.labels(&[4], 3), b.mirrored_integers(&[4], (0, 3)));
            let least = b.g.binary(Binary::Min, l, r).expect("fits");
            let equal = b.g.binary(Binary::Eq, l, r).expect("fits");
            let zero = b.g.scalar(0.0);
            b.g.select(equal, least, zero).expect("fits")
        }),
        case("in_top_k", |b| {
            let x = b.rows(&[6]);
            let labels = b.labels(&[], 6);
            b.push(Op::InTopK { k: 2 }, &[x, labels])
        }),
        case("sums of an accuracy", |b| {
            let (x, labels, weight) = (b.rows(&[4]), b.labels(&[], 4), b.rows(&[]));
            let best = b.push(Op::ArgMax, &[x]);
            let [best, labels] = [best, labels].map(|n| b.g.cast(n, DType::F32).expect("fits"));
            let right = b.g.binary(Binary::Eq, labels, best).expect("fits");
            let total = b.g.mul(right, weight).expect("fits");
            let columns = [total, weight, labels].map(|n| b.g.reshape(n, &[1]).expect("fits"));
            let joined = b.push(Op::Concat { axis: 0 }, &columns);
            b.push(Op::SumRows, &[joined])
        }),
    ]
}

/// Counts of scores above thresholds, two scores per row, followed by the sums of their weights.
fn threshold_case() -> Case {
    case("threshold counts", |b| {
        b.range = (0.0, 1.0);
        let (score, weight) = (b.rows(&[2]), b.rows(&[2]));
        let half = b.g.scalar(0.5);
        let label = b.g.binary(Binary::Gt, weight, half).expect("fits");
        let counts = b.push(Op::ThresholdCounts { n: 7 }, &[score, label, weight]);
        let counts = b.g.reshape(counts, &[14]).expect("fits");
        let totals = b.push(Op::SumRows, &[weight]);
        b.push(Op::Concat { axis: 0 }, &[counts, totals])
    })
}

/// A case as a step that fetches its output and, optionally, its derivatives.
pub fn step(case: &Case, differentiate: bool) -> Step {
    let mut b = Build::new(&case.name, 1);
    let y = (case.build)(&mut b);
    let mut nodes = vec![y];
    if differentiate {
        nodes.extend(b.differentiate(y).found.into_iter().flatten());
    }
    fetching(&b, &nodes)
}

/// All cases as steps that fetch their outputs and derivatives.
pub fn all_steps() -> Vec<Step> {
    let differentiable = [
        unary_cases,
        binary_cases,
        select_cases,
        reduce_cases,
        layout_cases,
        dot_cases,
        matmul_cases,
        conv_cases,
        pool_cases,
        softmax_cases,
        index_and_random_cases,
        function_cases,
        batch_sum_cases,
        sample_cases,
        norm_cases,
        recurrent_cases,
        wide_recurrent_cases,
        shared_cases,
    ];
    let differentiable = differentiable.iter().flat_map(|cases| cases());
    let mut steps: Vec<Step> = differentiable.map(|case| step(&case, true)).collect();
    let without_derivatives = cases_without_derivatives().into_iter().chain([threshold_case()]);
    steps.extend(without_derivatives.map(|case| step(&case, false)));
    steps
}

pub fn ops_without_derivatives(lab: &dyn Lab) {
    cases_without_derivatives().iter().for_each(|c| check(lab, c, false, &lab.meshes()));
}

/// Fetches nodes of a graph, regardless of their type.
fn fetch_all(lab: &dyn Lab, b: &Build, nodes: &[NodeId], mesh: Mesh) -> Vec<Vec<f32>> {
    let step = fetching(b, nodes);
    let mut e = executor(lab, mesh, step.graph.params(), &b.bindings.params);
    let id = e.load(compile(&step, mesh, b.context.rows)).expect("loads");
    let (elements, mut fetched) = (elements(&b.bindings.feeds), vec![]);
    e.run(id, &batch(&b.context, &feeds(&elements)), &mut fetched).expect("runs");
    fetched
}

pub fn integers_are_fetched_as_floats(lab: &dyn Lab) {
    let mut b = Build::new("whole numbers", 5);
    let x = b.rows(&[4]);
    let labels = b.labels(&[3], 9);
    let best = b.push(Op::ArgMax, &[x]);
    let nodes = [labels, best];
    let want = evaluate(&b.g, &nodes, &b.bindings, &b.context);
    for mesh in lab.meshes() {
        for (got, want) in fetch_all(lab, &b, &nodes, mesh).iter().zip(&want) {
            let want: Vec<f32> = want.ints().iter().map(|v| *v as f32).collect();
            assert_eq!(*got, want, "{mesh:?}");
        }
    }
}

pub fn threshold_counts(lab: &dyn Lab) {
    for rows in ROWS {
        let case = threshold_case();
        let mut b = Build::new(&case.name, rows);
        let counts = (case.build)(&mut b);
        let want = evaluate(&b.g, &[counts], &b.bindings, &b.context);
        for mesh in lab.meshes() {
            let got = fetch_all(lab, &b, &[counts], mesh);
            assert_close(
                &format!("{rows} rows, {mesh:?}"),
                &got[0],
                want[0].floats(),
                lab.tolerances().op,
            );
        }
    }
}

/// The statistics of a replica cover its own rows; their mean is weighted by the number of rows.
pub fn replica_means_are_weighted_by_rows(lab: &dyn Lab) {
    for rows in ROWS {
        let mut b = Build::new("replica mean", rows);
        let x = b.rows(&[2, 3]);
        let sums = b.push(Op::Moments, &[x]);
        let sums = b.push(Op::AllReduce { scope: Scope::Device }, &[sums]);
        let stats = b.push(Op::BatchStats { scope: Scope::Device, positions: 2 }, &[sums]);
        let mean = b.push(Op::ReplicaMean, &[stats]);
        for mesh in lab.meshes() {
            let step = fetching(&b, &[mean]);
            let mut want = vec![0.0; 6];
            for device in 0..mesh.replicas {
                let bindings = device_bindings(&b.bindings, &step, mesh, device);
                let own = mesh.replica_rows(rows, device).len();
                let context = Context { rows: own, ..b.context };
                let stats = evaluate(&b.g, &[stats], &bindings, &context);
                let share = own as f64 / rows.max(1) as f64;
                want.iter_mut().zip(stats[0].floats()).for_each(|(w, s)| *w += share * s);
            }
            let got = fetch_all(lab, &b, &[mean], mesh);
            assert_close(&format!("{rows} rows, {mesh:?}"), &got[0], &want, lab.tolerances().op);
        }
    }
}
