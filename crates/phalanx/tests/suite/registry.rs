//! The tables of layers, losses, metrics and optimizers, against the classes in Keras' fixtures.

use crate::common::Fixture;
use phalanx::{layers, losses, metrics, optimizers};
use serde_json::{Map, Value};

type Config = Map<String, Value>;

/// A family of classes.
struct Family {
    /// The names in its table.
    classes: Vec<&'static str>,
    /// The fixtures of its classes.
    fixtures: &'static [&'static str],
    /// Reads a config; returns the object's class name and the config that it writes.
    rewrite: fn(&str, &Config) -> (&'static str, Config),
}

fn families() -> [Family; 4] {
    [
        Family {
            classes: layers::class_names(),
            fixtures: &["layers", "more_layers", "image_layers", "augmentation", "preprocessing"],
            rewrite: |class, config| {
                let layer = layers::from_config(class, config.clone()).unwrap();
                (layer.class_name(), layer.config())
            },
        },
        Family {
            classes: losses::class_names(),
            fixtures: &["losses", "ctc"],
            rewrite: |class, config| {
                let loss = losses::from_config(class, config).unwrap();
                (loss.class_name(), loss.config())
            },
        },
        Family {
            classes: metrics::class_names(),
            // The means of losses are covered by the cases of the losses.
            fixtures: &["metrics", "losses"],
            rewrite: |class, config| {
                // Only the loss of that name has this option.
                let mut config = config.clone();
                config.remove("ignore_class");
                let metric = metrics::from_config(class, &config).unwrap();
                (metric.class_name(), metric.config())
            },
        },
        Family {
            classes: optimizers::class_names(),
            fixtures: &["optimizers", "loss_scale", "whole_weights"],
            rewrite: |class, config| {
                let optimizer = optimizers::from_config(class, config).unwrap();
                (optimizer.class_name(), optimizer.config())
            },
        },
    ]
}

/// Layers that take several arguments. `keras_models` loads their files, trains them and compares with Keras.
const IN_MODELS: [(&str, &str); 8] = [
    ("GRUCell", "gru_cells_as_layers.keras"),
    ("LSTMCell", "lstm_cell_as_layer.keras"),
    ("SimpleRNNCell", "simple_rnn_cell_as_layer.keras"),
    ("StackedRNNCells", "stacked_cells_as_layer.keras"),
    ("MultiHeadAttention", "multi_head_attention.keras"),
    ("GroupQueryAttention", "grouped_query_attention.keras"),
    ("TFDConcat", "../text/feature_space.keras"),
    ("TFDIdentity", "../text/feature_space.keras"),
];

#[test]
fn every_class_has_keras_name_and_its_config_round_trips() {
    let models =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models");
    let texts = crate::text::fixture();
    for family in families() {
        let fixtures: Vec<Fixture> = family.fixtures.iter().copied().map(Fixture::load).collect();
        for class in family.classes {
            let cases = fixtures.iter().flat_map(Fixture::cases);
            let cases: Vec<_> = cases.filter(|case| case.class_name() == class).collect();
            let in_models =
                IN_MODELS.iter().any(|(name, file)| *name == class && models.join(file).exists());
            // `text` compares their numbers and configs with Keras.
            let in_text = texts["layers"].as_array().unwrap().iter().any(|c| c["class"] == class);
            assert!(
                !cases.is_empty() || in_models || in_text,
                "{class} has no case in tests/fixtures"
            );
            for case in cases {
                let (name, config) = (family.rewrite)(class, case.config());
                assert_eq!(name, class, "{}", case.name);
                assert_eq!((family.rewrite)(class, &config), (name, config), "{}", case.name);
            }
        }
    }
}

#[test]
fn every_name_is_listed_once() {
    for family in families() {
        let mut names = family.classes.clone();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), family.classes.len(), "{:?}", family.classes);
    }
    assert!(layers::class_names().is_sorted());
}
