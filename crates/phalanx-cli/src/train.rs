//! `phalanx train`.

use crate::args::Train;
use anyhow::{Context, Result, bail};
use phalanx::prelude::*;
use std::io::Write;

/// Trains and evaluates.
pub fn run(args: &Train) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let strategy = args.place.strategy()?;
    let replicas = strategy.num_replicas_in_sync();
    let batch = match args.global_batch_size {
        Some(global) => global,
        None => args.batch_size.checked_mul(replicas).context("--batch-size is too large")?,
    };
    if batch == 0 {
        bail!("--batch-size: expected 1 or more, received 0");
    }
    let usual = args.model.usual();
    let data = datasets::load(&args.data)?;
    let arrays = |(x, y): (phalanx::data::Samples, Tensor)| -> Result<Arrays> {
        let (rows, len) = (x.rows(), x.row_len());
        let fits: usize = usual.input.iter().product();
        if len != fits {
            bail!(
                "{:?} takes images of {:?}, '{}' has {:?}",
                args.model,
                usual.input,
                args.data,
                &x.dims()[1..]
            );
        }
        let mut dims = vec![rows];
        dims.extend(usual.input);
        let x = x.reshape(dims).context("reshaping images")?;
        Ok(Arrays::new(x, y)?)
    };
    let (train, test) = (arrays(data.train)?, arrays(data.test)?);

    let mut optimizer = match &args.optimizer {
        Some(name) => phalanx::optimizers::get(name)?,
        None => args.model.optimizer(),
    };
    if let Some(lr) = args.lr {
        optimizer.common_mut().learning_rate = lr.into();
    }
    let rate = optimizer.common().learning_rate.at(0);
    let mut model = args.model.build()?;
    model.compile(
        Compile::new(optimizer)
            .loss(args.model.loss())
            .metrics(["accuracy"])
            .strategy(strategy)
            .seed(args.seed),
    )?;
    if args.verbose > 0 {
        let program = model.program(StepKind::Train, batch)?;
        let steps = args.steps_per_epoch.or(train.clone().batch(batch)?.batches());
        writeln!(out, "devices: {} ({replicas} replica(s))", model.devices()?.join(", "))?;
        writeln!(
            out,
            "batch: {batch} global, {} per replica; learning rate {rate}; {} steps per epoch",
            batch.div_ceil(replicas),
            steps.map_or("?".into(), |s| s.to_string()),
        )?;
        writeln!(
            out,
            "parameters: {}; planned memory per device: {:.1} MiB of activations",
            model.count_params(),
            program.device_bytes() as f64 / f64::from(1 << 20),
        )?;
    }
    drop(out);
    let mut fit = Fit::new()
        .epochs(args.epochs)
        .batch_size(batch)
        .shuffle(!args.no_shuffle)
        .validation_split(0.1)
        .verbose(args.verbose);
    if let Some(steps) = args.steps_per_epoch {
        fit = fit.steps_per_epoch(steps);
    }
    model.fit(train, fit)?;
    let logs = model.evaluate(test, batch)?;
    let text: Vec<String> = logs.iter().map(|(name, v)| format!("{name}: {v:.4}")).collect();
    writeln!(std::io::stdout().lock(), "test - {}", text.join(" - "))?;
    Ok(())
}
