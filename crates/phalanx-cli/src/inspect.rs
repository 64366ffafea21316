//! `phalanx inspect`, `phalanx data` and `phalanx devices`.

use crate::args::Inspect;
use anyhow::Result;
use phalanx::prelude::*;
use std::io::Write;

/// Prints layers, or the compiled program.
pub fn run(args: &Inspect) -> Result<()> {
    let mut out = std::io::stdout().lock();
    if args.program {
        let model = args.model.compiled(&args.place)?;
        let batch = args.batch_size.unwrap_or(args.model.usual().batch);
        write!(out, "{}", model.program(StepKind::Train, batch)?)?;
        return Ok(());
    }
    let model = args.model.build()?;
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
