//! `phalanx inspect`, `phalanx data` and `phalanx devices`.

use crate::args::{Inspect, Subject};
use anyhow::Result;
use phalanx::prelude::*;
use std::io::Write;

/// Samples per step where a file's program is shown and nothing else is said.
const BATCH: usize = 32;

/// Prints layers, or the compiled program, or what a file holds.
pub fn run(args: &Inspect) -> Result<()> {
    let mut out = std::io::stdout().lock();
    if args.program {
        let (model, batch) = match &args.model {
            Subject::Network(network) => (network.compiled(&args.place)?, network.usual().batch),
            Subject::File(path) => {
                (Load::new().strategy(args.place.strategy()?).model(path)?, BATCH)
            }
        };
        let batch = args.batch_size.unwrap_or(batch);
        write!(out, "{}", model.program(StepKind::Train, batch)?)?;
        return Ok(());
    }
    let model = match &args.model {
        Subject::Network(network) => network.build()?,
        Subject::File(path) if args.picture.is_none() => {
            write!(out, "{}", phalanx::saving::describe(path)?)?;
            return Ok(());
        }
        Subject::File(path) => Load::new().compile(false).model(path)?,
    };
    if let Some(path) = &args.picture {
        phalanx::pictures::model(&model.summary(), path)?;
        return Ok(());
    }
    writeln!(out, "{}", model.summary())?;
    Ok(())
}

/// Prints the datasets and where they are looked for.
pub fn data() -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "looked for in {}", datasets::directory().display())?;
    writeln!(out, "glyphs         generated")?;
    for name in datasets::NAMES.into_iter().filter(|n| *n != "glyphs") {
        match datasets::find(name)? {
            Some(place) => writeln!(out, "{name:<14} {}", place.display())?,
            None => writeln!(out, "{name:<14} not here (fetched when first used)")?,
        }
    }
    Ok(())
}

/// Prints the devices of this machine.
pub fn devices() -> Result<()> {
    let mut out = std::io::stdout().lock();
    let cores = phalanx::cores().len();
    writeln!(out, "cpu:0  {cores} core(s), {}", phalanx::Isa::detect())?;
    for gpu in list_physical_devices(DeviceKind::Gpu) {
        writeln!(out, "{gpu}")?;
    }
    Ok(())
}
