//! Runs that are killed, signalled, kept from reading and taken up again end as the run that was left
//! alone: weights, history and logs. `PHALANX_CRASHES=500` kills that often, and stops or fails every
//! system call.

use phalanx_needs::needs;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

/// Kills unless said otherwise.
const KILLS: u64 = 40;
/// The documented code of a run that a signal ended.
const INTERRUPTED: i32 = 75;

/// A run whose files are in one directory.
struct Run {
    directory: tempfile::TempDir,
    /// Saves every so many steps.
    every: &'static str,
    epochs: usize,
}

impl Run {
    fn new(every: &'static str) -> Run {
        Run { directory: tempfile::tempdir().unwrap(), every, epochs: 3 }
    }

    fn epochs(self, epochs: usize) -> Run {
        Run { epochs, ..self }
    }

    /// A run of its own with the same files.
    fn copy(&self) -> Run {
        let copy = Run::new(self.every);
        let from = self.directory.path().join(".");
        let copied = Command::new("cp").arg("-a").arg(from).arg(copy.directory.path()).status();
        assert!(copied.unwrap().success());
        copy
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The command that trains, or goes on training.
    fn arguments(&self) -> Vec<String> {
        let path = |name: &str| self.at(name).display().to_string();
        let fixed = "train mnist-cnn --data glyphs --steps-per-epoch 12 --batch-size 16 \
                     --augment shift --optimizer adam --seed 3 --verbose 0 --threads 1 --resume";
        let mut all: Vec<String> = fixed.split_whitespace().map(str::to_string).collect();
        for (flag, value) in [
            ("--checkpoint-dir", path("ckpt")),
            ("--checkpoint-every", self.every.into()),
            ("--epochs", self.epochs.to_string()),
            ("--json", path("log.jsonl")),
            ("--csv", path("log.csv")),
            ("--log-dir", path("logs")),
        ] {
            all.extend([flag.to_string(), value]);
        }
        all
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_phalanx"));
        command.args(self.arguments()).env("PHALANX_PIN", "0").stdout(Stdio::null());
        command
    }

    fn start(&self) -> Child {
        self.command().stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Trains to the end.
    fn finish(&self) -> Outcome {
        let output = self.command().output().unwrap();
        let words = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words}");
        assert!(!words.contains("damaged"), "{words}");
        self.outcome()
    }

    fn outcome(&self) -> Outcome {
        let json = std::fs::read_to_string(self.at("log.jsonl")).unwrap();
        let lines = json.lines().map(|line| serde_json::from_str(line).unwrap());
        let lines: Vec<Value> = lines.map(without_times).collect();
        let events = ["train", "validation"].map(|part| event_records(&self.at("logs").join(part)));
        Outcome { lines, csv: std::fs::read_to_string(self.at("log.csv")).unwrap(), events }
    }
}

/// What must not depend on interruptions.
#[derive(Debug, PartialEq)]
struct Outcome {
    /// Epochs, then the end with `weights_sha256`.
    lines: Vec<Value>,
    csv: String,
    /// TensorBoard's records of losses, in training and in validation.
    events: [usize; 2],
}

fn without_times(mut line: Value) -> Value {
    if let Some(object) = line.as_object_mut() {
        object.retain(|name, _| !name.ends_with("seconds") && !name.ends_with("per_second"));
    }
    line
}

/// Records of losses in a directory, in the one file that a run has there however often it was killed.
fn event_records(directory: &Path) -> usize {
    let entries = std::fs::read_dir(directory).unwrap();
    let files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    losses(&std::fs::read(&files[0]).unwrap())
}

fn losses(bytes: &[u8]) -> usize {
    let (mut at, mut records) = (0, 0);
    while at < bytes.len() {
        let length = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
        let event = &bytes[at + 12..at + 12 + length];
        records += usize::from(event.windows(5).any(|w| w == b"_loss"));
        at += 12 + length + 4;
    }
    records
}

fn signal(child: &Child, name: &str) {
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-s", name, &id]).status().unwrap().success());
}

fn wait(child: Child) -> (ExitStatus, String) {
    let Output { status, stderr, .. } = child.wait_with_output().unwrap();
    (status, String::from_utf8_lossy(&stderr).into_owned())
}

/// Waits until a run has saved something, as far as it does.
fn until_saved(run: &Run) {
    for _ in 0..2000 {
        let entries = std::fs::read_dir(run.at("ckpt")).into_iter().flatten().flatten();
        if entries.filter(|e| e.file_name().to_string_lossy().starts_with("step-")).count() > 0 {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn killed_at_any_moment_a_run_ends_as_if_it_had_not_been() {
    let kills = std::env::var("PHALANX_CRASHES").ok().and_then(|n| n.parse().ok()).unwrap_or(KILLS);
    let began = Instant::now();
    let expected = Run::new("1").finish();
    // Kills fall anywhere in a run, its start included.
    let whole = began.elapsed().as_micros() as u64;
    let mut moment = phalanx::Stream::new(1, 0, 0, 0);
    let (mut done, mut finished) = (0, 0);
    while done < kills {
        let run = Run::new("1");
        // A run takes some kills before it comes to its end.
        loop {
            let mut child = run.start();
            std::thread::sleep(Duration::from_micros(moment.below(whole)));
            if child.try_wait().unwrap().is_some() {
                break;
            }
            child.kill().unwrap();
            let (_, words) = wait(child);
            assert!(!words.contains("damaged") && !words.contains("error"), "{words}");
            done += 1;
            if done >= kills {
                break;
            }
        }
        assert_eq!(run.finish(), expected);
        finished += 1;
    }
    println!("{done} kills over {finished} runs, all ended alike");
}

/// The documented code after a second signal.
const AT_ONCE: i32 = 130;

#[test]
fn a_second_signal_leaves_at_once() {
    // Steps of this network take long; where one ends between the two signals it is tried again.
    let left = |_| {
        let arguments = ["train", "minigooglenet", "--verbose", "0", "--batch-size", "256"];
        let mut command = Command::new(env!("CARGO_BIN_EXE_phalanx"));
        command.args(arguments).env("PHALANX_PIN", "0").stdout(Stdio::null());
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(2500));
        assert!(child.try_wait().unwrap().is_none(), "it trains for longer");
        signal(&child, "INT");
        std::thread::sleep(Duration::from_millis(20));
        if child.try_wait().unwrap().is_none() {
            signal(&child, "TERM");
        }
        let (status, words) = wait(child);
        assert!([Some(AT_ONCE), Some(INTERRUPTED)].contains(&status.code()), "{status} {words}");
        status.code() == Some(AT_ONCE)
    };
    assert!((0..5).any(left), "no second signal ended the process at once");
}

#[test]
fn a_signal_saves_the_run() {
    let expected = Run::new("1").finish();
    for name in ["TERM", "INT"] {
        let run = Run::new("1");
        let child = run.start();
        until_saved(&run);
        signal(&child, name);
        let (status, words) = wait(child);
        assert_eq!(status.code(), Some(INTERRUPTED), "{words}");
        assert!(words.contains("interrupted after step") && words.contains("saved"), "{words}");
        assert_eq!(run.finish(), expected);
    }
}

/// Every system call by which a save changes the disk.
const CALLS: &str = "write,fsync,fdatasync,rename,renameat,renameat2,unlink,unlinkat,ftruncate";

/// Whether every system call is tried.
fn all_calls() -> bool {
    std::env::var("PHALANX_CRASHES").is_ok()
}

#[needs(strace)]
#[test]
fn killed_at_every_system_call_of_a_save_a_run_ends_alike() {
    let expected = Run::new("6").finish();
    let every: u64 = if all_calls() { 1 } else { 2 };
    let (mut tried, mut when) = (0, 1);
    loop {
        let run = Run::new("6");
        let inject = format!("inject={CALLS}:signal=SIGKILL:when={when}");
        let mut traced = Command::new("strace");
        traced
            .args(["-f", "-o", "/dev/null", "-e"])
            .arg(format!("trace={CALLS}"))
            .arg("-e")
            .arg(inject);
        traced.arg(env!("CARGO_BIN_EXE_phalanx")).args(run.arguments()).env("PHALANX_PIN", "0");
        let status = traced.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
        assert_eq!(run.finish(), expected, "killed at call {when}");
        if status.success() {
            break;
        }
        tried += 1;
        when += every;
    }
    println!("{tried} kills, {every} system call(s) that write apart");
    assert!(tried > 3);
}

/// Every system call by which a start reads. Machines that lack one pass over it.
const READS: &str =
    "?open,openat,read,pread64,?stat,?lstat,fstat,?newfstatat,?statx,getdents64,lseek,?readlink";
/// Errors that say nothing about what a file holds.
const ERRORS: [&str; 4] = ["EIO", "EACCES", "EMFILE", "ESTALE"];

impl Run {
    /// Trains with `strace` looking on: how it ended, what it said, and the calls that read what the
    /// run has on the disk. `fault` makes one of them fail.
    fn traced(&self, fault: Option<&str>) -> (ExitStatus, String, String) {
        let (paths, trace) = (self.paths(), self.at("trace"));
        let mut traced = Command::new("strace");
        traced.arg("-f").arg("-o").arg(&trace).arg("-e").arg(format!("trace={READS}"));
        traced.args(paths.iter().flat_map(|path| [Path::new("-P"), path]));
        traced.args(fault.iter().flat_map(|fault| ["-e", fault]));
        traced.arg(env!("CARGO_BIN_EXE_phalanx")).args(self.arguments()).env("PHALANX_PIN", "0");
        let Output { status, stderr, .. } = traced.stdout(Stdio::null()).output().unwrap();
        let calls = std::fs::read_to_string(&trace).unwrap();
        std::fs::remove_file(trace).unwrap();
        (status, String::from_utf8_lossy(&stderr).into_owned(), calls)
    }

    /// The files and directories of the run.
    fn paths(&self) -> Vec<PathBuf> {
        let mut paths = vec![self.directory.path().to_path_buf()];
        let mut at = 0;
        while at < paths.len() {
            let entries = std::fs::read_dir(&paths[at]).into_iter().flatten();
            paths.extend(entries.map(|entry| entry.unwrap().path()));
            at += 1;
        }
        paths
    }

    /// The first epoch's line with its times, which no run that begins anew repeats.
    fn first_epoch(&self) -> String {
        let json = std::fs::read_to_string(self.at("log.jsonl")).unwrap();
        json.lines().next().unwrap().to_string()
    }

    fn set_aside(&self) -> usize {
        self.paths().iter().filter(|path| path.to_string_lossy().contains("damaged")).count()
    }
}

/// Each call of a trace with how often the thread that made it most did so.
fn counts(calls: &str) -> Vec<(String, usize)> {
    let mut by_thread: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for line in calls.lines() {
        let Some((thread, rest)) = line.split_once(char::is_whitespace) else { continue };
        if let Some((call, _)) = rest.trim_start().split_once('(') {
            *by_thread.entry((call, thread)).or_default() += 1;
        }
    }
    let mut most: BTreeMap<&str, usize> = BTreeMap::new();
    for ((call, _), count) in by_thread {
        let known = most.entry(call).or_default();
        *known = count.max(*known);
    }
    let named = READS.split(',').map(|call| call.trim_start_matches('?'));
    named.filter_map(|call| most.get(call).map(|count| (call.to_string(), *count))).collect()
}

#[needs(strace)]
#[test]
fn a_read_error_at_any_read_of_a_resume_loses_nothing_and_begins_nothing_anew() {
    let expected = Run::new("6").epochs(2).finish();
    let half = Run::new("6").epochs(1);
    half.finish();
    let first = half.first_epoch();
    let probe = half.copy().epochs(2);
    let (status, words, calls) = probe.traced(None);
    assert!(status.success(), "{words}");
    let mut faults: Vec<String> = vec![];
    for (call, count) in counts(&calls) {
        for when in 1..=count {
            faults.extend(ERRORS.map(|error| format!("inject={call}:error={error}:when={when}")));
        }
    }
    // A few of all, and of every error, unless all are wanted.
    let every = if all_calls() { 1 } else { 4 * ERRORS.len() - 1 };
    let (mut failed, mut went_on) = (0, 0);
    for fault in faults.iter().step_by(every) {
        let run = half.copy().epochs(2);
        let (status, words, _) = run.traced(Some(fault));
        let what = format!("{fault}: {status} {words}");
        assert_eq!(run.set_aside(), 0, "{what}");
        if status.success() {
            assert_eq!(run.outcome(), expected, "{what}");
            went_on += 1;
        } else {
            assert_eq!(status.code(), Some(1), "{what}");
            failed += 1;
        }
        assert_eq!(run.first_epoch(), first, "{what}");
        assert_eq!(run.finish(), expected, "{what}");
        assert_eq!(run.first_epoch(), first, "{what}");
    }
    let (tried, all) = (failed + went_on, faults.len());
    println!("{tried} of {all} read errors: {failed} ended the start, {went_on} did not");
    assert!(failed > 10, "{failed} of {tried}");
}
