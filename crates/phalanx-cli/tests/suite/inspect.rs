//! Commands that show, convert and compare.

use super::{command, phalanx, succeeds, text};

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
    // With several threads, large dense kernels are sharded.
    let dot = ops.iter().filter(|o| o["op"] == "dot" || o["op"] == "sharded_dot");
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
