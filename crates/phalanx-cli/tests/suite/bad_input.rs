//! Bad input: every command ends with a code and, unless it prints its usage, with one line.

use super::{command, fault, files, models, text};
use std::ffi::OsStr;
use std::process::Command;

/// Arguments, the exit code, and text that the message must contain.
type Case = (&'static [&'static str], i32, &'static str);

/// Runs commands that must fail, in a directory with odd files.
fn refused(cases: &[Case]) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("folder")).unwrap();
    std::fs::write(dir.path().join("file"), "x").unwrap();
    std::fs::write(dir.path().join("broken.safetensors"), [255; 40]).unwrap();
    std::fs::write(dir.path().join("plain.safetensors"), b"\x08\0\0\0\0\0\0\0{}      ").unwrap();
    std::fs::write(dir.path().join("empty.toml"), "").unwrap();
    std::fs::write(dir.path().join("odd.toml"), "model = \"mnist-mlp\"\nepoch = 3\n").unwrap();
    std::fs::write(dir.path().join("date.toml"), "epochs = 2020-01-01").unwrap();
    std::fs::write(dir.path().join("word.toml"), "epochs = \"two\"").unwrap();
    std::fs::write(dir.path().join("broken.toml"), "epochs = = 2").unwrap();
    std::os::unix::fs::symlink("loop.npz", dir.path().join("loop.npz")).unwrap();
    assert!(Command::new("mkfifo").arg(dir.path().join("pipe")).status().unwrap().success());
    models::bad_files(dir.path());
    let faults =
        cases.iter().map(|(args, code, expected)| fault(dir.path(), args, *code, expected));
    let wrong: Vec<String> = faults.flatten().collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn devices_and_threads_are_checked() {
    refused(&[
        (&["train", "mnist-mlp", "--replicas", "0"], 1, "at least one device"),
        (&["train", "mnist-mlp", "--replicas", "18446744073709551615"], 1, "1024 or fewer"),
        (&["train", "mnist-mlp", "--devices", "cpu:0,cpu:0"], 1, "each device once"),
        (&["train", "mnist-mlp", "--devices", "tpu:0"], 1, "cpu:N, gpu:N"),
        (&["train", "mnist-mlp", "--gpus", "2"], 1, "--gpus: no GPU was found"),
        (&["train", "mnist-mlp", "--gpus", "0"], 1, "--gpus: expected 1 or more, received 0"),
        (&["train", "mnist-mlp", "--threads", "99999999"], 1, "threads"),
        (
            &["train", "mnist-mlp", "--threads", "0"],
            2,
            "'0' for '--threads <THREADS>': 0 is not in 1..",
        ),
        (
            &["plan", "mnist-mlp", "--threads", "0"],
            2,
            "'0' for '--threads <THREADS>': 0 is not in 1..",
        ),
        (&["plan", "mnist-mlp", "--device", "tpu"], 2, "expected cpu or gpu"),
        (&["plan", "mnist-mlp", "--devices", "gpu:0,cpu:0"], 1, "either CPU devices or GPUs"),
        (&["plan", "mnist-mlp", "--devices", "gpu:0,gpu:0"], 1, "each device once"),
        (
            &["plan", "mnist-mlp", "--devices", "gpu:x"],
            1,
            "--devices: device: name: expected cpu:N",
        ),
        (&["plan", "mnist-mlp", "--device", "gpu", "--devices", "gpu:0"], 2, "cannot be used"),
        (&["plan", "mnist-mlp", "--threads", "99999999"], 1, "threads: expected 1 to 1024"),
        (&["plan", "mnist-mlp", "--devices", "gpu:1,gpu:0"], 1, "GPUs in ascending order"),
        (&["plan", "mnist-mlp", "--devices", "gpu:0,gpu:0/1"], 1, "whole or in parts"),
    ]);
}

#[test]
fn sizes_rates_and_names_of_flags_are_checked() {
    refused(&[
        (&["plan", "mnist-mlp", "--memory", "16XB"], 2, "as in 16GiB or 24GB"),
        (&["plan", "mnist-mlp", "--memory", "16"], 2, "expected a unit"),
        (&["plan", "mnist-mlp", "--batch-size", "0"], 1, "expected 1 or more, received 0"),
        (
            &["plan", "mnist-mlp", "--batch-size", "1000000000000000000"],
            1,
            "batch of 1000000000000000000",
        ),
        (&["train", "mnist-mlp", "--batch-size", "0"], 1, "expected 1 or more, received 0"),
        (&["train", "mnist-mlp", "--batch-size", "-1"], 2, "--batch-size"),
        (&["train", "mnist-mlp", "--batch-size", "18446744073709551616"], 2, "--batch-size"),
        (&["train", "mnist-mlp", "--global-batch-size", "0"], 1, "--global-batch-size: expected 1"),
        (&["train", "mnist-mlp", "--batch-size", "2", "--global-batch-size", "2"], 2, "cannot be"),
        (&["train", "mnist-mlp", "--epochs", "0"], 1, "--epochs: expected 1 or more"),
        (&["train", "mnist-mlp", "--steps-per-epoch", "0"], 1, "--steps-per-epoch: expected 1"),
        (&["train", "mnist-mlp", "--image-size", "0"], 2, "sides of 1 to 4096"),
        (&["train", "mnist-mlp", "--image-size", "4x"], 2, "sides of 1 to 4096"),
        (
            &["train", "vgg11", "--image-size", "8"],
            1,
            "--image-size: vgg11 expects sides of at least 32",
        ),
        (&["train", "mnist-mlp", "--lr", "nan"], 1, "received NaN"),
        (&["train", "mnist-mlp", "--lr", "-1"], 1, "received -1"),
        (&["train", "mnist-mlp", "--lr", "inf"], 1, "received inf"),
        (&["train", "mnist-mlp", "--momentum", "0.9"], 1, "sgd"),
        (&["train", "mnist-mlp", "--optimizer", "adamm"], 1, "did you mean 'adam'"),
        (&["train"], 2, "MODEL"),
        (&["train", ""], 2, "possible values"),
        (&["train", "mnist-mlp", "--lr", "1e30"], 1, "at step"),
        (&["train", "mnist-mlp", "--epochs", "1", "--epochs", "2"], 2, "cannot be used multiple"),
        (&["train", "mnist-mlp", "--nonsense"], 2, "--nonsense"),
        (&["train", "mnist-mpl"], 2, "mnist-mlp"),
        (&["train", "mnist-mlp", "--verbose", "3"], 2, "0..=2"),
    ]);
}

#[test]
fn data_and_their_flags_are_checked() {
    refused(&[
        (&["train", "mnist-mlp", "--data", "nope"], 1, "unknown dataset 'nope'"),
        (
            &["train", "mnist-mlp", "--data", "mnits"],
            1,
            "'mnits'; did you mean 'mnist'? known: glyphs,",
        ),
        (&["data", "info", "glyhps"], 1, "did you mean 'glyphs'?"),
        (&["data", "fetch", "mnits"], 1, "did you mean 'mnist'?"),
        (&["train", "mnist-mlp", "--data", ""], 1, "unknown dataset ''"),
        (&["train", "mnist-mlp", "--data", "mnist"], 1, "train-images-idx3-ubyte"),
        (&["train", "mnist-mlp", "--data", "folder"], 1, "a directory for each class"),
        (&["train", "mnist-mlp", "--data", "missing.npz"], 1, "missing.npz"),
        (&["train", "mnist-mlp", "--data", "loop.npz"], 1, "loop.npz"),
        (&["train", "mnist-mlp", "--data", "/dev/zero"], 1, "unknown dataset"),
        (&["train", "mnist-mlp", "--data", "pipe"], 1, "unknown dataset"),
        (&["train", "mnist-mlp", "--augment", "shift"], 1, "expected a network on images"),
        (&["train", "mnist-mlp", "--test-split", "0.2"], 1, "without test rows of their own"),
        (&["train", "mnist-mlp", "--validation-split", "1.5"], 1, "between 0 and 1, received 1.5"),
        (&["train", "mnist-mlp", "--validation-split", "nan"], 1, "between 0 and 1, received NaN"),
        (&["train", "mnist-mlp", "--rescale=0"], 2, "as in 1/255 or 1/127.5,-1"),
        (&["train", "mnist-mlp", "--label", "a"], 1, "--label: expected a .csv as --data"),
        (&["train", "mnist-mlp", "--data", "wide.csv", "--label", "c"], 1, "a column 'c' for the"),
        (&["data", "fetch", "nope"], 1, "unknown dataset of files 'nope'"),
        (&["data", "fetch", "mnist"], 1, "PHALANX_OFFLINE"),
        (&["data", "info", "nope"], 1, "unknown dataset 'nope'"),
    ]);
}

#[test]
fn model_files_are_checked() {
    refused(&[
        (&["train", "net.keras"], 1, "net.keras: No such file"),
        (&["train", "folder"], 1, "folder: expected a name ending in"),
        (&["train", "file.keras"], 1, "file.keras: expected"),
        (&["train", "cut.keras"], 1, "cut.keras: expected"),
        (&["train", "pipe.keras"], 1, "pipe.keras: expected"),
        (&["train", "plain.safetensors"], 1, "expected a file with a model's structure"),
        (&["train", "map.keras"], 1, "map.keras: was saved without compile"),
        (&["train", "map.keras", "--loss", "mse"], 1, "as MeanSquaredError compares, received []"),
        (&["train", "map.keras", "--loss", "mes"], 1, "--loss: unknown loss 'mes'"),
        (&["train", "mnist-mlp", "--loss", "mse"], 1, "--loss: expected a model file"),
        (&["train", "binary.keras"], 1, "expected samples of [8, 8, 3], received [28, 28, 1]"),
        (&["train", "cnn.keras", "--data", "wide.csv"], 1, "of [28, 28, 1], received [2]"),
        (&["train", "cnn.keras", "--image-size", "32"], 1, "expected 28x28, as the model takes"),
        (&["train", "cnn.keras", "--momentum", "0.9"], 1, "sgd"),
        (&["train", "flat.keras", "--augment", "flip"], 1, "images, received plain"),
        (&["train", "cnn.keras", "--weights", "flat.keras"], 1, "flat.keras: expected"),
        (&["train", "mnist-cnn", "--weights", "cnn.keras"], 1, "cnn.keras: expected"),
        (&["train", "mnist-cnn", "--weights", "missing.h5"], 1, "missing.h5: No such file"),
        (&["train", "resnet50", "--weights", "cnn.keras"], 1, "[height, width, 3], received"),
        (&["evaluate", "cut.keras"], 1, "cut.keras: expected"),
        (&["evaluate", "pipe.keras"], 1, "pipe.keras: expected"),
        (&["evaluate", "cnn.keras", "--model", "mnist-cnn"], 1, "cnn.keras: expected"),
        (&["evaluate", "mnist-cnn"], 1, "mnist-cnn: expected a name ending in"),
        (&["predict", "cnn.keras", "--input", "wide.csv", "--output", "y.npy"], 1, "wide.csv"),
        (&["inspect", "mnist-mpl"], 2, "possible values: mnist-mlp"),
        (&["inspect", "missing.keras"], 1, "missing.keras: No such file"),
        (&["inspect", "broken.safetensors"], 1, "broken.safetensors: expected"),
        (&["convert", "missing.h5", "out.keras"], 1, "missing.h5: No such file"),
        (&["convert", "broken.safetensors", "out.onnx"], 1, "a name ending in .weights.h5"),
        (&["diff", "missing.keras", "missing.keras"], 1, "missing.keras: No such file"),
        (&["evaluate", "missing.safetensors", "--model", "mnist-mlp"], 1, "missing.safetensors"),
        (&["evaluate", "folder", "--model", "mnist-mlp"], 1, "folder"),
        (&["evaluate", "broken.safetensors", "--model", "mnist-mlp"], 1, "broken.safetensors"),
        (&["evaluate", "plain.safetensors"], 1, "does not record its network; add --model"),
        (&["evaluate", "plain.safetensors", "--model", "vgg11"], 1, "plain.safetensors: expected"),
        (&["predict", "broken.safetensors", "x.png"], 1, "broken.safetensors"),
        (&["predict", "broken.safetensors"], 2, "IMAGES"),
        (&["predict", "broken.safetensors", "x.png", "--input", "x.npy"], 2, "cannot be used"),
        (&["predict", "broken.safetensors", "--input", "x.npy"], 2, "--output"),
        (&["predict", "file", "x.png", "--top", "0"], 1, "--top: expected 1 or more"),
        (&["inspect", "net.keras"], 1, "net.keras: No such file"),
    ]);
}

#[test]
fn config_files_are_checked() {
    refused(&[
        (&["train", "mnist-mlp", "--config", "missing.toml"], 1, "--config: missing.toml"),
        (&["train", "mnist-mlp", "--config", "folder"], 1, "expected a file"),
        (&["train", "mnist-mlp", "--config", "pipe"], 1, "expected a file"),
        (&["train", "mnist-mlp", "--config", "broken.toml"], 1, "broken.toml: expected TOML"),
        (&["train", "--config", "empty.toml"], 1, "MODEL: expected a network"),
        (&["train", "--config", "odd.toml"], 1, "unknown key 'epoch'; did you mean 'epochs'?"),
        (&["train", "mnist-mlp", "--config", "date.toml"], 1, "epochs: expected a number"),
        (&["train", "mnist-mlp", "--config", "word.toml"], 1, "invalid value 'two' for '--epochs"),
    ]);
}

#[test]
fn files_to_write_are_checked_before_training() {
    refused(&[
        (
            &["train", "mnist-mlp", "--csv", "-", "--json", "-"],
            1,
            "--json: expected a different path from",
        ),
        (&["train", "mnist-mlp", "--csv", "no/log.csv"], 1, "a directory that exists"),
        (&["train", "mnist-mlp", "--json", "pipe"], 1, "a pipe or a device"),
        (&["train", "mnist-mlp", "--json", "folder"], 1, "received the directory folder"),
        (&["train", "mnist-mlp", "--log-dir", "file"], 1, "--log-dir: file"),
        (&["train", "mnist-mlp", "--save", "/proc/w.safetensors"], 1, "--save: /proc"),
        (&["train", "mnist-mlp", "--checkpoint-every", "5"], 2, "--checkpoint-dir"),
        (&["train", "mnist-mlp", "--output", "no/such/plot.png"], 1, "a directory that exists"),
        (&["train", "mnist-mlp", "--output", "folder"], 1, "received the directory"),
        (&["train", "mnist-mlp", "--output", "plot.bmp"], 1, "bmp"),
        (&["train", "mnist-mlp", "--save", "weights.bin"], 1, ".safetensors"),
        (&["train", "mnist-mlp", "--csv", "folder"], 1, "folder"),
        (&["train", "mnist-mlp", "--checkpoint-dir", "file"], 1, "file"),
        (&["evaluate", "file", "--model", "mnist-mlp", "--confusion", "c.gif"], 1, "--confusion"),
        (&["inspect", "mnist-mlp", "--picture", "m.gif"], 1, "gif"),
    ]);
}

#[test]
fn arguments_of_bench_are_checked() {
    refused(&[
        (&["bench", "mnist-cnn", "--data", "cifar_1"], 1, "did you mean 'cifar-10'?"),
        (&["bench", "net.keras"], 1, "net.keras: No such file"),
        (&["bench", "mnist-mlp", "--batch-size", "99999999999999"], 1, "error: "),
        (&["bench", "mnist-mlp", "--batch-size", "0"], 1, "--batch-size: expected 1 or more"),
        (&["bench", "mnist-mlp", "--steps", "0"], 1, "--steps: expected 1 to 10000000"),
        (
            &["bench", "mnist-mlp", "--steps", "999999999999999"],
            1,
            "--steps: expected 1 to 10000000",
        ),
        (&["bench", "mnist-mlp", "--depth", "99999999"], 1, "--depth: expected 1000 or fewer"),
        (&["bench", "mnist-mlp", "--width", "99999999999"], 1, "a shape that fits in memory"),
        (&["bench", "mnist-cnn", "--width", "8"], 1, "expected mnist-mlp"),
        (&["bench", "mnist-mlp", "--augment", "flip"], 2, "--data"),
        (&["bench", "mnist-cnn", "--data", "nope"], 1, "unknown dataset 'nope'"),
        (&["bench", "mnist-mlp", "--data", "glyphs"], 1, "--data: expected a network on images"),
    ]);
}

#[test]
fn arguments_that_are_not_utf8_do_not_panic() {
    use std::os::unix::ffi::OsStrExt;
    let dir = tempfile::tempdir().unwrap();
    let odd = OsStr::from_bytes(b"\xff\xfe");
    for (args, code) in [
        (vec![OsStr::new("train"), odd], 2),
        (vec![OsStr::new("train"), OsStr::new("mnist-mlp"), OsStr::new("--data"), odd], 2),
        (vec![OsStr::new("predict"), odd, odd], 1),
    ] {
        let out = command(dir.path(), &args).output().unwrap();
        let error = text(&out.stderr);
        assert_eq!(out.status.code(), Some(code), "{error}");
        assert!(!error.contains("panicked"), "{error}");
    }
}

#[test]
fn damaged_data_files_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let mut wrong = vec![];
    for (what, name, expected) in files::damaged(dir.path()) {
        let case_dir = dir.path().join(what);
        let args = ["train", "minigooglenet", "--steps-per-epoch", "1", "--data", &name];
        wrong.extend(fault(&case_dir, &args, 1, expected).map(|fault| format!("{what}: {fault}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
