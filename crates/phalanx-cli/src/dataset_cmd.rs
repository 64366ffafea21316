//! `phalanx data`: lists, downloads and describes datasets.

use crate::args::{DataArgs, DataCommand};
use crate::data::{self, ImageOptions, InputNames, LoadRequest, NamedSamples};
use crate::network::Network;
use crate::terminal;
use anyhow::Result;
use phalanx::prelude::*;
use phalanx::text::shown;
use std::io::Write;

/// Maximum number of classes listed in a description.
const MAX_CLASSES_SHOWN: usize = 20;

/// Runs a subcommand; `list` by default.
pub fn run(command: Option<&DataCommand>) -> Result<()> {
    match command {
        None | Some(DataCommand::List) => list(),
        Some(DataCommand::Fetch { name }) => fetch(name),
        Some(DataCommand::Info { data }) => info(data),
    }
}

fn list() -> Result<()> {
    let mut out = terminal::stdout();
    writeln!(out, "dataset directory: {}", shown(datasets::directory().display()))?;
    writeln!(out, "glyphs         generated")?;
    for name in datasets::NAMES.into_iter().filter(|n| *n != "glyphs") {
        match datasets::find(name)? {
            Some(path) => writeln!(out, "{name:<14} {}", shown(path.display()))?,
            None => writeln!(out, "{name:<14} not present (downloaded on first use)")?,
        }
    }
    Ok(())
}

fn fetch(name: &str) -> Result<()> {
    let path = match datasets::find(name)? {
        Some(path) => path,
        None => datasets::fetch(name, &mut datasets::terminal())?,
    };
    writeln!(terminal::stdout(), "{name}: {}", shown(path.display()))?;
    Ok(())
}

fn info(name: &str) -> Result<()> {
    let image_options =
        ImageOptions::for_network(&Network::Minigooglenet.default_input(), None, false);
    let (args, outputs, table) = (DataArgs::default(), vec![], None);
    let inputs = InputNames::default();
    let request = LoadRequest { name, image_options, args: &args, inputs, outputs, table };
    let data = data::load(&request)?;
    let mut out = terminal::stdout();
    if let Ok(Some(path)) = datasets::find(name) {
        writeln!(out, "files: {}", shown(path.display()))?;
    }
    let rows = |part: &Option<NamedSamples>| part.as_ref().map_or(0, NamedSamples::rows);
    let (train, validation, test) = (data.train.rows(), rows(&data.validation), rows(&data.test));
    writeln!(out, "rows: {train} to train on, {validation} to validate on, {test} to test on")?;
    for (input, x) in &data.train.inputs {
        let kind = if x.is_bytes() { ", bytes" } else { "" };
        writeln!(out, "input{}: {:?}{kind}", suffix(input), x.dims())?;
    }
    for (target, y) in &data.train.targets {
        writeln!(out, "target{}: {:?} of {}", suffix(target), &y.dims()[1..], y.dtype())?;
    }
    let Some(classes) = &data.classes else { return Ok(()) };
    let mut counts = vec![0usize; classes.len()];
    for class in data.train.targets[0].1.i32().unwrap_or_default() {
        if let Some(count) = usize::try_from(*class).ok().and_then(|class| counts.get_mut(class)) {
            *count += 1;
        }
    }
    writeln!(out, "classes: {}", classes.len())?;
    for (i, (class, count)) in classes.iter().zip(&counts).enumerate().take(MAX_CLASSES_SHOWN) {
        writeln!(out, "  {i:>3} {:<16} {count} to train on", shown(class))?;
    }
    if classes.len() > MAX_CLASSES_SHOWN {
        writeln!(out, "  and {} more", classes.len() - MAX_CLASSES_SHOWN)?;
    }
    Ok(())
}

/// A name with a leading space, or nothing if it is empty.
fn suffix(name: &str) -> String {
    if name.is_empty() { String::new() } else { format!(" {}", shown(name)) }
}
