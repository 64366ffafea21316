//! Every layer against Python Keras: outputs, gradients, moving statistics and configs.

mod behaviour;
mod errors;

use crate::common::{
    Case, Fixture, RUNNERS, Runner, difference_to_scale, on_emulated_gpu, run, run_on,
};
use phalanx::constraints::Constraint;
use phalanx::error::Error;
use phalanx::initializers::Initializer;
use phalanx::layer::{LayerHandle, Lowering};
use phalanx::layers::*;
use phalanx::model::{Compile, Input, Sequential};
use phalanx::optimizers::{OptimizerExt, SGD};
use phalanx::regularizers::Regularizer;
use phalanx::strategy::MirroredStrategy;
use phalanx_graph::{Graph, NodeId, Op, Space, Tensor, Type, autodiff::gradients, rng::Stream};
use phalanx_needs::needs;
use serde_json::{Map, Value, json};

const TOLERANCE: f64 = 1e-5;

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
fn differences(case: &Case, runners: &[Runner]) -> Result<Vec<String>, Error> {
    let config = case.config().clone();
    let trainable = config.get("trainable").and_then(Value::as_bool).unwrap_or(true);
    let layer = from_config(case.class_name(), config)?;
    let layer = LayerHandle::new(layer, None, trainable);
    let (inputs, weights) = (case.list("input"), case.list("weight"));
    let training = case.json["training"].as_bool().unwrap();
    let types: Vec<Type> = inputs.iter().map(|t| row_type(t)).collect();
    let mut called = call(&layer, training, &types)?;

    // Keras names a weight of a sublayer without its path.
    let last = |name: &str| name.rsplit('/').next().unwrap_or_default().to_string();
    let names: Vec<String> = layer.weights().iter().map(|w| last(&w.spec.name)).collect();
    // A weight without a name is called "variable" by Keras.
    let unnamed = |name: &Value| name.as_str().is_some_and(|name| name.starts_with("variable"));
    let keras = case.json["weight_names"].as_array().unwrap();
    let keras: Vec<Value> = keras
        .iter()
        .zip(&names)
        .map(|(keras, own)| if unnamed(keras) { own.as_str().into() } else { keras.clone() })
        .collect();
    assert_eq!(names.len(), case.json["weight_names"].as_array().unwrap().len(), "{}", case.name);
    assert_eq!(json!(names), json!(keras), "{}: weights", case.name);
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
    for runner in runners {
        let received = run_on(*runner, &called.lowering.graph, &outputs, &feeds, &params);
        for (field, received) in fields.iter().zip(received) {
            let d = difference_to_scale(&received, case.f32(field));
            if d > TOLERANCE || d.is_nan() {
                wrong.push(format!("{} {field} on {runner:?}: {d:.2e}", case.name));
            }
        }
    }
    Ok(wrong)
}

/// Every layer's cases.
fn fixtures() -> [Fixture; 4] {
    ["layers", "more_layers", "image_layers", "preprocessing"].map(Fixture::load)
}

/// Checks the cases that `chosen` selects by their number.
fn check(runners: &[Runner], chosen: impl Fn(usize) -> bool) {
    let mut wrong = vec![];
    for (i, case) in fixtures().iter().flat_map(Fixture::cases).enumerate() {
        if !chosen(i) {
            continue;
        }
        match differences(&case, runners) {
            Ok(list) => wrong.extend(list),
            Err(e) => wrong.push(format!("{}: {e}", case.name)),
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn outputs_gradients_and_statistics_match_keras() {
    check(&RUNNERS, |_| true);
}

#[needs(gxx)]
#[test]
fn outputs_gradients_and_statistics_match_keras_on_an_emulated_gpu() {
    check(&[Runner::EmulatedGpu], on_emulated_gpu);
}

/// Keys that Keras 3.15 writes and that are read but not written here: they are newer than the oldest Keras 3,
/// which would reject them.
const NOT_WRITTEN: [&str; 7] = [
    "build_config",
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
    let augmentation = Fixture::load("augmentation");
    let cases = fixtures();
    let cases = cases.iter().chain([&augmentation]).flat_map(Fixture::cases);
    for case in cases.filter(|case| case.json["ops"].is_null()) {
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
        let written = serde_json::to_value(&initializer).unwrap();
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
fn kernels_of_spectrograms_match_keras() {
    for case in Fixture::load("stft").cases() {
        let saved = json!({
            "module": "keras.initializers",
            "class_name": "STFT",
            "config": case.json["config"],
            "registered_name": null,
        });
        let initializer: Initializer = serde_json::from_value(saved.clone()).unwrap();
        assert_same_config(serde_json::to_value(&initializer).unwrap(), saved, case.name);
        let dims: Vec<usize> = serde_json::from_value(case.json["shape"].clone()).unwrap();
        initializer.fits(&dims).unwrap();
        let values = initializer.sample(&dims, &mut Stream::new(1, 0, 0, 0));
        let d = difference_to_scale(&values, case.f32("kernel"));
        assert!(d <= TOLERANCE, "{}: {d:.2e}", case.name);
        assert!(initializer.fits(&dims[1..]).is_err());
    }
}

/// Compares the penalty of a dense kernel and its gradient with Keras. The loss of the outputs is zero.
fn check_weight_penalty(case: &Case<'_>, regularizer: Regularizer) {
    let kernel = case.tensor("input");
    let [features, units] = *kernel.dims() else { panic!("{}: a matrix", case.name) };
    for replicas in [1, 3] {
        let dense = Dense::new(units).use_bias(false).kernel_regularizer(regularizer.clone());
        let mut model = Sequential::new().add(Input::new([features])).add(dense).build().unwrap();
        model.set_weights(std::slice::from_ref(kernel)).unwrap();
        let strategy = MirroredStrategy::cpus(replicas).unwrap();
        let sgd = SGD::default().learning_rate(1.0);
        model.compile(Compile::new(sgd).loss("mse").strategy(strategy)).unwrap();
        let (x, y) = (Tensor::zeros([4, features]), Tensor::zeros([4, units]));
        let logs = [model.test_on_batch(&x, &y), model.train_on_batch(&x, &y)];
        for logs in logs {
            let d = difference_to_scale(&[logs.unwrap()[0].1], case.f32("value"));
            assert!(d <= TOLERANCE, "{}: {d:.2e}", case.name);
        }
        let after = model.get_weights().unwrap();
        let pairs = std::iter::zip(kernel.f32().unwrap(), after[0].f32().unwrap());
        let gradient: Vec<f32> = pairs.map(|(before, after)| before - after).collect();
        let d = difference_to_scale(&gradient, case.f32("grad"));
        assert!(d <= 1e-4, "{}: {d:.2e}", case.name);
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
            assert!(difference_to_scale(values, case.f32("output")) <= 1e-6, "{name}");
        } else {
            let regularizer: Regularizer = serde_json::from_value(saved.clone()).unwrap();
            let written = serde_json::to_value(&regularizer).unwrap();
            assert_same_config(written, saved, name);
            if case.json["class_name"] == "OrthogonalRegularizer" {
                check_weight_penalty(&case, regularizer);
                continue;
            }
            let (l1, l2) = regularizer.coefficients();
            let w = input.f32().unwrap().iter().map(|x| f64::from(*x));
            let value: f64 = w.map(|w| l1 * w.abs() + l2 * w * w).sum();
            assert!(difference_to_scale(&[value], case.f32("value")) <= TOLERANCE, "{name}");
        }
    }
}
