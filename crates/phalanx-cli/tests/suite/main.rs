//! Runs the real binary in a temporary directory: results, messages and exit codes.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Output};

mod bad_input;
mod bench;
mod bounds;
mod crash;
mod data;
mod doctor;
mod files;
mod inspect;
mod model_data;
mod models;
mod names;
mod networks;
mod output;
mod plan;
mod runs;
mod saved_models;
mod training;
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
