//! `phalanx inspect`.

use crate::args::Inspect;
use crate::network::{Choice, USUAL_BATCH, USUAL_CLASSES};
use crate::paths;
use crate::terminal;
use anyhow::Result;
use phalanx::prelude::*;
use std::io::Write;

/// Prints layers, or the compiled program, or what a file holds.
pub fn run(args: &Inspect) -> Result<()> {
    paths::check_file("--picture", args.picture.as_deref(), &["png", "svg"])?;
    let choice = match &args.model {
        Choice::File(path) => Choice::File(paths::weights(path)?),
        network => network.clone(),
    };
    let mut out = terminal::stdout();
    if args.program {
        let (model, batch) = compiled(args, &choice)?;
        write!(out, "{}", model.program(StepKind::Train, batch)?)?;
        return Ok(());
    }
    let model = match &choice {
        Choice::Network(network) => network.build(&network.usual_input(), USUAL_CLASSES)?,
        Choice::File(path) if args.picture.is_none() => {
            out.write_all(phalanx::saving::describe(path)?.to_string().as_bytes())?;
            return Ok(());
        }
        Choice::File(path) => Load::new().compile(false).model(path)?,
    };
    if let Some(path) = &args.picture {
        phalanx::plots::model(&model.summary(), path)?;
        return Ok(());
    }
    writeln!(out, "{}", model.summary())?;
    Ok(())
}

/// The model, and the batch that its program is for.
fn compiled(args: &Inspect, choice: &Choice) -> Result<(Model, usize)> {
    let strategy = args.place.strategy()?;
    let replicas = strategy.num_replicas_in_sync();
    match choice {
        Choice::Network(network) => {
            let mut model = network.build(&network.usual_input(), USUAL_CLASSES)?;
            model.compile(network.compile(strategy))?;
            Ok((model, args.batch.global(network.usual_batch(), replicas)?))
        }
        Choice::File(path) => {
            let model = Load::new().strategy(strategy).model(path)?;
            Ok((model, args.batch.global(USUAL_BATCH, replicas)?))
        }
    }
}
