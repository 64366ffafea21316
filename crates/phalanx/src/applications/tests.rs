//! The networks against `keras.applications`; `tests/python/application_digests.py` makes the fixture.

use super::*;
use crate::model::Model;
use serde_json::Value;
use sha2::Digest;

fn fixture() -> Vec<Value> {
    let text = include_str!("../../../../tests/fixtures/applications.json");
    let file: Value = serde_json::from_str(text).unwrap();
    file["networks"].as_array().unwrap().clone()
}

fn digest(text: &str) -> String {
    let hash = sha2::Sha256::digest(text);
    hash[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A text of a JSON value that does not depend on how numbers are written.
fn canonical(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_by_key(|(key, _)| *key);
            let entry =
                |(k, v): (&String, &Value)| format!("{}:{}", Value::from(k.as_str()), canonical(v));
            format!("{{{}}}", entries.into_iter().map(entry).collect::<Vec<_>>().join(","))
        }
        Value::Array(list) => {
            format!("[{}]", list.iter().map(canonical).collect::<Vec<_>>().join(","))
        }
        Value::Number(number) => match number.as_f64() {
            Some(v) if v == v.trunc() => format!("{v:.0}"),
            Some(v) => format!("{v:.6e}"),
            None => number.to_string(),
        },
        other => other.to_string(),
    }
}

/// What Keras adds when it saves, and options at their defaults that Phalanx does not write.
const DROPPED: [&str; 12] = [
    "kwargs",
    "build_config",
    "compile_config",
    "optional",
    "ragged",
    "sparse",
    "input_axes",
    "output_axes",
    "renorm",
    "renorm_clipping",
    "renorm_momentum",
    "quantization_config",
];

fn stripped(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.into_iter().filter(|(key, _)| !DROPPED.contains(&key.as_str()));
            kept.map(|(key, value)| (key, stripped(value))).collect()
        }
        Value::Array(list) => list.into_iter().map(stripped).collect(),
        other => other,
    }
}

fn config_text(model: &Model) -> String {
    canonical(&stripped(serde_json::from_str(&model.to_json()).unwrap()))
}

fn shapes(model: &Model) -> Vec<Vec<usize>> {
    let of = |layer: &crate::layer::LayerHandle| {
        layer.weights().iter().map(|w| w.spec.dims.clone()).collect::<Vec<_>>()
    };
    let layers = crate::saving::layers_in_order(model.definition());
    layers.iter().flat_map(of).collect()
}

/// The network of a case of the fixture.
fn application(name: &str, case: &str, arguments: &Value) -> Application {
    let mut app = Application::new(name).unwrap();
    if let Some(shape) = arguments.get("input_shape") {
        app = app.input_shape(serde_json::from_value(shape.clone()).unwrap());
    }
    if let Some(classes) = arguments.get("classes") {
        app = app.classes(classes.as_u64().unwrap() as usize).classifier_activation("linear");
    }
    if let Some(pooling) = arguments.get("pooling").and_then(Value::as_str) {
        app = app.pooling(pooling);
    }
    app = app.include_top(arguments.get("include_top") != Some(&Value::Bool(false)));
    if case.starts_with("imagenet") { app.weights("imagenet") } else { app }
}

#[test]
fn every_network_is_that_of_keras() {
    let networks = fixture();
    assert_eq!(networks.len(), names().count());
    let mut faults = vec![];
    for network in &networks {
        let name = network["name"].as_str().unwrap();
        for (case, expected) in network["cases"].as_object().unwrap() {
            let app = application(name, case, &expected["arguments"]);
            app.check().unwrap();
            let model = app.model().unwrap();
            let what = format!("{name} {case}");
            if model.name() != expected["model_name"] {
                faults.push(format!("{what}: name {}", model.name()));
            }
            if model.count_params() as u64 != expected["parameters"].as_u64().unwrap() {
                let (received, expected) = (model.count_params(), &expected["parameters"]);
                faults.push(format!("{what}: {received} parameters for {expected}"));
            }
            let text = serde_json::to_string(&shapes(&model)).unwrap();
            if digest(&text) != expected["shapes"] {
                faults.push(format!("{what}: the shapes of the weights"));
            }
            let text = config_text(&model);
            if digest(&text) != expected["config"] {
                let path = std::env::temp_dir().join(format!("phalanx-{name}-{case}.txt"));
                std::fs::write(&path, text.replace("{\"class_name\"", "\n{\"class_name\""))
                    .unwrap();
                faults.push(format!("{what}: the config, which is in {}", path.display()));
            }
            if let Some(file) = expected.get("file") {
                let preset = app.weights_file();
                let received = serde_json::json!({
                    "file": preset.file, "url": preset.url, "checksum": preset.checksum,
                });
                if received != *file {
                    faults.push(format!("{what}: {received} for {file}"));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

/// The random numbers of the fixtures (`networks.py`): splitmix64, 24 bits per number.
fn uniform(seed: u64, scale: f32, dims: &[usize]) -> Tensor {
    let value = |k: u64| {
        let z = seed.wrapping_add(k.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        let bits = (z ^ (z >> 31)) >> 40;
        (bits as f32 / (1 << 24) as f32 - 0.5) * 2.0 * scale
    };
    let count = dims.iter().product::<usize>() as u64;
    Tensor::new(dims, (1..=count).map(value).collect::<Vec<f32>>()).unwrap()
}

/// A weight of the fixture's logits.
fn weight(name: &str, dims: &[usize], seed: u64, gain: f64) -> Vec<f32> {
    let fan = match dims {
        [.., _, 1] if dims.len() > 1 => &dims[..dims.len() - 2],
        [_, ..] => &dims[..dims.len() - 1],
        [] => dims,
    };
    let scale = match dims.len() > 1 {
        true => ((gain / fan.iter().product::<usize>() as f64) as f32).sqrt(),
        false => 0.1,
    };
    let ones = ["gamma", "moving_variance", "variance"].contains(&name);
    let values = uniform(seed, scale, dims);
    values.f32().unwrap().iter().map(|v| if ones { 1.0 + v } else { *v }).collect()
}

#[test]
fn one_member_of_each_family_predicts_as_in_keras() {
    let mut compared = 0;
    for network in fixture() {
        let Some(expected) = network.get("logits") else { continue };
        let name = network["name"].as_str().unwrap();
        let app = Application::new(name).unwrap().input_shape([64, 64, 3]);
        let model = app.classes(10).classifier_activation("linear").build().unwrap();
        let (mut seed, gain) = (5_000, network["gain"].as_f64().unwrap());
        for layer in crate::saving::layers_in_order(model.definition()) {
            let values: Vec<Vec<f32>> = layer
                .weights()
                .iter()
                .map(|w| {
                    // In Keras, the weight of LayerScale has no name.
                    let scale = layer.layer().class_name() == "LayerScale";
                    let name = if scale { "" } else { w.spec.name.as_str() };
                    let values = weight(name, &w.spec.dims, seed, gain);
                    seed += 1;
                    values
                })
                .collect();
            layer.set_values(values.into_iter());
        }
        let mut x = uniform(4_999, 127.5, &[2, 64, 64, 3]);
        x.f32_mut().unwrap().iter_mut().for_each(|v| *v += 127.5);
        let logits = model.predict(&x).unwrap();
        let expected: Vec<Vec<f32>> = serde_json::from_value(expected.clone()).unwrap();
        let expected: Vec<f32> = expected.concat();
        let largest = expected.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        // A larger gain amplifies rounding too.
        let tolerance = if gain > 6.0 { 3e-3 } else { 1e-4 };
        for (e, r) in expected.iter().zip(logits.f32().unwrap()) {
            assert!(
                (e - r).abs() <= tolerance * largest,
                "{name}: {r} for {e} (largest {largest})"
            );
        }
        compared += 1;
    }
    assert_eq!(compared, 10);
}

#[test]
fn arguments_that_do_not_fit_are_refused() {
    let message = |app: Application| app.build().err().unwrap().to_string();
    let app = || Application::new("resnet50").unwrap();
    assert_eq!(
        message(app().input_shape([31, 64, 3])),
        "resnet50: input_shape: expected sides of 32 or more, received [31, 64, 3]"
    );
    assert_eq!(
        message(app().pooling("mean")),
        "resnet50: pooling: expected avg or max, received mean"
    );
    let text = message(app().weights("imagenet").classes(10));
    assert_eq!(
        text,
        "resnet50: classes: expected 1000 for ImageNet's weights with their top, received 10"
    );
    let text = message(app().weights("imagenet").input_shape([64, 64, 3]));
    assert!(text.contains("expected 224x224 for ImageNet's weights with their top"), "{text}");
    let text = message(app().weights("imagenet").include_top(false).input_shape([64, 64, 1]));
    assert!(text.contains("expected 3 channels"), "{text}");
    let text = Application::new("resnet51").unwrap_err().to_string();
    assert!(text.starts_with("unknown network 'resnet51'; did you mean 'resnet50'?"), "{text}");
    assert_eq!(Application::new("ConvNeXtXLarge").unwrap().name(), "convnext-xlarge");
}

#[test]
fn preprocessing_is_that_of_keras() {
    let image = Tensor::new([1, 1, 1, 3], vec![10.0f32, 20.0, 30.0]).unwrap();
    // keras.applications.imagenet_utils.preprocess_input of the modes caffe, tf and torch.
    for (mode, expected) in [
        (InputMode::Caffe, [-73.939, -96.779, -113.68]),
        (InputMode::Tf, [-0.921_568_6, -0.843_137_26, -0.764_705_9]),
        (InputMode::Torch, [-1.946_657_9, -1.685_574_2, -1.281_568_6]),
        (InputMode::Raw, [10.0, 20.0, 30.0]),
    ] {
        let received = mode.apply(&image).unwrap();
        for (e, r) in expected.iter().zip(received.f32().unwrap()) {
            assert!((e - r).abs() < 1e-4, "{mode:?}: {r} for {e}");
        }
    }
}
