//! Runs that are taken up again, and what they leave behind.

use super::{fault, phalanx, succeeds, text};
use std::path::Path;

/// Four steps an epoch, saved every two.
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
fn a_damaged_checkpoint_is_passed_over() {
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
    let last = "error: ckpt: expected a checkpoint that is whole, received 3 damaged";
    assert_eq!(error.lines().last(), Some(last));
}

#[test]
fn what_a_run_continued_has_otherwise_is_said() {
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
        assert_eq!(said, format!("warning: run to continue: {expected}\n"));
    }
    let shuffled = [&TRAIN[..], &["--epochs", "4", "--no-shuffle"]].concat();
    let error = "error: run to continue: shuffle: expected false, received true\n";
    assert_eq!(fault(dir.path(), &shuffled, 1, error), None);
}

#[test]
fn directories_nothing_and_too_much_are_refused_in_a_line() {
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
