//! Every layer against Python Keras: outputs, gradients, moving statistics and configs.

use crate::common::{Case, Fixture, RUNNERS, run, run_on};
use phalanx::constraints::Constraint;
use phalanx::error::Error;
use phalanx::initializers::Initializer;
use phalanx::layer::{Layer, LayerHandle, Lowering};
use phalanx::layers::*;
use phalanx::regularizers::Regularizer;
use phalanx_graph::{
    DType, Graph, NodeId, Op, Space, Tensor, Type, autodiff::gradients, rng::Stream,
};
use serde_json::{Map, Value, json};

const TOLERANCE: f64 = 1e-5;

/// The largest difference, relative to the largest expected number.
fn difference(received: &[f64], expected: &[f32]) -> f64 {
    assert_eq!(received.len(), expected.len(), "number of elements");
    let largest = expected.iter().fold(1e-4f64, |m, e| m.max(f64::from(*e).abs()));
    let apart = received.iter().zip(expected).map(|(r, e)| (r - f64::from(*e)).abs());
    // `f64::max` would ignore a NaN.
    apart.fold(0.0f64, |m, d| if d > m || d.is_nan() { d } else { m }) / largest
}

/// The tensors `field/0`, `field/1`, … that exist.
fn list<'a>(case: &Case<'a>, field: &str) -> Vec<&'a Tensor> {
    (0..).map_while(|i| case.find(&format!("{field}/{i}"))).collect()
}

/// A layer called on feeds of given shapes, batch excluded.
struct Called {
    lowering: Lowering,
    inputs: Vec<NodeId>,
    output: NodeId,
}

fn call(layer: &LayerHandle, training: bool, inputs: &[Type]) -> Result<Called, Error> {
    let mut lowering = Lowering::new(training);
    let g = &mut lowering.graph;
    let inputs: Vec<NodeId> = inputs
        .iter()
        .map(|ty| {
            let feed = g.add_feed("input", ty.clone());
            g.feed(feed)
        })
        .collect();
    let output = lowering.call(layer, "it", &inputs)?;
    Ok(Called { lowering, inputs, output })
}

fn row_type(t: &Tensor) -> Type {
    Type::new(t.dtype(), Space::Rows, &t.dims()[1..])
}

/// The values of the graph's parameters: the case's weights and the layer's constants.
fn params(lowering: &Lowering, weights: &[&Tensor]) -> Vec<Tensor> {
    let mut params: Vec<Option<Tensor>> = vec![None; lowering.graph.params().len()];
    for w in &lowering.weights {
        params[w.param.index()] = Some(weights[w.index].clone());
    }
    for (id, values) in &lowering.constants {
        let dims = lowering.graph.params()[id.index()].dims.clone();
        params[id.index()] = Tensor::new(dims, values.clone()).ok();
    }
    params.into_iter().map(|p| p.expect("every parameter has a value")).collect()
}

/// Runs a case and returns the differences.
fn differences(case: &Case) -> Result<Vec<String>, Error> {
    let config = case.config().clone();
    let trainable = config.get("trainable").and_then(Value::as_bool).unwrap_or(true);
    let layer = from_config(case.class_name(), config)?;
    let layer = LayerHandle::new(layer, None, trainable);
    let (inputs, weights) = (list(case, "input"), list(case, "weight"));
    let training = case.json["training"].as_bool().unwrap();
    let types: Vec<Type> = inputs.iter().map(|t| row_type(t)).collect();
    let mut called = call(&layer, training, &types)?;

    let names: Vec<&str> = layer.weights().iter().map(|w| w.spec.name).collect();
    assert_eq!(json!(names), case.json["weight_names"], "{}: weights", case.name);
    let graph = &mut called.lowering.graph;
    let trainable: Vec<bool> =
        called.lowering.weights.iter().map(|w| graph.params()[w.param.index()].trainable).collect();
    assert_eq!(json!(trainable), case.json["weight_trainable"], "{}", case.name);

    let seed = graph.add_feed("seed", row_type(case.tensor("seed")));
    let seed = graph.feed(seed);
    let weight_nodes: Vec<NodeId> = called
        .lowering
        .weights
        .iter()
        .map(|w| graph.ids().find(|n| graph.node(*n).op == Op::Param { id: w.param }).unwrap())
        .collect();
    let wrt = [&called.inputs[..], &weight_nodes[..]].concat();
    let grads = gradients(graph, &[(called.output, seed)], &wrt)?;

    let mut outputs = vec![called.output];
    let mut fields = vec!["output".to_string()];
    for (i, grad) in grads.iter().enumerate() {
        let field = match i.checked_sub(inputs.len()) {
            None => format!("grad_input/{i}"),
            Some(i) => format!("grad_weight/{i}"),
        };
        if case.find(&field).is_some() {
            outputs.push(grad.unwrap_or_else(|| panic!("{}: no {field}", case.name)));
            fields.push(field);
        }
    }
    for (param, value) in &called.lowering.assigns {
        let w = called.lowering.weights.iter().find(|w| w.param == *param).unwrap();
        outputs.push(*value);
        fields.push(format!("new_weight/{}", w.index));
    }
    if case.json["updates"] == true && layer.trainable() {
        assert_eq!(called.lowering.assigns.len(), 2, "{}: moving statistics", case.name);
    }

    let mut feeds: Vec<Tensor> = inputs.into_iter().cloned().collect();
    feeds.push(case.tensor("seed").clone());
    let params = params(&called.lowering, &weights);
    let mut wrong = vec![];
    for runner in RUNNERS {
        let received = run_on(runner, &called.lowering.graph, &outputs, &feeds, &params);
        for (field, received) in fields.iter().zip(received) {
            let d = difference(&received, case.f32(field));
            if d > TOLERANCE || d.is_nan() {
                wrong.push(format!("{} {field} on {runner:?}: {d:.2e}", case.name));
            }
        }
    }
    Ok(wrong)
}

/// Every layer's cases.
fn fixtures() -> [Fixture; 2] {
    ["layers", "image_layers"].map(Fixture::load)
}

#[test]
fn outputs_gradients_and_statistics_match_keras() {
    let mut wrong = vec![];
    for case in fixtures().iter().flat_map(Fixture::cases) {
        match differences(&case) {
            Ok(list) => wrong.extend(list),
            Err(e) => wrong.push(format!("{}: {e}", case.name)),
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// Keys that Keras 3.15 writes and that are read but not written here: they are newer than the oldest Keras 3,
/// which would reject them.
const NOT_WRITTEN: [&str; 6] = [
    "quantization_config",
    "renorm",
    "renorm_clipping",
    "renorm_momentum",
    "input_axes",
    "output_axes",
];

/// Keras' config without [`NOT_WRITTEN`].
fn without_newer(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.iter().filter(|(key, _)| !NOT_WRITTEN.contains(&key.as_str()));
            let kept = kept.map(|(key, value)| (key.clone(), without_newer(value)));
            kept.collect::<Map<_, _>>().into()
        }
        Value::Array(list) => list.iter().map(without_newer).collect(),
        other => other.clone(),
    }
}

/// Converts every number to a float: `2` and `2.0` are the same to Keras.
fn floats(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            map.iter().map(|(k, v)| (k.clone(), floats(v))).collect::<Map<_, _>>().into()
        }
        Value::Array(list) => list.iter().map(floats).collect(),
        Value::Number(n) => json!(n.as_f64()),
        other => other.clone(),
    }
}

fn assert_same_config(ours: impl Into<Value>, keras: impl Into<Value>, name: &str) {
    assert_eq!(floats(&ours.into()), floats(&without_newer(&keras.into())), "{name}");
}

#[test]
fn configs_match_keras() {
    for case in fixtures().iter().flat_map(Fixture::cases) {
        let mut theirs = case.config().clone();
        let layer = from_config(case.class_name(), theirs.clone()).unwrap();
        for key in ["name", "trainable", "dtype"] {
            theirs.remove(key);
        }
        assert_same_config(layer.config(), theirs, case.name);
    }
}

#[test]
fn initializers_have_keras_statistics() {
    for (stream, case) in Fixture::load("initializers").cases().enumerate() {
        let saved = json!({
            "module": "keras.initializers",
            "class_name": case.json["class_name"],
            "config": case.json["config"],
            "registered_name": null,
        });
        let initializer: Initializer = serde_json::from_value(saved.clone()).unwrap();
        let written = serde_json::to_value(initializer).unwrap();
        assert_same_config(written, saved, case.name);

        let dims: Vec<usize> = serde_json::from_value(case.json["shape"].clone()).unwrap();
        let v = initializer.sample(&dims, &mut Stream::new(3, 0, stream as u32, 0));
        let n = v.len() as f64;
        let mean = v.iter().map(|x| f64::from(*x)).sum::<f64>() / n;
        let variance = v.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / n;
        let lowest = v.iter().fold(f64::INFINITY, |m, x| m.min(f64::from(*x)));
        let highest = v.iter().fold(f64::NEG_INFINITY, |m, x| m.max(f64::from(*x)));
        let [m, s, lo, hi] = [0, 1, 2, 3].map(|i| f64::from(case.f32("stats")[i]));
        // Two draws: means differ by a few standard errors, deviations by a percent or two, and
        // extremes of unbounded distributions by more.
        let name = case.name;
        assert!((mean - m).abs() <= 6.0 * s / n.sqrt() + 1e-7, "{name}: mean {mean}, keras {m}");
        assert!(
            (variance.sqrt() - s).abs() <= 0.02 * s + 1e-7,
            "{name}: std {variance}, keras {s}"
        );
        let unbounded = lo < m - 2.4 * s;
        let slack = if unbounded { 1.2 * s } else { 0.02 * s + 1e-6 };
        assert!((lowest - lo).abs() <= slack, "{name}: min {lowest}, keras {lo}");
        assert!((highest - hi).abs() <= slack, "{name}: max {highest}, keras {hi}");
    }
}

#[test]
fn penalties_match_keras() {
    for case in Fixture::load("penalties").cases() {
        let (name, kind) = (case.name, case.json["kind"].as_str().unwrap());
        let saved = json!({
            "module": format!("keras.{kind}s"),
            "class_name": case.json["class_name"],
            "config": case.json["config"],
            "registered_name": null,
        });
        let input = case.tensor("input");
        if kind == "constraint" {
            let constraint: Constraint = serde_json::from_value(saved.clone()).unwrap();
            let written = serde_json::to_value(&constraint).unwrap();
            assert_same_config(written, saved, name);
            let mut g = Graph::new();
            let param = g.add_param("w", input.dims(), true);
            let w = g.param(param);
            let projected = constraint.project(&mut g, w).unwrap();
            let values = &run(&g, &[projected], &[], std::slice::from_ref(input))[0];
            assert!(difference(values, case.f32("output")) <= 1e-6, "{name}");
        } else {
            let regularizer: Regularizer = serde_json::from_value(saved.clone()).unwrap();
            let written = serde_json::to_value(regularizer).unwrap();
            assert_same_config(written, saved, name);
            let (l1, l2) = regularizer.coefficients();
            let w = input.f32().unwrap().iter().map(|x| f64::from(*x));
            let value: f64 = w.map(|w| l1 * w.abs() + l2 * w * w).sum();
            assert!(difference(&[value], case.f32("value")) <= TOLERANCE, "{name}");
        }
    }
}

/// The error message of a layer on inputs of these shapes.
fn refusal(layer: impl Layer, shapes: &[&[usize]]) -> String {
    let types: Vec<Type> = shapes.iter().map(|dims| Type::rows(*dims)).collect();
    match call(&layer.into(), true, &types) {
        Ok(_) => panic!("was not refused"),
        Err(e) => e.to_string(),
    }
}

#[test]
fn refusals_name_layer_argument_expected_and_received() {
    let image: &[usize] = &[8, 6, 4];
    let cases = [
        (refusal(Dense::new(0), &[&[3]]), "layer 'it': units: expected 1 or more, received 0"),
        (
            refusal(Dense::new(4), &[&[]]),
            "layer 'it': input: expected shape (batch, .., features), received (None,)",
        ),
        (refusal(Dense::new(4), &[&[3], &[3]]), "layer 'it': inputs: expected 1, received 2"),
        (
            refusal(Conv2D::new(4, 3), &[&[10]]),
            "layer 'it': input: expected shape (batch, height, width, channels), received (None, 10)",
        ),
        (
            refusal(Conv2D::new(4, (9, 3)), &[image]),
            "layer 'it': kernel_size: expected a window inside the input's 8x6, received (9, 3)",
        ),
        (
            refusal(Conv2D::new(4, 3).strides((1, 0)), &[image]),
            "layer 'it': strides: expected 1 or more, received (1, 0)",
        ),
        (
            refusal(Conv2D::new(4, 3).groups(3), &[image]),
            "layer 'it': groups: expected a divisor of the input's channels, 4, received 3",
        ),
        (
            refusal(Conv2D::new(4, 3).strides(2).dilation_rate(2), &[image]),
            "layer 'it': strides: expected 1 if dilation_rate is not 1, \
             received (2, 2) with dilation_rate (2, 2)",
        ),
        (
            refusal(MaxPooling2D::new(0), &[image]),
            "layer 'it': pool_size: expected 1 or more, received (0, 0)",
        ),
        (
            refusal(Dropout::new(1.0), &[&[3]]),
            "layer 'it': rate: expected 0 or more and less than 1, received 1",
        ),
        (
            refusal(BatchNormalization::new().axis(0), &[&[3]]),
            "layer 'it': axis: expected an axis of (None, 3) other than the batch, received 0",
        ),
        (
            refusal(Reshape::new([5, -1]), &[&[12]]),
            "layer 'it': target_shape: expected a shape of 12 elements as in (None, 12), \
             received [5, -1]",
        ),
        (
            refusal(Permute::new([1, 3]), &[&[2, 2]]),
            "layer 'it': dims: expected each of 1 to 2 once for (None, 2, 2), received [1, 3]",
        ),
        (
            refusal(Cropping2D::new(3), &[image]),
            "layer 'it': cropping: expected less than the input's 8x6, received [[3, 3], [3, 3]]",
        ),
        (
            refusal(Concatenate::new(), &[&[2, 3], &[3, 3]]),
            "layer 'it': inputs to concatenate: expected equal shapes except on the axis joined, \
             received (None, 2, 3), (None, 3, 3)",
        ),
        (
            refusal(Add::new(), &[&[2], &[3]]),
            "layer 'it': inputs of add: expected shapes that broadcast together, \
             received (None, 2) and (None, 3)",
        ),
        (refusal(Subtract::new(), &[&[2]]), "layer 'it': inputs: expected 2, received 1"),
        (
            refusal(Embedding::new(0, 3), &[&[2]]),
            "layer 'it': input_dim: expected 1 or more, received 0",
        ),
        (
            refusal(Normalization::new().mean([1.0, 2.0]).variance([1.0, 1.0]), &[&[3]]),
            "layer 'it': mean: expected one number, or [3] of them for (None, 3), received [2]",
        ),
        (
            refusal(Dense::new(usize::MAX), &[&[3]]),
            &format!(
                "layer 'it': kernel: expected a shape that fits in memory, received [3, {}]",
                usize::MAX
            ),
        ),
    ];
    for (received, expected) in cases {
        assert_eq!(received, expected);
    }
}

#[test]
fn unknown_names_are_kept_until_the_call() {
    let text = refusal(Dense::new(3).activation("rellu"), &[&[3]]);
    assert!(text.starts_with("unknown activation 'rellu'"), "{text}");
    assert!(text.contains("known: linear, relu, "), "{text}");
    let text = refusal(Conv2D::new(3, 3).padding("causal"), &[&[8, 8, 1]]);
    assert_eq!(text, "unknown padding 'causal'; known: valid, same");
    let text = refusal(Dense::new(3).kernel_initializer("he"), &[&[3]]);
    assert!(text.starts_with("unknown initializer 'he'; did you mean 'he_uniform'?"), "{text}");
    let text = refusal(Dense::new(3).kernel_regularizer("l3"), &[&[3]]);
    assert!(text.starts_with("unknown regularizer 'l3'"), "{text}");
    assert!(text.ends_with("known: l1, l2, l1_l2"), "{text}");
    let text = refusal(Dense::new(3).bias_constraint("nonnegative"), &[&[3]]);
    assert!(text.starts_with("unknown constraint 'nonnegative'"), "{text}");
}

#[test]
fn extreme_sizes_are_refused_and_do_not_panic() {
    let (most, image): (usize, &[usize]) = (usize::MAX, &[8, 6, 4]);
    refusal(Conv2D::new(most, 3), &[image]);
    refusal(Conv2D::new(3, most).padding("same"), &[image]);
    refusal(Conv2D::new(3, 3).dilation_rate(most), &[image]);
    refusal(DepthwiseConv2D::new(3).depth_multiplier(most), &[image]);
    refusal(UpSampling2D::new(most), &[image]);
    refusal(ZeroPadding2D::new(most), &[image]);
    refusal(Cropping2D::new(most), &[image]);
    refusal(MaxPooling2D::new(2), &[&[0, 4, 1]]);
    refusal(Reshape::new([i64::MAX, i64::MAX]), &[image]);
    refusal(Reshape::new([-2, -1]), &[image]);
    refusal(Concatenate::new().axis(i64::MIN), &[image, image]);
    refusal(Softmax::new().axis(i64::MAX), &[image]);
    refusal(Rescaling::new(f64::NAN), &[image]);
    refusal(Embedding::new(most, most), &[&[3]]);
}

#[test]
fn dropout_acts_in_training_only_and_keeps_the_mean() {
    let x = Tensor::new([50, 40], vec![1.0f32; 2000]).unwrap();
    let layer: LayerHandle = Dropout::new(0.25).into();
    let types = [row_type(&x)];
    let idle = call(&layer, false, &types).unwrap();
    assert_eq!(idle.output, idle.inputs[0]);
    let zero: LayerHandle = Dropout::new(0.0).into();
    let idle = call(&zero, true, &types).unwrap();
    assert_eq!(idle.output, idle.inputs[0]);

    let active = call(&layer, true, &types).unwrap();
    let y = &run(&active.lowering.graph, &[active.output], &[x], &[])[0];
    assert!(y.iter().all(|v| *v == 0.0 || (*v - 1.0 / 0.75).abs() < 1e-6));
    let mean = y.iter().sum::<f64>() / y.len() as f64;
    assert!((mean - 1.0).abs() < 0.05, "{mean}");
}

#[test]
fn spatial_dropout_drops_whole_channels() {
    let x = Tensor::new([6, 3, 2, 5], vec![1.0f32; 180]).unwrap();
    let called = call(&SpatialDropout2D::new(0.5).into(), true, &[row_type(&x)]).unwrap();
    let y = &run(&called.lowering.graph, &[called.output], &[x], &[])[0];
    for row in y.chunks(30) {
        assert!(row.chunks(5).all(|pixel| pixel == &row[..5]), "{row:?}");
    }
    assert!(y.contains(&0.0) && y.contains(&2.0));
}

#[test]
fn noise_shape_shares_the_mask_along_an_axis() {
    let x = Tensor::new([8, 3, 4], vec![1.0f32; 96]).unwrap();
    let layer = Dropout::new(0.5).noise_shape([None, Some(1), None]);
    let called = call(&layer.into(), true, &[row_type(&x)]).unwrap();
    let y = &run(&called.lowering.graph, &[called.output], &[x], &[])[0];
    for row in y.chunks(12) {
        assert!(row.chunks(4).all(|step| step == &row[..4]), "{row:?}");
    }
    let bad = Dropout::new(0.5).noise_shape([Some(1), None, None]);
    assert!(refusal(bad, &[&[3, 4]]).starts_with("layer 'it': noise_shape: expected None"));
}

#[test]
fn synchronized_batch_norm_shares_its_statistics_with_all() {
    let types = [Type::rows([4])];
    let scopes = |layer: BatchNormalization| {
        let called = call(&layer.into(), true, &types).unwrap();
        let text = called.lowering.graph.to_string();
        (text.contains("all_reduce over=all"), text.contains("replica_mean"))
    };
    assert_eq!(scopes(BatchNormalization::new()), (false, true));
    assert_eq!(scopes(BatchNormalization::new().synchronized(true)), (true, false));
}

#[test]
fn a_layer_called_twice_shares_its_weights() {
    let dense: LayerHandle = Dense::new(3).into();
    let mut lowering = Lowering::new(true);
    let feed = lowering.graph.add_feed("x", Type::rows([3]));
    let x = lowering.graph.feed(feed);
    let y = lowering.call(&dense, "dense", &[x]).unwrap();
    lowering.call(&dense, "dense", &[y]).unwrap();
    assert_eq!(lowering.graph.params().len(), 2);
    let feed = lowering.graph.add_feed("z", Type::rows([5]));
    let z = lowering.graph.feed(feed);
    let text = lowering.call(&dense, "dense", &[z]).unwrap_err().to_string();
    let expected =
        "layer 'dense': kernel: expected the shape it was built with, [3, 3], received [5, 3]";
    assert_eq!(text, expected);
}

#[test]
fn an_adapted_normalization_gives_mean_zero_and_variance_one() {
    let values: Vec<f32> = (0..60).map(|i| (i * i % 17) as f32 + (i % 3) as f32 * 10.0).collect();
    let x = Tensor::new([10, 2, 3], values).unwrap();
    for axis in [&[-1][..], &[1, 2], &[]] {
        let layer = Normalization::new().axis(axis).adapt(&x).unwrap();
        let called = call(&layer.into(), false, &[row_type(&x)]).unwrap();
        assert!(called.lowering.weights.is_empty());
        let params = params(&called.lowering, &[]);
        let y =
            &run(&called.lowering.graph, &[called.output], std::slice::from_ref(&x), &params)[0];
        let mean = y.iter().sum::<f64>() / 60.0;
        let variance = y.iter().map(|v| v * v).sum::<f64>() / 60.0;
        assert!(mean.abs() < 1e-6 && (variance - 1.0).abs() < 1e-5, "{axis:?}: {mean} {variance}");
    }
    let text = Normalization::new().adapt(&Tensor::zeros([0, 3])).unwrap_err().to_string();
    assert_eq!(text, "Normalization: data: expected samples, received shape [0, 3]");
}

#[test]
fn a_normalization_without_numbers_has_keras_weights() {
    let layer: LayerHandle = Normalization::new().into();
    let called = call(&layer, false, &[Type::rows([2])]).unwrap();
    let names: Vec<&str> = layer.weights().iter().map(|w| w.spec.name).collect();
    assert_eq!(names, ["mean", "variance", "count"]);
    let weights = [vec![1.0f32, 2.0], vec![4.0, 9.0]].map(|v| Tensor::new([2], v).unwrap());
    let count = Tensor::zeros([]);
    let params = params(&called.lowering, &[&weights[0], &weights[1], &count]);
    let x = Tensor::new([1, 2], vec![5.0f32, 5.0]).unwrap();
    let y = run(&called.lowering.graph, &[called.output], &[x], &params);
    assert_eq!(y[0], [2.0, 1.0]);
}

#[test]
fn whole_numbers_are_cast_where_keras_casts_them() {
    let ints = Type::new(DType::I32, Space::Rows, [2]);
    let x = Tensor::new([1, 2], vec![51, 255]).unwrap();
    let called = call(&Rescaling::new([1.0 / 255.0, 2.0]).into(), false, &[ints]).unwrap();
    let params = params(&called.lowering, &[]);
    let y = run(&called.lowering.graph, &[called.output], &[x], &params);
    assert!(difference(&y[0], &[0.2, 510.0]) < 1e-6);

    let called = call(&Embedding::new(4, 2).into(), false, &[Type::rows([3])]).unwrap();
    assert!(called.lowering.graph.to_string().contains("cast i32"));
}

#[test]
fn relu_as_an_activation_is_one_node_and_linear_none() {
    let ops = |layer: Dense| {
        let called = call(&layer.into(), false, &[Type::rows([2])]).unwrap();
        let names = called.lowering.graph.nodes().iter().map(|n| n.op.name());
        names.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(ops(Dense::new(3).activation("relu")), "feed param param dot relu");
    assert_eq!(ops(Dense::new(3).use_bias(false)), "feed param dot");
}
