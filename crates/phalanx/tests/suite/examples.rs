//! Runs every example, on less data if possible, and checks its results.
#![allow(dead_code)] // the examples' `main`
#![allow(clippy::duplicate_mod)] // each brings what reads its arguments

use phalanx::Result;
use phalanx::datasets::glyphs::{self, Glyphs};
use phalanx::prelude::*;

#[path = "../../examples/augment.rs"]
mod augment;
#[path = "../../examples/program.rs"]
mod compiled_program;
#[path = "../../examples/contrastive.rs"]
mod contrastive;
#[path = "../../examples/custom_layer.rs"]
pub mod custom_layer;
#[path = "../../examples/distillation.rs"]
mod distillation;
#[path = "../../examples/functional.rs"]
mod functional;
#[path = "../../examples/gan.rs"]
mod gan;
#[path = "../../examples/hello.rs"]
mod hello;
#[path = "../../examples/minigooglenet_cifar10.rs"]
mod minigooglenet;
#[path = "../../examples/small_gpt.rs"]
mod small_gpt;
#[path = "../../examples/tabular_categories.rs"]
mod tabular_categories;
#[path = "../../examples/text_classification.rs"]
mod text_classification;
#[path = "../../examples/time_series.rs"]
mod time_series;
#[path = "../../examples/resnet50_transfer.rs"]
mod transfer;
#[path = "../../examples/mnist_cnn.rs"]
mod tutorial_cnn;
#[path = "../../examples/two_replicas.rs"]
mod two_replicas;
#[path = "../../examples/unet_segmentation.rs"]
mod unet;
#[path = "../../examples/vit_cifar10.rs"]
mod vit;

fn digits(train: usize) -> Result<datasets::Split> {
    glyphs::load(Glyphs { train, test: 500, seed: 1 })
}

#[test]
fn hello_learns_the_digits() {
    let accuracy = hello::run().unwrap();
    assert!(accuracy > 0.9, "{accuracy}");
}

#[test]
fn the_perceptron_generalises_and_goes_on_from_its_checkpoint() {
    let directory = tempfile::tempdir().unwrap();
    let digits = digits(3000).unwrap();
    let run = |epochs| {
        let strategy = MirroredStrategy::new();
        two_replicas::mlp::run(&digits, strategy, Some(directory.path()), epochs).unwrap()
    };
    let (first, _) = run(1);
    let (second, test) = run(2);
    let names: Vec<&str> = second.names().collect();
    let accuracy = "sparse_categorical_accuracy";
    assert_eq!(
        names,
        ["loss", "lr", accuracy, "val_loss", "val_sparse_categorical_accuracy"],
        "as Keras names them"
    );
    assert!(test.get(accuracy).unwrap() > 0.88, "{test}");
    // A new start would be as bad as the first epoch was.
    assert!(second.get("loss").unwrap()[0] < 0.6 * first.get("loss").unwrap()[0]);
    assert!(directory.path().join("ckpt-2.keras").exists());
}

#[test]
fn the_tutorial_network_follows_its_learning_rate_and_evaluates_its_checkpoint() {
    let directory = tempfile::tempdir().unwrap();
    let (history, eval) = tutorial_cnn::run(digits(1500).unwrap(), 4, directory.path()).unwrap();
    assert_eq!(history.get("lr").unwrap(), [1e-3, 1e-3, 1e-3, 1e-4]);
    assert!(eval.get("accuracy").unwrap() > 0.8, "{eval}");
    assert!(directory.path().join("training_checkpoints/ckpt_4.keras").exists());
    assert!(directory.path().join("logs/train").is_dir());
}

#[test]
fn minigooglenet_trains_on_two_devices_and_draws_its_curves() {
    let directory = tempfile::tempdir().unwrap();
    let plot = directory.path().join("plot.png");
    let mut digits = glyphs::load(Glyphs { train: 256, test: 32, seed: 1 }).unwrap();
    digits.train.0 = digits.train.0.resize(32, 32).unwrap();
    digits.test.0 = digits.test.0.resize(32, 32).unwrap();
    let history = minigooglenet::run(digits, 2, 2, &plot).unwrap();
    assert_eq!(history.get("lr").unwrap(), [5e-3, 2.5e-3], "the polynomial decay");
    let losses = history.get("loss").unwrap();
    assert!(losses[1] < losses[0] && history.last("val_loss").unwrap().is_finite(), "{losses:?}");
    assert!(plot.exists());
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
    // The shared encoder appears once.
    assert_eq!(model.layers().iter().filter(|(name, _)| name.starts_with("encoder")).count(), 1);
}

#[test]
fn a_new_head_learns_on_a_base_that_stays() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("base.safetensors");
    let digits = glyphs::load(Glyphs { train: 64, test: 1, seed: 1 }).unwrap();
    let (fresh, _) = transfer::build(digits.train.0.dims(), None).unwrap();
    fresh.save_weights(&path).unwrap();
    let (base, mut model) = transfer::build(digits.train.0.dims(), path.to_str()).unwrap();
    let before = model.weights().unwrap();
    let strategy = MirroredStrategy::with_devices(["cpu:0", "cpu:1"]).unwrap();
    transfer::train(&mut model, digits, strategy, 1).unwrap();
    let after = model.weights().unwrap();
    let own = base.weights().unwrap().len();
    assert_eq!(after[..own], before[..own], "the base, its statistics too");
    assert_ne!(after[own..], before[own..], "the head");
    assert_eq!(model.summary().non_trainable, base.count_params());
}

#[test]
fn two_replicas_give_the_losses_of_one() {
    let losses = two_replicas::run(&digits(1000).unwrap()).unwrap();
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
fn texts_are_classified_from_strings() {
    let (convolution, recurrent) = text_classification::run(1200, 12).unwrap();
    assert!(convolution > 0.95 && recurrent > 0.9, "{convolution} {recurrent}");
}

#[test]
fn a_table_with_categories_is_learned_and_its_file_takes_the_table() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("subscriptions.keras");
    let accuracy = tabular_categories::run(1500, 8, &path).unwrap();
    assert!(accuracy > 0.85, "{accuracy}");
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

#[test]
fn a_custom_layer_loss_and_metric_are_trained_saved_and_loaded() {
    let directory = tempfile::tempdir().unwrap();
    let (before, after) = custom_layer::run(&directory.path().join("model.keras")).unwrap();
    assert_eq!(before, after);
    let coverage = before.get("coverage").unwrap();
    assert!((coverage - 0.9).abs() < 0.06, "{before}");
}

#[test]
fn the_gan_draws_images_as_bright_as_the_real_ones() {
    let (real, fake, history) = gan::run(1024, 20, MirroredStrategy::new()).unwrap();
    assert!((real - fake).abs() < 0.2, "{real} {fake}");
    let names: Vec<&str> = history.names().collect();
    assert_eq!(names, ["d_loss", "g_loss", "lr"]);
    assert!(history.last("d_loss").unwrap() > 0.05 && history.last("g_loss").unwrap().is_finite());
}

#[test]
fn the_student_learns_from_the_teacher() {
    let (teacher, student) = distillation::run(&digits(2000).unwrap(), 3).unwrap();
    assert!(teacher > 0.85 && student > 0.75, "{teacher} {student}");
}

#[test]
fn the_siamese_network_tells_pairs_apart_on_two_replicas() {
    let strategy = MirroredStrategy::with_devices(["cpu:0", "cpu:1"]).unwrap();
    let accuracy = contrastive::run(&digits(1500).unwrap(), 5, strategy).unwrap();
    assert!(accuracy > 0.75, "{accuracy}");
}

#[test]
fn examples_refuse_flags_that_they_do_not_know() {
    use minigooglenet::arguments::parse;
    let usage = "[--output FILE] [--gpus N]";
    let line = |text: &str| text.split_whitespace().map(String::from).collect::<Vec<_>>();
    let flags = parse(usage, line("--gpus 3 --output=a=b.png")).unwrap();
    assert_eq!((flags.number("--gpus", 1).unwrap(), flags.text("--output")), (3, Some("a=b.png")));
    assert_eq!(parse(usage, vec![]).unwrap().number("--gpus", 1).unwrap(), 1);
    for (text, received) in [
        ("--gpu 2", "--gpu"),
        ("--output a --epochs=3", "--epochs"),
        ("--gpus", "--gpus without a value"),
        ("FILE", "FILE"),
        ("two", "two"),
    ] {
        let error = parse(usage, line(text)).map(|_| ()).unwrap_err().to_string();
        let expected = format!("command line: arguments: expected {usage}, received {received}");
        assert_eq!(error, expected);
    }
    let flags = parse(usage, line("--gpus two")).unwrap();
    let error = flags.number("--gpus", 1).unwrap_err().to_string();
    assert!(error.ends_with("received --gpus two"), "{error}");
    let none = hello::arguments::parse("", line("--epochs 3")).map(|_| ()).unwrap_err();
    assert_eq!(none.to_string(), "command line: arguments: expected none, received --epochs");
}

#[test]
fn the_small_gpt_learns_to_continue_sentences() {
    let (loss, text) = small_gpt::run(3, 40_000, "otto swims to the ", 0).unwrap();
    assert!(loss < 1.0, "{loss}");
    assert_eq!(text, "otto swims to the sea.");
}

#[test]
fn the_vision_transformer_learns_digits() {
    use phalanx::applications::VisionTransformer;
    let digits = glyphs::load(Glyphs { train: 1500, test: 200, seed: 1 }).unwrap();
    let sizes = VisionTransformer {
        image: [28, 28, 1],
        patch: 7,
        width: 32,
        layers: 2,
        units: 64,
        head: vec![64],
        ..VisionTransformer::small()
    };
    let logs = vit::run(digits, sizes, 8).unwrap();
    assert!(logs.get("accuracy").unwrap() > 0.6, "{logs}");
}

#[test]
fn the_unet_finds_the_shapes() {
    let logs = unet::run(120, 5, 0).unwrap();
    // Four fifths of the pixels are background.
    assert!(logs.get("accuracy").unwrap() > 0.9, "{logs}");
}

#[test]
fn the_forecast_beats_the_day_before() {
    let (error, baseline) = time_series::run(1500, 6, 0).unwrap();
    assert!(error < baseline, "{error} {baseline}");
}
