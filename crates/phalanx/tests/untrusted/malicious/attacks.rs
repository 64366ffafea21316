//! Published attacks on Keras, by the numbers of the reports.

use super::Case;
use super::build::{chain, dense, input, layer, sequential, weights, with_config, zip_of};
use super::hdf5::fixture;
use serde_json::{Value, json};

/// Compiled code, as Python writes it.
const CODE: &str = "4wEAAAAAAAAAAAAAAAEAAAACAAAAQw==";

pub fn cases() -> Vec<Case> {
    let mut all: Vec<Case> = configs()
        .into_iter()
        .map(|(name, config, cause)| {
            let bytes = with_config(config.to_string().as_bytes());
            Case::new(name, "bad.keras", bytes, cause)
        })
        .collect();
    let config = chain(dense()).to_string().into_bytes();
    let archive = |weights: &[u8], asset: &str| {
        let weights = ("model.weights.h5", weights);
        zip_of(&[("config.json", &config), weights, (asset, b"x")])
    };
    for (name, bytes, cause) in [
        ("2025-12638 ways up", archive(&weights(), "assets/../../escaped"), "assets/../../escaped"),
        ("2026-0897 a shape", archive(&fixture("huge_shape.weights.h5"), "a"), "1099511627776"),
        ("2026-0897 a slot", archive(&fixture("huge_slot.weights.h5"), "a"), "bytes of data"),
        ("a link out", archive(&fixture("external_link.weights.h5"), "a"), "a link to elsewhere"),
        ("another's data", archive(&fixture("external_data.weights.h5"), "a"), "never written"),
    ] {
        all.push(Case::new(name, "bad.keras", bytes, cause));
    }
    for (name, file, cause) in [
        ("2025-9905 code in .h5", "legacy_lambda.h5", "'Lambda'"),
        ("a path for a layer of .h5", "legacy_path.h5", "../../etc/passwd"),
        ("a layer of .h5 twice", "legacy_twice.h5", "'dense' twice"),
        ("a slot of .h5 many times", "legacy_slots.h5", "'a' twice"),
    ] {
        all.push(Case::new(name, "bad.h5", fixture(file), cause));
    }
    all
}

/// A function of a module, as Keras serializes it.
fn function(module: &str, name: &str) -> Value {
    json!({ "module": module, "class_name": "function", "config": name, "registered_name": name })
}

fn configs() -> Vec<(&'static str, Value, &'static str)> {
    let code = json!({ "class_name": "__lambda__", "config": { "code": CODE, "defaults": null } });
    let lambda = || layer("Lambda", json!({ "name": "dense", "function": code }));
    let object = |module: &str, class: &str| {
        json!({ "module": module, "class_name": class, "registered_name": null,
            "config": { "name": "dense", "args": ["touch", "escaped"] } })
    };
    let option = |key: &str, value: Value| {
        let mut dense = dense();
        dense["config"][key] = value;
        chain(dense)
    };
    let compiled = |key: &str, value: Value| {
        let mut config = chain(dense());
        config["compile_config"] = json!({ "optimizer": "adam", "loss": "mse" });
        config["compile_config"][key] = value;
        config
    };
    let named = |class: &str, option: &str, value: &str| {
        let mut config = json!({ "name": "dense" });
        config[option] = json!(value);
        chain(layer(class, config))
    };
    let renamed = |name: &str| chain(layer("Dense", json!({ "name": name, "units": 3 })));
    let wrapped = layer("TimeDistributed", json!({ "name": "dense", "layer": lambda() }));
    let inner = sequential("inner", [input(), lambda()]);
    vec![
        ("2024-3660 code", chain(lambda()), "'Lambda'"),
        ("2024-3660 code further in", sequential("net", [input(), inner]), "'Lambda'"),
        ("2024-3660 code in a wrapper", chain(wrapped), "received 'Lambda'"),
        ("2024-3660 code for an activation", option("activation", code.clone()), "activation"),
        ("2025-1550 a module", chain(object("subprocess", "Popen")), "subprocess"),
        ("2025-1550 a model", object("subprocess", "Popen"), "subprocess"),
        ("2025-1550 Keras alike", chain(object("keras_evil.layers", "Dense")), "keras_evil"),
        ("2025-1550 activation", option("activation", function("os", "system")), "activation"),
        ("2025-1550 initializer", option("kernel_initializer", object("os", "system")), "kernel"),
        ("2025-1550 loss", compiled("loss", function("os", "system")), "module"),
        ("2025-1550 a known loss", compiled("loss", function("os", "mse")), "module"),
        ("2025-1550 metric", compiled("metrics", json!([function("os", "system")])), "module"),
        ("2025-1550 optimizer", compiled("optimizer", object("os", "Adam")), "module"),
        ("2025-8747 get_file", chain(function("keras.utils", "get_file")), "get_file"),
        ("2025-8747 a class", chain(object("keras.utils", "get_file")), "'get_file'"),
        (
            "2025-9906 safe mode off",
            chain(object("keras.config", "enable_unsafe_deserialization")),
            "'enable_unsafe_deserialization'",
        ),
        (
            "2025-12058 file",
            named("StringLookup", "vocabulary", "/etc/passwd"),
            "a path to a file is refused",
        ),
        (
            "2025-12058 address",
            named("TextVectorization", "vocabulary", "http://169.254.169.254/"),
            "a path to a file is refused",
        ),
        ("2025-49655 pickles", named("TorchModuleWrapper", "module", CODE), "'TorchModuleWrapper'"),
        ("a saved graph", named("TFSMLayer", "filepath", "/tmp/evil"), "'TFSMLayer'"),
        (
            "a class of one's own",
            {
                let mut mine = dense();
                mine["registered_name"] = json!("mine>Dense");
                chain(mine)
            },
            "not registered",
        ),
        ("an unknown option", option("on_load", json!("run")), "on_load"),
        ("a way up for a name", renamed("../../../etc/passwd"), "name"),
        ("a root for a name", renamed("/etc/passwd"), "name"),
        ("a line for a name", renamed("a\nb"), "name"),
    ]
}
