//! Losses against Python Keras: values, reductions, sample weights and gradients.

use crate::common::{
    Case, Fixture, RUNNERS, Runner, assert_close, assert_config, on_emulated_gpu, run, run_on,
};
use phalanx::error::Error;
use phalanx::losses::{
    self, BinaryCrossentropy, CategoricalCrossentropy, Loss, LossExt, MeanSquaredError, Reduction,
    SparseCategoricalCrossentropy,
};
use phalanx::prelude::{Compile, Dense, Initializer, Input, MirroredStrategy, SGD, Sequential};
use phalanx_graph::ops::{Binary, Unary};
use phalanx_graph::{DType, Graph, NodeId, Op, Scope, Space, Tensor, Type, autodiff};
use phalanx_needs::needs;

const TOLERANCE: f64 = 1e-5;

/// The type of one row of a tensor.
fn row_type(tensor: &Tensor) -> Type {
    Type::new(tensor.dtype(), Space::Rows, &tensor.dims()[1..])
}

/// The factors of each sample's values: the weights of the positions and, over the whole batch, the divisor of
/// the reduction.
fn weights(case: &Case<'_>, loss: &dyn Loss, positions: usize, rows: usize) -> (Vec<f32>, f64) {
    let given = case.find("sample_weight").map(|t| (t.row_len(), t.f32().unwrap()));
    let (each, sum) = match given {
        None => (vec![1.0; rows * positions], rows as f64),
        Some((width, w)) => {
            // A column of weights applies to all positions of its row.
            let each =
                (0..rows * positions).map(|i| w[i / positions * width + i % positions % width]);
            let sum: f64 = w.iter().map(|w| f64::from(*w)).sum();
            // Keras sums a column of weights once, not for every position, so that for this reduction
            // and this shape its result is larger by the number of positions.
            let positions = if width == 1 { positions } else { 1 };
            (each.collect(), sum / width as f64 / positions as f64)
        }
    };
    let divisor = match loss.reduction() {
        Reduction::SumOverBatchSize => rows as f64,
        // Keras adds the values of a batch only if there are several.
        Reduction::Sum if given.is_none() && loss.is_of_batch(&row_type(case.tensor("y_pred"))) => {
            rows as f64
        }
        Reduction::Sum => 1.0,
        Reduction::MeanWithSampleWeight => sum,
    };
    (each, divisor)
}

fn check(case: &Case<'_>, runners: &[Runner]) {
    let loss = losses::from_config(case.class_name(), case.config()).expect(case.name);
    let y_pred = case.tensor("y_pred");
    let target = loss.target(&row_type(y_pred)).expect(case.name);
    let rows = y_pred.rows();
    // Labels are [n] or [n, 1].
    let dims = [vec![rows], target.dims.clone()].concat();
    let y_true = case.tensor("y_true").clone().reshape(dims.clone()).expect("targets that fit");
    // Labels that are no classes are fed as floats.
    let y_true = match (y_true.i32(), target.dtype) {
        (Some(labels), DType::F32) => {
            Tensor::new(dims, labels.iter().map(|l| *l as f32).collect::<Vec<_>>()).unwrap()
        }
        _ => y_true,
    };

    let mut g = Graph::new();
    g.set_max_batch(rows);
    let t = g.add_feed("y_true", target);
    let p = g.add_feed("y_pred", row_type(y_pred));
    let (t, p) = (g.feed(t), g.feed(p));
    let values = loss.call(&mut g, t, p).expect(case.name);
    let position = g.ty(values).clone();
    let weight = g.add_feed("sample_weight", position.clone());
    let weight = g.feed(weight);
    let weighted = g.mul(values, weight).unwrap();
    let per_sample = loss.reduction().per_sample(&mut g, weighted).expect(case.name);
    let (each, divisor) = weights(case, &*loss, position.len(), rows);
    let mut scaled = g.scale(per_sample, 1.0 / divisor).unwrap();
    if let Some(mask) = loss.value_mask(&mut g, t, values).expect(case.name)
        && loss.reduction() != Reduction::Sum
    {
        let counts = match loss.reduction() {
            Reduction::MeanWithSampleWeight => weight,
            _ => g.binary(Binary::Eq, weight, weight).unwrap(),
        };
        let valid = g.mul(counts, mask).unwrap();
        let [all, valid] = [counts, valid].map(|x| {
            let x = g.mean_row(x).unwrap();
            let partial = g.push(Op::SumRows, &[x]).unwrap();
            g.push(Op::AllReduce { scope: Scope::All }, &[partial]).unwrap()
        });
        let one = g.scalar(1.0);
        let divisor = g.binary(Binary::Max, valid, one).unwrap();
        let divisor = g.select(valid, valid, divisor).unwrap();
        let factor = g.div(all, divisor).unwrap();
        scaled = g.mul(scaled, factor).unwrap();
    }
    let total = g.push(Op::SumRows, &[scaled]).unwrap();
    let one = g.scalar(1.0);
    let grads = autodiff::gradients(&mut g, &[(scaled, one)], &[p]).expect(case.name);
    let grad = grads[0].expect("predictions matter");

    let weight = Tensor::new([vec![rows], position.dims].concat(), each).unwrap();
    let feeds = [y_true, y_pred.clone(), weight];
    for runner in runners {
        let results = run_on(*runner, &g, &[values, total, grad], &feeds, &[]);
        for (field, received) in ["values", "loss", "grad"].into_iter().zip(&results) {
            let what = format!("{}: {field} on {runner:?}", case.name);
            assert_close(&what, received, case.f32(field), TOLERANCE);
        }
    }
}

#[test]
fn values_reductions_and_gradients_match_keras() {
    let fixture = Fixture::load("losses");
    assert!(fixture.cases().count() > 100);
    fixture.cases().for_each(|case| check(&case, &RUNNERS));
    Fixture::load("ctc").cases().for_each(|case| check(&case, &RUNNERS));
}

#[needs(gxx)]
#[test]
fn values_and_gradients_match_keras_on_an_emulated_gpu() {
    let fixtures = ["losses", "ctc"].map(Fixture::load);
    for (i, case) in fixtures.iter().flat_map(Fixture::cases).enumerate() {
        if on_emulated_gpu(i) {
            check(&case, &[Runner::EmulatedGpu]);
        }
    }
}

#[test]
fn configs_round_trip() {
    let ctc = Fixture::load("ctc");
    for case in Fixture::load("losses").cases().chain(ctc.cases()) {
        let loss = losses::from_config(case.class_name(), case.config()).unwrap();
        assert_eq!(loss.class_name(), case.class_name());
        let mut keras = case.config().clone();
        if keras["reduction"] == "mean" {
            keras["reduction"] = "sum_over_batch_size".into();
        }
        // Keras does not save them but reads them.
        assert_config(case.name, &loss.config(), &keras, &["delta", "axis"]);
        let again = losses::from_config(case.class_name(), &loss.config()).unwrap();
        assert_eq!(again.config(), loss.config());
    }
}

/// The loss of an activation's output must equal that of its logits.
fn check_after_activation(
    plain: &dyn Loss,
    logits: &dyn Loss,
    op: Op,
    target: Tensor,
    op_name: &str,
) {
    let x: Vec<f32> = vec![3.0, -1.0, 0.5, 0.0, 60.0, -60.0];
    let x = Tensor::new([2, 3], x).unwrap();
    let mut g = Graph::new();
    let feed = g.add_feed("x", Type::rows([3]));
    let x_node = g.feed(feed);
    let y = g.push(op, &[x_node]).unwrap();
    let t = g.add_feed("t", plain.target(&Type::rows([3])).unwrap());
    let t = g.feed(t);
    let a = plain.call(&mut g, t, y).unwrap();
    let b = logits.call(&mut g, t, x_node).unwrap();
    let seed = g.add_feed("seed", Type::rows([]));
    let seed = g.feed(seed);
    let da = autodiff::gradients(&mut g, &[(a, seed)], &[x_node]).unwrap()[0].unwrap();
    let db = autodiff::gradients(&mut g, &[(b, seed)], &[x_node]).unwrap()[0].unwrap();
    let seeds = Tensor::new([2], vec![1.0, 0.5]).unwrap();
    let r = run(&g, &[a, b, da, db], &[x, target, seeds], &[]);
    assert_eq!(r[0], r[1], "{op_name}");
    assert_eq!(r[2], r[3], "{op_name}");
    assert!(r[0].iter().all(|v| v.is_finite()) && r[0][1] > 20.0, "{op_name}: {:?}", r[0]);
}

#[test]
fn probabilities_of_an_activation_use_its_logits() {
    let sparse = SparseCategoricalCrossentropy::default();
    let labels = Tensor::new([2], vec![0, 2]).unwrap();
    check_after_activation(
        &sparse,
        &sparse.clone().from_logits(true),
        Op::Softmax,
        labels,
        "sparse",
    );

    let dense = CategoricalCrossentropy::default().label_smoothing(0.1);
    let hot = || Tensor::new([2, 3], vec![1.0, 0.0, 0.0, 0.0, 0.0, 1.0]).unwrap();
    check_after_activation(&dense, &dense.clone().from_logits(true), Op::Softmax, hot(), "dense");

    let binary = BinaryCrossentropy::default();
    let op = Op::Unary(Unary::Sigmoid);
    check_after_activation(&binary, &binary.clone().from_logits(true), op, hot(), "binary");
}

#[test]
fn the_gradient_of_binary_logits_at_zero_is_a_half_less_the_target() {
    let mut g = Graph::new();
    let (x, t) = (g.add_feed("x", Type::rows([1])), g.add_feed("t", Type::rows([1])));
    let (x, t) = (g.feed(x), g.feed(t));
    let y = BinaryCrossentropy::default().from_logits(true).call(&mut g, t, x).unwrap();
    let one = g.scalar(1.0);
    let dx = autodiff::gradients(&mut g, &[(y, one)], &[x]).unwrap()[0].unwrap();
    let feeds = [Tensor::zeros([2, 1]), Tensor::new([2, 1], vec![0.0, 1.0]).unwrap()];
    assert_eq!(run(&g, &[dx], &feeds, &[])[0], [0.5, -0.5]);
}

#[test]
fn hinge_counts_zero_as_minus_one() {
    let values = |labels: Vec<f32>| {
        let mut g = Graph::new();
        let (x, t) = (g.add_feed("x", Type::rows([2])), g.add_feed("t", Type::rows([2])));
        let (x, t) = (g.feed(x), g.feed(t));
        let y = losses::get("hinge").unwrap().call(&mut g, t, x).unwrap();
        let x = Tensor::new([1, 2], vec![0.25, -0.5]).unwrap();
        run(&g, &[y], &[x, Tensor::new([1, 2], labels).unwrap()], &[])
    };
    assert_eq!(values(vec![0.0, 1.0]), values(vec![-1.0, 1.0]));
}

fn call(loss: &dyn Loss, target: Type, prediction: Type) -> Result<NodeId, Error> {
    let mut g = Graph::new();
    let (t, p) = (g.add_feed("t", target), g.add_feed("p", prediction));
    let (t, p) = (g.feed(t), g.feed(p));
    loss.call(&mut g, t, p)
}

#[test]
fn shapes_that_do_not_fit_are_named() {
    let sparse = SparseCategoricalCrossentropy::default();
    let labels = |dims: &[usize]| Type::new(DType::I32, Space::Rows, dims);
    assert_eq!(sparse.target(&Type::rows([7, 10])).unwrap(), labels(&[7]));
    let text = call(&sparse, labels(&[3]), Type::rows([10])).unwrap_err().to_string();
    let expected = "loss 'sparse_categorical_crossentropy': y_true: expected i32 (None,), \
                    received i32 (None, 3)";
    assert_eq!(text, expected);
    let text = call(&sparse, labels(&[]), Type::rows([])).unwrap_err().to_string();
    assert!(text.contains("a last axis of classes, received f32 (None,)"), "{text}");
    let mse = MeanSquaredError::default().named("distance");
    let text = call(&mse, Type::rows([1]), Type::rows([4])).unwrap_err().to_string();
    let expected = "loss 'distance': y_true: expected f32 (None, 4), received f32 (None, 1)";
    assert_eq!(text, expected);
}

#[test]
fn an_axis_must_be_one_of_the_sample() {
    let refused = |loss: &dyn Loss| {
        call(loss, Type::rows([3, 4]), Type::rows([3, 4])).unwrap_err().to_string()
    };
    for axis in [0, 3, -3, -4, i64::MIN, i64::MAX] {
        let text = refused(&CategoricalCrossentropy::default().axis(axis));
        let expected = "loss 'categorical_crossentropy': axis: expected an axis of (None, 3, 4) \
                        other than the batch, received";
        assert_eq!(text, format!("{expected} {axis}"));
    }
    let text = refused(&losses::Dice::default().axis(Some([1, 5].into())));
    assert!(text.starts_with("loss 'dice': axis: expected an axis"), "{text}");
    let alpha = losses::Alpha::Each(vec![0.5; 3]);
    let text = refused(&losses::CategoricalFocalCrossentropy::default().alpha(alpha));
    assert!(text.ends_with("alpha: expected 4 factors, received 3"), "{text}");
}

#[test]
fn names_and_configs_that_mean_nothing_are_refused() {
    for name in ["mse", "MSE", "mae", "bce", "kld", "huber", "hinge", "MeanSquaredError"] {
        losses::get(name).expect(name);
    }
    let text = losses::get("mean_squared").unwrap_err().to_string();
    assert!(text.contains("did you mean 'mean_squared_error'?"), "{text}");
    let refused = |class: &str, config: serde_json::Value| {
        losses::from_config(class, config.as_object().unwrap()).unwrap_err().to_string()
    };
    let text = refused("Huber", serde_json::json!({"delta": "wide"}));
    assert!(text.starts_with("Huber: delta: "), "{text}");
    let text = refused("Huber", serde_json::json!({"delta": 0.0}));
    assert!(text.contains("expected a number above 0, received 0"), "{text}");
    let text = refused("BinaryCrossentropy", serde_json::json!({"label_smoothing": 1.5}));
    assert!(text.contains("label_smoothing: expected a number from 0 to 1"), "{text}");
    let text = refused("SparseCategoricalCrossentropy", serde_json::json!({"axis": 1}));
    assert!(text.contains("axis: expected -1, received 1"), "{text}");
    let text = refused("CategoricalGeneralizedCrossEntropy", serde_json::json!({"q": 1.0}));
    assert!(text.contains("q: expected a number between 0 and 1, received 1"), "{text}");
    let text = refused("BinaryFocalCrossentropy", serde_json::json!({"gamma": -1}));
    assert!(text.contains("gamma: expected a number from 0, received -1"), "{text}");
    let text = refused("MeanSquaredError", serde_json::json!({"reduction": "none"}));
    assert!(text.contains("unknown variant `none`"), "{text}");
}

/// Trains a small model for three steps; its losses and weights.
fn train(strategy: MirroredStrategy, loss: Box<dyn Loss>, x: &Tensor, y: &Tensor) -> Vec<f32> {
    let kernel = Initializer::RandomNormal { mean: 0.0, stddev: 0.5, seed: Some(3) };
    let layer = Dense::new(3).activation("sigmoid").kernel_initializer(kernel);
    let mut model = Sequential::new().add(Input::new([2])).add(layer).build().unwrap();
    let compile = Compile::new(SGD::new(0.5)).loss(loss).strategy(strategy);
    model.compile(compile).unwrap();
    let mut numbers = vec![];
    for _ in 0..3 {
        numbers.push(model.train_on_batch(x, y).unwrap().get("loss").unwrap() as f32);
    }
    model.check_consistency().unwrap();
    let weights = model.get_weights().unwrap();
    numbers.extend(weights.iter().flat_map(|w| w.f32().unwrap().to_vec()));
    numbers
}

fn strategies() -> Vec<MirroredStrategy> {
    let cpus = |devices: usize, threads| MirroredStrategy::cpus(devices).unwrap().threads(threads);
    vec![cpus(1, 1), cpus(1, 2), cpus(2, 1), cpus(3, 2)]
}

#[test]
fn losses_of_the_whole_batch_do_not_depend_on_replicas() {
    // Seven rows: the replicas have different numbers of them.
    let x = Tensor::new([7, 2], (0..14).map(|i| (i % 5) as f32 - 2.0).collect::<Vec<_>>()).unwrap();
    let y = Tensor::new([7, 3], (0..21).map(|i| (i % 4 / 2) as f32).collect::<Vec<_>>()).unwrap();
    for name in ["dice", "tversky"] {
        let one = train(strategies().remove(0), losses::get(name).unwrap(), &x, &y);
        assert!(one[2] < one[0] && one.iter().all(|v| v.is_finite()), "{name}: {one:?}");
        for strategy in strategies() {
            let what = format!("{name} on {strategy:?}");
            let several = train(strategy, losses::get(name).unwrap(), &x, &y);
            let several: Vec<f64> = several.into_iter().map(f64::from).collect();
            assert_close(&what, &several, &one, 1e-5);
        }
    }
}

#[test]
fn ignored_labels_do_not_count_on_any_replica() {
    let x: Vec<f32> = (0..14).map(|i| (i % 5) as f32 - 2.0).collect();
    let labels = vec![0, 255, 2, 1, 255, 255, 0];
    let counted: Vec<usize> = (0..7).filter(|i| labels[*i] != 255).collect();
    let loss = || SparseCategoricalCrossentropy::default().from_logits(true);
    let few = Tensor::new(
        [4, 2],
        counted.iter().flat_map(|i| x[2 * i..2 * i + 2].to_vec()).collect::<Vec<_>>(),
    );
    let few_labels = Tensor::new([4], counted.iter().map(|i| labels[*i]).collect::<Vec<i32>>());
    let expected =
        train(strategies().remove(0), Box::new(loss()), &few.unwrap(), &few_labels.unwrap());
    let (x, y) = (Tensor::new([7, 2], x).unwrap(), Tensor::new([7], labels).unwrap());
    for strategy in strategies() {
        let what = format!("{strategy:?}");
        let received = train(strategy, Box::new(loss().ignore_class(Some(255))), &x, &y);
        let received: Vec<f64> = received.into_iter().map(f64::from).collect();
        assert_close(&what, &received, &expected, 1e-5);
    }
}
