//! `phalanx convert` and `phalanx diff`.

use crate::terminal;
use anyhow::{Result, bail};
use phalanx::saving;
use phalanx::text::shown;
use std::io::Write;
use std::path::Path;

/// Converts a model file to another format.
pub fn convert(from: &Path, to: &Path) -> Result<()> {
    Ok(saving::convert(from, to)?)
}

/// Prints the differences between two files, one per line.
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
