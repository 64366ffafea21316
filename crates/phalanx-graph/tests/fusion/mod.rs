//! Elementwise fusion.

use super::{fetching, names, param, rows};
use phalanx_graph::ops::{Instr as TapeInstr, Unary};
use phalanx_graph::passes::{fuse_elementwise, optimize};
use phalanx_graph::{Graph, Op};

#[test]
fn a_chain_becomes_one_tape() {
    let mut g = Graph::new();
    let x = rows(&mut g, &[3]);
    let w = param(&mut g, "w", &[3]);
    let y = g.scale(x, 2.0).unwrap();
    let y = g.add(y, w).unwrap();
    let y = g.unary(Unary::Tanh, y).unwrap();
    let y = g.mul(y, x).unwrap();
    let step = fuse_elementwise(fetching(g, &[y]));
    assert_eq!(names(&step), ["feed", "param", "fused"], "{step}");
    let Op::Fused(tape) = &step.graph.nodes()[2].op else { panic!("{step}") };
    assert_eq!(tape.to_string(), "tanh((x0 * 2 + v1)) * x0");
    let reads = tape.instrs.iter().filter(|i| matches!(i, TapeInstr::Input(_))).count();
    assert_eq!(reads, 2, "x is read once");
}

#[test]
fn nodes_with_other_users_are_not_fused() {
    let mut g = Graph::new();
    let x = rows(&mut g, &[3]);
    let a = g.unary(Unary::Exp, x).unwrap();
    let y = g.neg(a).unwrap();
    let step = fuse_elementwise(fetching(g, &[a, y]));
    assert_eq!(names(&step), ["feed", "fused", "fused"], "{step}");
}

#[test]
fn cheap_results_of_elementwise_users_are_computed_again() {
    let mut g = Graph::new();
    let (x, dy) = (rows(&mut g, &[3]), rows(&mut g, &[3]));
    let half = g.scale(x, 0.5).unwrap();
    let (one, two) = (g.unary(Unary::Tanh, half).unwrap(), g.mul(half, dy).unwrap());
    let step = fuse_elementwise(fetching(g, &[one, two]));
    assert_eq!(names(&step), ["feed", "feed", "fused", "fused"], "{step}");
    // A sum of two values would be read twice instead of once, and a tangent takes longer than reading it.
    for expensive in [false, true] {
        let mut g = Graph::new();
        let (x, dy) = (rows(&mut g, &[3]), rows(&mut g, &[3]));
        let stored = if expensive { g.unary(Unary::Tanh, x) } else { g.add(x, dy) }.unwrap();
        let (one, two) = (g.neg(stored).unwrap(), g.mul(stored, x).unwrap());
        let step = fuse_elementwise(fetching(g, &[one, two]));
        assert_eq!(
            names(&step),
            ["feed", "feed", "fused", "fused", "fused"][usize::from(expensive)..]
        );
    }
}

#[test]
fn a_result_that_one_tape_reads_twice_is_fused() {
    let mut g = Graph::new();
    let (x, y, dy) = (rows(&mut g, &[3]), rows(&mut g, &[3]), rows(&mut g, &[3]));
    let product = g.mul(x, dy).unwrap();
    let (first, second) = (g.unary(Unary::Tanh, product).unwrap(), g.mul(product, y).unwrap());
    let sum = g.add(first, second).unwrap();
    let step = fuse_elementwise(fetching(g, &[sum]));
    assert_eq!(names(&step), ["feed", "feed", "feed", "fused"], "{step}");
}

#[test]
fn nodes_of_different_shapes_are_not_fused() {
    let mut g = Graph::new();
    let x = rows(&mut g, &[2, 3]);
    let p = rows(&mut g, &[2, 1]);
    // Fusing it would compute each exponential three times.
    let e = g.unary(Unary::Exp, p).unwrap();
    let y = g.mul(x, e).unwrap();
    let step = fuse_elementwise(fetching(g, &[y]));
    assert_eq!(names(&step), ["feed", "feed", "fused", "fused"], "{step}");
    step.verify("test").unwrap();
}

#[test]
fn long_chains_are_split() {
    let mut g = Graph::new();
    let x = rows(&mut g, &[3]);
    let mut y = x;
    for i in 0..100 {
        let w = param(&mut g, "w", &[3]);
        y = g.add(y, w).unwrap();
        y = g.scale(y, f64::from(i) + 0.5).unwrap();
    }
    let step = optimize(fetching(g, &[y])).unwrap();
    for node in step.graph.nodes() {
        if let Op::Fused(tape) = &node.op {
            assert!(tape.instrs.len() <= 36 && tape.inputs.len() <= 36, "{step}");
        }
    }
}
