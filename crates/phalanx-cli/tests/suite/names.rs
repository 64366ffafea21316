//! Names with terminal control sequences, in every place where a name can occur: none reaches the terminal unescaped.

use super::{command, files, text};
use image::ImageFormat;
use phalanx::prelude::*;
use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

/// Clears the screen, sets the title, starts a new line, and reverses and hides the text after it.
const CONTROL_NAME: &str =
    "a\u{1b}[2J\u{1b}]0;t\u{7}\u{9b}1m\nFORGED b\u{202e}c\u{2066}\u{200f}d\u{7f}\u{200b}";
/// The same for layers, whose names in files cannot have control characters.
const INVISIBLE_NAME: &str = "l\u{202e}c\u{2066}\u{200f}d\u{200b}";

/// The first character of a text that must not reach a terminal, if any.
fn unescaped(text: &str) -> Option<String> {
    let bad = |c: char| {
        (c < ' ' && c != '\n')
            || ('\u{7f}'..='\u{9f}').contains(&c)
            || ('\u{200b}'..='\u{200f}').contains(&c)
            || ('\u{202a}'..='\u{202e}').contains(&c)
            || ('\u{2066}'..='\u{2069}').contains(&c)
    };
    let forged = text.lines().find(|line| line.trim_start().starts_with("FORGED"));
    text.chars().find(|c| bad(*c)).map(|c| format!("{c:?}")).or(forged.map(String::from))
}

fn model(name: &str) -> Model {
    let x = Input::new([8, 8, 3]).symbol();
    let flat = Flatten::new().named(&format!("{name}0")).apply(&x);
    let y = Dense::new(2).activation("softmax").named(name).apply(&flat);
    let mut model = Model::with_name(CONTROL_NAME, &x, &y).unwrap();
    let compile = Compile::new("sgd").loss("sparse_categorical_crossentropy");
    model.compile(compile.metrics(["accuracy"])).unwrap();
    let origin = serde_json::json!({ "network": null, "data": CONTROL_NAME, "input": [8, 8, 3],
        "classes": [format!("1{CONTROL_NAME}"), format!("2{CONTROL_NAME}")], "mean": null });
    model.set_metadata("origin", origin.to_string());
    model
}

/// Writes files with such names and contents.
fn write_files(dir: &Path) {
    for class in 1..3u8 {
        let folder = dir.join(format!("data{CONTROL_NAME}/{class}{CONTROL_NAME}"));
        std::fs::create_dir_all(&folder).unwrap();
        for i in 0..5 {
            let image = files::encoded(&files::plain([class * 100, i * 20, 0]), ImageFormat::Png);
            std::fs::write(folder.join(format!("{i}{CONTROL_NAME}.png")), image).unwrap();
        }
    }
    model(INVISIBLE_NAME).save(dir.join("hiding.keras")).unwrap();
    model(INVISIBLE_NAME).save(dir.join("hiding.h5")).unwrap();
    model(INVISIBLE_NAME).save_weights(dir.join("hiding.weights.h5")).unwrap();
    model(CONTROL_NAME).save_weights(dir.join("acting.safetensors")).unwrap();
    let whole = std::fs::read(dir.join("hiding.keras")).unwrap();
    std::fs::write(dir.join(format!("m{CONTROL_NAME}.keras")), &whole).unwrap();
    let config = serde_json::json!({ "module": "keras", "class_name": CONTROL_NAME, "config": {
        "name": CONTROL_NAME, "layers": [{ "module": "keras.layers", "class_name": format!("Dense{CONTROL_NAME}"),
            "config": { "name": CONTROL_NAME, "units": 3 } }] } });
    let nested = serde_json::json!({ "module": "keras", "class_name": "Sequential",
        "config": { "name": CONTROL_NAME, "layers": [config] } });
    for (file, config) in [("acting.keras", &config), ("nested.keras", &nested)] {
        let weights = std::fs::read(dir.join("hiding.weights.h5")).unwrap();
        let members = [
            ("metadata.json", format!("{{\"{}\": 1}}", CONTROL_NAME.escape_unicode()).into_bytes()),
            ("config.json", config.to_string().into_bytes()),
            ("model.weights.h5", weights),
        ];
        files::zip(&dir.join(file), &members);
    }
    let name = format!("{CONTROL_NAME}.npy");
    files::zip(&dir.join("arrays.npz"), &[(&name, b"\x93NUMPY".to_vec())]);
    let rows: String = (0..20).map(|i| format!("{i},\"{}{CONTROL_NAME}\"\n", i % 2)).collect();
    std::fs::write(dir.join("table.csv"), format!("\"{CONTROL_NAME}\",label\n{rows}")).unwrap();
    std::fs::write(dir.join("words.csv"), format!("a,b\n\"{CONTROL_NAME}\",2\n")).unwrap();
    // TOML accepts JSON's escapes.
    let quoted = serde_json::json!(CONTROL_NAME).to_string();
    let quoted = phalanx::text::escape_json(&quoted);
    std::fs::write(dir.join("key.toml"), format!("{quoted} = 3\n")).unwrap();
    std::fs::write(dir.join("value.toml"), format!("epochs = {quoted}\n")).unwrap();
    std::fs::write(dir.join("data.toml"), format!("data = {quoted}\n")).unwrap();
    std::fs::write(dir.join("broken.toml"), format!("a = \"{CONTROL_NAME}\n")).unwrap();
}

#[test]
fn names_from_files_do_not_control_the_terminal() {
    let dir = tempfile::tempdir().unwrap();
    write_files(dir.path());
    let (data, ckpt) = (format!("data{CONTROL_NAME}"), format!("run{CONTROL_NAME}"));
    let image = format!("{data}/1{CONTROL_NAME}/0{CONTROL_NAME}.png");
    let (named, saved, plot) = (
        format!("m{CONTROL_NAME}.keras"),
        format!("s{CONTROL_NAME}.keras"),
        format!("p{CONTROL_NAME}.svg"),
    );
    let mut wrong = vec![];
    let mut run = |args: &[&str], code: Option<i32>| {
        let out = command(dir.path(), args).output().unwrap();
        let (stdout, stderr) = (text(&out.stdout), text(&out.stderr));
        let lines = stderr.lines().count();
        wrong.extend(
            unescaped(&stdout).map(|what| format!("{args:?}: stdout has {what}: {stdout}")),
        );
        wrong.extend(
            unescaped(&stderr).map(|what| format!("{args:?}: stderr has {what}: {stderr}")),
        );
        if code.is_some_and(|code| out.status.code() != Some(code)) {
            wrong.push(format!("{args:?}: {:?}: {stderr}", out.status.code()));
        }
        if out.status.code() == Some(1) && lines != 1 {
            wrong.push(format!("{args:?}: {lines} lines: {stderr}"));
        }
        stdout
    };
    let train = ["train", "mnist-cnn", "--data", &data, "--image-size", "8", "--epochs", "1"];
    let files = ["--checkpoint-dir", &ckpt, "--save", &saved, "--output", &plot];
    run(&[&train[..], &files].concat(), Some(0));
    run(&[&train[..], &files, &["--resume", "--epochs", "2"]].concat(), None);
    let models = ["hiding.keras", "hiding.h5", &named, "acting.safetensors", "acting.keras"];
    let more = ["nested.keras", "hiding.weights.h5", &saved, &ckpt, "arrays.npz", "words.csv"];
    for file in models.into_iter().chain(more) {
        let sound = [models[0], models[1], &named, &saved].contains(&file).then_some(0);
        run(&["inspect", file], None);
        run(&["inspect", file, "--program"], sound);
        run(&["inspect", file, "--picture", "graph.svg"], sound);
        run(&["diff", file, "hiding.h5"], None);
        run(&["convert", file, &format!("c{CONTROL_NAME}.safetensors")], None);
        run(&["convert", file, &format!("c{CONTROL_NAME}")], Some(1));
        let shown = ["--confusion", "cm.svg", "--samples", "samples.svg"];
        run(&[&["evaluate", file, "--data", &data], &shown[..]].concat(), sound);
        run(&["predict", file, &image], sound);
        run(&["predict", file, "words.csv"], Some(1));
        run(&["plan", file], None);
        run(&["plan", file, "--json"], None);
        run(&["bench", file, "--steps", "1", "--batch-size", "2", "--profile"], None);
        run(&["bench", file, "--steps", "1", "--batch-size", "2", "--json"], None);
        run(&["train", file, "--data", &data, "--epochs", "1", "--image-size", "8"], None);
        run(&["train", "mnist-mlp", "--data", file], Some(1));
        run(&["data", "info", file], Some(1));
    }
    run(&["data", "info", &data], Some(0));
    run(&["data", "info", "table.csv"], Some(0));
    run(&["data", "info", CONTROL_NAME], Some(1));
    run(&["data", "fetch", CONTROL_NAME], Some(1));
    run(&["train", "mnist-mlp", "--data", "table.csv", "--epochs", "1"], Some(0));
    for file in
        ["key.toml", "value.toml", "data.toml", "broken.toml", &format!("{CONTROL_NAME}.toml")]
    {
        run(&["train", "mnist-mlp", "--config", file], Some(1));
    }
    for args in [
        &["train", CONTROL_NAME][..],
        &[CONTROL_NAME],
        &["train", "mnist-mlp", "--epochs", CONTROL_NAME],
    ] {
        run(args, Some(2));
    }
    run(&["train", "mnist-mlp", "--optimizer", CONTROL_NAME], Some(1));
    run(&["train", "mnist-mlp", "--devices", CONTROL_NAME], Some(1));
    for picture in ["graph.svg", "cm.svg", "samples.svg", &plot] {
        let svg = std::fs::read_to_string(dir.path().join(picture)).unwrap();
        wrong.extend(unescaped(&svg).map(|what| format!("{picture} has {what}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn names_are_printed_escaped() {
    let dir = tempfile::tempdir().unwrap();
    write_files(dir.path());
    let shown =
        r"a\u{1b}[2J\u{1b}]0;t\u{7}\u{9b}1m\nFORGED b\u{202e}c\u{2066}\u{200f}d\u{7f}\u{200b}";
    let said = |args: &[&str]| {
        let out = command(dir.path(), args).output().unwrap();
        text(&out.stdout) + &text(&out.stderr)
    };
    let image = format!("data{CONTROL_NAME}/1{CONTROL_NAME}/0{CONTROL_NAME}.png");
    let predicted = said(&["predict", "hiding.keras", &image]);
    assert!(predicted.starts_with(&format!("data{shown}/1{shown}/0{shown}.png: ")), "{predicted}");
    assert!(predicted.contains(&format!(" 1{shown} 0.")), "{predicted}");
    let listed = said(&["inspect", "acting.safetensors"]);
    assert!(listed.contains(&format!("  {shown}/kernel f32 [192, 2]")), "{listed}");
    let info = said(&["data", "info", "table.csv"]);
    assert!(info.contains(&format!("  1 1{shown} 10 to train on")), "{info}");
    let key = said(&["train", "mnist-mlp", "--config", "key.toml"]);
    assert!(key.starts_with(&format!("error: key.toml: unknown key '{shown}'")), "{key}");
    let plan = said(&["plan", "hiding.keras", "--json"]);
    let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
    assert_eq!(plan["model"], CONTROL_NAME, "JSON does not change names");
}

/// The output of a command whose standard output is a terminal.
fn on_a_terminal(dir: &Path, variables: &[(&str, &str)]) -> String {
    let line = format!(
        "{} train mnist-mlp --epochs 1 --steps-per-epoch 3 --verbose 1",
        env!("CARGO_BIN_EXE_phalanx")
    );
    let args = ["-q", "-e", "-c", &line, "/dev/null"];
    let out = Command::new("script")
        .args(args.map(OsStr::new))
        .current_dir(dir)
        .env("TERM", "xterm")
        .env("PHALANX_OFFLINE", "1")
        .env_remove("NO_COLOR")
        .envs(variables.iter().copied())
        .output()
        .expect("script, of util-linux, is there");
    assert!(out.status.success(), "{}", text(&out.stderr));
    text(&out.stdout)
}

#[test]
fn there_is_no_progress_bar_under_a_launcher() {
    let dir = tempfile::tempdir().unwrap();
    let live = on_a_terminal(dir.path(), &[]);
    assert!(live.contains("\u{1b}[K"), "{live:?}");
    // mpirun gives every process a pseudo-terminal, even if its own output is not a terminal.
    for launcher in [
        [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "1")],
        [("PMI_RANK", "0"), ("PMI_SIZE", "1")],
    ] {
        let plain = on_a_terminal(dir.path(), &launcher);
        assert!(!plain.contains('\u{1b}') && plain.contains("3/3 - "), "{launcher:?}: {plain:?}");
    }
}
