//! Crash tests: a run that is killed, signalled or hits read errors, and is then resumed, ends with the same weights,
//! history and logs as an undisturbed run. `PHALANX_CRASHES=500` sets the number of kills, and injects faults into
//! every system call.

use phalanx_needs::needs;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

/// Number of kills by default.
const DEFAULT_KILLS: u64 = 40;
/// Documented exit code of a run stopped by a signal.
const EXIT_INTERRUPTED: i32 = 75;

/// A run whose files are in one directory.
struct Run {
    directory: tempfile::TempDir,
    /// Value of `--checkpoint-every`.
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

    /// An independent run with a copy of the files.
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

    /// Arguments that start or continue the run.
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
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{stderr}");
        assert!(!stderr.contains("damaged"), "{stderr}");
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

/// The results that must not depend on interruptions.
#[derive(Debug, PartialEq)]
struct Outcome {
    /// Epochs, then the end with `weights_sha256`.
    lines: Vec<Value>,
    csv: String,
    /// Number of TensorBoard loss records, of training and of validation.
    events: [usize; 2],
}

fn without_times(mut line: Value) -> Value {
    if let Some(object) = line.as_object_mut() {
        object.retain(|name, _| !name.ends_with("seconds") && !name.ends_with("per_second"));
    }
    line
}

/// The number of loss records in the event file of a directory. A run has exactly one, however often it was killed.
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

/// Waits until a run has saved a checkpoint, for two seconds at most.
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
fn a_run_killed_at_random_times_ends_like_an_undisturbed_one() {
    let kills =
        std::env::var("PHALANX_CRASHES").ok().and_then(|n| n.parse().ok()).unwrap_or(DEFAULT_KILLS);
    let began = Instant::now();
    let expected = Run::new("1").finish();
    // Kills may happen at any time, including startup.
    let duration = began.elapsed().as_micros() as u64;
    let mut moment = phalanx::Stream::new(1, 0, 0, 0);
    let (mut done, mut finished) = (0, 0);
    while done < kills {
        let run = Run::new("1");
        // A run is killed several times before it ends.
        loop {
            let mut child = run.start();
            std::thread::sleep(Duration::from_micros(moment.below(duration)));
            if child.try_wait().unwrap().is_some() {
                break;
            }
            child.kill().unwrap();
            let (_, stderr) = wait(child);
            assert!(!stderr.contains("damaged") && !stderr.contains("error"), "{stderr}");
            done += 1;
            if done >= kills {
                break;
            }
        }
        assert_eq!(run.finish(), expected);
        finished += 1;
    }
    println!("{done} kills over {finished} runs, all with the same outcome");
}

/// Documented exit code after a second signal.
const EXIT_SECOND_SIGNAL: i32 = 130;

#[test]
fn a_second_signal_exits_at_once() {
    // Steps of this network are slow. If one ends between the two signals, the test tries again.
    let exits_at_once = |_| {
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
        let (status, stderr) = wait(child);
        assert!(
            [Some(EXIT_SECOND_SIGNAL), Some(EXIT_INTERRUPTED)].contains(&status.code()),
            "{status} {stderr}"
        );
        status.code() == Some(EXIT_SECOND_SIGNAL)
    };
    assert!((0..5).any(exits_at_once), "no second signal ended the process at once");
}

#[test]
fn a_signal_saves_the_run() {
    let expected = Run::new("1").finish();
    for name in ["TERM", "INT"] {
        let run = Run::new("1");
        let child = run.start();
        until_saved(&run);
        signal(&child, name);
        let (status, stderr) = wait(child);
        assert_eq!(status.code(), Some(EXIT_INTERRUPTED), "{stderr}");
        assert!(stderr.contains("interrupted after step") && stderr.contains("saved"), "{stderr}");
        assert_eq!(run.finish(), expected);
    }
}

/// The system calls by which a save changes the disk.
const CALLS: &str = "write,fsync,fdatasync,rename,renameat,renameat2,unlink,unlinkat,ftruncate";

/// Whether to inject faults into every system call.
fn all_calls() -> bool {
    std::env::var("PHALANX_CRASHES").is_ok()
}

#[needs(strace)]
#[test]
fn a_run_killed_at_each_system_call_of_a_save_ends_like_an_undisturbed_one() {
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
    println!("{tried} kills, at every {every} writing system call(s)");
    assert!(tried > 3);
}

/// The system calls by which a start reads. strace ignores those marked with `?` if the machine lacks them.
const READS: &str =
    "?open,openat,read,pread64,?stat,?lstat,fstat,?newfstatat,?statx,getdents64,lseek,?readlink";
/// Errors that do not imply a damaged file.
const ERRORS: [&str; 4] = ["EIO", "EACCES", "EMFILE", "ESTALE"];

impl Run {
    /// Trains under `strace`. Returns the exit status, standard error and the calls that read files of the run.
    /// `fault` makes one of them fail.
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

    /// The log line of the first epoch with its times, which differ if a run starts again.
    fn first_epoch(&self) -> String {
        let json = std::fs::read_to_string(self.at("log.jsonl")).unwrap();
        json.lines().next().unwrap().to_string()
    }

    /// The number of files that were renamed as damaged.
    fn set_aside(&self) -> usize {
        self.paths().iter().filter(|path| path.to_string_lossy().contains("damaged")).count()
    }
}

/// For each call of a trace, the largest number of times that a single thread made it.
fn max_calls_per_thread(calls: &str) -> Vec<(String, usize)> {
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
fn a_read_error_while_resuming_loses_nothing_and_restarts_nothing() {
    let expected = Run::new("6").epochs(2).finish();
    let half = Run::new("6").epochs(1);
    half.finish();
    let first = half.first_epoch();
    let probe = half.copy().epochs(2);
    let (status, stderr, calls) = probe.traced(None);
    assert!(status.success(), "{stderr}");
    let mut faults: Vec<String> = vec![];
    for (call, count) in max_calls_per_thread(&calls) {
        for when in 1..=count {
            faults.extend(ERRORS.map(|error| format!("inject={call}:error={error}:when={when}")));
        }
    }
    // By default a sample of the faults, with every error.
    let every = if all_calls() { 1 } else { 4 * ERRORS.len() - 1 };
    let (mut failed, mut succeeded) = (0, 0);
    for fault in faults.iter().step_by(every) {
        let run = half.copy().epochs(2);
        let (status, stderr, _) = run.traced(Some(fault));
        let what = format!("{fault}: {status} {stderr}");
        assert_eq!(run.set_aside(), 0, "{what}");
        if status.success() {
            assert_eq!(run.outcome(), expected, "{what}");
            succeeded += 1;
        } else {
            assert_eq!(status.code(), Some(1), "{what}");
            failed += 1;
        }
        assert_eq!(run.first_epoch(), first, "{what}");
        assert_eq!(run.finish(), expected, "{what}");
        assert_eq!(run.first_epoch(), first, "{what}");
    }
    let (tried, all) = (failed + succeeded, faults.len());
    println!("{tried} of {all} read errors: {failed} ended the start, {succeeded} did not");
    assert!(failed > 10, "{failed} of {tried}");
}
