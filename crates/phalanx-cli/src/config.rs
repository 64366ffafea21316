//! `--config run.toml`: the flags of a command from a file, under those of the command line.

use crate::args::Args;
use crate::warnings::{place, say};
use anyhow::{Context, Result, bail};
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches};
use phalanx::text::{MAX_PART, brief, cut, shown};
use phalanx::workers;
use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};
use toml::Value;

/// A larger file is no list of arguments.
const LARGEST: u64 = 1 << 20;

/// Reads the command line, and the file it may name. What clap refuses ends the program.
pub fn parse() -> Result<Args> {
    let line: Vec<OsString> = std::env::args_os().collect();
    let matches = parse_line(&line).unwrap_or_else(|e| refused(&e));
    let args = Args::from_arg_matches(&matches).unwrap_or_else(|error| refused(&error));
    let Some((name, given)) = matches.subcommand() else { return Ok(args) };
    let Ok(Some(path)) = given.try_get_one::<PathBuf>("config") else { return Ok(args) };
    let from_file = arguments(path, name, given)?;
    let all = line.into_iter().chain(from_file.into_iter().map(OsString::from));
    let parsed =
        parse_line(&all.collect::<Vec<_>>()).and_then(|matches| Args::from_arg_matches(&matches));
    let shown = shown(path.display());
    parsed.map_err(|error| anyhow::anyhow!("{shown}: {}", cut(&first_line(&error), MAX_PART)))
}

/// What clap makes of a command line. Its errors quote arguments, so they are made of escaped ones.
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

/// Says what clap has to say, and ends the program; workers other than the chief are brief.
fn refused(error: &clap::Error) -> ! {
    match workers::name() {
        Some((rank, _)) if rank > 0 => {
            if error.use_stderr() {
                say(format_args!("error: {}{}", place(), first_line(error)));
            }
            std::process::exit(error.exit_code())
        }
        _ if error.use_stderr() => {
            say(format_args!("{}", error.to_string().trim_end()));
            std::process::exit(error.exit_code())
        }
        _ => error.exit(),
    }
}

/// The file's keys as arguments, but for those that the command line has something to say about.
fn arguments(path: &Path, subcommand: &str, given: &ArgMatches) -> Result<Vec<String>> {
    let file = shown(path.display());
    let table: toml::Table = read(path)?.parse().map_err(|error: toml::de::Error| {
        let line = error.span().map(|_| error.message().to_string());
        anyhow::anyhow!("{file}: expected TOML: {}", line.unwrap_or_else(|| error.to_string()))
    })?;
    let command = Args::command();
    let command = command.find_subcommand(subcommand).context("a subcommand")?;
    let on_line = |arg: &clap::Arg| {
        given.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine)
    };
    let mut arguments = vec![];
    for (key, value) in &table {
        let named = |arg: &&clap::Arg| arg.get_long() == Some(key) || arg.get_id() == key.as_str();
        let known = command.get_arguments().find(named).filter(|_| key != "config");
        let Some(arg) = known else {
            bail!("{file}: unknown key '{}'{}", shown(brief(key)), near(command, key))
        };
        let rival = |other: &clap::Arg| {
            let against = |a, b| command.get_arg_conflicts_with(a).contains(&b);
            against(arg, other) || against(other, arg)
        };
        if on_line(arg) || command.get_arguments().any(|other| rival(other) && on_line(other)) {
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

/// The file's text, which is never a pipe's or a device's.
fn read(path: &Path) -> Result<String> {
    let named = || format!("--config: {}", shown(path.display()));
    let meta = std::fs::metadata(path).with_context(named)?;
    if !meta.is_file() {
        let received = if meta.is_dir() { "a directory" } else { "a device or pipe" };
        bail!("{}: expected a file, received {received}", named());
    }
    if meta.len() > LARGEST {
        bail!("{}: expected at most {LARGEST} bytes, received {}", named(), meta.len());
    }
    let mut text = String::new();
    let file = std::fs::File::open(path).with_context(named)?;
    file.take(LARGEST).read_to_string(&mut text).with_context(named)?;
    Ok(text)
}

/// A value as it would stand on the command line.
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

/// The keys there are, the likely one first.
fn near(command: &clap::Command, key: &str) -> String {
    let keys = command.get_arguments().filter_map(clap::Arg::get_long);
    let mut keys: Vec<&str> =
        keys.filter(|key| !["config", "help", "version"].contains(key)).collect();
    keys.push("model");
    let dashed = key.replace('_', "-");
    let shared = |known: &str| {
        let same = |(a, b): &(char, char)| a == b;
        known.chars().zip(dashed.chars()).take_while(same).count()
    };
    match keys.iter().max_by_key(|known| shared(known)).filter(|known| shared(known) > 2) {
        Some(known) => format!("; did you mean '{known}'?"),
        None => format!("; the keys are {}", keys.join(", ")),
    }
}
