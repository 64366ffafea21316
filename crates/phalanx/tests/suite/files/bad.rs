//! Files that are damaged, inconsistent or malicious.

use super::{TempDir, chain, graph, unzip, zip_of};
use phalanx::prelude::*;
use phalanx::saving::describe;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Saves a model to a `.keras` file.
fn saved(dir: &TempDir, model: &Model) -> PathBuf {
    let path = dir.at("good.keras");
    model.save(&path).unwrap();
    path
}

/// The error for the file with a modified config.
fn with_config(dir: &TempDir, model: &Model, edit: impl FnOnce(&mut Value)) -> String {
    let members = unzip(&saved(dir, model));
    let mut config: Value = serde_json::from_slice(&members[1].1).unwrap();
    edit(&mut config);
    refused_config(dir, &members, config.to_string().as_bytes())
}

fn refused_config(dir: &TempDir, members: &[(String, Vec<u8>)], config: &[u8]) -> String {
    let path = dir.at("bad.keras");
    let zip = zip_of(&[("config.json", config), ("model.weights.h5", &members[2].1)], false);
    std::fs::write(&path, zip).unwrap();
    let error = load_model(&path).err().expect("a bad file is refused").to_string();
    assert!(error.contains("bad.keras"), "{error}");
    error
}

/// A loss as Keras saves it.
fn loss_object(class: &str) -> Value {
    let config = json!({ "name": "loss", "dtype": "float32", "reduction": "sum_over_batch_size" });
    json!({ "module": "keras.losses", "class_name": class, "config": config, "registered_name": null })
}

#[test]
fn unsupported_objects_are_rejected_by_name() {
    let dir = TempDir::new();
    let model = chain();
    let layer =
        |config: &mut Value, key: &str, value: Value| config["config"]["layers"][1][key] = value;
    let option = |config: &mut Value, key: &str, value: Value| {
        config["config"]["layers"][1]["config"][key] = value;
    };
    type Edit = Box<dyn Fn(&mut Value)>;
    let cases: Vec<(Edit, &str)> = vec![
        (Box::new(move |c| layer(c, "class_name", json!("Lambda"))), "received 'Lambda'"),
        (Box::new(move |c| layer(c, "module", json!("os"))), "of the module 'os'"),
        (
            Box::new(move |c| layer(c, "registered_name", json!("my>Dense"))),
            "register_layer::<Dense>(\"my>Dense\")",
        ),
        (Box::new(move |c| option(c, "units", json!("many"))), "layer 'dense' (Dense): units"),
        (Box::new(move |c| option(c, "units", json!(-3))), "units"),
        (Box::new(move |c| option(c, "units", json!(1u64 << 62))), "dense"),
        (Box::new(move |c| option(c, "unit", json!(3))), "unknown field `unit`"),
        (Box::new(move |c| option(c, "activation", json!("relu7"))), "relu7"),
        (
            Box::new(move |c| option(c, "dtype", json!("float64"))),
            "dtype: expected float32, mixed_bfloat16 or mixed_float16, received float64, whose weights are not 32-bit floats \
             (in Python, build the model with another policy, give it the weights with set_weights and save it)",
        ),
        (Box::new(move |c| option(c, "lora_rank", json!(4))), "unknown field `lora_rank`"),
        (Box::new(|c| c["class_name"] = json!("Transformer")), "unknown model 'Transformer'"),
        (Box::new(|c| c["config"]["layers"] = json!([])), "expected a list of layers"),
        (
            Box::new(|c| c["config"]["layers"][0]["config"]["batch_shape"] = json!([null, "x"])),
            "input shape",
        ),
        (
            Box::new(|c| c["config"]["layers"][0]["config"]["batch_shape"] = json!([0, 4])),
            "input shape",
        ),
        (Box::new(|c| c["config"]["layers"][0]["config"]["sparse"] = json!(true)), "sparse"),
        (Box::new(|c| c["compile_config"]["loss"] = json!("lost")), "unknown loss 'lost'"),
        (Box::new(|c| c["compile_config"]["metrics"] = json!(["speed"])), "unknown metric 'speed'"),
        (
            Box::new(|c| c["compile_config"]["metrics"] = json!([loss_object("MeanSquaredError")])),
            "metrics: expected a metric, such as keras.metrics.MeanSquaredError, received the loss MeanSquaredError",
        ),
        (
            Box::new(|c| c["compile_config"]["metrics"] = json!([loss_object("Dice")])),
            "such as a MeanMetricWrapper of its function, received the loss Dice",
        ),
        (Box::new(|c| c["compile_config"]["loss"] = json!(["mse", "mse"])), "one for each output"),
        (
            Box::new(|c| c["compile_config"]["optimizer"]["class_name"] = json!("Magic")),
            "unknown optimizer 'Magic'",
        ),
        (
            Box::new(|c| c["compile_config"]["optimizer"]["config"]["magic"] = json!(2.0)),
            "unknown option `magic`",
        ),
        (Box::new(|c| c["compile_config"]["optimizer"]["config"]["beta_1"] = json!(7)), "beta_1"),
        (Box::new(|c| *c = json!([])), "expected an object"),
        (Box::new(|c| *c = json!({})), "class_name"),
    ];
    for (edit, expected) in cases {
        let error = with_config(&dir, &model, edit);
        assert!(error.contains(expected), "'{expected}' is not in: {error}");
    }
}

#[test]
fn impossible_graphs_are_rejected() {
    let dir = TempDir::new();
    let model = graph();
    let history = |c: &mut Value, layer: &str, history: Value| {
        let layers = c["config"]["layers"].as_array_mut().unwrap();
        let layer = layers.iter_mut().find(|l| l["name"] == layer).unwrap();
        layer["inbound_nodes"][0]["args"][0]["config"]["keras_history"] = history;
    };
    type Edit = Box<dyn Fn(&mut Value)>;
    let cases: Vec<(Edit, &str)> = vec![
        (Box::new(move |c| history(c, "shared", json!(["shared", 1, 0]))), "waits for itself"),
        (Box::new(move |c| history(c, "shared", json!(["head", 0, 0]))), "waits for itself"),
        (Box::new(move |c| history(c, "shared", json!(["x", 9, 0]))), "waits for itself"),
        (Box::new(move |c| history(c, "head", json!(["nobody", 0, 0]))), "keras_history"),
        (
            Box::new(move |c| history(c, "head", json!(["add", 0, 3]))),
            "one of its 1 outputs, received 3",
        ),
        (Box::new(move |c| history(c, "head", json!([1, 2]))), "keras_history"),
        (Box::new(|c| c["config"]["output_layers"] = json!([["head", 7, 0]])), "call 7"),
        (Box::new(|c| c["config"]["output_layers"] = json!([])), "at least one each"),
        (Box::new(|c| c["config"]["input_layers"] = json!("x")), "input_layers"),
        (Box::new(|c| c["config"]["input_layers"] = json!(["head", 0, 0])), "symbols of Input"),
        (
            Box::new(|c| {
                let l = c["config"]["layers"][1].clone();
                c["config"]["layers"][2] = l;
            }),
            "each once",
        ),
    ];
    for (edit, expected) in cases {
        let error = with_config(&dir, &model, edit);
        assert!(error.contains(expected), "'{expected}' is not in: {error}");
    }
}

#[test]
fn invalid_configs_are_rejected() {
    let dir = TempDir::new();
    let members = unzip(&saved(&dir, &chain()));
    let deep = [b"[".repeat(100_000), b"]".repeat(100_000)].concat();
    let nested = {
        let mut text = "{\"class_name\":\"Sequential\",\"config\":{\"layers\":[".repeat(2000);
        text += "0";
        text + &"]}}".repeat(2000)
    };
    let bom = [b"\xef\xbb\xbf", &members[1].1[..]].concat();
    let cut = &members[1].1[..members[1].1.len() / 2];
    for config in [
        &b""[..],
        b"null",
        b"1e400",
        b"{\"class_name\": 1e400}",
        b"\xff\xfe",
        &deep,
        nested.as_bytes(),
        &bom,
        cut,
    ] {
        refused_config(&dir, &members, config);
    }
    let layer =
        |i: usize| json!({ "class_name": "ReLU", "config": { "name": format!("relu_{i}") } });
    let mut layers = vec![json!({ "class_name": "InputLayer",
        "config": { "name": "x", "batch_shape": [null, 1] } })];
    layers.extend((0..100_000).map(layer));
    let many =
        json!({ "class_name": "Sequential", "config": { "name": "many", "layers": layers } });
    let error = refused_config(&dir, &members, many.to_string().as_bytes());
    assert!(error.contains("more than 20000"), "{error}");
}

#[test]
fn inconsistent_archives_are_rejected() {
    let dir = TempDir::new();
    let path = saved(&dir, &chain());
    let members = unzip(&path);
    let (config, weights) = (&members[1].1[..], &members[2].1[..]);
    let zeros = vec![0; 40_000_000];
    let both = zip_of(&[("config.json", config), ("model.weights.h5", weights)], false);
    let mut broken_sum = both.clone();
    let at = both.windows(4).position(|w| w == b"\x89HDF").unwrap();
    broken_sum[at + 300] ^= 1;
    // Gives the second entry the name of the first.
    let mut twice = zip_of(
        &[("config.json", config), ("konfig.json", config), ("model.weights.h5", weights)],
        false,
    );
    while let Some(at) = twice.windows(11).position(|w| w == b"konfig.json") {
        twice[at] = b'c';
    }
    for (bytes, expected) in [
        (vec![], "a broken archive"),
        (b"PK\x05\x06".to_vec(), "a broken archive"),
        (both[..both.len() / 2].to_vec(), "a broken archive"),
        (zip_of(&[("model.weights.h5", weights)], false), "without config.json"),
        (zip_of(&[("config.json", config)], false), "without model.weights.h5"),
        (
            zip_of(&[("../config.json", config), ("/model.weights.h5", weights)], false),
            "'../config.json'",
        ),
        (zip_of(&[("config.json", config), ("model.weights.h5", &zeros)], true), "packed into"),
        (zip_of(&[("config.json", config), ("model.weights.h5", b"nothing")], false), "HDF5"),
        (broken_sum, "model.weights.h5"),
        (twice, "a name twice"),
    ] {
        let path = dir.at("bad.keras");
        std::fs::write(&path, bytes).unwrap();
        let error = load_model(&path).err().expect(expected).to_string();
        assert!(error.contains("bad.keras") && error.contains(expected), "{expected}: {error}");
        assert!(describe(&path).is_err());
    }
    let error = load_model(dir.0.path().join("directory.keras")).err().unwrap().to_string();
    assert!(error.contains("No such file"), "{error}");
    std::fs::create_dir(dir.at("directory.keras")).unwrap();
    let error = load_model(dir.at("directory.keras")).err().unwrap().to_string();
    assert!(error.contains("received a directory"), "{error}");
    assert!(load_model(dir.at("directory.h5")).is_err());
}

/// Modified bytes give an error or a model, never a panic.
#[test]
fn changed_bytes_never_panic() {
    let dir = TempDir::new();
    let model = chain();
    for name in ["m.keras", "m.h5"] {
        let path = dir.at(name);
        model.save(&path).unwrap();
        let good = std::fs::read(&path).unwrap();
        let step = (good.len() / 300).max(1);
        for at in (0..good.len()).step_by(step) {
            let mut bytes = good.clone();
            bytes[at] ^= 0xff;
            std::fs::write(&path, &bytes).unwrap();
            let _ = Load::new().compile(false).model(&path);
            let _ = describe(&path);
            std::fs::write(&path, &good[..at]).unwrap();
            assert!(load_model(&path).is_err());
        }
    }
}

#[test]
fn names_that_could_escape_their_path_are_rejected() {
    let dir = TempDir::new();
    for name in ["../../etc", "a/b", "", "a\u{0}b"] {
        let error = with_config(&dir, &chain(), |config| {
            config["config"]["layers"][1]["config"]["name"] = json!(name);
        });
        assert!(error.contains("letters without '/'"), "{error}");
    }
    let model = Sequential::new().add(Input::new([4])).add(Dense::new(2).named("a/b")).build();
    let error = model.unwrap().save(dir.at("named.keras")).unwrap_err().to_string();
    assert!(error.contains("layer names: expected letters without '/'"), "{error}");
    assert!(!dir.at("named.keras").exists());
}
