//! `phalanx inspect` and `phalanx devices`.

use crate::args::Inspect;
use anyhow::Result;
use phalanx::prelude::*;
use std::io::Write;

/// Prints layers, or the compiled program.
pub fn run(args: &Inspect) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let mut model = args.model.build()?;
    if !args.program {
        writeln!(out, "{}", model.summary())?;
        return Ok(());
    }
    model.compile(
        Compile::new(args.model.optimizer())
            .loss(args.model.loss())
            .metrics(["accuracy"])
            .strategy(args.place.strategy()?),
    )?;
    let batch = args.batch_size.unwrap_or(args.model.usual().batch);
    write!(out, "{}", model.program(StepKind::Train, batch)?)?;
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
