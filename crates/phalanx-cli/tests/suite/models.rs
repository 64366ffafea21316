//! Model files made in Python by tests/python/make_models.py.

use super::{fault, files, phalanx, succeeds, text};
use phalanx::Tensor;
use phalanx::datasets::npy;
use phalanx::prelude::{applications, load_model};
use std::path::Path;
use std::process::Command;

/// Copies a model file made in Python.
fn copy_model(dir: &Path, name: &str) {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
    let from = fixtures.join(format!("described_{name}.keras"));
    std::fs::copy(from, dir.join(format!("{name}.keras"))).unwrap();
}

/// Writes valid and invalid model files.
pub fn bad_files(dir: &Path) {
    ["cnn", "flat", "binary", "map"].iter().for_each(|name| copy_model(dir, name));
    let whole = std::fs::read(dir.join("cnn.keras")).unwrap();
    std::fs::write(dir.join("cut.keras"), &whole[..whole.len() / 2]).unwrap();
    std::fs::write(dir.join("file.keras"), "a letter").unwrap();
    let rows = (0..20).map(|i| format!("{i},{i},{}\n", i % 2)).collect::<String>();
    std::fs::write(dir.join("wide.csv"), format!("a,b,label\n{rows}")).unwrap();
    assert!(Command::new("mkfifo").arg(dir.join("pipe.keras")).status().unwrap().success());
}

fn end(out: &str) -> serde_json::Value {
    serde_json::from_str(out.lines().last().unwrap()).unwrap()
}

#[test]
fn a_model_from_python_trains_and_is_saved_in_every_format() {
    let dir = tempfile::tempdir().unwrap();
    copy_model(dir.path(), "cnn");
    let train = ["train", "cnn.keras", "--epochs", "2", "--json", "-", "--save"];
    let out = succeeds(dir.path(), &[&train[..], &["a.keras"]].concat());
    let accuracy = end(&out)["test_accuracy"].as_f64().unwrap();
    assert!(accuracy > 0.85, "{out}");
    // The file stores the optimizer's rate in single precision.
    let first: serde_json::Value = serde_json::from_str(out.lines().next().unwrap()).unwrap();
    assert!((first["lr"].as_f64().unwrap() - 0.005).abs() < 1e-9, "{first}");
    let tested = format!("accuracy: {accuracy:.4}");
    let evaluated = succeeds(dir.path(), &["evaluate", "a.keras"]);
    assert!(evaluated.contains(&tested), "{evaluated}");
    for (file, more) in
        [("a.h5", &[][..]), ("a.safetensors", &[]), ("a.weights.h5", &["--model", "cnn.keras"])]
    {
        succeeds(dir.path(), &[&train[..], &[file]].concat());
        let again = succeeds(dir.path(), &[&["evaluate", file], more].concat());
        assert_eq!(again.lines().last(), evaluated.lines().last(), "{file}");
    }
    let split = ["evaluate", "cnn.keras", "--weights", "a.weights.h5"];
    assert_eq!(succeeds(dir.path(), &split), evaluated);
    let other = ["evaluate", "a.weights.h5"];
    assert_eq!(fault(dir.path(), &other, 1, "does not record its network; add --model"), None);

    // Training continues with the stored optimizer state, as if it had not stopped.
    let args = ["--no-shuffle", "--json", "-", "--save", "b.keras", "--epochs"];
    let whole = succeeds(dir.path(), &[&["train", "cnn.keras"], &args[..], &["2"]].concat());
    succeeds(dir.path(), &[&["train", "cnn.keras"], &args[..], &["1"]].concat());
    let parts = succeeds(dir.path(), &[&["train", "b.keras"], &args[..], &["1"]].concat());
    assert_eq!(end(&parts)["weights_sha256"], end(&whole)["weights_sha256"]);
    let better = ["train", "a.keras", "--epochs", "1", "--steps-per-epoch", "1", "--json", "-"];
    let more = ["--optimizer", "sgd", "--lr", "0"];
    let out = succeeds(dir.path(), &[&better[..], &more].concat());
    assert_eq!(end(&out)["test_accuracy"].as_f64(), Some(accuracy), "a rate of 0 changes nothing");
}

#[test]
fn a_saved_model_predicts_what_the_library_does() {
    let dir = tempfile::tempdir().unwrap();
    copy_model(dir.path(), "cnn");
    copy_model(dir.path(), "flat");
    let values: Vec<f32> = (0..3 * 784).map(|i| (i * 37 % 101) as f32 / 101.0).collect();
    let x = Tensor::new([3, 28, 28], values.clone()).unwrap();
    npy::write(&dir.path().join("x.npy"), &x).unwrap();
    for (name, dims) in [("cnn", vec![3, 28, 28, 1]), ("flat", vec![3, 784])] {
        let file = format!("{name}.keras");
        let args = ["predict", &file, "--input", "x.npy", "--output", "y.npy"];
        succeeds(dir.path(), &args);
        let y = npy::read(&dir.path().join("y.npy")).unwrap().to_tensor();
        let model = load_model(dir.path().join(&file)).unwrap();
        let expected = model.predict(Tensor::new(dims, values.clone()).unwrap()).unwrap();
        assert_eq!(*y, expected, "{name}");
        let bench = succeeds(dir.path(), &["bench", &file, "--steps", "2", "--json"]);
        assert_eq!(end(&bench)["batch"], 32);
    }
    files::colours(dir.path());
    let named = succeeds(dir.path(), &["predict", "cnn.keras", "images/red/3.png", "--top", "10"]);
    let chances = named.trim_end().split(": ").nth(1).unwrap().split(", ");
    let chance = |word: &str| word.split(' ').nth(1).unwrap().parse::<f64>().unwrap();
    let total: f64 = chances.map(chance).sum();
    assert!((total - 1.0).abs() < 1e-3, "{named}");
    // The data do not define classes.
    let plain = succeeds(dir.path(), &["predict", "flat.keras", "images/red/3.png"]);
    let numbers = plain.trim_end().split(": ").nth(1).unwrap().split(", ");
    let numbers: Vec<f64> = numbers.map(|n| n.parse().unwrap()).collect();
    assert_eq!(numbers.len(), 10, "{plain}");
}

#[test]
fn a_model_from_python_resumes_and_its_checkpoints_evaluate() {
    let dir = tempfile::tempdir().unwrap();
    copy_model(dir.path(), "cnn");
    let args = ["train", "cnn.keras", "--steps-per-epoch", "20", "--json", "-", "--epochs"];
    let whole = succeeds(dir.path(), &[&args[..], &["3"]].concat());
    let saved = ["--checkpoint-dir", "ckpt", "--resume"];
    succeeds(dir.path(), &[&args[..], &["2"], &saved].concat());
    let resumed = succeeds(dir.path(), &[&args[..], &["3"], &saved].concat());
    assert_eq!(end(&resumed)["weights_sha256"], end(&whole)["weights_sha256"]);
    let accuracy = format!("accuracy: {:.4}", end(&whole)["test_accuracy"].as_f64().unwrap());
    let evaluated = succeeds(dir.path(), &["evaluate", "ckpt"]);
    assert!(evaluated.contains(&accuracy), "{evaluated} {accuracy}");
}

#[test]
fn a_single_output_classifies_two_classes() {
    let dir = tempfile::tempdir().unwrap();
    copy_model(dir.path(), "binary");
    files::colours(dir.path());
    let args = ["train", "binary.keras", "--data", "images", "--epochs", "60", "--batch-size", "8"];
    let more = ["--json", "-", "--save", "b.keras", "--rescale", "--test-split", "0.2"];
    let out = succeeds(dir.path(), &[&args[..], &more].concat());
    assert!(end(&out)["test_accuracy"].as_f64().unwrap() > 0.9, "{out}");
    let named = ["predict", "b.keras", "images/blue/3.png", "images/red/0.jpg", "--top", "2"];
    let named = succeeds(dir.path(), &named);
    let lines: Vec<&str> = named.lines().collect();
    assert!(lines[0].starts_with("images/blue/3.png: blue ") && lines[0].contains(", red "));
    assert!(lines[1].starts_with("images/red/0.jpg: red "), "{named}");
    let drawn = ["evaluate", "b.keras", "--confusion", "c.svg"];
    let out = succeeds(dir.path(), &drawn);
    assert!(out.contains("inputs: [8, 8, 3], divided by 255"), "{out}");
    assert!(out.contains("data: images, 8 test rows"), "{out}");
    // Another spelling of the same directory selects the same test rows.
    let again = succeeds(dir.path(), &["evaluate", "b.keras", "--data", "./images/"]);
    assert_eq!(again.lines().last(), out.lines().last());
    let other = ["evaluate", "b.keras", "--data", "colours.npz"];
    assert_eq!(fault(dir.path(), &other, 1, "samples of [8, 8, 3], received [4, 4, 3]"), None);
    assert!(dir.path().join("c.svg").exists());
}

#[test]
fn training_starts_from_weights() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["train", "mnist-cnn", "--json", "-", "--steps-per-epoch", "40", "--epochs"];
    let out = succeeds(dir.path(), &[&args[..], &["2", "--save", "w.weights.h5"]].concat());
    let reached = end(&out)["test_loss"].as_f64().unwrap();
    let still = ["1", "--weights", "w.weights.h5", "--optimizer", "sgd", "--lr", "0"];
    let again = succeeds(dir.path(), &[&args[..], &still].concat());
    assert_eq!(end(&again)["test_loss"].as_f64(), Some(reached));
    let evaluated = succeeds(dir.path(), &["evaluate", "mnist-cnn", "--weights", "w.weights.h5"]);
    assert!(evaluated.contains(&format!("loss: {reached:.4}")), "{evaluated} {reached}");
}

/// The weights have the layout of the official files, but other classes than the data.
#[test]
fn resnet50_takes_imagenet_weights_below_a_new_top() {
    let dir = tempfile::tempdir().unwrap();
    files::colours(dir.path());
    let official = applications::resnet50([32, 32, 3], Some(5)).unwrap();
    official.save_weights(dir.path().join("official.h5")).unwrap();
    let args = ["train", "resnet50", "--data", "images", "--image-size", "32", "--epochs", "1"];
    let more = ["--weights", "official.h5", "--batch-size", "4", "--json", "-", "--lr", "0"];
    let save = ["--save", "tuned.safetensors", "--test-split", "0.2"];
    let out = succeeds(dir.path(), &[&args[..], &more, &save].concat());
    let loss = format!("loss: {:.4}", end(&out)["test_loss"].as_f64().unwrap());
    // The file records the preprocessing.
    let notes = phalanx::saving::read_metadata(dir.path().join("tuned.safetensors")).unwrap();
    assert!(notes["origin"].contains("\"scale\":\"imagenet\""), "{}", notes["origin"]);
    let evaluated = succeeds(dir.path(), &["evaluate", "tuned.safetensors"]);
    assert!(evaluated.contains(&loss), "{evaluated} {loss}");
    // Evaluation never creates a new top.
    let other = phalanx(
        dir.path(),
        &["evaluate", "official.h5", "--model", "resnet50", "--data", "images"],
    );
    assert_eq!(other.status.code(), Some(1));
    assert!(text(&other.stderr).contains("predictions"), "{}", text(&other.stderr));
    let grey = [&args[..], &["--grayscale", "--weights", "official.h5"]].concat();
    assert_eq!(fault(dir.path(), &grey, 1, "[height, width, 3], received [32, 32, 1]"), None);
}
