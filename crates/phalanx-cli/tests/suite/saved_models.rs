//! Model files of the library: unknown parts of their configs, and integer inputs.

use super::data::{classes, end, floats, npz};
use super::{fault, phalanx, succeeds, text};
use phalanx::Tensor;
use phalanx::datasets::npy;
use phalanx::prelude::*;
use std::io::{Read, Write};
use std::path::Path;

/// Rewrites the config of a `.keras` file.
fn edit(path: &Path, from: &str, to: &str) {
    let mut archive = zip::ZipArchive::new(std::fs::File::open(path).unwrap()).unwrap();
    let mut members = vec![];
    for i in 0..archive.len() {
        let mut entry = archive.by_index(i).unwrap();
        let mut bytes = vec![];
        entry.read_to_end(&mut bytes).unwrap();
        if entry.name() == "config.json" {
            let text = String::from_utf8(bytes).unwrap();
            assert!(text.contains(from), "{text}");
            bytes = text.replace(from, to).into_bytes();
        }
        members.push((entry.name().to_string(), bytes));
    }
    let mut zip = zip::ZipWriter::new(std::fs::File::create(path).unwrap());
    for (name, bytes) in members {
        let stored = zip::write::SimpleFileOptions::default()
            .compression_method(zip::CompressionMethod::Stored);
        zip.start_file(name, stored).unwrap();
        zip.write_all(&bytes).unwrap();
    }
    zip.finish().unwrap();
}

#[test]
fn predict_and_evaluate_ignore_unknown_optimizers_and_metrics() {
    let (x, y) = (floats(&[8, 4], 0), floats(&[8, 3], 1));
    let dir = tempfile::tempdir().unwrap();
    npz(&dir.path().join("d.npz"), &[("x", &x), ("y", &y)]);
    npy::write(&dir.path().join("x.npy"), &x).unwrap();
    let file = dir.path().join("model.keras");
    let mut model = Sequential::new().add(Input::new([4])).add(Dense::new(3)).build().unwrap();
    let compile = Compile::new(SGD::new(0.1)).loss("mse").metrics(["mae", "mse"]);
    model.compile(compile).unwrap();
    let save = || model.save(&file).unwrap();
    let predict = ["predict", "model.keras", "--input", "x.npy", "--output", "y.npy"];
    let evaluate = ["evaluate", "model.keras", "--data", "d.npz"];

    save();
    edit(&file, "\"SGD\"", "\"Shampoo\"");
    succeeds(dir.path(), &predict);
    assert!(succeeds(dir.path(), &evaluate).contains("mae: "));
    let train = ["train", "model.keras", "--data", "d.npz"];
    assert_eq!(fault(dir.path(), &train, 1, "Shampoo"), None);
    succeeds(dir.path(), &[&train[..], &["--optimizer", "sgd"]].concat());

    save();
    edit(&file, "\"mae\"", "\"circle\"");
    succeeds(dir.path(), &predict);
    let out = phalanx(dir.path(), &evaluate);
    assert!(out.status.success() && text(&out.stdout).contains(" - mse: "));
    assert!(text(&out.stderr).contains("a metric is left out: unknown metric 'circle'"));

    save();
    edit(&file, "\"loss\":\"mse\"", "\"loss\":\"circle\"");
    succeeds(dir.path(), &predict);
    assert_eq!(fault(dir.path(), &evaluate, 1, "unknown loss 'circle'"), None);
    assert_eq!(fault(dir.path(), &evaluate, 1, "add --loss mse"), None);
    let named = succeeds(dir.path(), &[&evaluate[..], &["--loss", "mae"]].concat());
    assert!(named.contains("loss: MeanAbsoluteError"), "{named}");
}

#[test]
fn a_model_with_integer_inputs_can_be_measured() {
    let dir = tempfile::tempdir().unwrap();
    let mut model = Sequential::new()
        .add(Input::new([5]).integers())
        .add(Embedding::new(7, 4))
        .add(Flatten::new())
        .add(Dense::new(3).activation("softmax"))
        .build()
        .unwrap();
    model.compile(Compile::new("adam").loss("sparse_categorical_crossentropy")).unwrap();
    model.save(dir.path().join("words.keras")).unwrap();
    for more in [&[][..], &["--inference"]] {
        let args = ["bench", "words.keras", "--steps", "2", "--json"];
        assert_eq!(end(&succeeds(dir.path(), &[&args[..], more].concat()))["batch"], 32);
    }
    let x = Tensor::new([6, 5], (0..30).map(|i| i % 7).collect::<Vec<i32>>()).unwrap();
    npz(&dir.path().join("d.npz"), &[("x", &x), ("y", &classes(6, 3))]);
    let out = succeeds(dir.path(), &["train", "words.keras", "--data", "d.npz", "--epochs", "1"]);
    assert!(out.contains("6 rows to train on"), "{out}");
}
