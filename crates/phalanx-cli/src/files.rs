//! `phalanx convert` and `phalanx diff`.

use crate::terminal;
use anyhow::{Result, bail};
use phalanx::saving;
use phalanx::text::shown;
use std::io::Write;
use std::path::Path;

/// Writes a model file in another format.
pub fn convert(from: &Path, to: &Path) -> Result<()> {
    Ok(saving::convert(from, to)?)
}

/// Prints what differs between two files, a line each.
pub fn diff(left: &Path, right: &Path) -> Result<()> {
    let differences = saving::diff(left, right)?;
    let mut out = terminal::stdout();
    for difference in &differences {
        writeln!(out, "{difference}")?;
    }
    match differences.len() {
        0 => Ok(()),
        n => {
            let (left, right) = (shown(left.display()), shown(right.display()));
            bail!("{left} and {right} differ in {n} place(s)")
        }
    }
}
