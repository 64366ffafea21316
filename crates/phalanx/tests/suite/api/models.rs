//! Summaries, layers and programs of models.

use super::{classifier, compiled, one_thread};
use phalanx::prelude::*;

#[test]
fn the_summary_is_a_table() {
    let model = Sequential::new()
        .named("small_cnn")
        .add(Input::new([28, 28, 1]))
        .add(Conv2D::new(32, 3).activation("relu"))
        .add(BatchNormalization::new())
        .add(MaxPooling2D::new(2))
        .add(Flatten::new())
        .add(Dense::new(10).named("classes"))
        .build()
        .unwrap();
    let expected = "\
Model: \"small_cnn\"
┏━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━┳━━━━━━━━━━━━━━━━━━━━┳━━━━━━━━━┳━━━━━━━━━━━━━┓
┃ Layer (type)                             ┃ Output Shape       ┃ Param # ┃ Activations ┃
┡━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━╇━━━━━━━━━━━━━━━━━━━━╇━━━━━━━━━╇━━━━━━━━━━━━━┩
│ input_0 (InputLayer)                     │ (None, 28, 28, 1)  │       0 │    3.06 KiB │
│ conv2d (Conv2D)                          │ (None, 26, 26, 32) │     320 │   84.50 KiB │
│ batch_normalization (BatchNormalization) │ (None, 26, 26, 32) │     128 │   84.50 KiB │
│ max_pooling2d (MaxPooling2D)             │ (None, 13, 13, 32) │       0 │   21.12 KiB │
│ flatten (Flatten)                        │ (None, 5408)       │       0 │   21.12 KiB │
│ classes (Dense)                          │ (None, 10)         │  54,090 │        40 B │
└──────────────────────────────────────────┴────────────────────┴─────────┴─────────────┘
 Total params: 54,538 (213.04 KiB)
 Trainable params: 54,474 (212.79 KiB)
 Non-trainable params: 64 (256 B)
 Activations per sample: 214.35 KiB";
    assert_eq!(model.summary().to_string(), expected);
}

#[test]
fn a_branched_summary_says_what_is_connected_to_what() {
    let x = Input::new([4]).named("x").symbol();
    let a = Dense::new(4).apply(&x);
    let y = Add::new().apply([&a, &x]);
    let text = Model::new(&x, &y).unwrap().summary().to_string();
    assert!(text.contains("Connected to"), "{text}");
    let line = text.lines().find(|line| line.contains("add (Add)")).unwrap();
    assert!(line.contains("│ dense, x "), "{line}");
}

#[test]
fn layers_are_found_by_name() {
    let model = classifier();
    assert_eq!(model.layer("dense_1").unwrap().weights().len(), 2);
    let error = model.layer("dense_2").unwrap_err().to_string();
    assert_eq!(error, "unknown layer 'dense_2'; did you mean 'dense_1'? known: dense, dense_1");
    assert_eq!(model.output_names(), ["dense_1"]);
    assert_eq!(model.name(), "sequential");
}

#[test]
fn given_names_take_precedence_over_numbered_ones() {
    let x = Input::new([4]).symbol();
    let a = Dense::new(4).apply(&x);
    let b = Dense::new(4).named("dense").apply(&a);
    let c = Dense::new(4).apply(&b);
    let model = Model::new(&x, &c).unwrap();
    let names: Vec<String> = model.layers().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["dense_1", "dense", "dense_2"]);
}

#[test]
fn an_input_may_go_unused_and_an_output_may_be_an_input() {
    let (x, unused) = (Input::new([2]).symbol(), Input::new([3]).symbol());
    let doubled = Add::new().apply([&x, &x]);
    let model = Model::new([&x, &unused], [&doubled, &x]).unwrap();
    let data = vec![super::tensor(&[1, 2], vec![1.0f32, 2.0]), Tensor::zeros([1, 3])];
    let y =
        model.predict_with(Arrays::new(data, ()).unwrap(), Inference::new().batch_size(1)).unwrap();
    assert_eq!(y[0].f32().unwrap(), [2.0, 4.0]);
    assert_eq!(y[1].f32().unwrap(), [1.0, 2.0]);
}

#[test]
fn the_program_prints_the_same_each_time() {
    let program = |model: &Model, kind| model.program(kind, 32).unwrap().to_string();
    let kinds = [StepKind::Train, StepKind::Test, StepKind::Predict, StepKind::Gradients];
    let mut model = compiled(Adam::default());
    let first = kinds.map(|kind| program(&model, kind));
    model.fit(super::clouds(9), Fit::new().verbose(0)).unwrap();
    assert_eq!(first, kinds.map(|kind| program(&model, kind)), "training changes no program");
    let again = compiled(Adam::default());
    assert_eq!(first, kinds.map(|kind| program(&again, kind)), "nor does a second compile");
    assert!(first[0].contains("update Adam") && !first[1].contains("update"));
    let smaller = model.program(StepKind::Train, 4).unwrap();
    assert!(smaller.device_bytes() < model.program(StepKind::Train, 400).unwrap().device_bytes());
}

#[test]
fn a_model_says_where_it_runs() {
    let mut model = classifier();
    let strategy = MirroredStrategy::with_devices(["cpu:0", "cpu:1"]).unwrap();
    model.compile(Compile::new("sgd").loss("mse").strategy(strategy.threads(1))).unwrap();
    assert_eq!(model.devices().unwrap(), ["cpu:0", "cpu:1"]);
    model.compile(Compile::new("sgd").loss("mse").strategy(one_thread())).unwrap();
    assert_eq!(model.devices().unwrap(), ["cpu:0"]);
}

#[test]
fn a_chain_of_many_calls_is_taken_apart() {
    let mut x = Input::new([1]).symbol();
    for _ in 0..200_000 {
        x = ReLU::new().apply(&x);
    }
    drop(x);
}
