//! Runs every example, on fewer data where it takes them, and looks at what comes out.
#![allow(dead_code)] // the examples' `main`

use phalanx::Result;
use phalanx::datasets::glyphs::{self, Glyphs};
use phalanx::prelude::*;

#[path = "../examples/08_augment.rs"]
mod augment;
#[path = "../examples/07_program.rs"]
mod compiled_program;
#[path = "../examples/04_functional.rs"]
mod functional;
#[path = "../examples/01_hello.rs"]
mod hello;
#[path = "../examples/05_transfer.rs"]
mod transfer;
#[path = "../examples/03_cnn.rs"]
mod tutorial_cnn;
#[path = "../examples/06_two_replicas.rs"]
mod two_replicas;

fn digits(train: usize) -> Result<datasets::Split> {
    glyphs::load(Glyphs { train, test: 500, seed: 1 })
}

#[test]
fn hello_learns_the_digits() {
    let accuracy = hello::run().unwrap();
    assert!(accuracy > 0.9, "{accuracy}");
}

#[test]
fn the_perceptron_generalises_and_its_history_is_complete() {
    let strategy = MirroredStrategy::new();
    let (history, test) = two_replicas::mlp::run(digits(3000).unwrap(), strategy).unwrap();
    assert_eq!(history.epochs, [0, 1]);
    let names: Vec<&str> = history.names().collect();
    let accuracy = "sparse_categorical_accuracy";
    assert_eq!(
        names,
        ["loss", "lr", accuracy, "val_loss", "val_sparse_categorical_accuracy"],
        "as Keras names them"
    );
    assert!(test.get(accuracy).unwrap() > 0.88, "{test}");
    assert!(history.last("val_loss").unwrap() < history.get("val_loss").unwrap()[0]);
}

#[test]
fn the_tutorial_network_follows_its_learning_rate() {
    let (history, eval) = tutorial_cnn::run(digits(1500).unwrap(), 4).unwrap();
    assert_eq!(history.get("lr").unwrap(), [1e-3, 1e-3, 1e-3, 1e-4]);
    assert!(eval.get("accuracy").unwrap() > 0.8, "{eval}");
}

#[test]
fn the_graph_learns_both_tasks() {
    let (model, logs) = functional::run().unwrap();
    let names: Vec<&str> = logs.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["loss", "digit_loss", "total_loss", "digit_accuracy", "total_mae"]);
    assert!(logs.get("digit_accuracy").unwrap() > 0.85, "{logs}");
    assert!(logs.get("total_mae").unwrap() < 3.0, "{logs}");
    let parts = logs.get("digit_loss").unwrap() + 0.1 * logs.get("total_loss").unwrap();
    assert!((logs.get("loss").unwrap() - parts).abs() < 1e-6, "{logs}");
    // The shared encoder is there once.
    assert_eq!(model.layers().iter().filter(|(name, _)| name.starts_with("encoder")).count(), 1);
}

#[test]
fn the_new_head_learns_on_a_base_that_stays() {
    let (base, model, logs) = transfer::run().unwrap();
    assert!(logs.get("accuracy").unwrap() > 0.93, "{logs}");
    let summary = model.summary();
    assert_eq!(summary.non_trainable, base.count_params());
    // Trained before, and untouched since: the batch norm's statistics are no longer 0 and 1.
    let base = base.weights().unwrap();
    let statistics = &base.iter().find(|(name, _)| name.ends_with("moving_mean")).unwrap().1;
    assert!(statistics.f32().unwrap().iter().any(|mean| mean.abs() > 1e-3));
    assert_eq!(base[..], model.weights().unwrap()[..base.len()]);
}

#[test]
fn two_replicas_give_the_losses_of_one() {
    let losses = two_replicas::run(digits(1000).unwrap()).unwrap();
    assert_eq!(losses.len(), 4);
    for (one, two) in losses {
        assert!((one - two).abs() < 1e-4 * one, "{one} {two}");
    }
}

#[test]
fn distorted_images_teach_what_still_ones_do_not() {
    let (plain, augmented) = augment::run(digits(1500).unwrap()).unwrap();
    assert!(augmented < plain, "{augmented} {plain}");
}

#[test]
fn the_program_prints_forward_backward_and_update() {
    let (summary, program) = compiled_program::run().unwrap();
    assert!(summary.contains("conv2d (Conv2D)"), "{summary}");
    let text = program.to_string();
    for part in ["conv 3x3", "conv_grad_kernel 3x3", "batch_norm", "reduce bucket", "update SGD"] {
        assert!(text.contains(part), "no {part} in\n{text}");
    }
    assert!(program.device_bytes() > 0);
}
