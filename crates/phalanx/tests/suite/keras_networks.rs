//! Whole networks against Python Keras: the same weights and batches give the same outputs, gradients, ten
//! losses and final weights. `tests/python/networks.py` describes the fixtures.

use crate::common::{Case, Fixture};
use phalanx::prelude::*;
use phalanx::{losses, optimizers};
use phalanx_graph::{Graph, NodeId, Op, Type};
use serde_json::{Map, Value};

/// The tolerance for f32 rounding, relative to the largest number of a tensor.
const ROUNDING: f64 = 1e-5;
/// The tolerance in multiples of the spread of a run whose weights were off by one unit in the last place.
const SPREADS: f64 = 4.0;

/// The random numbers of the fixtures: splitmix64, 24 bits per number.
pub(crate) fn bits(seed: u64) -> impl Iterator<Item = u64> {
    (1u64..).map(move |k| {
        let z = seed.wrapping_add(k.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) >> 40
    })
}

pub(crate) fn uniform(seed: u64, scale: f32, dims: &[usize]) -> Tensor {
    let value = |z: u64| (z as f32 / (1 << 24) as f32 - 0.5) * 2.0 * scale;
    let values: Vec<f32> = bits(seed).take(dims.iter().product()).map(value).collect();
    Tensor::new(dims, values).unwrap()
}

/// The initial value of a weight, from its entry in the fixture.
fn weight(recipe: &Value) -> Tensor {
    let dims: Vec<usize> = serde_json::from_value(recipe["shape"].clone()).unwrap();
    let scale = recipe["scale"].as_f64().unwrap() as f32;
    let mut tensor = uniform(recipe["seed"].as_u64().unwrap(), scale, &dims);
    let offset: fn(f32) -> f32 = match recipe["kind"].as_str().unwrap() {
        "uniform" => |_| 0.0,
        "ones_plus" => |_| 1.0,
        "off_zero" => |v| 2.5f32.copysign(v),
        other => panic!("unknown kind '{other}'"),
    };
    tensor.f32_mut().unwrap().iter_mut().for_each(|v| *v += offset(*v));
    tensor
}

/// A network of a fixture and its batches.
struct Network<'a> {
    case: Case<'a>,
    build: fn() -> Model,
}

impl Network<'_> {
    fn recipes(&self) -> &[Value] {
        self.case.json["weights"].as_array().unwrap()
    }

    /// The fixture's index of one of our weights; the names are Keras'.
    fn index(&self, name: &str) -> usize {
        let found = self.recipes().iter().position(|r| r["name"] == name);
        found.unwrap_or_else(|| panic!("{}: Keras has no weight '{name}'", self.case.name))
    }

    /// The batch of a step.
    fn batch(&self, step: u64) -> (Tensor, Tensor) {
        let rows = self.case.json["batch"].as_u64().unwrap() as usize;
        let mut dims = vec![rows];
        dims.extend(self.case.json["input_shape"].as_array().unwrap().iter().map(size));
        let x = uniform(100_000 + step, 1.0, &dims);
        let labels: Vec<i32> = bits(200_000 + step).take(rows).map(|z| (z % 10) as i32).collect();
        let expected = &self.case.tensor("labels").i32().unwrap()[step as usize * rows..][..rows];
        assert_eq!(labels, expected, "labels of step {step}");
        if self.case.json["loss"]["class_name"] != "CategoricalCrossentropy" {
            return (x, Tensor::new([rows], labels).unwrap());
        }
        let one = |l: &i32| (0..10).map(|c| if c == *l { 1.0 } else { 0.0 }).collect::<Vec<f32>>();
        (x, Tensor::new([rows, 10], labels.iter().flat_map(one).collect::<Vec<f32>>()).unwrap())
    }

    /// The model with Keras' initial weights.
    fn start(&self, compile: Compile) -> Model {
        let loss = &self.case.json["loss"];
        let loss = losses::from_config(class_name(loss), config(loss)).unwrap();
        let mut model = (self.build)();
        model.compile(compile.loss(loss)).unwrap();
        let names: Vec<String> = model.weights().unwrap().into_iter().map(|w| w.0).collect();
        assert_eq!(names.len(), self.recipes().len(), "{}: weights", self.case.name);
        let start = |name: &String| {
            let i = self.index(name);
            let tensor = weight(&self.recipes()[i]);
            let head = self.case.f32(&format!("weight_head/{i}"));
            assert_eq!(&tensor.f32().unwrap()[..head.len()], head, "{name}");
            tensor
        };
        model.set_weights(&names.iter().map(start).collect::<Vec<_>>()).unwrap();
        model
    }

    fn number(&self, field: &str, i: usize) -> f64 {
        f64::from(self.case.f32(&format!("{field}/{i}"))[0])
    }

    /// Fails unless lists agree up to `slack` and rounding relative to `largest`; returns the
    /// difference relative to `largest`.
    fn close(&self, what: &str, received: &[f32], expected: &[f32], scale: Scale) -> f64 {
        assert_eq!(received.len(), expected.len(), "{}: {what}", self.case.name);
        let Scale { largest, rounding, slack } = scale;
        let apart = |(r, e): (&f32, &f32)| (f64::from(*r) - f64::from(*e)).abs();
        for (k, (r, e)) in received.iter().zip(expected).enumerate() {
            assert!(
                apart((r, e)) <= rounding * largest + slack,
                "{}: {what}: expected {e}, received {r} (number {k} of those compared; the \
                 largest is {largest:.1e}, the difference {:.1e})",
                self.case.name,
                apart((r, e))
            );
        }
        received.iter().zip(expected).map(apart).fold(0.0, f64::max) / largest
    }

    /// As `close`, for a tensor that the fixture stores completely or in samples.
    fn close_weight(&self, field: &str, i: usize, received: &Tensor, slack: f64) -> f64 {
        let values = received.f32().unwrap();
        let (picked, expected): (Vec<f32>, _) = match self.case.find(&format!("{field}/{i}")) {
            Some(whole) => (values.to_vec(), whole.f32().unwrap()),
            None => {
                let at = self.case.tensor(&format!("sample_index/{i}")).i32().unwrap();
                let picked = at.iter().map(|k| values[*k as usize]).collect();
                (picked, self.case.f32(&format!("{field}_samples/{i}")))
            }
        };
        let scale = Scale { slack, ..Scale::of(values) };
        self.close(&format!("{field} of {}", self.recipes()[i]["name"]), &picked, expected, scale)
    }

    /// Checks every gradient of the first batch.
    fn check_gradients(&self, model: &mut Model) -> f64 {
        let (x, y) = self.batch(0);
        let grads = model.gradients(&x, &y).unwrap();
        let trained = self.recipes().iter().filter(|r| r["trainable"] == true).count();
        assert_eq!(grads.len(), trained, "{}: gradients", self.case.name);
        let mut worst = 0.0f64;
        for (name, grad) in &grads {
            let i = self.index(name);
            let (norm, slack) =
                (self.number("grad_norm", i), SPREADS * self.number("grad_spread", i));
            let d = self.close_weight("grad", i, grad, slack);
            let squares = grad.f32().unwrap().iter().map(|v| f64::from(*v).powi(2));
            let received = squares.sum::<f64>().sqrt();
            assert!(
                (received - norm).abs() <= ROUNDING * norm + slack,
                "{}: norm of the gradient of {name}: expected {norm}, received {received}",
                self.case.name
            );
            // The gradient of a bias before batch normalisation is nothing but rounding.
            worst = worst.max(if norm > 1e-5 { d } else { 0.0 });
        }
        worst
    }

    /// Checks the losses of ten steps, then the weights.
    fn check_training(&self, model: &mut Model) -> [f64; 3] {
        let (expected, nudged) = (self.case.f32("losses"), self.case.f32("losses_nudged"));
        let (mut spread, mut of_losses, mut of_weights) = (0.0f64, 0.0f64, 0.0f64);
        for (t, (expected, nudged)) in expected.iter().zip(nudged).enumerate() {
            let (x, y) = self.batch(t as u64);
            let loss = model.train_on_batch(&x, &y).unwrap()[0].1;
            let expected = f64::from(*expected);
            spread = spread.max((f64::from(*nudged) - expected).abs());
            let d = (loss - expected).abs();
            assert!(
                d <= ROUNDING * expected + SPREADS * spread,
                "{}: loss of step {t}: expected {expected}, received {loss}",
                self.case.name
            );
            of_losses = of_losses.max(d / expected);
        }
        for (name, values) in model.weights().unwrap() {
            let i = self.index(&name);
            let slack = SPREADS * self.number("final_spread", i);
            of_weights = of_weights.max(self.close_weight("final", i, &values, slack));
        }
        let output = model.predict(self.batch(0).0).unwrap();
        let expected = self.case.f32("output_inference_final");
        // Keras' first bias correction of Adam is off by 6e-6, and so are all weights, together.
        let scale = Scale { rounding: 5.0 * ROUNDING, ..Scale::of(expected) };
        let of_output = self.close("final output", output.f32().unwrap(), expected, scale);
        [of_losses, of_weights, of_output]
    }

    fn check(&self, strategy: &MirroredStrategy) {
        let optimizer = &self.case.json["optimizer"];
        let optimizer = optimizers::from_config(class_name(optimizer), config(optimizer)).unwrap();
        let mut model = self.start(Compile::new(optimizer).strategy(strategy.clone()));
        let (x, _) = self.batch(0);
        let head = self.case.f32("input_head");
        assert_eq!(&x.f32().unwrap()[..head.len()], head, "{}: inputs", self.case.name);

        let (output, expected) = (model.predict(&x).unwrap(), self.case.f32("output_inference"));
        let of_output = self.close("output", output.f32().unwrap(), expected, Scale::of(expected));
        let of_grads = self.check_gradients(&mut model);
        let [of_losses, of_weights, of_final] = self.check_training(&mut model);
        model.check_consistency().unwrap();
        println!(
            "{} on {} replica(s): output {of_output:.1e}, gradients {of_grads:.1e}, losses \
             {of_losses:.1e}, weights {of_weights:.1e}, final output {of_final:.1e}",
            self.case.name,
            strategy.num_replicas_in_sync(),
        );
    }

    /// Checks the outputs in training mode, sample by sample, as the weighted sum of the outputs if only that
    /// sample has a weight.
    fn check_training_mode(&self) {
        let outputs = (0..10).map(|class| Output { class, name: format!("output_{class}") });
        let mut model = self.start(Compile::new(SGD::new(0.0)).weighted_metrics(outputs));
        let (x, y) = self.batch(0);
        let rows = x.rows();
        let expected = self.case.f32("output_training");
        let scale = Scale::of(expected);
        for (row, expected) in expected.chunks(10).enumerate() {
            let weights: Vec<f32> = (0..rows).map(|r| f32::from(u8::from(r == row))).collect();
            let fit = Fit::new().batch_size(rows).shuffle(false).sample_weight(weights).verbose(0);
            let history = model.fit((&x, &y), fit).unwrap();
            let received = |class| history.last(&format!("output_{class}")).unwrap() as f32;
            let received: Vec<f32> = (0..10).map(received).collect();
            let what = format!("training output of row {row}");
            self.close(&what, &received, expected, scale);
        }
    }
}

/// The weighted sum of one number of the output.
#[derive(Debug)]
struct Output {
    class: usize,
    name: String,
}

impl Metric for Output {
    fn class_name(&self) -> &'static str {
        "Output"
    }

    fn config(&self) -> Map<String, Value> {
        Map::new()
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn set_name(&mut self, name: &str) {
        self.name = name.into();
    }

    fn state_len(&self, _: &Type) -> usize {
        1
    }

    fn result(&self, state: &[f64]) -> f64 {
        state[0]
    }

    fn update(&self, g: &mut Graph, _: NodeId, y_pred: NodeId, weight: NodeId) -> Result<NodeId> {
        let value = g.push(Op::Slice { axis: 0, start: self.class, len: 1 }, &[y_pred])?;
        let weight = g.reshape(weight, &[1])?;
        let weighted = g.mul(value, weight)?;
        Ok(g.push(Op::SumRows, &[weighted])?)
    }
}

fn size(value: &Value) -> usize {
    value.as_u64().unwrap() as usize
}

fn class_name(json: &Value) -> &str {
    json["class_name"].as_str().unwrap()
}

fn config(json: &Value) -> &Map<String, Value> {
    json["config"].as_object().unwrap()
}

/// The tolerance of a comparison: `rounding` of the `largest`, plus `slack`.
#[derive(Clone, Copy)]
struct Scale {
    largest: f64,
    rounding: f64,
    slack: f64,
}

impl Scale {
    fn of(values: &[f32]) -> Scale {
        let largest = values.iter().fold(f64::MIN_POSITIVE, |m, v| m.max(f64::from(v.abs())));
        Scale { largest, rounding: ROUNDING, slack: 0.0 }
    }
}

fn cpus(devices: usize, threads: usize) -> MirroredStrategy {
    MirroredStrategy::cpus(devices).unwrap().threads(threads)
}

fn check(name: &str, build: fn() -> Model, strategies: &[MirroredStrategy]) {
    let fixture = Fixture::load(&format!("network_{name}"));
    let network = Network { case: fixture.cases().next().unwrap(), build };
    strategies.iter().for_each(|s| network.check(s));
    network.check_training_mode();
}

#[test]
fn the_perceptron_of_the_guide_trains_as_in_keras() {
    let build = || applications::mnist_mlp(784, 10).unwrap();
    check("mlp", build, &[cpus(1, 1), cpus(1, 2), cpus(2, 1), cpus(3, 1)]);
}

#[test]
fn the_convolutional_network_of_the_tutorial_trains_as_in_keras() {
    let build = || applications::mnist_cnn([28, 28, 1], 10).unwrap();
    check("cnn", build, &[cpus(1, 1), cpus(1, 2), cpus(2, 1), cpus(3, 1)]);
}

/// The fixture's top has no dropout, because no two frameworks draw the same random numbers.
#[test]
fn mini_googlenet_trains_as_in_keras() {
    let build = || {
        let base = applications::mini_googlenet([32, 32, 3], None).unwrap();
        let x = AveragePooling2D::new(7).apply(base.outputs());
        let x = Flatten::new().apply(&x);
        let outputs = Dense::new(10).activation("softmax").apply(&x);
        Model::new(base.inputs(), &outputs).unwrap()
    };
    check("minigooglenet", build, &[cpus(1, 1), cpus(1, 2)]);
}
