//! Models with open sizes: batches of any length, one program for each, as Keras has them.

use crate::common::{Fixture, difference_to_scale};
use phalanx::callbacks::{BackupAndRestore, LambdaCallback};
use phalanx::data::{Arrays, Buckets, PaddedBatch};
use phalanx::model::Interrupt;
use phalanx::optimizers::SGD;
use phalanx::prelude::*;
use std::collections::BTreeSet;
use std::path::PathBuf;

fn fixture_path(name: &str) -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
    root.join(format!("open_{name}.keras"))
}

fn strategy(replicas: usize) -> MirroredStrategy {
    MirroredStrategy::cpus(replicas).unwrap().threads(1)
}

/// The models of Keras predict and train on batches of different shapes with Keras' numbers.
#[test]
fn batches_of_any_shape_match_keras() {
    let fixture = Fixture::load("open_sizes");
    for case in fixture.cases() {
        for replicas in [1, 2, 3] {
            let mut model = load_model(fixture_path(case.name)).unwrap();
            assert!(model.has_open_sizes(), "{}", case.name);
            let (inputs, targets) = (case.list("input"), case.list("target"));
            let check = |model: &Model, field: &str, tolerance: f64| {
                for (x, expected) in inputs.iter().zip(case.list(field)) {
                    let y = model.predict(*x).unwrap();
                    assert_eq!(y.dims(), expected.dims(), "{}", case.name);
                    let d = difference_to_scale(y.f32().unwrap(), expected.f32().unwrap());
                    assert!(d < tolerance, "{} on {replicas}: {field} {d:.1e}", case.name);
                }
            };
            check(&model, "output", 1e-5);
            let rate = case.json["rate"].as_f64().unwrap();
            let compile = Compile::new(SGD::default().learning_rate(rate)).loss("mse");
            model.compile(compile.strategy(strategy(replicas))).unwrap();
            let expected = case.f32("losses");
            let mut losses = vec![];
            for step in 0..expected.len() {
                let batch = step % inputs.len();
                let logs = model.train_on_batch(inputs[batch], targets[batch]).unwrap();
                losses.push(logs.get("loss").unwrap() as f32);
            }
            let d = difference_to_scale(&losses, expected);
            assert!(d < 1e-4, "{} on {replicas}: {losses:?}, expected {expected:?}", case.name);
            check(&model, "after", 1e-4);
            model.check_consistency().unwrap();
        }
    }
}

/// A masked LSTM on sequences of three numbers.
fn lstm(length: Option<usize>) -> Model {
    let x = Input::new([length, Some(3)]).symbol();
    let y = LSTM::new(5).apply(Masking::new().apply(&x));
    Model::new(&x, Dense::new(2).apply(&y)).unwrap()
}

/// Masked attention over tokens.
fn attention(length: Option<usize>) -> Model {
    let x = Input::new([length]).integers().symbol();
    let y = Embedding::new(11, 6).mask_zero(true).apply(&x);
    let y = MultiHeadAttention::new(2, 3).apply([&y, &y]);
    let y = GlobalAveragePooling1D::new().apply(&y);
    Model::new(&x, Dense::new(2).apply(&y)).unwrap()
}

/// Sequences of the given lengths with their targets.
fn sequences(lengths: &[usize]) -> Vec<Vec<Tensor>> {
    let mut rng = phalanx::Stream::new(9, 0, 0, 0);
    let sequence = |length: &usize| {
        let x: Vec<f32> = (0..length * 3).map(|_| rng.unit() as f32 + 0.1).collect();
        let y = vec![rng.unit() as f32, *length as f32 / 8.0];
        vec![Tensor::new([*length, 3], x).unwrap(), Tensor::new([2], y).unwrap()]
    };
    lengths.iter().map(sequence).collect()
}

fn tokens(lengths: &[usize]) -> Vec<Vec<Tensor>> {
    let mut rng = phalanx::Stream::new(4, 0, 0, 0);
    let sequence = |length: &usize| {
        let x: Vec<i32> = (0..*length).map(|_| 1 + rng.below(10) as i32).collect();
        let y = vec![rng.unit() as f32, x[0] as f32 / 10.0];
        vec![Tensor::new([*length], x).unwrap(), Tensor::new([2], y).unwrap()]
    };
    lengths.iter().map(sequence).collect()
}

const LENGTHS: [usize; 13] = [3, 7, 2, 5, 8, 1, 4, 6, 2, 3, 8, 7, 5];

/// Compiles with SGD: the gradient of a bias of the keys is zero but for rounding, which Adam would make large.
fn compile(model: &mut Model, strategy: MirroredStrategy) {
    let compile = Compile::new(SGD::default().learning_rate(0.1).momentum(0.9))
        .loss("mse")
        .metrics(["mae"])
        .seed(3);
    model.compile(compile.strategy(strategy)).unwrap();
}

fn bits(tensors: &[Tensor]) -> Vec<u32> {
    tensors.iter().flat_map(|t| t.f32().unwrap()).map(|v| v.to_bits()).collect()
}

fn assert_close(a: &[Tensor], b: &[Tensor], tolerance: f64, what: &str) {
    assert_eq!(a.len(), b.len());
    for (a, b) in a.iter().zip(b) {
        let d = difference_to_scale(a.f32().unwrap(), b.f32().unwrap());
        assert!(d < tolerance, "{what}: {d:.1e}");
    }
}

/// Batches padded to their own longest sample train as batches padded to the longest of all, for which a model with known
/// sizes needs one program.
#[test]
fn masked_batches_of_all_lengths_train_as_one_shape() {
    type Build = fn(Option<usize>) -> Model;
    type Samples = Vec<Vec<Tensor>>;
    let cases: [(&str, Build, Samples, Vec<Option<usize>>); 2] = [
        ("lstm", lstm, sequences(&LENGTHS), vec![Some(8), Some(3)]),
        ("attention", attention, tokens(&LENGTHS), vec![Some(8)]),
    ];
    for (name, build, samples, longest) in cases {
        let data = Pipeline::from_elements(samples).unwrap().shuffle(20).unwrap();
        let fixed = PaddedBatch::new(4).padded_shapes([longest, vec![Some(2)]]);
        let fit = || Fit::new().epochs(3).verbose(0);
        let mut known = build(Some(8));
        compile(&mut known, strategy(1));
        let fixed = data.clone().padded_batch(fixed).unwrap();
        let expected = known.fit(&fixed, fit()).unwrap();
        for replicas in [1, 2, 3] {
            let mut open = build(None);
            compile(&mut open, strategy(replicas));
            let data = data.clone().padded_batch(4).unwrap();
            let history = open.fit(&data, fit().validation_data(&data)).unwrap();
            for metric in ["loss", "mae"] {
                for (a, b) in history.get(metric).unwrap().iter().zip(expected.get(metric).unwrap())
                {
                    assert!((a - b).abs() < 1e-5, "{name} on {replicas}: {metric} {a} and {b}");
                }
            }
            assert!(history.last("val_loss").is_some());
            let (a, b) = (open.get_weights().unwrap(), known.get_weights().unwrap());
            assert_close(&a, &b, 2e-4, name);
            assert_close(
                &[open.predict(&data).unwrap()],
                &[known.predict(&fixed).unwrap()],
                2e-4,
                name,
            );
        }
    }
}

#[test]
fn deterministic_mode_gives_the_bits_of_any_number_of_replicas() {
    let data = Pipeline::from_elements(sequences(&LENGTHS)).unwrap().shuffle(20).unwrap();
    let data = data.bucket_by_sequence_length(Buckets::new([4, 6], [3, 2, 2])).unwrap();
    let trained = |replicas: usize| {
        let mut model = lstm(None);
        compile(&mut model, strategy(replicas).deterministic(true));
        model.fit(&data, Fit::new().epochs(2).verbose(0)).unwrap();
        bits(&model.get_weights().unwrap())
    };
    let one = trained(1);
    assert_eq!(trained(2), one);
    assert_eq!(trained(4), one);
}

/// What a batch gives does not depend on the shapes that came before it.
#[test]
fn results_do_not_depend_on_the_order_of_shapes() {
    let batch = |length: usize| {
        let samples = sequences(&[length; 5]);
        let join = |at: usize, dims: [usize; 3]| {
            let values: Vec<f32> =
                samples.iter().flat_map(|s| s[at].f32().unwrap().to_vec()).collect();
            Tensor::new(&dims[..if at == 0 { 3 } else { 2 }], values).unwrap()
        };
        (join(0, [5, length, 3]), join(1, [5, 2, 0]))
    };
    let model = || {
        let mut model = lstm(None);
        compile(&mut model, strategy(2));
        model
    };
    let (mut seen, mut fresh) = (model(), model());
    for length in [9, 2, 6] {
        let (x, y) = batch(length);
        seen.predict(&x).unwrap();
        seen.gradients(&x, &y).unwrap();
        seen.evaluate_with((&x, &y), Inference::new()).unwrap();
    }
    for length in [4, 6, 4] {
        let (x, y) = batch(length);
        let logs = [&mut seen, &mut fresh].map(|model| model.train_on_batch(&x, &y).unwrap());
        assert_eq!(logs[0].get("loss"), logs[1].get("loss"));
        let outputs = [&seen, &fresh].map(|model| bits(&[model.predict(&x).unwrap()]));
        assert_eq!(outputs[0], outputs[1]);
    }
    assert_eq!(bits(&seen.get_weights().unwrap()), bits(&fresh.get_weights().unwrap()));
}

/// More shapes than programs are kept for.
#[test]
fn shapes_whose_programs_were_dropped_are_compiled_again() {
    let x = Input::new([None, Some(2)]).symbol();
    let model = Model::new(&x, GlobalMaxPooling1D::new().apply(Dense::new(3).apply(&x))).unwrap();
    let predict = |length: usize| {
        let values: Vec<f32> = (0..length * 2).map(|i| (i % 7) as f32).collect();
        bits(&[model.predict(Tensor::new([1, length, 2], values).unwrap()).unwrap()])
    };
    let first: Vec<_> = (1..=50).map(predict).collect();
    let again: Vec<_> = (1..=50).rev().map(predict).collect();
    assert!(first.iter().eq(again.iter().rev()));
}

#[test]
fn an_interrupted_run_on_buckets_is_resumed_to_the_bit() {
    let data = Pipeline::from_elements(sequences(&LENGTHS)).unwrap().shuffle(20).unwrap();
    let buckets = Buckets::new([4, 6], [2, 2, 2]).drop_remainder(false);
    let data = data.bucket_by_sequence_length(buckets).unwrap();
    let model = || {
        let mut model = lstm(None);
        compile(&mut model, strategy(2));
        model
    };
    let fit = || Fit::new().epochs(3).verbose(0);
    let mut whole = model();
    let expected = whole.fit(&data, fit()).unwrap();
    for stop in [1, 3, 8, 11] {
        let dir = tempfile::tempdir().unwrap();
        let backup = || BackupAndRestore::new(dir.path());
        let interrupt = Interrupt::new();
        let requester = interrupt.clone();
        let stopping = LambdaCallback::new().batch_end(move |view| {
            if view.step == stop {
                requester.request();
            }
            Ok(phalanx::callbacks::Action::Continue)
        });
        let run = fit().callback(backup()).callback(stopping).interrupt(&interrupt);
        assert!(matches!(model().fit(&data, run), Err(Error::Interrupted { .. })));
        let mut resumed = model();
        let history = resumed.fit(&data, fit().callback(backup())).unwrap();
        assert_eq!(history.get("loss"), expected.get("loss"), "stopped at {stop}");
        let weights = [&resumed, &whole].map(|model| bits(&model.get_weights().unwrap()));
        assert_eq!(weights[0], weights[1], "stopped at {stop}");
    }
}

#[test]
fn files_leave_sizes_open() {
    let dir = tempfile::tempdir().unwrap();
    for (name, build) in [("lstm", lstm as fn(Option<usize>) -> Model), ("attention", attention)] {
        let mut model = build(None);
        compile(&mut model, strategy(1));
        let x = match name {
            "lstm" => sequences(&[6])[0][0].clone(),
            _ => tokens(&[6])[0][0].clone(),
        };
        let mut dims = vec![1];
        dims.extend(x.dims());
        let x = Tensor::new(dims, x.data().clone()).unwrap();
        let expected = bits(&[model.predict(&x).unwrap()]);
        for ending in ["keras", "h5"] {
            let path = dir.path().join(format!("{name}.{ending}"));
            model.save(&path).unwrap();
            let again = load_model(&path).unwrap();
            assert_eq!(again.input_shapes(), model.input_shapes());
            assert_eq!(bits(&[again.predict(&x).unwrap()]), expected, "{ending}");
        }
        // Sizes that were given for a use of the model are not written.
        let given = model.with_input_shapes([&x.dims()[1..]]).unwrap();
        assert!(!given.has_open_sizes());
        assert_eq!(bits(&[given.predict(&x).unwrap()]), expected);
        let (a, b) = (dir.path().join("open.keras"), dir.path().join("given.keras"));
        build(None).save(&a).unwrap();
        given.save(&b).unwrap();
        assert_eq!(load_model(&b).unwrap().input_shapes(), model.input_shapes());
    }
}

#[test]
fn shapes_are_printed_as_keras_does() {
    let model = lstm(None);
    assert_eq!(model.input_shapes()[0].to_string(), "(None, None, 3)");
    assert_eq!(model.output_shapes(), [[2]]);
    let summary = model.summary();
    let shapes: Vec<&str> = summary.rows.iter().map(|row| row.shape.as_str()).collect();
    assert_eq!(shapes, ["(None, None, 3)", "(None, None, 3)", "(None, 5)", "(None, 2)"]);
    assert_eq!(summary.activation_bytes(), None);
    assert!(summary.to_string().contains("depend on open sizes"), "{summary}");
}

fn refusal<T>(result: Result<T>) -> String {
    result.err().expect("an error").to_string()
}

#[test]
fn weights_that_depend_on_open_sizes_are_refused() {
    let build = |shape: [Option<usize>; 2], layers: Vec<LayerHandle>| {
        let model = Sequential::new().add(Input::new(shape));
        layers.into_iter().fold(model, Sequential::add).build()
    };
    let open = [None, Some(4)];
    let error = refusal(build(open, vec![Flatten::new().into(), Dense::new(3).named("top")]));
    assert!(
        error.starts_with("layer 'top': kernel: expected a shape that does not depend"),
        "{error}"
    );
    assert!(error.contains("[1024, 3] and [1536, 3]"), "{error}");
    let error = refusal(build([Some(4), None], vec![Dense::new(3).named("top")]));
    assert!(
        error.contains("layer 'top': kernel: expected a shape that does not depend"),
        "{error}"
    );
    let flat = build(open, vec![Flatten::new().into()]).unwrap();
    assert_eq!(flat.output_shapes()[0].to_string(), "(None, None)");
    assert_eq!(flat.predict(Tensor::zeros([2, 3, 4])).unwrap().dims(), [2, 12]);
    let cropped = build(open, vec![Cropping1D::new((1, 2)).into()]).unwrap();
    assert_eq!(cropped.output_shapes()[0].to_string(), "(None, None, 4)");
    // Layers that refuse the sizes that are tried first.
    for divisor in [5, 7] {
        let parts = Reshape::new([-1, divisor * 4]);
        let parts = build(open, vec![parts.into()]).unwrap();
        let shape = format!("(None, None, {})", divisor * 4);
        assert_eq!(parts.output_shapes()[0].to_string(), shape);
    }
}

#[test]
fn batches_that_do_not_fit_are_named() {
    let mut model = lstm(None);
    let error = refusal(model.predict(Tensor::zeros([2, 5, 4])));
    assert!(
        error.contains("input 'input_0': expected (None, None, 3), received [2, 5, 4]"),
        "{error}"
    );
    let error = refusal(model.predict(Tensor::zeros([2, 0, 3])));
    assert!(error.contains("received [2, 0, 3]"), "{error}");
    compile(&mut model, strategy(1));
    let error = refusal(model.memory_plan(
        StepKind::Train,
        4,
        phalanx::model::PlannedDevices::new(&["cpu:0".parse().unwrap()]).unwrap(),
    ));
    assert!(error.contains("expected known sizes"), "{error}");
    let error = refusal(model.train_on_batch(Tensor::zeros([2, 5, 3]), Tensor::zeros([2, 3])));
    assert!(error.contains("target of 'dense'"), "{error}");
    let error = refusal(model.with_input_shapes([[5, 4]]));
    assert!(
        error.contains("input shape: expected (None, None, 3), received (None, 5, 4)"),
        "{error}"
    );
    model.with_input_shapes([[5, 3]]).unwrap();
}

#[test]
fn outputs_of_different_lengths_are_not_joined() {
    let x = Input::new([None, Some(3)]).symbol();
    let model = Model::new(&x, LSTM::new(2).return_sequences(true).apply(&x)).unwrap();
    let samples: Vec<_> = sequences(&[4, 4, 6]).into_iter().map(|s| vec![s[0].clone()]).collect();
    let data = Pipeline::from_elements(samples.clone()).unwrap().padded_batch(2).unwrap();
    let error = refusal(model.predict(&data));
    assert!(error.contains("expected outputs of one shape, [[4, 2]]"), "{error}");
    let outputs = model.predict_batches(&data, Inference::new()).unwrap();
    let dims: Vec<_> = outputs.iter().map(|batch| batch[0].dims().to_vec()).collect();
    assert_eq!(dims, [vec![2, 4, 2], vec![1, 6, 2]]);
    let same = Pipeline::from_elements(samples[..2].to_vec()).unwrap().batch(1, false).unwrap();
    assert_eq!(model.predict(&same).unwrap().dims(), [2, 4, 2]);
}

/// A plan of a model with open sizes is that of the largest batch so far.
#[test]
fn plans_follow_the_largest_shape() {
    let mut open = lstm(None);
    compile(&mut open, strategy(1));
    for length in [6, 4] {
        let (x, y) = (Tensor::zeros([2, length, 3]), Tensor::zeros([2, 2]));
        open.train_on_batch(&x, &y).unwrap();
    }
    let mut known = open.with_input_shapes([[6, 3]]).unwrap();
    compile(&mut known, strategy(1));
    let plan = |model: &Model| model.own_memory_plan(StepKind::Train, 2).unwrap().total(1);
    assert_eq!(plan(&open), plan(&known));
}

/// Arrays with several inputs, each with its own length.
#[test]
fn inputs_have_lengths_of_their_own() {
    let (a, b) = (Input::new([None, Some(2)]).symbol(), Input::new([None, Some(2)]).symbol());
    let y = Attention::new().apply([&a, &b]);
    let mut model = Model::new([&a, &b], GlobalMaxPooling1D::new().apply(&y)).unwrap();
    compile(&mut model, strategy(2));
    for (left, right) in [(3, 5), (5, 3), (4, 4)] {
        let inputs = vec![Tensor::zeros([6, left, 2]), Tensor::zeros([6, right, 2])];
        let data = Arrays::new(inputs, Tensor::zeros([6, 2])).unwrap();
        model.fit(&data, Fit::new().batch_size(4).verbose(0)).unwrap();
        assert_eq!(model.predict(&data).unwrap().dims(), [6, 2]);
    }
}

/// Every layer of the fixtures with each axis open, against the same layer with known sizes: the outputs have the same
/// bits, or the layer says why the size must be known.
#[test]
fn every_layer_takes_open_sizes() {
    let (mut equal, mut wrong, mut refused) = (0, vec![], BTreeSet::new());
    for fixture in ["layers", "image_layers"].map(Fixture::load) {
        for case in fixture.cases() {
            let inputs: Vec<Tensor> = case.list("input").into_iter().cloned().collect();
            let build = |open: Option<usize>| -> Result<Model> {
                let layer = phalanx::layers::from_config(case.class_name(), case.config().clone())?;
                let layer = LayerHandle::new(layer, None, true);
                let input = |x: &Tensor| {
                    let sizes = x.dims()[1..].iter().enumerate();
                    let sizes = sizes.map(|(axis, n)| (Some(axis) != open).then_some(*n));
                    let input = Input::new(sizes.collect::<Vec<_>>());
                    if x.i32().is_some() { input.integers() } else { input }.symbol()
                };
                let symbols: Vec<Symbol> = inputs.iter().map(input).collect();
                let y = layer.apply(symbols.clone());
                Model::new(symbols, y)
            };
            let known = build(None).unwrap();
            let predict = |model: &Model| {
                let data = Arrays::new(inputs.clone(), ())?;
                model.predict_all(&data).map(|outputs| bits(&outputs))
            };
            let expected = predict(&known).unwrap();
            let rank = inputs.iter().map(|x| x.dims().len() - 1).max().unwrap();
            for axis in 0..rank {
                let mut model = match build(Some(axis)) {
                    Ok(model) => model,
                    Err(Error::OpenWeight { .. }) => continue,
                    Err(_) => {
                        refused.insert(case.class_name().to_string());
                        continue;
                    }
                };
                model.set_weights(&known.get_weights().unwrap()).unwrap();
                match predict(&model) {
                    Ok(outputs) if outputs == expected => equal += 1,
                    Ok(_) => wrong.push(format!("{}, axis {axis}: other outputs", case.name)),
                    Err(e) => wrong.push(format!("{}, axis {axis}: {e}", case.name)),
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(equal > 300, "{equal}");
    let refused: Vec<&str> = refused.iter().map(String::as_str).collect();
    assert_eq!(refused, REFUSED);
}

/// Layers that refuse some open size of their cases: their arguments fix it, or an input with an open size meets one of a
/// known size.
const REFUSED: [&str; 9] = [
    "Add",
    "Average",
    "LayerScale",
    "Maximum",
    "Minimum",
    "Multiply",
    "Normalization",
    "Reshape",
    "Subtract",
];

/// A file has the state of the optimizer, whichever shapes come before and after it.
#[test]
fn training_continues_from_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.keras");
    let batch = |length: usize| {
        let x: Vec<f32> = (0..4 * length * 3).map(|i| (i % 5) as f32 / 5.0 + 0.1).collect();
        (Tensor::new([4, length, 3], x).unwrap(), Tensor::zeros([4, 2]))
    };
    let mut model = lstm(None);
    model.compile(Compile::new(Adam::new(0.01)).loss("mse").strategy(strategy(1))).unwrap();
    for length in [3, 5] {
        let (x, y) = batch(length);
        model.train_on_batch(&x, &y).unwrap();
    }
    model.save(&path).unwrap();
    let mut again = Load::new().strategy(strategy(1)).model(&path).unwrap();
    for length in [4, 3] {
        let (x, y) = batch(length);
        let losses = [&mut model, &mut again].map(|m| m.train_on_batch(&x, &y).unwrap());
        assert_eq!(losses[0].get("loss"), losses[1].get("loss"));
    }
    assert_eq!(bits(&model.get_weights().unwrap()), bits(&again.get_weights().unwrap()));
}
