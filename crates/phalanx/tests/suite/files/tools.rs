//! Converting, describing and comparing files.

use super::{TempDir, chain, graph};
use phalanx::prelude::*;
use phalanx::saving::{convert, describe, diff};

#[test]
fn conversion_through_every_format_preserves_a_model() {
    let dir = TempDir::new();
    chain().save(dir.at("a.keras")).unwrap();
    for (from, to) in [("a.keras", "b.h5"), ("b.h5", "c.safetensors"), ("c.safetensors", "d.keras")]
    {
        convert(dir.at(from), dir.at(to)).unwrap();
        let found = diff(dir.at(from), dir.at(to)).unwrap();
        // Legacy files use long loss names.
        let only = ["config/compile_config/loss"];
        assert!(found.iter().all(|d| only.contains(&d.location.as_str())), "{found:?}");
    }
    convert(dir.at("a.keras"), dir.at("e.weights.h5")).unwrap();
    let mut model = chain();
    model.load_weights(dir.at("e.weights.h5")).unwrap();
    assert_eq!(model.get_weights().unwrap(), chain().get_weights().unwrap());
    let error = convert(dir.at("e.weights.h5"), dir.at("f.keras")).unwrap_err().to_string();
    assert!(error.contains("e.weights.h5: expected a file with a model's structure"), "{error}");
}

#[test]
fn a_description_lists_layers_arrays_and_compile_arguments() {
    let dir = TempDir::new();
    let mut model = graph();
    model.compile(Compile::new("adam").loss("mse").loss("mae")).unwrap();
    model.save(dir.at("model.keras")).unwrap();
    let text = describe(dir.at("model.keras")).unwrap().to_string();
    for line in [
        "Keras 3 model (.keras)",
        "model: Functional 'graph'",
        "optimizer: Adam",
        "loss: mse, mae",
        "keras_version: 3.15.0",
        "  shared (Dense)",
        "  inner (Sequential)",
        "  inner/dense (Dense)",
        "  layers/sequential/layers/dense/vars/0 f32 [4, 4]",
        "  optimizer/vars/0 i32 []",
    ] {
        assert!(text.lines().any(|l| l == line), "'{line}' is missing:\n{text}");
    }
    model.save_weights(dir.at("model.weights.h5")).unwrap();
    let weights = describe(dir.at("model.weights.h5")).unwrap();
    assert_eq!((weights.format, weights.layers.len()), ("Keras 3 weights (.weights.h5)", 0));
}

#[test]
fn differences_are_named() {
    let dir = TempDir::new();
    let model = |units: usize, seed: u64| {
        let chain = Sequential::new().add(Input::new([4])).add(Dense::new(units)).build().unwrap();
        chain.initialize(seed).unwrap();
        chain
    };
    model(3, 1).save(dir.at("a.keras")).unwrap();
    model(5, 1).save(dir.at("b.keras")).unwrap();
    model(3, 2).save(dir.at("c.keras")).unwrap();
    let lines = |a: &str, b: &str| -> Vec<String> {
        let found = diff(dir.at(a), dir.at(b)).unwrap();
        found.iter().map(ToString::to_string).collect()
    };
    assert_eq!(lines("a.keras", "a.keras"), [] as [String; 0]);
    assert_eq!(
        lines("a.keras", "b.keras"),
        [
            "config/config/layers/dense/config/units: 3 | 5",
            "dense/bias: [3] | [5]",
            "dense/kernel: [4, 3] | [4, 5]"
        ]
    );
    let found = lines("a.keras", "c.keras");
    assert!(found.len() == 1 && found[0].starts_with("dense/kernel: 12 of 12 values differ"));
}
