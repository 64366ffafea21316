//! `phalanx inspect` and `phalanx devices`.

use crate::args::Inspect;
use crate::paths;
use crate::prepare::Origin;
use anyhow::Result;
use phalanx::prelude::*;
use std::io::Write;

/// Prints layers, or the compiled program.
pub fn run(args: &Inspect) -> Result<()> {
    paths::check_file("--picture", args.picture.as_deref(), &["png", "svg"])?;
    let network = args.model.network()?;
    let mut model = Origin::usual(network).build()?;
    let mut out = std::io::stdout().lock();
    if args.program {
        let strategy = args.place.strategy()?;
        let batch = args.batch.global(network, strategy.num_replicas_in_sync())?;
        model.compile(network.compile(strategy))?;
        write!(out, "{}", model.program(StepKind::Train, batch)?)?;
        return Ok(());
    }
    if let Some(path) = &args.picture {
        phalanx::pictures::model(&model.summary(), path)?;
        return Ok(());
    }
    writeln!(out, "{}", model.summary())?;
    Ok(())
}

/// Prints the devices of this machine.
pub fn devices() -> Result<()> {
    let mut out = std::io::stdout().lock();
    let cores = phalanx::cores().len();
    let word = if cores == 1 { "core" } else { "cores" };
    writeln!(out, "cpu:0  {cores} {word}, {}", phalanx::Isa::detect())?;
    for gpu in list_physical_devices(DeviceKind::Gpu) {
        writeln!(out, "{gpu}")?;
    }
    Ok(())
}
