//! Runs the real binary in a temporary directory: results, messages and exit codes.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Output, Stdio};

mod bench;
mod bounds;
mod crash;
mod data;
mod doctor;
mod files;
mod models;
mod names;
mod plan;
mod runs;
mod workers;

fn command<S: AsRef<OsStr>>(dir: &Path, args: &[S]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_phalanx"));
    command
        .args(args)
        .current_dir(dir)
        .env("PHALANX_DATA", dir.join("data"))
        .env("PHALANX_OFFLINE", "1")
        .env("PHALANX_PIN", "0");
    command
}

fn phalanx(dir: &Path, args: &[&str]) -> Output {
    command(dir, args).output().expect("the binary starts")
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
    std::fs::write(dir.path().join("plain.safetensors"), b"\x08\0\0\0\0\0\0\0{}      ").unwrap();
    std::fs::write(dir.path().join("empty.toml"), "").unwrap();
    std::fs::write(dir.path().join("odd.toml"), "model = \"mnist-mlp\"\nepoch = 3\n").unwrap();
    std::fs::write(dir.path().join("date.toml"), "epochs = 2020-01-01").unwrap();
    std::fs::write(dir.path().join("word.toml"), "epochs = \"two\"").unwrap();
    std::fs::write(dir.path().join("broken.toml"), "epochs = = 2").unwrap();
    std::os::unix::fs::symlink("loop.npz", dir.path().join("loop.npz")).unwrap();
    assert!(Command::new("mkfifo").arg(dir.path().join("pipe")).status().unwrap().success());
    models::bad_files(dir.path());
    let cases: &[(&[&str], i32, &str)] = &[
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
        (&["train", "vgg11", "--image-size", "8"], 1, "--image-size: vgg11 takes sides of 32"),
        (&["train", "mnist-mlp", "--lr", "nan"], 1, "received NaN"),
        (&["train", "mnist-mlp", "--lr", "-1"], 1, "received -1"),
        (&["train", "mnist-mlp", "--lr", "inf"], 1, "received inf"),
        (&["train", "mnist-mlp", "--momentum", "0.9"], 1, "sgd"),
        (&["train", "mnist-mlp", "--optimizer", "adamm"], 1, "did you mean 'adam'"),
        (&["train", "mnist-mlp", "--data", "nope"], 1, "unknown dataset 'nope'"),
        (
            &["train", "mnist-mlp", "--data", "mnits"],
            1,
            "'mnits'; did you mean 'mnist'? known: glyphs,",
        ),
        (&["bench", "mnist-cnn", "--data", "cifar_1"], 1, "did you mean 'cifar-10'?"),
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
        (&["train"], 2, "MODEL"),
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
        (&["train", "mnist-mlp", "--test-split", "0.2"], 1, "without test rows of their own"),
        (&["train", "mnist-mlp", "--validation-split", "1.5"], 1, "between 0 and 1, received 1.5"),
        (&["train", "mnist-mlp", "--validation-split", "nan"], 1, "between 0 and 1, received NaN"),
        (&["train", "mnist-mlp", "--rescale=0"], 2, "as in 1/255 or 1/127.5,-1"),
        (&["train", "mnist-mlp", "--label", "a"], 1, "--label: expected a .csv as --data"),
        (&["train", "mnist-mlp", "--data", "wide.csv", "--label", "c"], 1, "a column 'c' for the"),
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
        (&["bench", "net.keras"], 1, "net.keras: No such file"),
        (&["train", ""], 2, "possible values"),
        (&["train", "mnist-mlp", "--config", "missing.toml"], 1, "--config: missing.toml"),
        (&["train", "mnist-mlp", "--config", "folder"], 1, "expected a file"),
        (&["train", "mnist-mlp", "--config", "pipe"], 1, "expected a file"),
        (&["train", "mnist-mlp", "--config", "broken.toml"], 1, "broken.toml: expected TOML"),
        (&["train", "--config", "empty.toml"], 1, "MODEL: expected a network"),
        (&["train", "--config", "odd.toml"], 1, "unknown key 'epoch'; did you mean 'epochs'?"),
        (&["train", "mnist-mlp", "--config", "date.toml"], 1, "epochs: expected a number"),
        (&["train", "mnist-mlp", "--config", "word.toml"], 1, "invalid value 'two' for '--epochs"),
        (
            &["train", "mnist-mlp", "--csv", "-", "--json", "-"],
            1,
            "--json: expected a path of its own",
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
        (&["inspect", "mnist-mpl"], 2, "possible values: mnist-mlp"),
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
        (&["evaluate", "plain.safetensors"], 1, "does not record its network; add --model"),
        (&["evaluate", "plain.safetensors", "--model", "vgg11"], 1, "plain.safetensors: expected"),
        (&["evaluate", "file", "--model", "mnist-mlp", "--confusion", "c.gif"], 1, "--confusion"),
        (&["predict", "broken.safetensors", "x.png"], 1, "broken.safetensors"),
        (&["predict", "broken.safetensors"], 2, "IMAGES"),
        (&["predict", "broken.safetensors", "x.png", "--input", "x.npy"], 2, "cannot be used"),
        (&["predict", "broken.safetensors", "--input", "x.npy"], 2, "--output"),
        (&["predict", "file", "x.png", "--top", "0"], 1, "--top: expected 1 or more"),
        (&["data", "fetch", "nope"], 1, "unknown dataset of files 'nope'"),
        (&["data", "fetch", "mnist"], 1, "PHALANX_OFFLINE"),
        (&["data", "info", "nope"], 1, "unknown dataset 'nope'"),
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
        (&["inspect", "net.keras"], 1, "net.keras: No such file"),
        (&["bench", "mnist-cnn", "--width", "8"], 1, "expected mnist-mlp"),
        (&["bench", "mnist-mlp", "--augment", "flip"], 2, "--data"),
        (&["bench", "mnist-cnn", "--data", "nope"], 1, "unknown dataset 'nope'"),
        (&["bench", "mnist-mlp", "--data", "glyphs"], 1, "--data: expected a network on images"),
        (&["inspect", "mnist-mlp", "--picture", "m.gif"], 1, "gif"),
    ];
    let mut wrong = vec![];
    for (args, code, expected) in cases {
        wrong.extend(fault(dir.path(), args, *code, expected));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Runs a command that must fail with this exit code and message. Returns a description if it does not. With code 1 the
/// message must be one line.
fn fault(dir: &Path, args: &[&str], code: i32, expected: &str) -> Option<String> {
    let out = phalanx(dir, args);
    let error = text(&out.stderr);
    let one_line = code != 1 || error.trim_end().lines().count() == 1;
    let fine = out.status.code() == Some(code)
        && error.contains(expected)
        && !error.contains("panicked")
        && one_line;
    (!fine).then(|| format!("{args:?}, expected {expected:?}: {:?}, {error}", out.status.code()))
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
fn completions_offer_datasets_and_help_wraps_at_the_terminal_width() {
    let dir = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let script = succeeds(dir.path(), &["completions", shell]);
        let offered = script.lines().filter(|line| line.contains("fashion-mnist")).count();
        assert!(offered >= 3, "{shell}: {offered}");
    }
    let help = succeeds(dir.path(), &["train", "--help"]);
    assert!(!help.contains("[possible values: glyphs"), "the text already lists them");
    let narrow =
        command(dir.path(), &["evaluate", "--help"]).env("COLUMNS", "60").output().unwrap();
    let widest = text(&narrow.stdout).lines().map(|line| line.chars().count()).max();
    assert!(widest.unwrap() <= 84, "{widest:?}: example lines are not wrapped");
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

/// Two colors as images, as an array and as a table.
#[test]
fn user_data_train_evaluate_and_predict() {
    let dir = tempfile::tempdir().unwrap();
    files::colours(dir.path());
    let end = |out: &str| -> serde_json::Value {
        serde_json::from_str(out.lines().last().unwrap()).unwrap()
    };
    for (data, model, size, epochs) in [
        ("images", "mnist-cnn", "16", "12"),
        ("parts", "mnist-mlp", "8", "12"),
        ("colours.npz", "mnist-mlp", "8", "12"),
        // Its moving statistics need many steps.
        ("images", "resnet20", "8x12", "80"),
    ] {
        let args = ["train", model, "--data", data, "--image-size", size, "--epochs", epochs];
        let more = ["--batch-size", "8", "--json", "-", "--save", "w.safetensors"];
        let split = if data == "parts" { &[][..] } else { &["--test-split", "0.2"] };
        let out = succeeds(dir.path(), &[&args[..], &more, split].concat());
        let accuracy = end(&out)["test_accuracy"].as_f64().unwrap();
        assert!(accuracy > 0.9, "{model} on {data}: {accuracy}");
        // The file records network, size, classes and mean.
        let evaluated = succeeds(dir.path(), &["evaluate", "w.safetensors", "--data", data]);
        assert!(evaluated.contains(&format!("accuracy: {accuracy:.4}")), "{evaluated}");
    }
    let args = ["train", "mnist-cnn", "--data", "images", "--grayscale", "--epochs", "1"];
    let out = succeeds(dir.path(), &args);
    assert!(out.contains("40 rows to train on, none to validate on, none to test on"), "{out}");
    assert!(
        out.contains("[28, 28, 1], bytes divided by 255; targets: class numbers (2 cl"),
        "{out}"
    );
    let args = ["train", "mnist-mlp", "--data", "table.csv", "--epochs", "20", "--json", "-"];
    let more = ["--batch-size", "8", "--test-split", "0.2"];
    let out = succeeds(dir.path(), &[&args[..], &more].concat());
    assert!(end(&out)["test_accuracy"].as_f64().unwrap() > 0.9, "{out}");

    let args = ["train", "mnist-cnn", "--data", "images", "--epochs", "2"];
    let more = ["--verbose", "0", "--checkpoint-dir", "ckpt"];
    assert_eq!(succeeds(dir.path(), &[&args[..], &more].concat()), "", "verbose 0 is silent");
    let named = succeeds(dir.path(), &["evaluate", "ckpt", "--data", "images"]);
    assert_eq!(succeeds(dir.path(), &["evaluate", "ckpt"]), named);
    let file = "w.safetensors";
    let images = ["images/blue/3.png", "images/red/0.jpg"];
    let named = succeeds(dir.path(), &["predict", file, images[0], images[1], "--top", "2"]);
    let lines: Vec<&str> = named.lines().collect();
    assert!(lines[0].starts_with("images/blue/3.png: blue "), "{named}");
    assert!(lines[1].starts_with("images/red/0.jpg: red "), "{named}");
    assert!(lines[0].contains(", red "), "{named}");
    succeeds(dir.path(), &["predict", file, "--input", "x.npy", "--output", "y.npy"]);
    let y = phalanx::datasets::npy::read(&dir.path().join("y.npy")).unwrap().to_tensor();
    assert_eq!(y.dims(), [2, 2]);
    for row in y.f32().unwrap().chunks(2) {
        assert!((row[0] + row[1] - 1.0).abs() < 1e-5, "{row:?}");
    }
    assert!(y.f32().unwrap()[0] > 0.5 && y.f32().unwrap()[3] > 0.5, "blue, then red: {y:?}");
    let info = succeeds(dir.path(), &["data", "info", "images"]);
    assert!(info.contains("classes: 2") && info.contains("blue"), "{info}");
    let other = fault(dir.path(), &["evaluate", file, "--model", "vgg11"], 1, "expected resnet20");
    assert_eq!(other, None);
    let other = fault(
        dir.path(),
        &["evaluate", file, "--data", "glyphs"],
        1,
        "at most 2 classes, received 10",
    );
    assert_eq!(other, None);
    let text = fault(dir.path(), &["predict", file, "table.csv"], 1, "table.csv: expected a JPEG");
    assert_eq!(text, None);
}

#[test]
fn cifar_100_has_its_hundred_classes() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("data/cifar-100-binary");
    std::fs::create_dir_all(&folder).unwrap();
    let record = |fine: u8| [vec![fine % 20, fine], vec![fine; 3072]].concat();
    let records: Vec<u8> = (0..100).flat_map(record).collect();
    std::fs::write(folder.join("train.bin"), &records).unwrap();
    std::fs::write(folder.join("test.bin"), &records).unwrap();
    let args =
        ["train", "mnist-mlp", "--data", "cifar-100", "--epochs", "1", "--save", "w.safetensors"];
    let out = succeeds(dir.path(), &args);
    assert!(out.contains("data: 83 rows to train on, 17 to validate on, 100 to test on"), "{out}");
    assert!(out.contains("inputs: [32, 32, 3], bytes divided by 255"), "{out}");
    assert!(out.contains("class numbers (100 classes)"), "{out}");
    let evaluated = succeeds(dir.path(), &["evaluate", "w.safetensors"]);
    assert!(out.contains(evaluated.trim_end().lines().last().unwrap()), "{evaluated}");
    let info = succeeds(dir.path(), &["data", "info", "cifar-100"]);
    assert!(info.contains("aquarium_fish") && info.contains("and 80 more"), "{info}");
}

#[test]
fn mixed_float16_scales_the_loss_without_changing_cpu_results() {
    let dir = tempfile::tempdir().unwrap();
    let train = |precision: &str| {
        let args = ["train", "mnist-mlp", "--epochs", "1", "--steps-per-epoch", "4", "--json", "-"];
        let out = succeeds(dir.path(), &[&args[..], &["--precision", precision]].concat());
        out.lines().map(|l| serde_json::from_str(l).unwrap()).collect::<Vec<serde_json::Value>>()
    };
    let (half, single) = (train("mixed_float16"), train("float32"));
    assert_eq!(half[0]["loss_scale"], 32768.0);
    assert_eq!(half[0]["loss"], single[0]["loss"]);
    assert!(single[0].get("loss_scale").is_none(), "{}", single[0]);
    assert_eq!(half[1]["weights_sha256"], single[1]["weights_sha256"]);
}

#[test]
fn the_command_line_overrides_a_config_file() {
    let dir = tempfile::tempdir().unwrap();
    let toml = "model = \"mnist-cnn\"\nepochs = 2\nbatch-size = 16\nsteps-per-epoch = 3\n\
                augment = [\"shift\", \"zoom\"]\nno-shuffle = true\nlr = 0.01\nno-scaling = false\n";
    std::fs::write(dir.path().join("run.toml"), toml).unwrap();
    let out = succeeds(dir.path(), &["train", "--config", "run.toml", "--json", "-"]);
    let from_file: Vec<&str> = out.lines().collect();
    assert_eq!(from_file.len(), 3, "two epochs and the end");
    let line: serde_json::Value = serde_json::from_str(from_file[0]).unwrap();
    assert_eq!(line["lr"], 0.01);
    let same = ["train", "mnist-cnn", "--epochs", "2", "--batch-size", "16", "--json", "-"];
    let more =
        ["--steps-per-epoch", "3", "--augment", "shift,zoom", "--no-shuffle", "--lr", "0.01"];
    let by_flags = succeeds(dir.path(), &[&same[..], &more].concat());
    let hash = |out: &str| {
        let end: serde_json::Value = serde_json::from_str(out.lines().last().unwrap()).unwrap();
        end["weights_sha256"].clone()
    };
    assert_eq!(hash(&out), hash(&by_flags));
    // A flag overrides a conflicting key of the file.
    let args = ["train", "mnist-mlp", "--config", "run.toml", "--global-batch-size", "8"];
    let more = ["--epochs", "1", "--verbose", "2"];
    let error = phalanx(dir.path(), &[&args[..], &more].concat());
    assert!(text(&error.stderr).contains("--augment"), "augment from the file still applies");
    std::fs::write(dir.path().join("run.toml"), "batch-size = 16\nepochs = 9\nsteps-per-epoch = 2")
        .unwrap();
    let out = succeeds(dir.path(), &[&args[..], &more].concat());
    assert!(out.contains("batch: 8 global, 8 per replica") && !out.contains("/9"), "{out}");
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

#[test]
fn training_writes_the_requested_files_and_is_reproducible() {
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
    assert!(out.starts_with("devices: cpu:0 (1 replica)\n"), "{out}");
    assert!(!out.contains('\u{1b}'), "no control characters unless the output is a terminal");
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
    for file in ["log.csv", "plot.svg", "ckpt/step-0000000314.safetensors", "logs/train"] {
        assert!(dir.path().join(file).exists(), "{file}");
    }

    let again = succeeds(dir.path(), &["train", "mnist-mlp", "--epochs", "2", "--json", "-"]);
    let end: serde_json::Value = serde_json::from_str(again.lines().last().unwrap()).unwrap();
    assert_eq!(end["weights_sha256"], lines[2]["weights_sha256"]);

    let saved = ["evaluate", "w.safetensors", "--confusion", "cm.png", "--samples", "samples.png"];
    let evaluated = succeeds(dir.path(), &saved);
    let accuracy = format!("accuracy: {:.4}", lines[2]["test_accuracy"].as_f64().unwrap());
    assert!(evaluated.contains(&accuracy), "{evaluated} {accuracy}");
    assert!(dir.path().join("cm.png").exists() && dir.path().join("samples.png").exists());
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
    let args = ["train", "mnist-mlp", "--epochs", "1", "--replicas", "2", "--threads", "1"];
    let out = succeeds(dir.path(), &args);
    assert!(out.contains("cpu:0, cpu:1 (2 replicas)"), "{out}");
    assert!(out.contains("input wait") && out.contains("scaling efficiency"), "{out}");
    let plain = succeeds(dir.path(), &[&args[..], &["--no-scaling"]].concat());
    assert!(!plain.contains("scaling efficiency"), "{plain}");
}

#[test]
fn inspecting_shows_layers_program_and_devices() {
    let dir = tempfile::tempdir().unwrap();
    assert!(succeeds(dir.path(), &["inspect", "resnet50"]).contains("23,608,202"));
    assert!(succeeds(dir.path(), &["inspect", "resnet20"]).contains("274,442"));
    assert!(succeeds(dir.path(), &["inspect", "vgg11"]).contains("9,236,618"));
    let program = succeeds(dir.path(), &["inspect", "mnist-mlp", "--program", "--replicas", "2"]);
    assert!(program.contains("2 device(s)") && program.contains("update Adam"), "{program}");
    let devices = succeeds(dir.path(), &["devices"]);
    assert!(devices.starts_with("cpu:0") && devices.contains("\ntrain uses "), "{devices}");
    let devices: serde_json::Value =
        serde_json::from_str(&succeeds(dir.path(), &["devices", "--json"])).unwrap();
    assert_eq!(devices["devices"][0]["device"], "cpu:0");
    let plan = ["plan", "mnist-cnn", "--device", "gpu", "--batch-size", "64", "--memory", "1GiB"];
    let plan = succeeds(dir.path(), &plan);
    for part in ["weights", "gradients", "optimizer slots", "without reuse", "total per device"] {
        assert!(plan.contains(part), "{plan}");
    }
    assert!(plan.contains("largest batch in 1.00 GiB: "), "{plan}");
    let plan = succeeds(dir.path(), &["plan", "mnist-mlp", "--devices", "gpu:0,gpu:1", "--json"]);
    let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
    assert_eq!((&plan["replicas"], &plan["batch"]), (&2.into(), &64.into()));
    assert!(plan["total"].as_u64() > plan["bytes"]["weights"].as_u64(), "{plan}");
    assert!(succeeds(dir.path(), &["data"]).contains("cifar-10"));
    assert_eq!(succeeds(dir.path(), &["data", "list"]), succeeds(dir.path(), &["data"]));
    assert!(succeeds(dir.path(), &["completions", "bash"]).contains("phalanx"));
    let sized =
        ["bench", "mnist-mlp", "--steps", "2", "--width", "32", "--depth", "1", "--profile"];
    let table = succeeds(dir.path(), &sized);
    assert!(table.contains("mlp: ") && table.contains("GFLOP/s"), "{table}");
    assert!(table.lines().any(|l| l.starts_with("update") && l.contains('%')), "{table}");
    let bench =
        succeeds(dir.path(), &["bench", "mnist-mlp", "--steps", "2", "--json", "--profile"]);
    let line: serde_json::Value = serde_json::from_str(&bench).unwrap();
    let ops = line["profile"]["ops"].as_array().unwrap();
    // With several threads, products with large kernels are sliced.
    let dot = ops.iter().filter(|o| o["op"] == "dot" || o["op"] == "sliced_dot");
    let flops: f64 = dot.map(|o| o["flops"].as_f64().unwrap()).sum();
    assert_eq!(flops, 2.0 * 32.0 * (784 * 256 + 256 * 256 + 256 * 10) as f64);
    let fed = ["bench", "mnist-cnn", "--steps", "2", "--data", "glyphs", "--augment", "flip"];
    assert!(succeeds(dir.path(), &fed).contains("glyphs: one core makes"));
    let bench = succeeds(
        dir.path(),
        &["bench", "mnist-mlp", "--steps", "2", "--replicas", "2", "--batch-size", "8", "--json"],
    );
    let line: serde_json::Value = serde_json::from_str(&bench).unwrap();
    assert_eq!(line["batch"], 16, "the batch is per replica");
    let keys = ["images_per_second", "step_ms", "fastest_tenth_ms", "setup_s"];
    for key in keys.into_iter().chain(["peak_rss_mib", "planned_mib"]) {
        assert!(line[key].is_number(), "{key}: {line}");
    }
}

#[test]
fn a_conversion_that_drops_the_optimizer_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let train = ["train", "mnist-mlp", "--epochs", "1", "--steps-per-epoch", "2", "--verbose", "0"];
    succeeds(dir.path(), &[&train[..], &["--save", "a.keras"]].concat());
    let out = phalanx(dir.path(), &["convert", "a.keras", "b.safetensors"]);
    let state = "the optimizer's state after 2 steps (.keras files store it)";
    let expected = format!("warning: b.safetensors: not saved: {state}\n");
    assert_eq!((text(&out.stderr), out.status.code()), (expected, Some(0)));
}

#[test]
fn model_files_are_converted_shown_and_compared() {
    let dir = tempfile::tempdir().unwrap();
    let train = ["train", "mnist-mlp", "--epochs", "1", "--steps-per-epoch", "2", "--verbose", "0"];
    succeeds(dir.path(), &[&train[..], &["--save", "a.safetensors"]].concat());
    succeeds(dir.path(), &["convert", "a.safetensors", "b.keras"]);
    let out = phalanx(dir.path(), &["convert", "b.keras", "c.h5"]);
    let expected = "warning: c.h5: not saved: the metadata 'origin' (.keras and .safetensors files store it)\n";
    assert_eq!((text(&out.stderr), out.status.code()), (expected.into(), Some(0)));
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
