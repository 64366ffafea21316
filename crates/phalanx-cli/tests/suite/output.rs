//! Standard output and error: closed ones, tables, warnings.

use super::{command, phalanx, succeeds, text};
use std::path::Path;
use std::process::Stdio;

/// Runs a command with a closed standard output; returns its standard error and exit code.
fn with_closed_output(dir: &Path, args: &[&str]) -> (String, Option<i32>) {
    let piped = command(dir, args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = piped.unwrap();
    drop(child.stdout.take());
    let out = child.wait_with_output().unwrap();
    (text(&out.stderr), out.status.code())
}

#[test]
fn a_closed_output_ends_every_command_quietly() {
    let dir = tempfile::tempdir().unwrap();
    let short = ["--steps-per-epoch", "2", "--epochs", "1"];
    let save = [&["train", "mnist-mlp", "--save", "net.keras", "--verbose", "0"], &short[..]];
    succeeds(dir.path(), &save.concat());
    image::RgbImage::new(28, 28).save(dir.path().join("one.png")).unwrap();
    for args in [
        &["inspect", "resnet50"][..],
        &["inspect", "net.keras"],
        &["completions", "bash"],
        &["data"],
        &["data", "info", "glyphs"],
        &["devices"],
        &["plan", "mnist-mlp"],
        &["diff", "net.keras", "net.keras"],
        &["evaluate", "net.keras"],
        &["predict", "net.keras", "one.png"],
        &["bench", "mnist-mlp", "--steps", "1"],
        &["--help"],
        &["train", "--help"],
        &["--version"],
    ] {
        assert_eq!(with_closed_output(dir.path(), args), (String::new(), Some(0)), "{args:?}");
    }
    // The shell's exit code for a program killed by SIGPIPE.
    for last in [&[][..], &["--json", "-"], &["--csv", "-"]] {
        let args = [&["train", "mnist-mlp", "--no-scaling"], &short[..], last].concat();
        assert_eq!(with_closed_output(dir.path(), &args), (String::new(), Some(141)), "{args:?}");
    }
}

/// As under `head -1`: the run stops when its output is closed.
#[test]
fn a_run_with_a_closed_output_stops_and_saves() {
    use std::io::{BufRead, BufReader};
    let dir = tempfile::tempdir().unwrap();
    let args = ["train", "mnist-mlp", "--epochs", "100000", "--checkpoint-dir", "ckpt"];
    let mut child =
        command(dir.path(), &args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let epoch = |line: std::io::Result<String>| line.unwrap().starts_with("Epoch 2/");
    assert!(lines.any(epoch));
    drop(lines);
    let out = child.wait_with_output().unwrap();
    assert_eq!((text(&out.stderr), out.status.code()), (String::new(), Some(141)));
    assert!(std::fs::read_dir(dir.path().join("ckpt")).unwrap().count() > 0);
}

#[test]
fn a_closed_standard_error_does_not_fail_a_run() {
    let dir = tempfile::tempdir().unwrap();
    let args =
        ["train", "mnist-mlp", "--replicas", "20", "--steps-per-epoch", "1", "--epochs", "1"];
    let piped = command(dir.path(), &args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = piped.unwrap();
    drop(child.stderr.take());
    let out = child.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stdout));
}

#[test]
fn more_replicas_than_cores_give_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    let warned = |replicas: usize| {
        let replicas = replicas.to_string();
        let args = ["train", "mnist-mlp", "--steps-per-epoch", "1", "--epochs", "1"];
        let more = ["--threads", "1", "--no-scaling", "--batch-size", "1", "--replicas", &replicas];
        let out = phalanx(dir.path(), &[&args[..], &more].concat());
        assert!(out.status.success(), "{}", text(&out.stderr));
        text(&out.stderr)
    };
    let cores = phalanx::usable_cores();
    assert_eq!(warned(cores), "");
    let warning = warned(cores + 1);
    let expected = format!("warning: {} replicas share {cores} usable core", cores + 1);
    assert!(warning.starts_with(&expected) && warning.lines().count() == 1, "{warning}");
}

#[test]
fn csv_goes_to_standard_output_and_large_batches_are_clipped_to_the_data() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["train", "mnist-mlp", "--epochs", "2", "--steps-per-epoch", "2", "--csv", "-"];
    let table = succeeds(dir.path(), &args);
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 3, "{table}");
    assert_eq!(lines[0], "epoch,accuracy,learning_rate,loss,val_accuracy,val_loss");
    assert!(lines[1].starts_with("1,") && lines[2].starts_with("2,"), "{table}");
    let args = ["train", "mnist-mlp", "--epochs", "1", "--batch-size", "9223372036854775808"];
    let out = succeeds(dir.path(), &args);
    assert!(out.contains("notice: the batch of 9223372036854775808 became 5000"), "{out}");
    let args =
        ["train", "mnist-cnn", "--epochs", "1", "--steps-per-epoch", "1", "--image-size", "12"];
    let out = succeeds(dir.path(), &args);
    assert!(out.contains("inputs: [12, 12, 1] (from [28, 28, 1]), as they are"), "{out}");
}
