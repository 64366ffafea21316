//! The real binary in a temporary directory: what it does, and what it says when it cannot.

use std::path::Path;
use std::process::{Command, Output};

fn phalanx(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_phalanx"))
        .args(args)
        .current_dir(dir)
        .env("PHALANX_DATA", dir.join("no-data-here"))
        .env("PHALANX_OFFLINE", "1")
        .env("PHALANX_PIN", "0")
        .output()
        .expect("the binary starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs a command that must succeed; returns its standard output.
fn succeeds(dir: &Path, args: &[&str]) -> String {
    let out = phalanx(dir, args);
    assert!(out.status.success(), "{args:?}: {}", text(&out.stderr));
    text(&out.stdout)
}

#[test]
fn bad_input_gives_one_clear_line_and_a_code() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("folder")).unwrap();
    std::fs::write(dir.path().join("file"), "x").unwrap();
    std::fs::write(dir.path().join("broken.safetensors"), [255; 40]).unwrap();
    let cases: &[(&[&str], i32, &str)] = &[
        (&["train", "mnist-mlp", "--replicas", "0"], 1, "at least one device"),
        (&["train", "mnist-mlp", "--replicas", "18446744073709551615"], 1, "1024 or fewer"),
        (&["train", "mnist-mlp", "--devices", "cpu:0,cpu:0"], 1, "each device once"),
        (&["train", "mnist-mlp", "--devices", "tpu:0"], 1, "cpu:N or gpu:N"),
        (&["train", "mnist-mlp", "--gpus", "2"], 1, "--gpus: no GPU was found"),
        (&["train", "mnist-mlp", "--threads", "99999999"], 1, "threads"),
        (&["train", "mnist-mlp", "--batch-size", "0"], 1, "expected 1 or more, received 0"),
        (&["train", "mnist-mlp", "--batch-size", "-1"], 2, "--batch-size"),
        (&["train", "mnist-mlp", "--batch-size", "9223372036854775808"], 1, "error: "),
        (&["train", "mnist-mlp", "--lr", "nan"], 1, "received NaN"),
        (&["train", "mnist-mlp", "--lr", "-1"], 1, "received -1"),
        (&["train", "mnist-mlp", "--lr", "inf"], 1, "received inf"),
        (&["train", "mnist-mlp", "--momentum", "0.9"], 1, "sgd"),
        (&["train", "mnist-mlp", "--optimizer", "adamm"], 1, "did you mean 'adam'"),
        (&["train", "mnist-mlp", "--data", "nope"], 1, "unknown dataset 'nope'"),
        (&["train", "mnist-mlp", "--data", ""], 1, "unknown dataset ''"),
        (&["train", "mnist-mlp", "--data", "mnist"], 1, "train-images-idx3-ubyte"),
        (&["train", "minigooglenet"], 1, "expected images of [32, 32, 3]"),
        (&["train", "mnist-mlp", "--augment", "shift"], 1, "expected"),
        (&["train", "mnist-mlp", "--output", "no/such/plot.png"], 1, "a directory that exists"),
        (&["train", "mnist-mlp", "--output", "folder"], 1, "received the directory"),
        (&["train", "mnist-mlp", "--output", "plot.bmp"], 1, "bmp"),
        (&["train", "mnist-mlp", "--save", "weights.bin"], 1, ".safetensors"),
        (&["train", "mnist-mlp", "--csv", "folder"], 1, "folder"),
        (&["inspect", "mnist-mpl"], 2, "expected a file or one of mnist-mlp"),
        (&["inspect", "missing.keras"], 1, "missing.keras: No such file"),
        (&["inspect", "broken.safetensors"], 1, "broken.safetensors: expected"),
        (&["convert", "missing.h5", "out.keras"], 1, "missing.h5: No such file"),
        (&["convert", "broken.safetensors", "out.onnx"], 1, "a name ending in .weights.h5"),
        (&["diff", "missing.keras", "missing.keras"], 1, "missing.keras: No such file"),
        (&["train", "mnist-mlp", "--checkpoint-dir", "file"], 1, "file"),
        (&["train", "mnist-mlp", "--lr", "1e30"], 1, "at step"),
        (&["train", "mnist-mlp", "--epochs", "1", "--epochs", "2"], 2, "cannot be used multiple"),
        (&["train", "mnist-mlp", "--nonsense"], 2, "--nonsense"),
        (&["train", "mnist-mpl"], 2, "mnist-mlp"),
        (&["train", "mnist-mlp", "--verbose", "3"], 2, "0..=2"),
        (&["evaluate", "missing.safetensors", "--model", "mnist-mlp"], 1, "missing.safetensors"),
        (&["evaluate", "folder", "--model", "mnist-mlp"], 1, "folder"),
        (&["evaluate", "broken.safetensors", "--model", "mnist-mlp"], 1, "broken.safetensors"),
        (&["bench", "mnist-mlp", "--batch-size", "99999999999999"], 1, "error: "),
        (&["inspect", "mnist-mlp", "--picture", "m.gif"], 1, "gif"),
    ];
    let mut wrong = vec![];
    for (args, code, expected) in cases {
        let out = phalanx(dir.path(), args);
        let error = text(&out.stderr);
        let one_line = *code != 1 || error.trim_end().lines().count() == 1;
        let fine = out.status.code() == Some(*code)
            && error.contains(expected)
            && !error.contains("panicked")
            && one_line;
        if !fine {
            wrong.push(format!("{args:?}: {:?}, {error}", out.status.code()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn training_writes_what_was_asked_and_repeats_to_the_bit() {
    let dir = tempfile::tempdir().unwrap();
    let args = [
        "train",
        "mnist-mlp",
        "--epochs",
        "2",
        "--json",
        "log.jsonl",
        "--csv",
        "log.csv",
        "--log-dir",
        "logs",
        "--checkpoint-dir",
        "ckpt",
        "--output",
        "plot.svg",
        "--save",
        "w.safetensors",
    ];
    let out = succeeds(dir.path(), &args);
    assert!(out.starts_with("devices: cpu:0"), "{out}");
    assert!(!out.contains('\u{1b}'), "no control characters where the output is no terminal");
    let log = std::fs::read_to_string(dir.path().join("log.jsonl")).unwrap();
    let lines: Vec<serde_json::Value> =
        log.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(lines.len(), 3);
    for key in [
        "epoch",
        "loss",
        "accuracy",
        "val_loss",
        "val_accuracy",
        "lr",
        "seconds",
        "images_per_second",
    ] {
        assert!(lines[1][key].is_number(), "{key}: {}", lines[1]);
    }
    assert_eq!(lines[2]["event"], "end");
    assert!(lines[2]["test_accuracy"].as_f64().unwrap() > 0.93, "{}", lines[2]);
    for file in ["log.csv", "plot.svg", "ckpt/ckpt-2.safetensors", "logs/train"] {
        assert!(dir.path().join(file).exists(), "{file}");
    }

    let again = succeeds(dir.path(), &["train", "mnist-mlp", "--epochs", "2", "--json", "-"]);
    let end: serde_json::Value = serde_json::from_str(again.lines().last().unwrap()).unwrap();
    assert_eq!(end["weights_sha256"], lines[2]["weights_sha256"]);

    let saved = ["evaluate", "w.safetensors", "--model", "mnist-mlp", "--confusion", "cm.png"];
    let evaluated = succeeds(dir.path(), &saved);
    let accuracy = format!("accuracy: {:.4}", lines[2]["test_accuracy"].as_f64().unwrap());
    assert!(evaluated.contains(&accuracy), "{evaluated} {accuracy}");
    assert!(dir.path().join("cm.png").exists());
}

#[test]
fn two_replicas_train_with_the_losses_of_one() {
    let dir = tempfile::tempdir().unwrap();
    let losses = |extra: &[&str]| -> Vec<f64> {
        let mut args =
            vec!["train", "mnist-cnn", "--epochs", "1", "--global-batch-size", "37", "--json", "-"];
        args.extend(extra);
        let out = succeeds(dir.path(), &args);
        let lines = out.lines().map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap());
        lines.filter_map(|l| l["loss"].as_f64()).collect()
    };
    let (one, two) = (losses(&[]), losses(&["--replicas", "2"]));
    assert_eq!(one.len(), 1);
    assert!((one[0] - two[0]).abs() < 1e-3 * one[0], "{one:?} {two:?}");
}

#[test]
fn inspecting_shows_layers_program_and_devices() {
    let dir = tempfile::tempdir().unwrap();
    assert!(succeeds(dir.path(), &["inspect", "resnet50"]).contains("23,608,202"));
    let program = succeeds(dir.path(), &["inspect", "mnist-mlp", "--program", "--replicas", "2"]);
    assert!(program.contains("2 device(s)") && program.contains("update Adam"), "{program}");
    assert!(succeeds(dir.path(), &["devices"]).starts_with("cpu:0"));
    assert!(succeeds(dir.path(), &["data"]).contains("cifar-10"));
    assert!(succeeds(dir.path(), &["completions", "bash"]).contains("phalanx"));
    let bench = succeeds(dir.path(), &["bench", "mnist-mlp", "--steps", "2", "--json"]);
    let line: serde_json::Value = serde_json::from_str(&bench).unwrap();
    for key in ["images_per_second", "step_ms", "setup_s", "peak_rss_mib", "planned_mib"] {
        assert!(line[key].is_number(), "{key}: {line}");
    }
}

#[test]
fn model_files_are_converted_shown_and_compared() {
    let dir = tempfile::tempdir().unwrap();
    let train = ["train", "mnist-mlp", "--epochs", "1", "--steps-per-epoch", "2", "--verbose", "0"];
    succeeds(dir.path(), &[&train[..], &["--save", "a.safetensors"]].concat());
    succeeds(dir.path(), &["convert", "a.safetensors", "b.keras"]);
    succeeds(dir.path(), &["convert", "b.keras", "c.h5"]);
    assert_eq!(succeeds(dir.path(), &["diff", "a.safetensors", "c.h5"]), "");
    let shown = succeeds(dir.path(), &["inspect", "b.keras"]);
    assert!(shown.contains("model: Functional 'mnist_mlp'"), "{shown}");
    assert!(shown.contains("  layers/dense_2/vars/0 f32 [256, 10]"), "{shown}");
    succeeds(dir.path(), &[&train[..], &["--seed", "1", "--save", "d.safetensors"]].concat());
    let out = phalanx(dir.path(), &["diff", "c.h5", "d.safetensors"]);
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stdout).contains("dense/kernel: "), "{}", text(&out.stdout));
    assert!(
        text(&out.stderr).contains("c.h5 and d.safetensors differ in"),
        "{}",
        text(&out.stderr)
    );
}
