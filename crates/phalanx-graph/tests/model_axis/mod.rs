//! Exchanges among the devices of a replica.

use super::*;

#[test]
fn the_devices_of_a_replica_exchange_as_little_as_their_layout_needs() {
    let partitioned = |mut step: Step, axes: &[(&str, usize)]| {
        for (name, axis) in axes {
            let at = step.graph.params().iter().position(|p| p.name == *name).expect("a parameter");
            step.graph.partition(ParamId(at as u32), *axis);
        }
        Program::compile(step, Options::new(ONE.with_devices_per_replica(2), 8))
            .unwrap()
            .to_string()
    };
    let count = |text: &str, what: &str| text.lines().filter(|l| l.contains(what)).count();
    // Query, key and value share the sum of their derivatives, and so do the two halves of each pair of dense layers.
    let blocks = [
        ("attention/query/kernel", 1),
        ("attention/key/kernel", 1),
        ("attention/value/kernel", 1),
        ("attention/output/kernel", 0),
        ("up/kernel", 1),
        ("down/kernel", 0),
    ];
    let text = partitioned(transformer(momentum(None), (0.0, 0.0)), &blocks);
    assert_eq!(count(&text, "= all_reduce_sum_parts("), 4, "two forward, two backward: {text}");
    // The crossentropy over parts of the classes takes one maximum and two sums, and backward one.
    let text = partitioned(
        transformer(momentum(None), (0.0, 0.0)),
        &[("logits/kernel", 1), ("logits/bias", 0)],
    );
    assert_eq!(
        (count(&text, "= all_reduce_max_parts("), count(&text, "= all_reduce_sum_parts(")),
        (1, 3),
        "{text}"
    );
    // Filters, then input channels.
    let axes = [("first/kernel", 3), ("second/kernel", 2)];
    let text = partitioned(even_cnn(Scope::All, momentum(None)), &axes);
    assert_eq!(count(&text, "= all_reduce_sum_parts("), 1, "{text}");
}

#[test]
fn the_derivative_of_a_partitioned_softmax_may_be_whole() {
    let mut g = Graph::new();
    let x = rows(&mut g, &[8]);
    let weights = rows(&mut g, &[3]);
    let (first, second) = (param(&mut g, "first", &[8, 16]), param(&mut g, "second", &[16, 3]));
    let hidden = g.push(Op::Dot(Epilogue::default()), &[x, first]).unwrap();
    let gates = g.push(Op::Softmax, &[hidden]).unwrap();
    let y = g.push(Op::Dot(Epilogue::default()), &[gates, second]).unwrap();
    let found = gradients(&mut g, &[(y, weights)], &[first, second]).unwrap();
    g.partition(ParamId(0), 1);
    let mut step = fetching(g, &[y]);
    for (i, node) in found.into_iter().enumerate() {
        step.gradients.push(Gradient { param: ParamId(i as u32), node, l1: 0.0, l2: 0.0 });
    }
    step.update = Some(momentum(None));
    let options = Options::new(ONE.with_devices_per_replica(2), 8);
    let text = Program::compile(step, options).expect("compiles").to_string();
    assert!(text.contains("all_gather"), "the second layer needs all of the softmax: {text}");
}
