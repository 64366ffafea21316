//! The `phalanx` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    phalanx_cli::run(std::env::args_os()).into()
}
