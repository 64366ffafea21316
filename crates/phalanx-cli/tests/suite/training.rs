//! `phalanx train`: its files, its flags, and data of the user.

use super::{fault, files, phalanx, succeeds, text};

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
