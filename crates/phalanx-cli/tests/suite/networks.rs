//! Networks by name: those of `keras.applications`, transformers, pretrained weights, and `--scale-lr`.

use super::files;
use super::{command, fault, phalanx, succeeds, text};
use phalanx::prelude::*;

#[test]
fn networks_of_keras_are_known_by_either_name() {
    let dir = tempfile::tempdir().unwrap();
    let listed = text(&phalanx(dir.path(), &["bench", "resnet51"]).stderr);
    for name in
        ["resnet152v2", "mobilenet-v3-small", "efficientnet-v2-l", "convnext-xlarge", "gpt2"]
    {
        assert!(listed.contains(name), "{name}: {listed}");
    }
    // The parameters of ten classes.
    let shown = succeeds(dir.path(), &["inspect", "mobilenet-v3-small"]);
    assert!(shown.contains("1,540,218"), "{shown}");
}

#[test]
fn sequence_networks_are_measured_on_tokens() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["transformer", "textcnn"] {
        let args = ["bench", name, "--steps", "1", "--batch-size", "2", "--json"];
        let line: serde_json::Value = serde_json::from_str(&succeeds(dir.path(), &args)).unwrap();
        assert_eq!(line["batch"], 2, "{line}");
    }
}

#[test]
fn a_network_without_weights_of_imagenet_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["train", "mnist-cnn", "--weights", "imagenet"];
    let expected = "--weights imagenet: expected a network of keras.applications";
    assert_eq!(fault(dir.path(), &args, 1, expected), None);
    let args = ["train", "gpt2", "--data", "glyphs"];
    assert_eq!(fault(dir.path(), &args, 1, "gpt2 predicts a token at every position"), None);
}

/// Without a network connection, the message says which file belongs where. A file in place is verified.
#[test]
fn missing_weights_of_imagenet_are_named_with_their_place() {
    let dir = tempfile::tempdir().unwrap();
    files::colours(dir.path());
    let train = ["train", "resnet50v2", "--data", "images", "--image-size", "32", "--epochs", "1"];
    let args = [&train[..], &["--weights", "imagenet"]].concat();
    let out = command(dir.path(), &args).env("HOME", dir.path()).output().unwrap();
    let (error, name) =
        (text(&out.stderr), "resnet50v2_weights_tf_dim_ordering_tf_kernels_notop.h5");
    assert_eq!(out.status.code(), Some(1), "{error}");
    for part in [name, "data/models", "keras-applications/resnet/", "PHALANX_OFFLINE is set"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    // Keras' own cache is searched too.
    let models = dir.path().join(".keras/models");
    std::fs::create_dir_all(&models).unwrap();
    std::fs::write(models.join(name), "not the weights").unwrap();
    let out = command(dir.path(), &args).env("HOME", dir.path()).output().unwrap();
    let error = text(&out.stderr);
    assert!(error.contains("fac2f116257151a9d068a22e544a4917 of the official file"), "{error}");
}

/// A file in the layout of the official ones, for other classes.
#[test]
fn any_network_of_keras_takes_a_weights_file_below_a_new_top() {
    let dir = tempfile::tempdir().unwrap();
    files::colours(dir.path());
    let app = applications::Application::new("mobilenet-v2").unwrap().input_shape([32, 32, 3]);
    let official = app.classes(5).build().unwrap();
    official.save_weights(dir.path().join("official.h5")).unwrap();
    let args = ["train", "mobilenet-v2", "--data", "images", "--image-size", "32", "--epochs", "1"];
    let more = ["--weights", "official.h5", "--batch-size", "4", "--save", "tuned.safetensors"];
    let out = succeeds(dir.path(), &[&args[..], &more].concat());
    assert!(out.contains("divided by 127.5, then -1"), "{out}");
    let notes = phalanx::saving::read_metadata(dir.path().join("tuned.safetensors")).unwrap();
    assert!(notes["origin"].contains("mobilenet-v2"), "{}", notes["origin"]);
    succeeds(dir.path(), &["evaluate", "tuned.safetensors", "--data", "images"]);
}

fn header(out: &str) -> &str {
    out.lines().find(|line| line.starts_with("batch: ")).expect("a header")
}

#[test]
fn the_header_says_what_linear_scaling_makes_of_the_rate() {
    let dir = tempfile::tempdir().unwrap();
    let train = |model: &str, more: &[&str]| {
        let args = ["train", model, "--epochs", "1", "--steps-per-epoch", "1", "--no-scaling"];
        succeeds(dir.path(), &[&args[..], more].concat())
    };
    let one = train("mnist-mlp", &["--batch-size", "8"]);
    assert!(header(&one).contains("learning rate 0.001; "), "{one}");
    let two = train("mnist-mlp", &["--batch-size", "8", "--replicas", "2"]);
    let said = "learning rate 0.001 (the batch grew 2 times; --scale-lr makes it 0.002); ";
    assert!(header(&two).contains(said), "{two}");
    // The global batch does not grow with the replicas.
    let fixed = ["--global-batch-size", "8", "--replicas", "2"];
    assert!(header(&train("mnist-mlp", &fixed)).contains("learning rate 0.001; "));
}

#[test]
fn scale_lr_applies_linear_scaling_to_every_optimizer() {
    let dir = tempfile::tempdir().unwrap();
    let train = |more: &[&str]| {
        let args =
            ["train", "mnist-cnn", "--epochs", "1", "--steps-per-epoch", "1", "--no-scaling"];
        let args = [&args[..], &["--batch-size", "8", "--scale-lr"], more].concat();
        succeeds(dir.path(), &args)
    };
    let two = ["--replicas", "2"];
    let out = train(&two);
    assert!(header(&out).contains("learning rate 0.002 (0.001 times 2 for the batch); "), "{out}");
    for (optimizer, expected) in [("sgd", "0.02"), ("adamw", "0.002"), ("lion", "0.002")] {
        let out = train(&[&two[..], &["--optimizer", optimizer]].concat());
        assert!(header(&out).contains(&format!("learning rate {expected} (")), "{out}");
    }
    let out = train(&[&two[..], &["--optimizer", "sgd", "--lr", "0.5"]].concat());
    assert!(header(&out).contains("learning rate 1 (0.5 times 2 for the batch); "), "{out}");
    // One replica: nothing to scale.
    let out = train(&[]);
    assert!(
        header(&out).contains("(--scale-lr: the batch did not grow with the replicas)"),
        "{out}"
    );
    // The rate follows the batch already.
    let args =
        ["train", "minigooglenet", "--epochs", "1", "--steps-per-epoch", "1", "--no-scaling"];
    let args = [&args[..], &["--batch-size", "2", "--scale-lr", "--replicas", "2"]].concat();
    let out = succeeds(dir.path(), &args);
    assert!(header(&out).contains("the batch did not grow"), "{out}");
}

#[test]
fn two_replicas_with_scaled_rate_take_the_step_of_one_with_that_rate() {
    let dir = tempfile::tempdir().unwrap();
    let train = |more: &[&str]| {
        let args = ["train", "mnist-mlp", "--epochs", "1", "--steps-per-epoch", "3", "--json", "-"];
        let args = [&args[..], &["--optimizer", "sgd", "--no-scaling"], more].concat();
        let out = succeeds(dir.path(), &args);
        let line = out.lines().last().unwrap().to_string();
        serde_json::from_str::<serde_json::Value>(&line).unwrap()["test_loss"].as_f64().unwrap()
    };
    let scaled = train(&["--batch-size", "8", "--replicas", "2", "--scale-lr"]);
    let plain = train(&["--batch-size", "16", "--lr", "0.02"]);
    assert!((scaled - plain).abs() < 1e-4 * plain, "{scaled} {plain}");
}
