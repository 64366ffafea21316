//! The command under a launcher: built without MPI, or with inconsistent environment variables.

use crate::{command, text};

const TRAIN: [&str; 4] = ["train", "mnist-mlp", "--epochs", "1"];

#[test]
fn a_launcher_is_detected() {
    let dir = tempfile::tempdir().unwrap();
    let says = |variables: &[(&str, &str)], words: &str| {
        let out = command(dir.path(), &TRAIN).envs(variables.iter().copied()).output().unwrap();
        let error = text(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{variables:?}: {error}");
        assert!(error.contains(words) && error.lines().count() == 1, "{variables:?}: {error}");
    };
    says(
        &[("OMPI_COMM_WORLD_RANK", "0"), ("RANK", "0"), ("WORLD_SIZE", "2")],
        "launcher: OMPI_COMM_WORLD_SIZE: expected a value alongside OMPI_COMM_WORLD_RANK 0, received nothing",
    );
    says(
        &[("RANK", "3"), ("WORLD_SIZE", "2")],
        "launcher: RANK: expected a number below WORLD_SIZE 2",
    );
    says(&[("TF_CONFIG", "{")], "launcher: TF_CONFIG: expected JSON");
    #[cfg(not(feature = "mpi"))]
    says(
        &[("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2")],
        "): MultiWorkerMirroredStrategy: this is worker 1 of 2 (OMPI_COMM_WORLD_RANK), but MPI was left out of this build: \
         cargo build --release -p phalanx-cli --features mpi",
    );
}

#[test]
fn messages_of_a_worker_carry_its_rank_and_host() {
    let dir = tempfile::tempdir().unwrap();
    let out = |rank: &str, args: &[&str]| {
        let place = [("OMPI_COMM_WORLD_RANK", rank), ("OMPI_COMM_WORLD_SIZE", "2")];
        let out = command(dir.path(), args).envs(place).output().unwrap();
        (out.status.code(), text(&out.stderr))
    };
    // Fails before it joins the others.
    let (code, error) = out("1", &["inspect", "nothing.keras"]);
    assert!(error.starts_with("error: rank 1 (") && error.contains("): nothing.keras"), "{error}");
    assert_eq!((code, error.lines().count()), (Some(1), 1));
    let (code, error) = out("1", &["train", "--no-such-flag"]);
    assert!(error.starts_with("error: rank 1 (") && error.contains("--no-such-flag"), "{error}");
    assert_eq!((code, error.lines().count()), (Some(2), 1));
    let (code, error) = out("0", &["train", "--no-such-flag"]);
    assert!(code == Some(2) && error.contains("Usage:"), "the chief says it all: {error}");
}

#[test]
fn a_single_worker_runs_as_a_plain_process() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["train", "mnist-mlp", "--epochs", "1", "--steps-per-epoch", "2", "--verbose", "2"];
    let alone = [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "1")];
    let out = command(dir.path(), &args).envs(alone).output().unwrap();
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert!(text(&out.stdout).contains("(1 replica)"), "{}", text(&out.stdout));
}
