//! Inputs and outputs in nested lists and dicts, optional inputs, and layers as activations, in files. Their numbers are
//! compared in `keras_models::`.

use crate::common::{Case, Fixture};
use phalanx::data::Arrays;
use phalanx::prelude::*;
use std::path::{Path, PathBuf};

fn file(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models");
    root.join(format!("{name}.keras"))
}

fn inputs(case: &Case<'_>) -> Arrays {
    let inputs: Vec<Tensor> = case.list("input").into_iter().cloned().collect();
    Arrays::new(inputs, ()).unwrap()
}

#[test]
fn nested_inputs_have_keras_order_and_paths() {
    let paths = |name: &str| load_model(file(name)).unwrap().input_paths().unwrap().join(" ");
    let names = |name: &str| load_model(file(name)).unwrap().input_names().join(" ");
    assert_eq!(paths("inputs_list_in_dict"), "p/0 p/1 q");
    assert_eq!(names("inputs_list_in_dict"), "a b c");
    assert_eq!(paths("inputs_dict_in_dict"), "k z/m z/n");
    assert_eq!(names("inputs_dict_in_dict"), "c b a");
    assert_eq!(paths("inputs_dict_in_list"), "0/r 0/s 1");
    assert_eq!(names("inputs_dict_in_list"), "b a c");
    assert_eq!(paths("inputs_lists_in_list"), "0/0 1/0 1/1");
    assert_eq!(paths("inputs_of_a_nested_model"), "left right/0 right/1");
    assert_eq!(load_model(file("optional_input")).unwrap().input_paths(), None);
}

#[test]
fn structures_options_and_activations_survive_files() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::load("more_models");
    let starts = ["inputs_", "outputs_in_", "optional_input", "layers_as_"];
    let cases = fixture.cases().filter(|case| starts.iter().any(|s| case.name.starts_with(s)));
    let mut count = 0;
    for case in cases {
        let model = load_model(file(case.name)).unwrap();
        let expected = model.predict_all(inputs(&case)).unwrap();
        for name in ["again.keras", "again.h5"] {
            let path = directory.path().join(name);
            model.save(&path).unwrap();
            let again = load_model(&path).unwrap();
            assert_eq!(again.predict_all(inputs(&case)).unwrap(), expected, "{} {name}", case.name);
            assert_eq!(again.input_paths(), model.input_paths(), "{} {name}", case.name);
            assert_eq!(again.output_names(), model.output_names(), "{} {name}", case.name);
        }
        count += 1;
    }
    assert_eq!(count, 8);
    // Files keep that Keras accepts `None`.
    let path = directory.path().join("optional.keras");
    load_model(file("optional_input")).unwrap().save(&path).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let has = |text: &str| bytes.windows(text.len()).any(|window| window == text.as_bytes());
    assert!(has(r#""optional":true"#));
}

#[test]
fn h5_files_of_calls_of_ops_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = Fixture::load("metric_names");
    let case = fixture.cases().find(|case| case.name == "masked_binary").unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
    let model = load_model(root.join(format!("metric_names_{}.keras", case.name))).unwrap();
    let path = directory.path().join("model.h5");
    let error = model.save(&path).unwrap_err().to_string();
    let expected =
        "expected layers only in an .h5 file (a .keras file stores calls of keras.ops), received '";
    assert!(error.contains(expected) && error.contains("NotEqual"), "{error}");
    assert!(!path.exists());
    model.save_weights(&path).unwrap();
}

#[test]
fn a_function_of_ops_is_no_activation_of_a_file() {
    // Keras writes it as a function without its module, and cannot read it either.
    let function = serde_json::json!({
        "module": "builtins", "class_name": "function", "config": "sin", "registered_name": "function",
    });
    let config = serde_json::json!({ "units": 2, "activation": function });
    let config = config.as_object().unwrap().clone();
    let error = phalanx::layers::from_config("Dense", config).unwrap_err().to_string();
    assert!(error.contains("sin"), "{error}");
}
