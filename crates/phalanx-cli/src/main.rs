//! The `phalanx` command.

mod args;
mod bench;
mod config;
mod data;
mod devices;
mod doctor;
mod evaluate;
mod feed;
mod files;
mod inspect;
mod model_file;
mod network;
mod origin;
mod paths;
mod place;
mod plan;
mod predict;
mod prepare;
mod recipe;
mod report;
mod sets;
mod signals;
mod subject;
mod targets;
mod terminal;
mod told;
mod train;
mod warnings;

use clap::CommandFactory;
use phalanx::text::shown;
use phalanx::{Error, ExecError, workers};
use std::io::Write;
use std::process::ExitCode;

/// Exit code of a command that failed; clap uses 2 for arguments it does not understand.
const FAILED: u8 = 1;
/// Exit code of a run that a signal ended: what others call a temporary failure, to be tried again.
const INTERRUPTED: u8 = 75;
/// Exit code of a training whose output nobody reads any more, as the shell has it for SIGPIPE.
const UNREAD: u8 = 128 + 13;

fn main() -> ExitCode {
    warnings::show();
    let mut trains = false;
    let done = signals::catch_file_size_limit().and_then(|()| config::parse()).and_then(|args| {
        trains = matches!(args.command, args::Command::Train(_));
        run(&args.command)
    });
    let code = conclude(done, trains);
    workers::shutdown();
    code
}

fn conclude(done: anyhow::Result<()>, trains: bool) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        // A listing may be cut short; a training that was has not done what it was asked for.
        Err(error) if closed(&error) && trains => {
            workers::abort(UNREAD);
            ExitCode::from(UNREAD)
        }
        Err(error) if closed(&error) => ExitCode::SUCCESS,
        Err(error) => ExitCode::from(report(&error)),
    }
}

/// Says what went wrong; returns the exit code. Other workers are ended, unless all end together.
fn report(error: &anyhow::Error) -> u8 {
    let code = match error.downcast_ref() {
        Some(Error::Interrupted { .. }) => INTERRUPTED,
        Some(Error::Exec(ExecError::Peer { .. })) => workers::EXIT_PEER_LOST,
        _ => FAILED,
    };
    let me = workers::name();
    if code != INTERRUPTED || me.is_none_or(|(rank, _)| rank == 0) {
        warnings::say(format_args!("error: {}{}", warnings::place(), shown(words(error))));
    }
    if code != INTERRUPTED {
        workers::abort(code);
    }
    code
}

fn run(command: &args::Command) -> anyhow::Result<()> {
    phalanx::Isa::detect()?;
    match command {
        args::Command::Train(train) => train::run(train),
        args::Command::Evaluate(evaluate) => evaluate::run(evaluate),
        args::Command::Predict(predict) => predict::run(predict),
        args::Command::Bench(bench) => bench::run(bench),
        args::Command::Inspect(inspect) => inspect::run(inspect),
        args::Command::Convert { from, to } => files::convert(from, to),
        args::Command::Diff { left, right } => files::diff(left, right),
        args::Command::Data { what } => sets::run(what.as_ref()),
        args::Command::Devices { json } => devices::run(*json),
        args::Command::Doctor => doctor::run(),
        args::Command::Plan(plan) => plan::run(plan),
        args::Command::Completions { shell } => completions(*shell),
    }
}

/// The script goes through our own writer: a reader may close it early.
fn completions(shell: clap_complete::Shell) -> anyhow::Result<()> {
    let mut script = vec![];
    clap_complete::generate(shell, &mut args::Args::command(), "phalanx", &mut script);
    std::io::stdout().write_all(&script)?;
    Ok(())
}

/// An error and its causes on one line, each said once: a library's message often has its cause in
/// it.
fn words(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text += &format!(": {cause}");
        }
    }
    text.lines().map(str::trim).collect::<Vec<_>>().join(" ")
}

/// Whether the reader of our output went away, which is its right.
fn closed(error: &anyhow::Error) -> bool {
    if matches!(error.downcast_ref(), Some(Error::Interrupted { .. })) {
        return signals::output_closed();
    }
    let broken = |e: &std::io::Error| e.kind() == std::io::ErrorKind::BrokenPipe;
    error.chain().any(|cause| {
        let inner = match cause.downcast_ref::<Error>() {
            Some(Error::Io { source, .. }) => Some(source),
            _ => None,
        };
        cause.downcast_ref().or(inner).is_some_and(broken)
    })
}
