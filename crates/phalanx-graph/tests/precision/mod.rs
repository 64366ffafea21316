//! Layers that are kept in 32 bits, and programs for several lengths.

use super::networks::{momentum, sequence};
use super::{ONE, RULES, TWO};
use phalanx_graph::autodiff::gradients;
use phalanx_graph::ops::{Contraction, Epilogue};
use phalanx_graph::program::Policy;
use phalanx_graph::{
    DType, Fetch, Gradient, Graph, Op, Options, ParamId, Program, Space, Step, Type,
};

#[test]
fn a_layer_that_is_kept_wide_stores_32_bit_floats() {
    for wide in [false, true] {
        let mut g = Graph::new();
        let feed = g.add_feed("x", Type::rows([8]));
        let mut x = g.feed(feed);
        for (name, units) in [("first", 6), ("second", 4), ("third", 2)] {
            g.enter(name);
            if wide && name == "second" {
                g.keep_wide();
            }
            let k = g.ty(x).dims[0];
            let w = g.add_param(name, &[k, units], true);
            let w = g.param(w);
            x = g.push(Op::Dot(Epilogue { bias: false, relu: false }), &[x, w]).unwrap();
        }
        g.enter("");
        let mut step = Step::new("predict", g);
        step.fetches.push(Fetch { name: "y".into(), node: x });
        let policy = Policy::MixedBfloat16;
        let options = Options { policy, split_rules: RULES, ..Options::new(ONE, 8) };
        let text = Program::compile(step, options).expect("compiles").to_string();
        let stored = |layer: &str| {
            let line = text.lines().find(|l| l.contains("= dot") && l.ends_with(layer));
            if line.expect("a product").contains("rows f32[") { "f32" } else { "bf16" }
        };
        assert_eq!(stored("first"), "bf16", "{text}");
        assert_eq!(stored("second"), if wide { "f32" } else { "bf16" }, "{text}");
    }
}

#[test]
fn long_axes_of_products_are_padded() {
    let step = |fetched: bool| {
        let mut g = Graph::new();
        g.enter("words");
        let feed = g.add_feed("x", Type::rows([4, 8]));
        let labels = g.add_feed("labels", Type::new(DType::I32, Space::Rows, [4]));
        let weights = g.add_feed("weights", Type::rows([4]));
        let w = g.add_param("w", &[8, 1001], true);
        let (x, w, labels) = (g.feed(feed), g.param(w), g.feed(labels));
        let weights = g.feed(weights);
        let logits = g.push(Op::MatMul(Contraction::matrices(0)), &[x, w]).unwrap();
        g.enter("");
        let losses = g.push(Op::SparseXent, &[logits, labels]).unwrap();
        let found = gradients(&mut g, &[(losses, weights)], &[w]).unwrap();
        let mut step = Step::new("train", g);
        step.gradients.push(Gradient { param: ParamId(0), node: found[0], l1: 0.0, l2: 0.0 });
        step.update = Some(momentum(None));
        let node = if fetched { logits } else { losses };
        step.fetches.push(Fetch { name: "fetched".into(), node });
        step
    };
    let compile = |fetched, product_alignment| {
        let policy = Policy::MixedBfloat16;
        let options = Options { policy, split_rules: RULES, ..Options::new(ONE, 2) };
        Program::compile(step(fetched), Options { product_alignment, ..options }).expect("compiles")
    };
    let widths = |program: &Program| {
        let values = program.values().iter().filter(|v| v.ty.dims.last() == Some(&1001));
        values.filter(|v| v.ty.is_rows()).map(|v| (v.ty.dtype, v.ld)).collect::<Vec<_>>()
    };
    // The derivative is written as the products read it.
    let (logits, derivative) = (DType::F32, DType::Bf16);
    let padded = compile(false, 8);
    assert_eq!(widths(&padded), [(logits, 1008), (derivative, 1008)], "{padded}");
    assert_eq!(widths(&compile(false, 1)), [(logits, 1001), (derivative, 1001)]);
    // The host reads it without gaps.
    let fetched = compile(true, 8);
    assert_eq!(widths(&fetched), [(logits, 1001), (derivative, 1008)], "{fetched}");
}

#[test]
fn programs_for_several_lengths_have_the_same_parameters() {
    let program = |length| {
        let options = Options { split_rules: RULES, ..Options::new(TWO, 8) };
        Program::compile(sequence(length, momentum(None)), options).expect("compiles")
    };
    let (short, long) = (program(3), program(7));
    let names = |p: &Program| p.params().iter().map(|p| (p.name.clone(), p.dims.clone())).collect();
    let (a, b): (Vec<_>, Vec<_>) = (names(&short), names(&long));
    assert_eq!(a, b);
    assert!(short.to_string() != long.to_string());
}
