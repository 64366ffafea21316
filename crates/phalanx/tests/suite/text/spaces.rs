//! `FeatureSpace` against Keras: its encodings and its files.

use super::{differs, file, fixture, samples};
use phalanx::data::{Arrays, Samples};
use phalanx::feature_space::{Feature, FeatureOutput, FeatureSpace, FeatureSpaceOutput};
use phalanx::prelude::*;
use phalanx_graph::Data;
use serde_json::Value;
use std::io::{Read, Write};

/// The columns of the fixture's table.
pub fn table() -> Vec<(String, Samples)> {
    let fixture = fixture();
    let cases = fixture["models"].as_array().unwrap();
    let case = cases.iter().find(|case| case["name"] == "feature_space").unwrap();
    let inputs = case["inputs"].as_object().unwrap();
    inputs.iter().map(|(name, value)| (name.clone(), samples(value))).collect()
}

/// The space of `tests/python/text.py`.
pub fn space() -> FeatureSpace {
    FeatureSpace::new()
        .feature("age", Feature::integer_categorical())
        .feature("weight", Feature::float_normalized())
        .feature("height", Feature::float_rescaled(0.01, -1.0))
        .feature("income", Feature::float_discretized(5))
        .feature("city", Feature::string_categorical())
        .feature("job", Feature::string_hashed(6))
        .feature("zip", Feature::integer_hashed(5))
        .feature("score", Feature::float())
        .cross_with(["city", "income"], 7, FeatureOutput::OneHot)
        .cross_with(["age", "city"], 8, FeatureOutput::OneHot)
}

#[test]
fn a_feature_space_encodes_a_table_as_keras() {
    let (table, fixture) = (table(), fixture());
    let cases = fixture["models"].as_array().unwrap();
    let case = cases.iter().find(|case| case["name"] == "feature_space").unwrap();
    let space = space().adapt(table.clone()).unwrap();
    let model = space.model().unwrap();
    let column = |name: &String| {
        table.iter().find(|(known, _)| known == name).map(|(_, column)| column.clone()).unwrap()
    };
    let columns: Vec<Samples> = model.input_names().iter().map(column).collect();
    let encoded = model.predict(Arrays::new(columns.clone(), ()).unwrap()).unwrap();
    let wrong = differs(&encoded.into(), &samples(&case["encoded"]), 1e-5);
    assert!(wrong.is_none(), "{}", wrong.unwrap_or_default());
    // A file of the model gives the same.
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("features.keras");
    model.save(&path).unwrap();
    let data = Arrays::new(columns, ()).unwrap();
    let again = load_model(&path).unwrap();
    assert_eq!(again.predict(&data).unwrap(), model.predict(&data).unwrap());
}

#[test]
fn features_may_stay_separate() {
    let space = FeatureSpace::new()
        .feature("city", Feature::string_categorical().output_mode(FeatureOutput::Int))
        .feature("age", Feature::integer_categorical())
        .cross(["city", "age"]);
    let refused = space.clone().adapt(table()).err().unwrap().to_string();
    assert!(refused.contains("city: expected one-hot categories"), "{refused}");
    let space = space.output_mode(FeatureSpaceOutput::Dict).adapt(table()).unwrap();
    let names: Vec<&str> = space.encoded_features().iter().map(|(n, _)| n.as_str()).collect();
    assert_eq!(names, ["age", "city", "city_X_age"]);
    let shapes = space.model().unwrap().output_shapes();
    assert!(shapes[1] == [1] && shapes[2] == [32], "{shapes:?}");
    let missing = FeatureSpace::new().feature("x", Feature::float()).adapt(table()).err().unwrap();
    assert!(missing.to_string().contains("x: expected a column"), "{missing}");
    let wrong = FeatureSpace::new().feature("city", Feature::float()).adapt(table()).err().unwrap();
    assert!(wrong.to_string().contains("city: expected numbers, received strings"), "{wrong}");
    assert!(FeatureSpace::new().feature("x", Feature::float()).model().is_err());
}

/// The encoded features of a case of the fixture, by a model of its space.
fn check_space(case: &Value, model: &Model) {
    let inputs = case["inputs"].as_object().unwrap();
    let columns: Vec<Samples> = model.input_names().iter().map(|n| samples(&inputs[n])).collect();
    let outputs = model.predict_all(Arrays::new(columns, ()).unwrap()).unwrap();
    let encoded = case["encoded"].as_object().unwrap();
    assert_eq!(outputs.len(), encoded.len());
    // Features before crosses, each in the order of the alphabet.
    let (crosses, features): (Vec<_>, Vec<_>) =
        encoded.iter().partition(|(n, _)| n.contains("_X_"));
    for (output, (name, expected)) in outputs.into_iter().zip(features.into_iter().chain(crosses)) {
        // A model returns floats.
        let expected = samples(expected).to_tensor();
        let floats: Vec<f32> = match expected.data() {
            Data::F32(values) => values.clone(),
            Data::I32(values) => values.iter().map(|v| *v as f32).collect(),
        };
        let expected = Tensor::new(expected.dims(), floats).unwrap();
        let wrong = differs(&output.into(), &expected.into(), 1e-5);
        assert!(wrong.is_none(), "{} {name}: {}", case["name"], wrong.unwrap_or_default());
    }
}

#[test]
fn files_of_feature_spaces_load_and_are_written_again() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = fixture();
    let cases = fixture["spaces"].as_array().unwrap();
    assert_eq!(cases.len(), 2);
    for case in cases {
        let name = case["name"].as_str().unwrap();
        let space = FeatureSpace::load(file(name)).unwrap();
        check_space(case, &space.model().unwrap());
        check_space(case, &load_model(file(name)).unwrap());
        let path = directory.path().join(format!("{name}.keras"));
        space.save(&path).unwrap();
        check_space(case, &FeatureSpace::load(&path).unwrap().model().unwrap());
        // The model of a space in other formats.
        for extension in ["keras", "h5", "safetensors"] {
            let path = directory.path().join(format!("{name}_model.{extension}"));
            phalanx::saving::convert(file(name), &path).unwrap();
            check_space(case, &load_model(&path).unwrap());
        }
    }
    // A model may use the features of a file.
    let space = FeatureSpace::load(file("space_concat")).unwrap();
    let y = Dense::new(2).apply(&space.encoded_features()[0].1);
    let model = Model::new(space.inputs(), &y).unwrap();
    assert_eq!(model.output_shapes(), [[2]]);
}

#[test]
fn damaged_files_of_feature_spaces_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("space.keras");
    let read = |name: &str, replace: &dyn Fn(&str, String) -> String| {
        let bytes = std::fs::read(file(name)).unwrap();
        let mut zip = zip::ZipArchive::new(std::io::Cursor::new(bytes)).unwrap();
        let mut out = zip::ZipWriter::new(std::fs::File::create(&path).unwrap());
        for i in 0..zip.len() {
            let mut entry = zip.by_index(i).unwrap();
            let mut bytes = vec![];
            entry.read_to_end(&mut bytes).unwrap();
            let entry_name = entry.name().to_string();
            if entry_name == "config.json" {
                bytes = replace(&entry_name, String::from_utf8(bytes).unwrap()).into_bytes();
            }
            out.start_file(entry_name, zip::write::SimpleFileOptions::default()).unwrap();
            out.write_all(&bytes).unwrap();
        }
        out.finish().unwrap();
        let refused = FeatureSpace::load(&path).err().map(|e| e.to_string());
        assert_eq!(refused.is_some(), load_model(&path).is_err(), "{refused:?}");
        refused.unwrap_or_default()
    };
    let changes = [
        (
            "\"output_mode\": \"concat\"",
            "\"output_mode\": \"list\"",
            "output_mode: expected concat or dict",
        ),
        ("\"crosses\": [", "\"crosses\": [7, ", "cross: config: expected an object"),
        ("\"Cross\"", "\"Crossing\"", "cross: class: expected a class of Keras"),
        ("\"crossing_dim\": 7", "\"crossing_dim\": 0", "num_bins: expected 1 to"),
        ("[\"city\", \"income\"]", "[\"city\", \"x\"]", "features of the space, received x"),
        (
            "\"dtype\": \"string\", \"preproc",
            "\"dtype\": \"list\", \"preproc",
            "dtype: expected string",
        ),
        ("\"Normalization\"", "\"BatchNormalization\"", "weight_preprocessor"),
        ("\"num_bins\": 6", "\"num_bins\": -6", "num_bins"),
        ("\"hashing_dim\"", "\"path\"", "expected one of features"),
    ];
    assert_eq!(read("space_concat", &|_, text| text), "");
    for (from, to, part) in changes {
        let change = |_: &str, text: String| {
            assert!(text.contains(from), "{from} in {text}");
            text.replacen(from, to, 1)
        };
        let error = read("space_concat", &change);
        assert!(error.contains(part), "{to}: {error}");
    }
    let model = FeatureSpace::load(file("text_cnn")).err().unwrap().to_string();
    assert!(model.contains("expected a FeatureSpace (load_model loads models)"), "{model}");
    let other = space().adapt(table()).unwrap().save(directory.path().join("space.h5"));
    assert!(other.unwrap_err().to_string().contains("expected a .keras file"));
}
