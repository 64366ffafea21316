//! Sequence and image-to-image networks against Python Keras: the same weights and batches give the same outputs, every
//! gradient and ten losses. `tests/python/oracles.py` describes the fixtures.

use crate::common::{Case, Fixture};
use crate::keras_networks::{bits, uniform};
use phalanx::applications::{Gpt2, VisionTransformer};
use phalanx::optimizers;
use phalanx::prelude::*;
use serde_json::Value;

/// The tolerance for f32 rounding, relative to the largest number of a tensor.
const ROUNDING: f64 = 2e-5;
/// The tolerance in multiples of the spread of a run whose weights were off by one unit in the last place.
const SPREADS: f64 = 4.0;

fn sizes(value: &Value) -> Vec<usize> {
    serde_json::from_value(value.clone()).unwrap()
}

/// A network of a fixture.
struct Oracle<'a> {
    case: Case<'a>,
    build: fn() -> Model,
}

impl Oracle<'_> {
    fn recipes(&self) -> &[Value] {
        self.case.json["weights"].as_array().unwrap()
    }

    /// The fixture's index of each of our weights: those of a layer are in Keras' order.
    fn indices<'n>(&self, names: impl Iterator<Item = &'n String>) -> Vec<usize> {
        let layer = |name: &str| name.split('/').next().unwrap_or_default().to_string();
        let mut taken = vec![false; self.recipes().len()];
        let find = |name: &String| {
            let same =
                |i: &usize| layer(self.recipes()[*i]["name"].as_str().unwrap()) == layer(name);
            let next = (0..taken.len()).find(|i| !taken[*i] && same(i));
            let next = next.unwrap_or_else(|| panic!("{}: no weight '{name}'", self.case.name));
            taken[next] = true;
            next
        };
        names.map(find).collect()
    }

    fn input(&self, i: usize, spec: &Value, step: u64) -> Tensor {
        let rows = self.case.json["batch"].as_u64().unwrap() as usize;
        let dims = [&[rows], &sizes(&spec["shape"])[..]].concat();
        let seed = 100_000 + 1000 * i as u64 + step;
        if spec["kind"] == "uniform" {
            return uniform(seed, 1.0, &dims);
        }
        let (limit, length) = (spec["limit"].as_u64().unwrap(), dims[1]);
        let padded = spec["padded"] == true;
        let token = |(k, z): (usize, u64)| match padded && k % length >= length - k / length % 4 {
            true => 0,
            false => (1 + z % (limit - 1)) as i32,
        };
        let tokens: Vec<i32> = bits(seed).take(rows * length).enumerate().map(token).collect();
        Tensor::new(dims, tokens).unwrap()
    }

    /// The inputs and labels of a step.
    fn batch(&self, step: u64) -> (Vec<Tensor>, Tensor) {
        let specs = self.case.json["inputs"].as_array().unwrap();
        let inputs = specs.iter().enumerate().map(|(i, spec)| self.input(i, spec, step)).collect();
        let output = sizes(&self.case.json["output_shape"]);
        let (classes, lead) = output.split_last().unwrap();
        let rows = self.case.json["batch"].as_u64().unwrap() as usize;
        let dims = [&[rows], lead].concat();
        let count = dims.iter().product();
        let labels: Vec<i32> =
            bits(200_000 + step).take(count).map(|z| (z % *classes as u64) as i32).collect();
        (inputs, Tensor::new(dims, labels).unwrap())
    }

    /// The model with Keras' initial weights.
    fn start(&self, optimizer: Box<dyn Optimizer>, strategy: &MirroredStrategy) -> Model {
        let mut model = (self.build)();
        let loss = SparseCategoricalCrossentropy::default().from_logits(true);
        model.compile(Compile::new(optimizer).loss(loss).strategy(strategy.clone())).unwrap();
        assert_eq!(model.count_params() as u64, self.case.json["parameters"].as_u64().unwrap());
        let own = model.weights().unwrap();
        let weight = |index: usize| {
            let recipe = &self.recipes()[index];
            let scale = recipe["scale"].as_f64().unwrap() as f32;
            let mut tensor =
                uniform(recipe["seed"].as_u64().unwrap(), scale, &sizes(&recipe["shape"]));
            if recipe["kind"] == "ones_plus" {
                tensor.f32_mut().unwrap().iter_mut().for_each(|v| *v += 1.0);
            }
            tensor
        };
        let indices = self.indices(own.iter().map(|(name, _)| name));
        let weights: Vec<Tensor> = indices.into_iter().map(weight).collect();
        assert_eq!(weights.len(), self.recipes().len(), "{}: weights", self.case.name);
        model.set_weights(&weights).unwrap();
        model
    }

    fn optimizer(&self) -> Box<dyn Optimizer> {
        let json = &self.case.json["optimizer"];
        let config = json["config"].as_object().unwrap();
        optimizers::from_config(json["class_name"].as_str().unwrap(), config).unwrap()
    }

    fn number(&self, field: &str, i: usize) -> f64 {
        f64::from(self.case.f32(&format!("{field}/{i}"))[0])
    }

    /// Compares values that the fixture stores completely or in samples; returns the largest difference relative to
    /// the largest value.
    fn close(&self, what: &str, field: [&str; 2], i: usize, values: &[f32], slack: f64) -> f64 {
        let [field, index] = field;
        let (picked, expected): (Vec<f32>, _) = match self.case.find(&format!("{field}/{i}")) {
            Some(whole) => (values.to_vec(), whole.f32().unwrap()),
            None => {
                let at = self.case.tensor(&format!("{index}/{i}")).i32().unwrap();
                let picked = at.iter().map(|k| values[*k as usize]).collect();
                (picked, self.case.f32(&format!("{field}_samples/{i}")))
            }
        };
        assert_eq!(picked.len(), expected.len(), "{}: {what}", self.case.name);
        let largest = values.iter().fold(1e-30, |m: f64, v| m.max(f64::from(v.abs())));
        let mut worst = 0.0f64;
        for (r, e) in picked.iter().zip(expected) {
            let d = (f64::from(*r) - f64::from(*e)).abs();
            let name = self.case.name;
            assert!(
                d <= ROUNDING * largest + slack,
                "{name}: {what}: {r} for {e} (largest {largest})"
            );
            worst = worst.max(d / largest);
        }
        worst
    }

    /// The gradients of the first batch. A model with several inputs takes one large step instead.
    fn gradients(&self, strategy: &MirroredStrategy) -> Vec<(String, Tensor)> {
        const RATE: f64 = 1024.0;
        let (x, y) = self.batch(0);
        let mut model = self.start(Box::new(SGD::new(RATE)), strategy);
        if let [x] = &x[..] {
            return model.gradients(x, &y).unwrap();
        }
        let before = model.weights().unwrap();
        let rows = y.rows();
        let fit = Fit::new().batch_size(rows).shuffle(false).verbose(0);
        model.fit(Arrays::new(x, y).unwrap(), fit).unwrap();
        let step = |((name, a), (_, b)): ((String, Tensor), (String, Tensor))| {
            let pairs = a.f32().unwrap().iter().zip(b.f32().unwrap());
            let values: Vec<f32> = pairs.map(|(a, b)| (a - b) / RATE as f32).collect();
            (name, Tensor::new(a.dims(), values).unwrap())
        };
        before.into_iter().zip(model.weights().unwrap()).map(step).collect()
    }

    fn check(&self, strategy: &MirroredStrategy) {
        let mut model = self.start(self.optimizer(), strategy);
        let (x, y) = self.batch(0);
        let rows = y.rows();
        let output = model.predict(Arrays::new(x, ()).unwrap()).unwrap();
        let values = output.f32().unwrap();
        let of_output = self.close("output", ["output", "output_index"], 0, values, 0.0);
        let gradients = self.gradients(strategy);
        assert_eq!(gradients.len(), self.recipes().len(), "{}: gradients", self.case.name);
        let mut of_gradients = 0.0f64;
        let indices = self.indices(gradients.iter().map(|(name, _)| name));
        for ((name, gradient), i) in gradients.iter().zip(indices) {
            let slack = SPREADS * self.number("grad_spread", i);
            let values = gradient.f32().unwrap();
            let what = format!("gradient of {name}");
            let d = self.close(&what, ["grad", "sample_index"], i, values, slack);
            let norm = values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
            let expected = self.number("grad_norm", i);
            // The gradient of a bias of attention's keys is nothing but rounding.
            of_gradients = of_gradients.max(if expected > 1e-5 { d } else { 0.0 });
            assert!((norm - expected).abs() <= ROUNDING * expected + slack, "{what}: its norm");
        }
        let (losses, nudged) = (self.case.f32("losses"), self.case.f32("losses_nudged"));
        let (mut spread, mut of_losses) = (0.0f64, 0.0f64);
        for (t, (expected, nudged)) in losses.iter().zip(nudged).enumerate() {
            let (x, y) = self.batch(t as u64);
            let fit = Fit::new().batch_size(rows).shuffle(false).verbose(0);
            let history = model.fit(Arrays::new(x, y).unwrap(), fit).unwrap();
            let (loss, expected) = (history.last("loss").unwrap(), f64::from(*expected));
            spread = spread.max((f64::from(*nudged) - expected).abs());
            let d = (loss - expected).abs();
            let name = self.case.name;
            assert!(
                d <= ROUNDING * expected + SPREADS * spread,
                "{name}: loss of step {t}: {loss} for {expected}"
            );
            of_losses = of_losses.max(d / expected);
        }
        println!(
            "{} on {} replica(s): output {of_output:.1e}, gradients {of_gradients:.1e}, losses {of_losses:.1e}",
            self.case.name,
            strategy.num_replicas_in_sync(),
        );
    }
}

fn check_fixture(fixture: &Fixture, build: fn() -> Model, strategies: &[MirroredStrategy]) {
    let oracle = Oracle { case: fixture.cases().next().unwrap(), build };
    strategies.iter().for_each(|strategy| oracle.check(strategy));
}

fn check(name: &str, build: fn() -> Model) {
    let cpus = |devices, threads| MirroredStrategy::cpus(devices).unwrap().threads(threads);
    let fixture = Fixture::load(&format!("oracle_{name}"));
    check_fixture(&fixture, build, &[cpus(1, 1), cpus(1, 2), cpus(2, 1)]);
}

#[test]
fn gpt2_trains_as_in_keras() {
    let sizes = Gpt2 { vocabulary: 61, length: 12, width: 24, heads: 3, layers: 2, dropout: 0.0 };
    assert_eq!(sizes.build().unwrap().count_params(), sizes.parameters());
    check("gpt2", || {
        Gpt2 { vocabulary: 61, length: 12, width: 24, heads: 3, layers: 2, dropout: 0.0 }
            .build()
            .unwrap()
    });
}

/// The whole network. `python tests/python/oracles.py gpt2_124m DIRECTORY` writes the fixture in some minutes.
#[ignore = "needs $PHALANX_ORACLES, the directory of oracle_gpt2_124m.safetensors, and 6 GB of memory"]
#[test]
fn gpt2_with_124_million_parameters_trains_as_in_keras() {
    let directory = std::env::var_os("PHALANX_ORACLES").expect("PHALANX_ORACLES is set");
    let path = std::path::Path::new(&directory).join("oracle_gpt2_124m.safetensors");
    let fixture = Fixture::read(&path);
    check_fixture(&fixture, || Gpt2::default().build().unwrap(), &[MirroredStrategy::new()]);
}

fn small_vit(head: &[usize]) -> Model {
    VisionTransformer {
        image: [24, 18, 3],
        patch: 6,
        width: 16,
        heads: 2,
        layers: 2,
        units: 24,
        head: head.to_vec(),
        dropout: 0.0,
        classes: 5,
    }
    .build()
    .unwrap()
}

#[test]
fn vision_transformers_train_as_in_keras() {
    check("vit", || small_vit(&[]));
    check("vit_head", || small_vit(&[20, 12]));
}

#[test]
fn a_masked_bidirectional_lstm_trains_as_in_keras() {
    check("bilstm", || {
        let tokens = Input::new([9]).integers().named("tokens").symbol();
        let x = Embedding::new(40, 8).mask_zero(true).named("embedding").apply(&tokens);
        let first = Bidirectional::new(LSTM::new(6).return_sequences(true));
        let x = first.named("bidirectional_1").apply(&x);
        let x = Bidirectional::new(LSTM::new(5)).named("bidirectional_2").apply(&x);
        Model::new(&tokens, Dense::new(4).named("logits").apply(&x)).unwrap()
    });
}

#[test]
fn an_encoder_that_passes_its_state_to_a_decoder_trains_as_in_keras() {
    check("encoder_decoder", || {
        let source = Input::new([7]).integers().named("source").symbol();
        let target = Input::new([6]).integers().named("target").symbol();
        let embedding = |rows| Embedding::new(rows, 8).mask_zero(true);
        let x = embedding(30).named("source_embedding").apply(&source);
        let encoded = LSTM::new(10).return_state(true).named("encoder").apply(&x);
        let (h, c) = (encoded.output(1), encoded.output(2));
        let y = embedding(20).named("target_embedding").apply(&target);
        let decoder = LSTM::new(10).return_sequences(true).named("decoder");
        let y = decoder.apply_with(&y, [("initial_state", [&h, &c].into())]);
        Model::new([&source, &target], Dense::new(20).named("logits").apply(&y)).unwrap()
    });
}

fn unet() -> Model {
    let convolutions = |x: &Symbol, filters: usize, name: &str| {
        let conv = || Conv2D::new(filters, 3).padding("same").activation("swish");
        let x = conv().named(&format!("{name}_conv_1")).apply(x);
        conv().named(&format!("{name}_conv_2")).apply(&x)
    };
    let inputs = Input::new([16, 16, 3]).named("images").symbol();
    let (mut x, mut skips) = (inputs.clone(), vec![]);
    for (i, filters) in [6, 10].into_iter().enumerate() {
        x = convolutions(&x, filters, &format!("down_{i}"));
        skips.push(x.clone());
        x = AveragePooling2D::new(2).named(&format!("down_{i}_pool")).apply(&x);
    }
    x = convolutions(&x, 14, "bottom");
    for (i, filters) in [6, 10].into_iter().enumerate().rev() {
        let up = Conv2DTranspose::new(filters, 3).strides(2).padding("same");
        x = up.named(&format!("up_{i}_transposed")).apply(&x);
        x = Concatenate::new().named(&format!("up_{i}_concat")).apply([&skips[i], &x]);
        x = convolutions(&x, filters, &format!("up_{i}"));
    }
    Model::new(&inputs, Conv2D::new(4, 1).named("logits").apply(&x)).unwrap()
}

#[test]
fn a_unet_with_transposed_convolutions_trains_as_in_keras() {
    check("unet", unet);
}
