//! The `phalanx` command, as a library: the binary and the Python package run it.

mod args;
mod bench;
mod config;
mod context;
mod data;
mod dataset_cmd;
mod defaults;
mod device_args;
mod devices;
mod doctor;
mod evaluate;
mod files;
#[cfg(feature = "cuda")]
mod gpu_libraries;
#[cfg(not(feature = "cuda"))]
#[path = "no_gpu_libraries.rs"]
mod gpu_libraries;
mod inspect;
mod mesh_args;
mod model_file;
mod model_spec;
mod network;
mod paths;
mod plan;
mod plan_mesh;
mod predict;
mod prepare;
mod preprocessing;
mod report;
mod resume_warnings;
mod samples;
mod signals;
mod targets;
mod terminal;
mod train;
mod warnings;

use clap::CommandFactory;
use context::RunContext;
use phalanx::launch::is_first_worker;
use phalanx::text::shown;
use phalanx::workers::EXIT_PEER_LOST;
use phalanx::{Error, ExecError};
use std::ffi::OsString;
use std::io::Write;

/// Exit code of a failed command; clap uses 2 for invalid arguments.
const EXIT_FAILURE: u8 = 1;
/// Exit code of a run stopped by a signal: `EX_TEMPFAIL`, so that schedulers retry it.
const EXIT_INTERRUPTED: u8 = 75;
/// Exit code of a training run whose output was closed: the shell's code for SIGPIPE.
const EXIT_OUTPUT_CLOSED: u8 = 128 + 13;

/// Runs the command with its arguments, the name of the program first, and returns its exit code. Exits the process if they are invalid.
pub fn run(args: impl IntoIterator<Item = OsString>) -> u8 {
    warnings::install();
    let (mut training, context) = (false, RunContext::default());
    let args = || config::parse(args.into_iter().collect());
    let done = signals::catch_file_size_limit().and_then(|()| args()).and_then(|args| {
        training = matches!(args.command, args::Command::Train(_));
        run_command(&args.command, &context)
    });
    let code = exit_code(done, training, &context);
    context.end();
    code
}

/// The exit code of a command; reports its error, if any.
fn exit_code(done: anyhow::Result<()>, training: bool, context: &RunContext) -> u8 {
    match done {
        Ok(()) => 0,
        // Truncating a listing is fine; truncating a training run is a failure.
        Err(error) if is_output_closed(&error) && training => {
            context.abort(EXIT_OUTPUT_CLOSED);
            EXIT_OUTPUT_CLOSED
        }
        Err(error) if is_output_closed(&error) => 0,
        Err(error) => report(&error, context),
    }
}

/// Prints an error and returns its exit code. Aborts the other workers unless a signal stops all of them.
fn report(error: &anyhow::Error, context: &RunContext) -> u8 {
    let code = match error.downcast_ref() {
        Some(Error::Interrupted { .. }) => EXIT_INTERRUPTED,
        Some(Error::Exec(ExecError::Peer { .. })) => EXIT_PEER_LOST,
        _ => EXIT_FAILURE,
    };
    if code != EXIT_INTERRUPTED || is_first_worker() {
        warnings::eprint_line(format_args!(
            "error: {}{}",
            warnings::rank_prefix(),
            shown(format_error(error))
        ));
    }
    if code != EXIT_INTERRUPTED {
        context.abort(code);
    }
    code
}

fn run_command(command: &args::Command, context: &RunContext) -> anyhow::Result<()> {
    phalanx::Isa::detect()?;
    match command {
        args::Command::Train(train) => train::run(train, context),
        args::Command::Evaluate(evaluate) => evaluate::run(evaluate, context),
        args::Command::Predict(predict) => predict::run(predict, context),
        args::Command::Bench(bench) => bench::run(bench, context),
        args::Command::Inspect(inspect) => inspect::run(inspect),
        args::Command::Convert { from, to } => files::convert(from, to),
        args::Command::Diff { left, right } => files::diff(left, right),
        args::Command::Data { command } => dataset_cmd::run(command.as_ref()),
        args::Command::Devices { json } => devices::run(*json),
        args::Command::Doctor => doctor::run(),
        args::Command::Plan(plan) => plan::run(plan),
        args::Command::Completions { shell } => completions(*shell),
    }
}

/// Prints a completion script. Written by hand because clap's writer panics if the reader closes the pipe early.
fn completions(shell: clap_complete::Shell) -> anyhow::Result<()> {
    let mut script = vec![];
    clap_complete::generate(shell, &mut args::Args::command(), "phalanx", &mut script);
    std::io::stdout().write_all(&script)?;
    Ok(())
}

/// Formats an error and its causes on one line. A cause that the text already contains is omitted.
fn format_error(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text += &format!(": {cause}");
        }
    }
    text.lines().map(str::trim).collect::<Vec<_>>().join(" ")
}

/// Whether the error means that the reader of our output closed it.
fn is_output_closed(error: &anyhow::Error) -> bool {
    if matches!(error.downcast_ref(), Some(Error::Interrupted { .. })) {
        return signals::output_closed();
    }
    let broken_pipe = |e: &std::io::Error| e.kind() == std::io::ErrorKind::BrokenPipe;
    error.chain().any(|cause| {
        let inner = match cause.downcast_ref::<Error>() {
            Some(Error::Io { source, .. }) => Some(source),
            _ => None,
        };
        cause.downcast_ref().or(inner).is_some_and(broken_pipe)
    })
}
