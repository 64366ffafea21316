//! Sizes that exceed any machine are rejected in one line, before any memory is allocated.

use super::{command, fault, files, text};
use image::ImageFormat;
use phalanx::prelude::*;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Runs a command that must fail with one line. An address space of 12 GiB makes the result independent of the machine.
fn rejected(dir: &Path, args: &[&str], expected: &str) {
    let limited = "ulimit -v 12582912; exec \"$0\" \"$@\"";
    let out = Command::new("sh")
        .args(["-c", limited, env!("CARGO_BIN_EXE_phalanx")])
        .args(args)
        .current_dir(dir)
        .env("PHALANX_OFFLINE", "1")
        .output()
        .unwrap();
    let error = text(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{args:?}: {error}");
    assert!(error.contains(expected) && error.lines().count() == 1, "{args:?}: {error}");
}

/// Creates a folder of two classes with `count` images each.
fn folder(path: &Path, count: usize) {
    let image = files::encoded(&files::plain([9; 3]), ImageFormat::Png);
    for class in ["a", "b"] {
        std::fs::create_dir_all(path.join(class)).unwrap();
        for i in 0..count {
            std::fs::write(path.join(class).join(format!("{i}.png")), &image).unwrap();
        }
    }
}

#[test]
fn images_that_do_not_fit_into_memory_are_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["train", "mnist-cnn", "--image-size", "4096"];
    rejected(dir.path(), &args, "images that fit into memory, received 6000 images of 4096x4096");
    folder(&dir.path().join("images"), 200);
    let args = ["train", "mnist-cnn", "--data", "images", "--image-size", "4096"];
    rejected(
        dir.path(),
        &args,
        "images that fit into memory, received 400 images of 50331648 bytes",
    );
}

#[test]
fn weights_that_do_not_fit_into_memory_are_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["bench", "mnist-mlp", "--steps", "1", "--width", "300000"];
    assert_eq!(fault(dir.path(), &args, 1, "bytes for 2 copies of the weights"), None);
}

#[test]
fn a_model_with_a_huge_input_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let x = Input::new([16_000, 16_000, 3]).symbol();
    let y = Dense::new(2).apply(GlobalAveragePooling2D::new().apply(&x));
    Model::new(&x, y).unwrap().save(dir.path().join("wall.keras")).unwrap();
    let image = files::encoded(&files::plain([9; 3]), ImageFormat::Png);
    std::fs::write(dir.path().join("x.png"), image).unwrap();
    let expected =
        "wall.keras: expected samples of at most 67108864 numbers, received [16000, 16000, 3]";
    for args in [
        &["predict", "wall.keras", "x.png"][..],
        &["evaluate", "wall.keras"],
        &["train", "wall.keras"],
        &["bench", "wall.keras", "--steps", "1"],
        &["plan", "wall.keras"],
    ] {
        assert_eq!(fault(dir.path(), args, 1, expected), None);
    }
}

#[test]
fn a_confusion_matrix_of_many_classes_is_rejected_before_evaluation() {
    let dir = tempfile::tempdir().unwrap();
    let x = Input::new([28, 28, 1]).symbol();
    let y = Dense::new(65_536).activation("softmax").apply(GlobalAveragePooling2D::new().apply(&x));
    let mut model = Model::new(&x, y).unwrap();
    model.compile(Compile::new("sgd").loss("sparse_categorical_crossentropy")).unwrap();
    model.save(dir.path().join("many.keras")).unwrap();
    let args = ["evaluate", "many.keras", "--confusion", "cm.png"];
    let expected = "--confusion: expected at most 1600 classes, received 65536";
    assert_eq!(fault(dir.path(), &args, 1, expected), None);
    assert!(!dir.path().join("cm.png").exists());
}

#[test]
fn a_field_of_fifty_megabytes_gives_one_short_line() {
    let dir = tempfile::tempdir().unwrap();
    let long = "x".repeat(50_000_000);
    for (table, expected) in [
        (format!("a,b\n{long},2\n"), "… (50000000 bytes)\" in line 2, column A (a)"),
        (format!("a,b\n1,{long}\n"), "words of at most 1000 bytes"),
    ] {
        std::fs::write(dir.path().join("long.csv"), table).unwrap();
        let out =
            command(dir.path(), &["train", "mnist-mlp", "--data", "long.csv"]).output().unwrap();
        let error = text(&out.stderr);
        assert!(error.contains(expected) && error.len() < 1000, "{} bytes", error.len());
        assert_eq!(error.lines().count(), 1);
    }
}

#[test]
fn half_a_million_empty_tensors_are_rejected_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let tensor = "{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}";
    let tensors: Vec<String> = (0..500_000).map(|i| format!("\"t{i}\":{tensor}")).collect();
    let header = format!("{{{}}}", tensors.join(","));
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
    std::fs::write(dir.path().join("many.safetensors"), bytes).unwrap();
    for args in [
        &["inspect", "many.safetensors"][..],
        &["evaluate", "many.safetensors"],
        &["diff", "many.safetensors", "many.safetensors"],
        &["convert", "many.safetensors", "a.keras"],
    ] {
        let begin = Instant::now();
        let expected = "many.safetensors: expected at most 262144 tensors, received 500000";
        assert_eq!(fault(dir.path(), args, 1, expected), None);
        assert!(begin.elapsed() < Duration::from_secs(10), "{args:?}: {:?}", begin.elapsed());
    }
}
