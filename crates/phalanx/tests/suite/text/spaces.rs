//! `FeatureSpace` against Keras.

use super::{differs, fixture, samples};
use phalanx::data::{Arrays, Samples};
use phalanx::feature_space::{Feature, FeatureOutput, FeatureSpace, FeatureSpaceOutput};
use phalanx::prelude::*;

/// The columns of the fixture's table.
fn table() -> Vec<(String, Samples)> {
    let fixture = fixture();
    let cases = fixture["models"].as_array().unwrap();
    let case = cases.iter().find(|case| case["name"] == "feature_space").unwrap();
    let inputs = case["inputs"].as_object().unwrap();
    inputs.iter().map(|(name, value)| (name.clone(), samples(value))).collect()
}

/// The space of `tests/python/text.py`.
fn space() -> FeatureSpace {
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
    let encoded = model.predict(&Arrays::new(columns.clone(), ()).unwrap()).unwrap();
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
