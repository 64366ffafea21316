//! `phalanx data`: what there is, where it is, what is in it.

use crate::args::DataCommand;
use crate::data::{self, Reading};
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
    let data = data::load(name, Reading::of(&Network::Minigooglenet.usual_input(), None, false))?;
    let mut out = terminal::stdout();
    if let Ok(Some(place)) = datasets::find(name) {
        writeln!(out, "files: {}", shown(place.display()))?;
    }
    let (train, test) = (data.train.0.rows(), data.test.0.rows());
    writeln!(out, "samples: {train} to train on, {test} to test on")?;
    writeln!(out, "shape: {:?}", data.train.0.dims())?;
    let mut counts = vec![0usize; data.classes.len()];
    for class in data.train.1.i32().unwrap_or_default() {
        if let Some(count) = counts.get_mut(*class as usize) {
            *count += 1;
        }
    }
    writeln!(out, "classes: {}", data.classes.len())?;
    for (i, (class, count)) in data.classes.iter().zip(&counts).enumerate().take(SHOWN) {
        writeln!(out, "  {i:>3} {:<16} {count} to train on", shown(class))?;
    }
    if data.classes.len() > SHOWN {
        writeln!(out, "  and {} more", data.classes.len() - SHOWN)?;
    }
    Ok(())
}
