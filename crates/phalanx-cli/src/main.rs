//! The `phalanx` command.

mod args;
mod bench;
mod evaluate;
mod files;
mod inspect;
mod network;
mod train;

use clap::{CommandFactory, Parser};
use std::io::Write;
use std::process::ExitCode;

/// Exit code of a command that failed; clap uses 2 for arguments it does not understand.
const FAILED: u8 = 1;

fn main() -> ExitCode {
    let args = args::Args::parse();
    let result = match args.command {
        args::Command::Train(train) => train::run(&train),
        args::Command::Bench(bench) => bench::run(&bench),
        args::Command::Inspect(inspect) => inspect::run(&inspect),
        args::Command::Evaluate(evaluate) => evaluate::run(&evaluate),
        args::Command::Convert { from, to } => files::convert(&from, &to),
        args::Command::Diff { left, right } => files::diff(&left, &right),
        args::Command::Data => inspect::data(),
        args::Command::Devices => inspect::devices(),
        args::Command::Completions { shell } => completions(shell),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if closed(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", words(&error));
            ExitCode::from(FAILED)
        }
    }
}

/// The script goes through our own writer: a reader may close it early.
fn completions(shell: clap_complete::Shell) -> anyhow::Result<()> {
    let mut script = vec![];
    clap_complete::generate(shell, &mut args::Args::command(), "phalanx", &mut script);
    std::io::stdout().write_all(&script)?;
    Ok(())
}

/// An error and its causes, each said once: a library's message often has its cause in it.
fn words(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text += &format!(": {cause}");
        }
    }
    text
}

/// Whether the reader of our output went away, which is its right.
fn closed(error: &anyhow::Error) -> bool {
    let broken = |e: &std::io::Error| e.kind() == std::io::ErrorKind::BrokenPipe;
    error.chain().any(|cause| {
        let inner = match cause.downcast_ref::<phalanx::Error>() {
            Some(phalanx::Error::Io { source, .. }) => Some(source),
            _ => None,
        };
        cause.downcast_ref().or(inner).is_some_and(broken)
    })
}
