//! `phalanx data`: what there is, where it is, what is in it.

use crate::args::{DataArgs, DataCommand};
use crate::data::{self, Part, Reading, Request};
use crate::network::Network;
use crate::terminal;
use anyhow::Result;
use phalanx::prelude::*;
use phalanx::text::shown;
use std::io::Write;

/// Classes named in a description.
const SHOWN: usize = 20;

/// Lists, fetches or describes.
pub fn run(command: Option<&DataCommand>) -> Result<()> {
    match command {
        None | Some(DataCommand::List) => list(),
        Some(DataCommand::Fetch { name }) => fetch(name),
        Some(DataCommand::Info { data }) => info(data),
    }
}

fn list() -> Result<()> {
    let mut out = terminal::stdout();
    writeln!(out, "looked for in {}", shown(datasets::directory().display()))?;
    writeln!(out, "glyphs         generated")?;
    for name in datasets::NAMES.into_iter().filter(|n| *n != "glyphs") {
        match datasets::find(name)? {
            Some(place) => writeln!(out, "{name:<14} {}", shown(place.display()))?,
            None => writeln!(out, "{name:<14} not here (fetched when first used)")?,
        }
    }
    Ok(())
}

fn fetch(name: &str) -> Result<()> {
    let place = match datasets::find(name)? {
        Some(place) => place,
        None => datasets::fetch(name, &mut datasets::terminal())?,
    };
    writeln!(terminal::stdout(), "{name}: {}", shown(place.display()))?;
    Ok(())
}

fn info(name: &str) -> Result<()> {
    let reading = Reading::of(&Network::Minigooglenet.usual_input(), None, false);
    let (args, inputs, outputs, table) = (DataArgs::default(), vec![], vec![], None);
    let request = Request { name, reading, args: &args, inputs, outputs, table };
    let data = data::load(&request)?;
    let mut out = terminal::stdout();
    if let Ok(Some(place)) = datasets::find(name) {
        writeln!(out, "files: {}", shown(place.display()))?;
    }
    let rows = |part: &Option<Part>| part.as_ref().map_or(0, Part::rows);
    let (train, validation, test) = (data.train.rows(), rows(&data.validation), rows(&data.test));
    writeln!(out, "rows: {train} to train on, {validation} to validate on, {test} to test on")?;
    for (input, x) in &data.train.inputs {
        let kind = if x.is_bytes() { ", bytes" } else { "" };
        writeln!(out, "input{}: {:?}{kind}", titled(input), x.dims())?;
    }
    for (target, y) in &data.train.targets {
        writeln!(out, "target{}: {:?} of {}", titled(target), &y.dims()[1..], y.dtype())?;
    }
    let Some(classes) = &data.classes else { return Ok(()) };
    let mut counts = vec![0usize; classes.len()];
    for class in data.train.targets[0].1.i32().unwrap_or_default() {
        if let Some(count) = usize::try_from(*class).ok().and_then(|class| counts.get_mut(class)) {
            *count += 1;
        }
    }
    writeln!(out, "classes: {}", classes.len())?;
    for (i, (class, count)) in classes.iter().zip(&counts).enumerate().take(SHOWN) {
        writeln!(out, "  {i:>3} {:<16} {count} to train on", shown(class))?;
    }
    if classes.len() > SHOWN {
        writeln!(out, "  and {} more", classes.len() - SHOWN)?;
    }
    Ok(())
}

/// A name behind what it names, if there is one.
fn titled(name: &str) -> String {
    if name.is_empty() { String::new() } else { format!(" {}", shown(name)) }
}
