//! Resumed runs, checkpoints and output files.

use super::{fault, phalanx, succeeds, text};
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, SystemTime};

/// Four steps per epoch, saved every two.
const TRAIN: [&str; 9] = [
    "train",
    "mnist-mlp",
    "--steps-per-epoch",
    "4",
    "--checkpoint-dir",
    "ckpt",
    "--checkpoint-every",
    "2",
    "--resume",
];

fn damage(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn a_damaged_checkpoint_is_skipped() {
    let dir = tempfile::tempdir().unwrap();
    succeeds(dir.path(), &[&TRAIN[..], &["--epochs", "1", "--verbose", "0"]].concat());
    let at = |step: usize| format!("ckpt/step-{step:010}.safetensors");
    let newest = succeeds(dir.path(), &["evaluate", "ckpt"]);
    assert_eq!(newest, succeeds(dir.path(), &["evaluate", &at(4)]));
    damage(&dir.path().join(at(4)));
    let out = phalanx(dir.path(), &["evaluate", "ckpt"]);
    let (said, warned) = (text(&out.stdout), text(&out.stderr));
    assert!(out.status.success(), "{warned}");
    assert_eq!(said, succeeds(dir.path(), &["evaluate", &at(2)]));
    assert_ne!(said, newest);
    let expected = format!("warning: {}: damaged (its checksum does not fit its content)", at(4));
    assert!(warned.starts_with(&expected) && warned.lines().count() == 1, "{warned}");
    damage(&dir.path().join(at(2)));
    damage(&dir.path().join(at(0)));
    let out = phalanx(dir.path(), &["evaluate", "ckpt"]);
    let error = text(&out.stderr);
    assert_eq!(out.status.code(), Some(1));
    let last = "error: ckpt: expected an intact checkpoint, received 3 damaged";
    assert_eq!(error.lines().last(), Some(last));
}

#[test]
fn a_resumed_run_reports_changed_flags() {
    let dir = tempfile::tempdir().unwrap();
    let train = |more: &[&str]| phalanx(dir.path(), &[&TRAIN[..], more].concat());
    let first = train(&["--epochs", "1"]);
    assert!(first.status.success() && first.stderr.is_empty(), "{}", text(&first.stderr));
    assert!(text(&first.stdout).contains("training time"), "{}", text(&first.stdout));
    let same = train(&["--epochs", "1"]);
    assert!(same.status.success() && same.stderr.is_empty(), "{}", text(&same.stderr));
    assert!(!text(&same.stdout).contains("training time"), "nothing was trained");
    for (more, expected) in [
        (&["--epochs", "2", "--lr", "0.01"][..], "learning_rate was 0.001, is 0.01"),
        (
            &["--epochs", "3", "--lr", "0.01", "--schedule", "poly"],
            "--schedule was constant, is poly over 3 epochs",
        ),
    ] {
        let out = train(more);
        let said = text(&out.stderr);
        assert!(out.status.success(), "{said}");
        assert_eq!(said, format!("warning: resume: {expected}\n"));
    }
    let shuffled = [&TRAIN[..], &["--epochs", "4", "--no-shuffle"]].concat();
    let error = "error: resume: shuffle: expected true as in the saved run, received false\n";
    assert_eq!(fault(dir.path(), &shuffled, 1, error), None);
}

#[test]
fn directories_empty_files_and_out_of_range_numbers_are_rejected_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("folder")).unwrap();
    std::fs::create_dir(dir.path().join("folder.npz")).unwrap();
    std::fs::write(dir.path().join("nothing.npz"), "").unwrap();
    std::fs::write(dir.path().join("empty.npz"), [&b"PK\x05\x06"[..], &[0; 18]].concat()).unwrap();
    let train = ["train", "mnist-mlp", "--epochs", "1", "--steps-per-epoch", "1"];
    succeeds(dir.path(), &[&train[..], &["--save", "w.safetensors"]].concat());
    let cases: &[(&[&str], &str)] = &[
        (&["predict", "w.safetensors", "folder"], "JPEG or PNG image, received a directory"),
        (&["train", "--config", "folder"], "--config: folder: expected a file, received a dir"),
        (&["train", "mnist-mlp", "--data", "folder.npz"], "file, received a directory"),
        (&["train", "mnist-mlp", "--data", "nothing.npz"], "received an empty file"),
        (&["train", "mnist-mlp", "--data", "empty.npz"], "expected arrays x and y"),
        (&["train", "mnist-mlp", "--replicas", "100000"], "1024 or fewer, received 100000"),
        (&["bench", "mnist-mlp", "--steps", "0"], "--steps: expected 1 to 10000000, received 0"),
    ];
    let faults = cases.iter().filter_map(|(args, what)| fault(dir.path(), args, 1, what));
    assert_eq!(faults.collect::<Vec<_>>(), [] as [String; 0]);
}

#[test]
fn a_directory_is_read_at_its_highest_step_regardless_of_mtimes() {
    let dir = tempfile::tempdir().unwrap();
    succeeds(dir.path(), &[&TRAIN[..], &["--epochs", "1", "--verbose", "0"]].concat());
    let at = |step: usize| format!("ckpt/step-{step:010}.safetensors");
    // As after a copy that does not preserve mtimes.
    for (step, seconds) in [(4, 0), (2, 100), (0, 200)] {
        let file = std::fs::File::options().append(true).open(dir.path().join(at(step))).unwrap();
        file.set_modified(SystemTime::now() + Duration::from_secs(seconds)).unwrap();
    }
    let of = |what: &str| succeeds(dir.path(), &["evaluate", what]);
    let newest = of("ckpt");
    assert_eq!(newest, of(&at(4)));
    assert_ne!(newest, of(&at(0)));
    let shown = succeeds(dir.path(), &["inspect", "ckpt"]);
    assert_eq!(shown, succeeds(dir.path(), &["inspect", &at(4)]));
    assert!(shown.contains("layers:"), "{shown}");
    let program = succeeds(dir.path(), &["inspect", "ckpt", "--program"]);
    assert_eq!(program, succeeds(dir.path(), &["inspect", &at(4), "--program"]));
    succeeds(dir.path(), &["inspect", "ckpt", "--picture", "model.svg"]);
    std::fs::create_dir(dir.path().join("empty")).unwrap();
    let none = "empty: expected a checkpoint in it, received none";
    assert_eq!(fault(dir.path(), &["inspect", "empty"], 1, none), None);
}

#[test]
fn flags_that_name_the_same_file_are_rejected_before_any_work() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::create_dir(at("sub")).unwrap();
    std::fs::write(at("log"), "old").unwrap();
    std::fs::hard_link(at("log"), at("other-name")).unwrap();
    std::os::unix::fs::symlink("log", at("link")).unwrap();
    let data = "a,b,label\n1,2,0\n3,4,1\n5,6,0\n7,8,1\n1,2,0\n3,4,1\n5,6,0\n7,8,1\n1,1,0\n2,2,1\n";
    std::fs::write(at("data.csv"), data).unwrap();
    std::fs::write(at("run.toml"), "model = \"mnist-mlp\"\nepochs = 1\n").unwrap();
    let train = ["train", "mnist-mlp", "--epochs", "1", "--steps-per-epoch", "1"];
    let absolute = at("new").display().to_string();
    let cases: &[(&[&str], &str)] = &[
        (
            &["--csv", "new", "--json", "new"],
            "--json: expected a different path from --csv, received new",
        ),
        (
            &["--csv", "new", "--json", "./new"],
            "expected a different path from --csv, received ./new",
        ),
        (&["--csv", "new", "--json", "sub/../new"], "expected a different path from --csv"),
        (&["--csv", "new", "--json", &absolute], "expected a different path from --csv"),
        (
            &["--csv", "log", "--json", "link"],
            "expected a different path from --csv, received link",
        ),
        (&["--csv", "log", "--json", "other-name"], "expected a different path from --csv"),
        (
            &["--csv", "-", "--json", "-"],
            "--json: expected a different path from --csv, received -",
        ),
        (&["--csv", "-", "--json", "/dev/stdout"], "expected a different path from --csv"),
        (&["--save", "a.h5", "--csv", "a.h5"], "--csv: expected a different path from --save"),
        (&["--output", "a.svg", "--json", "a.svg"], "expected a different path from --output"),
        (
            &["--checkpoint-dir", "ckpt", "--csv", "ckpt"],
            "expected a different path from --checkpoint-dir",
        ),
        (&["--log-dir", "logs", "--json", "./logs"], "expected a different path from --log-dir"),
        (&["--data", "data.csv", "--csv", "./data.csv"], "expected a different path from --data"),
        (
            &["--config", "run.toml", "--json", "run.toml"],
            "expected a different path from --config",
        ),
        (&["--weights", "log", "--json", "log"], "expected a different path from --weights"),
    ];
    let refused =
        |(more, what): &(&[&str], &str)| fault(dir.path(), &[&train[..], more].concat(), 1, what);
    assert_eq!(cases.iter().filter_map(refused).collect::<Vec<_>>(), [] as [String; 0]);
    assert_eq!(std::fs::read_to_string(at("data.csv")).unwrap(), data);
    assert_eq!(std::fs::read_to_string(at("log")).unwrap(), "old");
    assert!(!at("new").exists() && !at("ckpt").exists() && !at("a.h5").exists());
    let own = ["--csv", "/dev/null", "--json", "/dev/null", "--save", "w.safetensors"];
    succeeds(dir.path(), &[&train[..], &own].concat());
    let both = ["evaluate", "w.safetensors", "--confusion", "c.png", "--samples", "./c.png"];
    let what = "--samples: expected a different path from --confusion, received ./c.png";
    assert_eq!(fault(dir.path(), &both, 1, what), None);
}

/// Runs a command with a file size limit, in blocks of the shell (512 or 1024 bytes).
fn limited(dir: &Path, blocks: usize, args: &[&str]) -> Output {
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!("ulimit -f {blocks} && exec \"$0\" \"$@\""));
    command.arg(env!("CARGO_BIN_EXE_phalanx")).args(args).current_dir(dir);
    command.env("PHALANX_PIN", "0").output().unwrap()
}

#[test]
fn a_file_size_limit_gives_an_error_and_preserves_the_old_file() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let names = |at: &Path| {
        let mut names: Vec<_> =
            std::fs::read_dir(at).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let train = ["train", "mnist-mlp", "--steps-per-epoch", "1", "--verbose", "0"];
    succeeds(dir.path(), &[&train[..], &["--epochs", "1", "--save", "w.safetensors"]].concat());
    let array = |value: f32| {
        let mut bytes = b"\x93NUMPY\x01\x00\x46\x00".to_vec();
        let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (200, 28, 28), }";
        bytes.extend(format!("{header:<69}\n").into_bytes());
        bytes.extend((0..200 * 784).flat_map(|_| value.to_le_bytes()));
        bytes
    };
    std::fs::write(at("x.npy"), array(0.5)).unwrap();
    let predict = ["predict", "w.safetensors", "--input", "x.npy", "--output", "y.npy"];
    succeeds(dir.path(), &predict);
    let (old, before) = (std::fs::read(at("y.npy")).unwrap(), names(dir.path()));
    std::fs::write(at("x.npy"), array(0.25)).unwrap();
    let check = |out: Output, what: &str| {
        let error = text(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{:?} {error}", out.status);
        assert!(error.contains(what) && error.contains("File too large"), "{error}");
    };
    check(limited(dir.path(), 2, &predict), "error: y.npy: ");
    assert_eq!((std::fs::read(at("y.npy")).unwrap(), names(dir.path())), (old, before));
    let saved = [&train[..], &["--epochs", "1", "--checkpoint-dir", "ckpt"]].concat();
    check(limited(dir.path(), 64, &saved), "ckpt/step-0000000000.safetensors: ");
    assert_eq!(names(&at("ckpt")), [".lock"]);
    // A log contains only complete lines.
    let logged = [&train[..], &["--epochs", "12", "--json", "log.jsonl"]].concat();
    check(limited(dir.path(), 1, &logged), "error: log.jsonl: ");
    let log = std::fs::read_to_string(at("log.jsonl")).unwrap();
    assert!(log.ends_with("}\n") && log.lines().count() > 1, "{log}");
}
