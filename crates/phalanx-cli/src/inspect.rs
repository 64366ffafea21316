//! `phalanx inspect`: prints or plots the structure of a model.

use crate::args::Inspect;
use crate::model_spec::ModelSpec;
use crate::network::{DEFAULT_BATCH_SIZE, DEFAULT_CLASSES, ModelArg};
use crate::paths;
use crate::terminal;
use anyhow::Result;
use phalanx::prelude::*;
use std::io::Write;

/// Prints the layers, the compiled program or the contents of a file, or plots the layers.
pub fn run(args: &Inspect) -> Result<()> {
    paths::check_plot("--picture", args.picture.as_deref())?;
    let model_arg = match &args.model {
        ModelArg::File(path) => ModelArg::File(paths::resolve_weights(path)?),
        network => network.clone(),
    };
    let mut out = terminal::stdout();
    if args.program {
        let (model, batch) = compiled_model(args, &model_arg)?;
        write!(out, "{}", model.program(StepKind::Train, batch)?)?;
        return Ok(());
    }
    let model = match &model_arg {
        ModelArg::Network(network) => network.build(&network.default_input(), DEFAULT_CLASSES)?,
        ModelArg::File(path) if args.picture.is_none() => {
            out.write_all(phalanx::saving::describe(path)?.to_string().as_bytes())?;
            return Ok(());
        }
        ModelArg::File(path) => Load::new().compile(false).model(path)?,
    };
    if let Some(path) = &args.picture {
        phalanx::plots::model(&model.summary(), path)?;
        return Ok(());
    }
    writeln!(out, "{}", model.summary())?;
    Ok(())
}

/// The compiled model, and the global batch size of its program.
fn compiled_model(args: &Inspect, model_arg: &ModelArg) -> Result<(Model, usize)> {
    let strategy = args.device_args.strategy()?;
    let replicas = strategy.num_replicas_in_sync();
    match model_arg {
        ModelArg::Network(network) => {
            let mut model = network.build(&network.default_input(), DEFAULT_CLASSES)?;
            model.compile(network.compile(strategy))?;
            Ok((model, args.batch.global(network.default_batch_size(), replicas)?))
        }
        ModelArg::File(path) => {
            let spec = ModelSpec::from_arg(model_arg, None)?;
            spec.give_sizes(&args.shapes)?;
            let dims = spec.dims(&[]);
            let model = Load::new().strategy(strategy).input_shapes(dims).model(path)?;
            Ok((model, spec.batch_size(args.batch, DEFAULT_BATCH_SIZE, replicas)?))
        }
    }
}
