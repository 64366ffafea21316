//! Models from files of Python Keras: the same outputs, and the same losses and outputs in training.
//! `tests/python/models.py` and `recurrent.py` make the fixtures.

use crate::common::{
    Case, Fixture, Runner, difference_to_scale, emulated_gpu, on_emulated_gpu, run_on,
};
use phalanx::data::Arrays;
use phalanx::layer::{Argument, Lowering, ModelWeight};
use phalanx::model::Symbol;
use phalanx::optimizers::SGD;
use phalanx::prelude::*;
use phalanx_graph::autodiff::gradients;
use phalanx_graph::{DType, NodeId, Op, Type};
use phalanx_needs::needs;
use std::path::PathBuf;
use std::sync::Arc;

/// The tolerance of outputs, relative to the largest number of a tensor.
const OUTPUTS: f64 = 1e-5;
/// The tolerance after training.
const TRAINED: f64 = 1e-4;

fn path(name: &str) -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models");
    root.join(format!("{name}.keras"))
}

/// Compares lists of tensors; returns what differs.
fn compare(what: &str, received: &[Tensor], expected: &[&Tensor], tolerance: f64) -> Vec<String> {
    assert_eq!(received.len(), expected.len(), "{what}");
    let mut wrong = vec![];
    for (i, (received, expected)) in received.iter().zip(expected).enumerate() {
        if received.dims() != expected.dims() {
            let (expected, received) = (expected.dims(), received.dims());
            wrong.push(format!("{what} {i}: expected {expected:?}, received {received:?}"));
            continue;
        }
        let (Some(received), Some(expected)) = (received.f32(), expected.f32()) else {
            wrong.push(format!("{what} {i}: not floats"));
            continue;
        };
        let d = difference_to_scale(received, expected);
        if d > tolerance || d.is_nan() {
            wrong.push(format!("{what} {i}: {d:.1e}"));
        }
    }
    wrong
}

/// Loads a model, predicts, trains three steps and predicts again.
fn run(case: &Case<'_>, strategy: MirroredStrategy) -> Result<Vec<String>> {
    let owned = |field| case.list(field).into_iter().cloned().collect::<Vec<Tensor>>();
    let (inputs, targets) = (owned("input"), owned("target"));
    let mut model = phalanx::saving::load_model(path(case.name))?;
    let rows = inputs[0].dims()[0];
    let predict = |model: &Model| model.predict_all(&Arrays::new(inputs.clone(), ())?);
    let mut wrong = compare("output", &predict(&model)?, &case.list("output"), OUTPUTS);
    let rate = case.json["rate"].as_f64().unwrap();
    let mut compile = Compile::new(SGD::default().learning_rate(rate)).strategy(strategy);
    for _ in 0..targets.len() {
        compile = compile.loss("mse");
    }
    model.compile(compile)?;
    let data = Arrays::new(inputs.clone(), targets)?;
    let fit = Fit::new().epochs(3).batch_size(rows).shuffle(false).verbose(0);
    let history = model.fit(&data, fit)?;
    let losses: Vec<f32> = history.get("loss").unwrap().iter().map(|l| *l as f32).collect();
    let d = difference_to_scale(&losses, case.f32("losses"));
    if d > TRAINED || d.is_nan() {
        wrong.push(format!("losses: expected {:?}, received {losses:?}", case.f32("losses")));
    }
    wrong.extend(compare("output after training", &predict(&model)?, &case.list("after"), TRAINED));
    Ok(wrong)
}

/// The models of Python Keras.
fn fixtures() -> [Fixture; 4] {
    ["models", "more_models", "recurrent", "sequences"].map(Fixture::load)
}

fn check(strategy: impl Fn() -> MirroredStrategy, chosen: impl Fn(usize) -> bool) {
    let mut wrong = vec![];
    let fixtures = fixtures();
    let cases = fixtures.iter().flat_map(Fixture::cases).enumerate();
    for (_, case) in cases.filter(|(i, _)| chosen(*i)) {
        // Keras computes the statistics of a batch over all of it. A deterministic mesh does so too.
        let strategy = match case.json["batch_statistics"] == true {
            true => MirroredStrategy::cpus(2).unwrap().deterministic(true),
            false => strategy(),
        };
        match run(&case, strategy) {
            Ok(list) => wrong.extend(list.into_iter().map(|w| format!("{}: {w}", case.name))),
            Err(e) => wrong.push(format!("{}: {e}", case.name)),
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn outputs_and_training_match_keras() {
    check(|| MirroredStrategy::cpus(1).unwrap(), |_| true);
}

#[test]
fn three_replicas_train_as_one() {
    check(|| MirroredStrategy::cpus(3).unwrap(), |_| true);
}

#[needs(gxx)]
#[test]
fn an_emulated_gpu_trains_as_keras_does() {
    let gpu = || MirroredStrategy::with_backend(Arc::new(emulated_gpu()), ["gpu:0"]).unwrap();
    check(gpu, on_emulated_gpu);
}

/// A model's graph, and the parameters and feeds that it runs with on the reference.
struct Referenced {
    lowering: Lowering,
    outputs: Vec<NodeId>,
    weights: Vec<Vec<f32>>,
}

impl Referenced {
    fn of(model: &Model, inputs: &[Tensor], training: bool) -> Result<Referenced> {
        let mut lowering = Lowering::new(training);
        let shapes: Vec<Vec<usize>> = inputs.iter().map(|x| x.dims()[1..].to_vec()).collect();
        let outputs = model.definition().lower_on_feeds(&mut lowering, &shapes)?;
        let outputs = outputs.into_iter().map(|output| output.node).collect();
        let values = |w: &ModelWeight| w.layer.weights()[w.index].values.clone();
        let weights = lowering.weights.iter().map(|w| values(w).expect("loaded weights")).collect();
        Ok(Referenced { lowering, outputs, weights })
    }

    /// The values of nodes in f64.
    fn run(&self, nodes: &[NodeId], feeds: &[Tensor]) -> Vec<Vec<f64>> {
        let graph = &self.lowering.graph;
        let mut params: Vec<Option<Vec<f32>>> = vec![None; graph.params().len()];
        for (weight, values) in self.lowering.weights.iter().zip(&self.weights) {
            params[weight.param.index()] = Some(values.clone());
        }
        for (id, values) in &self.lowering.constants {
            params[id.index()] = Some(values.clone());
        }
        let tensors = params.into_iter().zip(graph.params()).map(|(values, spec)| {
            Tensor::new(spec.dims.clone(), values.expect("every parameter has a value")).unwrap()
        });
        run_on(Runner::Reference, graph, nodes, feeds, &tensors.collect::<Vec<_>>())
    }

    /// Compares outputs with those of the fixture.
    fn compare(
        &self,
        case: &Case<'_>,
        field: &str,
        feeds: &[Tensor],
        tolerance: f64,
    ) -> Vec<String> {
        let received = self.run(&self.outputs, feeds);
        let pairs = received.iter().zip(case.list(field)).enumerate();
        let mut wrong = vec![];
        for (i, (received, expected)) in pairs {
            let d = difference_to_scale(received, expected.f32().unwrap());
            if d > tolerance || d.is_nan() {
                wrong.push(format!("{field} {i} on the reference: {d:.1e}"));
            }
        }
        wrong
    }
}

/// The same on the f64 reference: outputs, and three steps of gradient descent on the squared error.
fn run_on_reference(case: &Case<'_>) -> Result<Vec<String>> {
    let owned = |field| case.list(field).into_iter().cloned().collect::<Vec<Tensor>>();
    let (inputs, targets) = (owned("input"), owned("target"));
    let model = phalanx::saving::load_model(path(case.name))?;
    let mut inference = Referenced::of(&model, &inputs, false)?;
    let mut wrong = inference.compare(case, "output", &inputs, OUTPUTS);

    let mut training = Referenced::of(&model, &inputs, true)?;
    if !training.lowering.losses.is_empty() {
        // The penalties of layers are no part of the loss below.
        return Ok(wrong);
    }
    let (outputs, rows) = (training.outputs.clone(), inputs[0].dims()[0]);
    let g = &mut training.lowering.graph;
    let mut seeds = vec![];
    for (output, target) in outputs.iter().zip(&targets) {
        let feed = g.add_feed("target", Type::rows(&target.dims()[1..]));
        let target = g.feed(feed);
        let output = g.cast(*output, DType::F32)?;
        let apart = g.sub(output, target)?;
        let count = rows * g.ty(apart).len();
        seeds.push((output, g.scale(apart, 2.0 / count as f64)?));
    }
    let specs = training.lowering.weights.iter();
    let nodes: Vec<NodeId> = specs
        .map(|w| g.ids().find(|n| g.node(*n).op == Op::Param { id: w.param }).unwrap())
        .collect();
    let gradients = gradients(g, &seeds, &nodes)?;
    let used: Vec<usize> = (0..nodes.len()).filter(|i| gradients[*i].is_some()).collect();
    let gradients: Vec<NodeId> = gradients.into_iter().flatten().collect();
    let feeds = [&inputs[..], &targets[..]].concat();
    let rate = case.json["rate"].as_f64().unwrap();
    for _ in 0..3 {
        let steps = training.run(&gradients, &feeds);
        for (i, step) in used.iter().zip(steps) {
            let weights = training.weights[*i].iter_mut().zip(step);
            weights.for_each(|(w, d)| *w = (f64::from(*w) - rate * d) as f32);
        }
    }
    inference.weights = training.weights;
    wrong.extend(inference.compare(case, "after", &inputs, TRAINED));
    Ok(wrong)
}

/// Layers run on the reference by themselves, in `layers`.
#[test]
fn ops_match_keras_on_the_reference() {
    let (mut wrong, mut count) = (vec![], 0);
    let fixtures = fixtures();
    let with_ops = |case: &Case<'_>| case.json["ops"].is_array();
    for case in fixtures.iter().flat_map(Fixture::cases).filter(with_ops) {
        if case.json["batch_statistics"] == true {
            continue;
        }
        count += 1;
        match run_on_reference(&case) {
            Ok(list) => wrong.extend(list.into_iter().map(|w| format!("{}: {w}", case.name))),
            Err(e) => wrong.push(format!("{}: {e}", case.name)),
        }
    }
    assert!(count > 20, "{count} models with ops");
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// Files that are written back describe the same model and compute the same.
#[test]
fn files_with_ops_survive_a_round_trip() {
    let directory = tempfile::tempdir().unwrap();
    let fixtures = fixtures();
    let with_ops = |case: &Case<'_>| case.json["ops"].is_array();
    for case in fixtures.iter().flat_map(Fixture::cases).filter(with_ops) {
        let inputs: Vec<Tensor> = case.list("input").into_iter().cloned().collect();
        let model = phalanx::saving::load_model(path(case.name)).unwrap();
        let file = directory.path().join(format!("{}.keras", case.name));
        model.save(&file).unwrap();
        let again = phalanx::saving::load_model(&file).unwrap();
        assert_eq!(again.to_json(), model.to_json(), "{}", case.name);
        let predict =
            |model: &Model| model.predict_all(Arrays::new(inputs.clone(), ()).unwrap()).unwrap();
        assert_eq!(predict(&again), predict(&model), "{}", case.name);
    }
}

/// No class of Keras is both known and refused.
#[test]
fn ops_are_known_or_refused() {
    let known = phalanx::ops::class_names();
    let refused = phalanx::ops::refused_class_names();
    let both: Vec<_> = refused.iter().filter(|op| known.contains(op)).collect();
    assert!(both.is_empty(), "known and refused: {both:?}");
}

#[test]
fn refused_ops_say_why() {
    let x = Input::new([4]).symbol();
    for (op, reason) in [
        ("core.WhileLoop", "holds a Python function"),
        ("numpy.Nonzero", "has a shape that depends on the data"),
        ("linalg.SVD", "needs a matrix decomposition"),
    ] {
        let error = phalanx::ops::call(op, [(&x).into()], serde_json::json!({})).unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
    }
}

#[test]
fn operators_are_ops() {
    let (x, y) = (Input::new([2]).symbol(), Input::new([2]).symbol());
    let z = (1.0 - &x) * 2.0 + &y / (&x * &x + 1.0) - -&y;
    let model = Model::new([&x, &y], &z).unwrap();
    let input = |values: [f32; 2]| Tensor::new([1, 2], values.to_vec()).unwrap();
    let data = Arrays::new(vec![input([1.0, -2.0]), input([4.0, 5.0])], ()).unwrap();
    let outputs = model.predict_all(&data).unwrap();
    assert_eq!(outputs[0].f32().unwrap(), [6.0, 12.0]);
}

/// The batch of decoded paths is their second axis, which only an index removes.
#[test]
fn decoded_paths_need_an_index() {
    use serde_json::json;
    let (x, n) = (Input::new([6, 3]).symbol(), Input::new([0usize; 0]).symbol());
    let outputs = phalanx::ops::call("nn.CTCDecode", [(&x).into(), (&n).into()], json!({}));
    let paths = outputs.unwrap();
    let error = |y: &Symbol| Model::new([&x, &n], y).err().expect("an error").to_string();
    let whole = error(&paths);
    assert!(whole.contains("second axis"), "{whole}");
    let doubled = error(&(&paths * 2.0));
    assert!(doubled.contains("x[0] is one"), "{doubled}");
    let item = |at: i32| {
        let arguments = [(&paths).into(), Argument::Plain(at.into())];
        phalanx::ops::call("numpy.GetItem", arguments, json!({})).unwrap()
    };
    assert!(error(&item(1)).contains("a number below 1"));
    assert!(Model::new([&x, &n], item(0)).is_ok());
}

/// Ops that would mix samples, or whose arguments do not fit, are errors of the model.
#[test]
fn ops_refuse_what_they_cannot_do() {
    use serde_json::json;
    let x = Input::new([3, 4]).symbol();
    let wrong = [
        ("numpy.Max", json!({"axis": 0})),
        ("numpy.Mean", json!({"axis": 0})),
        ("numpy.Mean", json!({"axis": 7})),
        ("numpy.Cumsum", json!({})),
        ("numpy.Ravel", json!({})),
        ("numpy.Flip", json!({"axis": [0]})),
        ("numpy.Transpose", json!({"axes": [1, 0, 2]})),
        ("numpy.Split", json!({"indices_or_sections": 0, "axis": 1})),
        ("numpy.Split", json!({"indices_or_sections": [2, 1], "axis": 1})),
        ("numpy.Repeat", json!({"repeats": -1, "axis": 1})),
        ("numpy.Repeat", json!({"repeats": 1u64 << 62, "axis": 1})),
        ("numpy.Tile", json!({"repeats": [2, 1, 1]})),
        ("numpy.Pad", json!({"pad_width": [[0, 0], [1u64 << 60, 0], [0, 0]]})),
        ("numpy.Pad", json!({"pad_width": [[0, 0], [1, 1], [0, 0]], "mode": "linear_ramp"})),
        ("numpy.Diff", json!({"n": 4, "axis": 2})),
        ("numpy.Diagonal", json!({})),
        ("numpy.Diagonal", json!({"axis1": 1, "axis2": 2, "offset": -5})),
        ("numpy.Linspace", json!({"num": 1u64 << 40, "axis": 1})),
        ("numpy.Quantile", json!({"axis": 1})),
        ("numpy.Quantile", json!({"axis": 1, "method": "nearest"})),
        ("numpy.Reshape", json!({"newshape": [3, 4]})),
        ("numpy.Reshape", json!({"newshape": [-1, 5]})),
        ("numpy.Einsum", json!({"subscripts": "bij->ij"})),
        ("math.TopK", json!({"k": 5})),
        ("math.ExtractSequences", json!({"sequence_length": 5, "sequence_stride": 1})),
        ("nn.Unfold", json!({"kernel_size": 2})),
        ("nn.OneHot", json!({"num_classes": 0})),
        ("nn.MaxPool", json!({"pool_size": 9})),
        ("linalg.Norm", json!({"ord": "nuc", "axis": [1, 2]})),
        ("image.Resize", json!({"size": [2, 2]})),
        ("image.RGBToHSV", json!({})),
        ("image.GaussianBlur", json!({})),
        ("image.ElasticTransform", json!({})),
        ("image.MapCoordinates", json!({"order": 1})),
        ("math.FFT", json!({})),
        ("math.RFFT", json!({"fft_length": 0})),
        ("math.RFFT", json!({"fft_length": 4099})),
        ("math.RFFT", json!({"fft_length": 1u64 << 60})),
        ("math.STFT", json!({"sequence_length": 5, "sequence_stride": 1, "fft_length": 4})),
        ("math.STFT", json!({"sequence_length": 4, "sequence_stride": 1, "fft_length": 1 << 20})),
        ("nn.CTCLoss", json!({})),
        ("nn.CTCDecode", json!({"strategy": "beam_search"})),
    ];
    for (op, config) in wrong {
        let y = phalanx::ops::call(op, [(&x).into()], config.clone()).unwrap();
        let Err(error) = Model::new(&x, &y) else { panic!("{op} {config} is accepted") };
        assert!(error.to_string().contains("expected"), "{op} {config}: {error}");
    }
}
