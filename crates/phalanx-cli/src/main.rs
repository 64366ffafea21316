//! The `phalanx` command.

mod args;
mod bench;
mod evaluate;
mod inspect;
mod network;
mod train;

use clap::{CommandFactory, Parser};
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
        args::Command::Data => inspect::data(),
        args::Command::Devices => inspect::devices(),
        args::Command::Completions { shell } => {
            let mut command = args::Args::command();
            clap_complete::generate(shell, &mut command, "phalanx", &mut std::io::stdout());
            Ok(())
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if closed(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(FAILED)
        }
    }
}

/// Whether the reader of our output went away, which is its right.
fn closed(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}
