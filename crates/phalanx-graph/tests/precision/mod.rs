//! Layers that are kept in 32 bits, and programs for several lengths.

use super::networks::{momentum, sequence};
use super::{ONE, RULES, TWO};
use phalanx_graph::ops::Epilogue;
use phalanx_graph::program::Policy;
use phalanx_graph::{Fetch, Graph, Op, Options, Program, Step, Type};

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
