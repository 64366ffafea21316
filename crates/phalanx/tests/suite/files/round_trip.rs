//! Round trips: loading a file restores what was saved.

use super::{TempDir, chain, graph, numbers, unzip};
use phalanx::data::Arrays;
use phalanx::prelude::*;

fn data(outputs: &[usize]) -> Arrays {
    let y: Vec<Tensor> =
        outputs.iter().enumerate().map(|(i, n)| numbers(9 + i as u64, [12, *n])).collect();
    Arrays::new(numbers(1, [12, 4]), y).unwrap()
}

fn train(model: &mut Model, outputs: &[usize]) {
    let fit = Fit::new().epochs(1).batch_size(4).shuffle(false).verbose(0);
    model.fit(data(outputs), fit).unwrap();
}

fn bits(model: &Model) -> Vec<(String, Vec<u32>)> {
    let bits = |t: Tensor| t.f32().unwrap().iter().map(|v| v.to_bits()).collect();
    model.weights().unwrap().into_iter().map(|(name, t)| (name, bits(t))).collect()
}

fn sorted(mut bits: Vec<(String, Vec<u32>)>) -> Vec<(String, Vec<u32>)> {
    bits.sort();
    bits
}

#[test]
fn training_continues_after_a_round_trip_as_if_never_saved() {
    let dir = TempDir::new();
    let rate = 0.0078125; // exact in f32, the type in files
    let optimizers: Vec<Box<dyn Optimizer>> = vec![
        Box::new(SGD::new(rate).momentum(0.5).nesterov(true)),
        Box::new(Adam::new(rate).amsgrad(true)),
        Box::new(Adam::new(rate).use_ema(0.5)),
        Box::new(AdamW::new(rate)),
        Box::new(RMSprop::new(rate).momentum(0.5).centered(true)),
        Box::new(Adagrad::new(rate)),
        Box::new(Adadelta::new(rate)),
        Box::new(Adamax::new(rate)),
        Box::new(Ftrl::new(rate).beta(0.5)),
        Box::new(ScheduleFreeAdamW::new(rate).use_ema(0.5)),
        Box::new(Nadam::new(rate)),
        Box::new(Lion::new(rate)),
        Box::new(Adam::new(CosineDecay::new(0.25, 100))),
    ];
    for optimizer in optimizers {
        let what = format!("{optimizer:?}");
        let mut model = graph();
        let compile = Compile::new(optimizer).loss("mse").loss("mae").loss_weights([1.0, 0.5]);
        model.compile(compile).unwrap();
        train(&mut model, &[2, 1]);
        for name in ["model.keras", "model.h5"] {
            let path = dir.at(name);
            model.save(&path).unwrap();
            let mut loaded = load_model(&path).unwrap();
            assert_eq!(sorted(bits(&loaded)), sorted(bits(&model)), "{what}");
            let again = dir.at(&format!("again_{name}"));
            loaded.save(&again).unwrap();
            assert_eq!(std::fs::read(&again).unwrap(), std::fs::read(&path).unwrap(), "{what}");
            if name.ends_with("h5") {
                train(&mut model, &[2, 1]);
                train(&mut loaded, &[2, 1]);
                assert_eq!(sorted(bits(&loaded)), sorted(bits(&model)), "{what}");
            }
        }
    }
}

#[test]
fn names_structure_and_trainable_flags_are_saved() {
    let dir = TempDir::new();
    let model = graph();
    model.layer("inner/dense").unwrap().set_trainable(false);
    for name in ["model.keras", "model.h5"] {
        model.save(dir.at(name)).unwrap();
        let loaded = load_model(dir.at(name)).unwrap();
        assert_eq!(loaded.name(), "graph");
        assert_eq!(loaded.summary().to_string(), model.summary().to_string());
        assert!(!loaded.layer("inner/dense").unwrap().trainable());
        assert!(loaded.layer("shared").unwrap().trainable());
        assert_eq!(loaded.output_names(), ["head", "other"]);
    }
}

#[test]
fn a_layer_shared_by_two_models_stays_shared() {
    let dir = TempDir::new();
    let shared = Dense::new(4).named("both");
    let a = Input::new([4]).symbol();
    let inner = Model::with_name("inner", &a, shared.apply(&a)).unwrap();
    let x = Input::new([4]).symbol();
    let mut model = Model::new(&x, shared.apply(inner.apply(&x))).unwrap();
    model.compile(Compile::new("sgd").loss("mse")).unwrap();
    model.save(dir.at("model.keras")).unwrap();
    let mut loaded = load_model(dir.at("model.keras")).unwrap();
    assert_eq!(loaded.count_params(), 20);
    for model in [&mut model, &mut loaded] {
        train(model, &[4]);
    }
    assert_eq!(bits(&loaded), bits(&model));
}

#[test]
fn weights_round_trip_in_every_format() {
    let dir = TempDir::new();
    let model = graph();
    model.initialize(5).unwrap();
    for name in ["m.weights.h5", "m.safetensors", "m.h5", "m.hdf5"] {
        model.save_weights(dir.at(name)).unwrap();
        let mut other = graph();
        other.initialize(6).unwrap();
        other.load_weights(dir.at(name)).unwrap();
        assert_eq!(bits(&other), bits(&model), "{name}");
    }
    model.save(dir.at("m.keras")).unwrap();
    let mut other = graph();
    other.load_weights(dir.at("m.keras")).unwrap();
    assert_eq!(bits(&other), bits(&model));
    let error = load_model(dir.at("m.weights.h5")).err().unwrap().to_string();
    assert!(error.contains("weights only (build the model, then load_weights)"), "{error}");
}

#[test]
fn weights_that_do_not_fit_are_listed_and_change_nothing() {
    let dir = TempDir::new();
    chain().save_weights(dir.at("chain.weights.h5")).unwrap();
    chain().save_weights(dir.at("chain.h5")).unwrap();
    let x = Input::new([4]).symbol();
    let hidden = Dense::new(5).apply(&x);
    let mut other = Model::new(&x, Dense::new(2).use_bias(false).apply(&hidden)).unwrap();
    let before = bits(&other);
    let error = other.load_weights(dir.at("chain.weights.h5")).unwrap_err().to_string();
    for fault in [
        "layers/dense/vars/0 of 'dense' [4, 3] for [4, 5]",
        "layers/dense/vars/1 of 'dense' [3] for [5]",
        "2 weights of 'dense_1' where 1 belong",
    ] {
        assert!(error.contains(fault), "{error}");
    }
    let error = other.load_weights(dir.at("chain.h5")).unwrap_err().to_string();
    assert!(error.contains("'dense/dense/kernel' [4, 3] for [4, 5]"), "{error}");
    assert_eq!(bits(&other), before);
}

#[test]
fn legacy_weights_are_found_by_name() {
    let dir = TempDir::new();
    let model = chain();
    model.save_weights(dir.at("chain.h5")).unwrap();
    let x = Input::new([4]).symbol();
    let hidden = Dense::new(3).named("dense").apply(&x);
    let mut other = Model::new(&x, Dense::new(7).named("new").apply(&hidden)).unwrap();
    assert_eq!(other.load_weights_by_name(dir.at("chain.h5")).unwrap(), ["new"]);
    assert_eq!(bits(&other)[..2], bits(&model)[..2]);
}

#[test]
fn checkpoints_of_whole_models_hold_the_optimizer() {
    let dir = TempDir::new();
    let mut model = chain();
    let checkpoint = ModelCheckpoint::new(dir.at("ckpt-{epoch}.keras"));
    let fit = Fit::new().epochs(2).batch_size(4).shuffle(false).verbose(0).callback(checkpoint);
    model.fit(data(&[2]), fit).unwrap();
    let mut loaded = load_model(dir.at("ckpt-2.keras")).unwrap();
    assert_eq!(bits(&loaded), bits(&model));
    for model in [&mut model, &mut loaded] {
        train(model, &[2]);
    }
    assert_eq!(bits(&loaded), bits(&model));
}

#[test]
fn a_learning_rate_set_by_hand_is_saved() {
    let dir = TempDir::new();
    let mut model = chain();
    model.set_learning_rate(0.03125).unwrap();
    model.save(dir.at("model.keras")).unwrap();
    assert_eq!(load_model(dir.at("model.keras")).unwrap().learning_rate().unwrap(), 0.03125);
}

#[test]
fn models_without_names_are_numbered_inside_another() {
    let dir = TempDir::new();
    let part = |units: usize| {
        Sequential::new().add(Input::new([4])).add(Dense::new(units)).build().unwrap()
    };
    let x = Input::new([4]).symbol();
    let y = part(3).apply(part(4).apply(&x));
    let model = Model::new(&x, &y).unwrap();
    model.save(dir.at("model.keras")).unwrap();
    let loaded = load_model(dir.at("model.keras")).unwrap();
    let names = |m: &Model| m.layers().into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    assert_eq!(names(&model), ["sequential/dense", "sequential_1/dense"]);
    assert_eq!(names(&loaded), names(&model));
    assert_eq!(bits(&loaded), bits(&model));
}

/// The dtype policies of the layers in a file.
fn policies(path: &std::path::Path) -> Vec<&'static str> {
    let members = unzip(path);
    let (_, config) = members.iter().find(|(name, _)| name == "config.json").unwrap();
    let config: serde_json::Value = serde_json::from_slice(config).unwrap();
    let mut names = vec![];
    for layer in config["config"]["layers"].as_array().unwrap() {
        let name = layer["config"]["dtype"]["config"]["name"].as_str().unwrap_or("float32");
        names.push(Policy::from_name(name).unwrap().name());
        let inner = &layer["config"]["layer"]["config"]["dtype"]["config"]["name"];
        names.extend(inner.as_str().map(|name| Policy::from_name(name).unwrap().name()));
    }
    names
}

#[test]
fn dtype_policies_of_layers_are_kept() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/described_mixed.keras");
    let path = std::path::Path::new(path);
    let mixed = "mixed_float16";
    let expected = ["float32", mixed, mixed, mixed, "float32"];
    let dir = TempDir::new();
    let mut model = load_model(path).unwrap();
    assert_eq!(model.dtype_policy().unwrap(), Policy::MixedFloat16);
    assert_eq!(policies(path), expected);
    model.save(dir.at("back.keras")).unwrap();
    assert_eq!(policies(&dir.at("back.keras")), expected);
    // The strategy's own policy is stronger.
    let strategy = MirroredStrategy::cpus(1).unwrap().policy(Policy::Float32);
    model.compile(Compile::new("sgd").loss("mse").strategy(strategy)).unwrap();
    assert_eq!(model.dtype_policy().unwrap(), Policy::Float32);
}

/// The keys are the names of other layers; tests/python/make_models.py writes the file.
#[test]
fn losses_of_a_dict_of_outputs_belong_to_its_keys() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/described_dict.keras");
    let dir = TempDir::new();
    load_model(path).unwrap().save(dir.at("back.keras")).unwrap();
    for path in [std::path::Path::new(path), &dir.at("back.keras")] {
        let mut model = load_model(path).unwrap();
        assert_eq!(model.output_names(), ["u", "v"]);
        let x = Tensor::new([1, 3], vec![1.0, 0.0, 0.0]).unwrap();
        let zero = || Tensor::new([1, 1], vec![0.0]).unwrap();
        let data = Arrays::new(x, vec![zero(), zero()]).unwrap();
        // The output `u` is 2 and counts ten times with its square, the output `v` is 1.
        let logs = model.evaluate_with(data, Inference::new().verbose(0)).unwrap();
        assert_eq!(logs.get("loss"), Some(41.0), "{logs:?}");
    }
}

#[test]
fn layers_cannot_mix_two_kinds_of_mixed_precision() {
    let layer = |units, policy| LayerHandle::from(Dense::new(units)).with_dtype_policy(policy);
    let mut model = Sequential::new()
        .add(Input::new([4]))
        .add(layer(3, Policy::MixedFloat16))
        .add(layer(2, Policy::MixedBfloat16))
        .build()
        .unwrap();
    let error = model.compile(Compile::new("sgd").loss("mse")).unwrap_err().to_string();
    let expected = "layer 'dense_1': dtype: expected mixed_float16, as other layers have, or float32, \
                    received mixed_bfloat16";
    assert_eq!(error, expected);
}
