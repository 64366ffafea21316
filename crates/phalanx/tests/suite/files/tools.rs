//! Converting, describing and comparing files.

use super::{Place, chain, graph};
use phalanx::prelude::*;
use phalanx::saving::{convert, describe, diff};

#[test]
fn a_model_goes_through_every_format_and_does_not_change() {
    let place = Place::new();
    chain().save(place.at("a.keras")).unwrap();
    for (from, to) in [("a.keras", "b.h5"), ("b.h5", "c.safetensors"), ("c.safetensors", "d.keras")]
    {
        convert(place.at(from), place.at(to)).unwrap();
        let found = diff(place.at(from), place.at(to)).unwrap();
        // Legacy files spell losses out.
        let only = ["config/compile_config/loss"];
        assert!(found.iter().all(|d| only.contains(&d.location.as_str())), "{found:?}");
    }
    convert(place.at("a.keras"), place.at("e.weights.h5")).unwrap();
    let mut model = chain();
    model.load_weights(place.at("e.weights.h5")).unwrap();
    assert_eq!(model.get_weights().unwrap(), chain().get_weights().unwrap());
    let error = convert(place.at("e.weights.h5"), place.at("f.keras")).unwrap_err().to_string();
    assert!(error.contains("e.weights.h5: expected a file with a model's structure"), "{error}");
}

#[test]
fn a_description_lists_layers_arrays_and_what_the_model_was_compiled_with() {
    let place = Place::new();
    let mut model = graph();
    model.compile(Compile::new("adam").loss("mse").loss("mae")).unwrap();
    model.save(place.at("model.keras")).unwrap();
    let text = describe(place.at("model.keras")).unwrap().to_string();
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
    model.save_weights(place.at("model.weights.h5")).unwrap();
    let weights = describe(place.at("model.weights.h5")).unwrap();
    assert_eq!((weights.format, weights.layers.len()), ("Keras 3 weights (.weights.h5)", 0));
}

#[test]
fn differences_are_named() {
    let place = Place::new();
    let model = |units: usize, seed: u64| {
        let chain = Sequential::new().add(Input::new([4])).add(Dense::new(units)).build().unwrap();
        chain.initialize(seed).unwrap();
        chain
    };
    model(3, 1).save(place.at("a.keras")).unwrap();
    model(5, 1).save(place.at("b.keras")).unwrap();
    model(3, 2).save(place.at("c.keras")).unwrap();
    let lines = |a: &str, b: &str| -> Vec<String> {
        let found = diff(place.at(a), place.at(b)).unwrap();
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
