//! `--config run.toml`: the flags of a command from a file. The command line takes precedence.

use crate::args::Args;
use crate::warnings::{eprint_line, rank_prefix};
use anyhow::{Context, Result, bail};
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches};
use phalanx::launch::worker_name;
use phalanx::text::{MAX_PART, brief, shown, truncate};
use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};
use toml::Value;

/// Maximum size of a config file.
const MAX_CONFIG_BYTES: u64 = 1 << 20;

/// Parses a command line and its config file, if any. Exits the process if clap rejects the command line.
pub fn parse(line: Vec<OsString>) -> Result<Args> {
    let matches = parse_line(&line).unwrap_or_else(|e| exit_with(&e));
    let args = Args::from_arg_matches(&matches).unwrap_or_else(|error| exit_with(&error));
    let Some((name, given)) = matches.subcommand() else { return Ok(args) };
    let Ok(Some(path)) = given.try_get_one::<PathBuf>("config") else { return Ok(args) };
    let from_file = arguments(path, name, given)?;
    let all = line.into_iter().chain(from_file.into_iter().map(OsString::from));
    let parsed =
        parse_line(&all.collect::<Vec<_>>()).and_then(|matches| Args::from_arg_matches(&matches));
    let shown = shown(path.display());
    parsed.map_err(|error| anyhow::anyhow!("{shown}: {}", truncate(&first_line(&error), MAX_PART)))
}

/// Parses a command line with clap. Errors quote arguments, so they are generated from escaped ones.
fn parse_line(line: &[OsString]) -> Result<ArgMatches, clap::Error> {
    Args::command().try_get_matches_from(line).map_err(|error| {
        let escaped = line.iter().map(|arg| shown(arg.to_string_lossy()).to_string());
        Args::command().try_get_matches_from(escaped).err().unwrap_or(error)
    })
}

fn first_line(error: &clap::Error) -> String {
    let text = error.to_string();
    text.lines().next().unwrap_or_default().trim_start_matches("error: ").into()
}

/// Prints a clap error and exits. Workers other than the chief print only its first line.
fn exit_with(error: &clap::Error) -> ! {
    match worker_name() {
        Some((rank, _)) if rank > 0 => {
            if error.use_stderr() {
                eprint_line(format_args!("error: {}{}", rank_prefix(), first_line(error)));
            }
            std::process::exit(error.exit_code())
        }
        _ if error.use_stderr() => {
            eprint_line(format_args!("{}", error.to_string().trim_end()));
            std::process::exit(error.exit_code())
        }
        _ => error.exit(),
    }
}

/// The keys of the file as arguments, without those that the command line sets or conflicts with.
fn arguments(path: &Path, subcommand: &str, given: &ArgMatches) -> Result<Vec<String>> {
    let file = shown(path.display());
    let table: toml::Table =
        read_small_file("--config", path)?.parse().map_err(|error: toml::de::Error| {
            let line = error.span().map(|_| error.message().to_string());
            anyhow::anyhow!("{file}: expected TOML: {}", line.unwrap_or_else(|| error.to_string()))
        })?;
    let command = Args::command();
    let command = command.find_subcommand(subcommand).context("a subcommand")?;
    let on_command_line = |arg: &clap::Arg| {
        given.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine)
    };
    let mut arguments = vec![];
    for (key, value) in &table {
        let named = |arg: &&clap::Arg| arg.get_long() == Some(key) || arg.get_id() == key.as_str();
        let known = command.get_arguments().find(named).filter(|_| key != "config");
        let Some(arg) = known else {
            bail!("{file}: unknown key '{}'{}", shown(brief(key)), suggestion(command, key))
        };
        let conflicts = |other: &clap::Arg| {
            let listed = |a, b| command.get_arg_conflicts_with(a).contains(&b);
            listed(arg, other) || listed(other, arg)
        };
        if on_command_line(arg)
            || command.get_arguments().any(|other| conflicts(other) && on_command_line(other))
        {
            continue;
        }
        let Some(text) = text(value) else {
            bail!(
                "{file}: {key}: expected a number, a text, true or a list, received a {}",
                value.type_str()
            );
        };
        match (arg.get_long(), value) {
            (Some(_), Value::Boolean(false)) => {}
            (Some(long), Value::Boolean(true)) => arguments.push(format!("--{long}")),
            (Some(long), _) => arguments.push(format!("--{long}={text}")),
            (None, _) => arguments.push(text),
        }
    }
    Ok(arguments)
}

/// Reads the file. Pipes and devices are rejected.
/// Reads a text file that a flag names.
pub fn read_small_file(flag: &str, path: &Path) -> Result<String> {
    let named = || format!("{flag}: {}", shown(path.display()));
    let meta = std::fs::metadata(path).with_context(named)?;
    if !meta.is_file() {
        let received = if meta.is_dir() { "a directory" } else { "a device or pipe" };
        bail!("{}: expected a file, received {received}", named());
    }
    if meta.len() > MAX_CONFIG_BYTES {
        bail!("{}: expected at most {MAX_CONFIG_BYTES} bytes, received {}", named(), meta.len());
    }
    let mut text = String::new();
    let file = std::fs::File::open(path).with_context(named)?;
    file.take(MAX_CONFIG_BYTES).read_to_string(&mut text).with_context(named)?;
    Ok(text)
}

/// A value as it would appear on the command line.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Integer(number) => Some(number.to_string()),
        Value::Float(number) => Some(number.to_string()),
        Value::Boolean(flag) => Some(flag.to_string()),
        Value::Array(values) => {
            let texts: Option<Vec<String>> = values.iter().map(text).collect();
            Some(texts?.join(","))
        }
        Value::Datetime(_) | Value::Table(_) => None,
    }
}

/// Suggests the key with the longest common prefix, or lists all keys.
fn suggestion(command: &clap::Command, key: &str) -> String {
    let keys = command.get_arguments().filter_map(clap::Arg::get_long);
    let mut keys: Vec<&str> =
        keys.filter(|key| !["config", "help", "version"].contains(key)).collect();
    keys.push("model");
    let dashed = key.replace('_', "-");
    let common_prefix = |known: &str| {
        let same = |(a, b): &(char, char)| a == b;
        known.chars().zip(dashed.chars()).take_while(same).count()
    };
    match keys
        .iter()
        .max_by_key(|known| common_prefix(known))
        .filter(|known| common_prefix(known) > 2)
    {
        Some(known) => format!("; did you mean '{known}'?"),
        None => format!("; the keys are {}", keys.join(", ")),
    }
}
