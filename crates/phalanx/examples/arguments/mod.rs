//! Command line arguments of an example: only flags with one value each.
#![allow(dead_code)] // an example without flags reads no values

use phalanx::{Error, Result};

/// The given flags with their values.
pub struct Flags {
    usage: &'static str,
    given: Vec<(String, String)>,
}

/// Reads the command line; `usage` names the flags, as in `[--epochs N] [--output FILE]`.
pub fn read(usage: &'static str) -> Result<Flags> {
    let mut line = std::env::args();
    let program = line.next().unwrap_or_default();
    let line: Vec<String> = line.collect();
    if line.iter().any(|argument| argument == "--help" || argument == "-h") {
        println!("usage: {program} {usage}");
        std::process::exit(0);
    }
    parse(usage, line)
}

/// Parses a command line. Flags that `usage` does not name are rejected with the usage.
pub fn parse(usage: &'static str, line: Vec<String>) -> Result<Flags> {
    let (mut given, mut arguments) = (vec![], line.into_iter());
    while let Some(argument) = arguments.next() {
        let (flag, value) = match argument.split_once('=') {
            Some((flag, value)) => (flag.to_string(), Some(value.to_string())),
            None => (argument, None),
        };
        if !usage.split(['[', ']', ' ']).any(|known| known == flag && flag.starts_with("--")) {
            return Err(refused(usage, flag));
        }
        let value = value.or_else(|| arguments.next());
        let value = value.ok_or_else(|| refused(usage, format!("{flag} without a value")))?;
        given.push((flag, value));
    }
    Ok(Flags { usage, given })
}

fn refused(usage: &str, received: String) -> Error {
    let expected = if usage.is_empty() { "none" } else { usage };
    Error::argument("command line", "arguments", expected, received)
}

impl Flags {
    /// The value of a flag, the last if it is given twice.
    pub fn text(&self, flag: &str) -> Option<&str> {
        self.given.iter().rev().find(|(name, _)| name == flag).map(|(_, value)| value.as_str())
    }

    /// The value of a flag as a number.
    pub fn number(&self, flag: &str, default: usize) -> Result<usize> {
        let Some(text) = self.text(flag) else { return Ok(default) };
        text.parse().map_err(|_| refused(self.usage, format!("{flag} {text}")))
    }
}
