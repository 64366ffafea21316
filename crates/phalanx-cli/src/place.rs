//! Where to run, and on how many samples at once.

use crate::args::{Batch, PrecisionArg, Where};
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use phalanx::prelude::*;
use phalanx::workers;
use std::time::Duration;

impl Where {
    /// The strategy these arguments ask for.
    pub fn strategy(&self) -> Result<MirroredStrategy> {
        let strategy = if !self.devices.is_empty() {
            MirroredStrategy::with_devices(&self.devices)?
        } else if let Some(n) = self.gpus {
            let found = list_physical_devices(DeviceKind::Gpu).len();
            if n == 0 || n > found {
                let has = match (n, found) {
                    (0, _) => "expected 1 or more".into(),
                    (_, 0) => "no GPU was found".into(),
                    _ => format!("expected 1 to {found}"),
                };
                bail!("--gpus: {has}, received {n}; --replicas N trains on N CPU devices");
            }
            MirroredStrategy::gpus(n)?
        } else if let Some(n) = self.replicas {
            MirroredStrategy::cpus(n).with_context(|| format!("--replicas {n}"))?
        } else {
            MirroredStrategy::new()
        };
        Ok(strategy.threads(self.threads.unwrap_or(0)).policy(self.precision.policy()))
    }
}

impl PrecisionArg {
    /// Keras' policy of that name.
    pub fn policy(self) -> Policy {
        match self {
            PrecisionArg::Float32 => Policy::Float32,
            PrecisionArg::MixedBfloat16 => Policy::MixedBfloat16,
            PrecisionArg::MixedFloat16 => Policy::MixedFloat16,
        }
    }

    /// Its name on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().into()).unwrap_or_default()
    }

    /// Says, once among all workers, that CPU devices store nothing in 16 bits.
    pub fn warn_on_cpu(self) {
        let (name, first) = (self.name(), workers::name().is_none_or(|(rank, _)| rank == 0));
        match self {
            PrecisionArg::MixedBfloat16 if first => {
                tracing::warn!("--precision {name}: CPU devices store 32-bit floats");
            }
            PrecisionArg::MixedFloat16 if first => {
                tracing::warn!(
                    "--precision {name}: CPU devices store 32-bit floats; only the loss is scaled"
                );
            }
            _ => {}
        }
    }
}

impl Where {
    /// The same on every worker, where a launcher started several.
    pub fn workers(&self) -> Result<MultiWorkerMirroredStrategy> {
        let timeout = Duration::from_secs(self.collective_timeout);
        let strategy = self.strategy()?;
        let cpus = strategy.devices().iter().filter(|d| d.kind == DeviceKind::Cpu).count();
        if cpus > 0 {
            self.precision.warn_on_cpu();
        }
        warn_of_crowd(cpus, phalanx::usable_cores());
        Ok(MultiWorkerMirroredStrategy::with_timeout(strategy, timeout)?)
    }
}

/// Says, on the first of several workers, that CPU replicas have to share cores.
fn warn_of_crowd(replicas: usize, cores: usize) {
    let first = workers::name().is_none_or(|(rank, _)| rank == 0);
    if replicas > cores && first {
        let share =
            if cores == 1 { "1 usable core".into() } else { format!("{cores} usable cores") };
        tracing::warn!("{replicas} replicas share {share}: fewer replicas would be faster");
    }
}

impl Batch {
    /// Samples per step over all replicas.
    ///
    /// `usual` is what a replica gets where nothing else is said.
    pub fn global(self, usual: usize, replicas: usize) -> Result<usize> {
        let (flag, batch) = match (self.global_batch_size, self.batch_size) {
            (Some(global), _) => ("--global-batch-size", global),
            (None, each) => {
                let each = each.unwrap_or(usual);
                ("--batch-size", each.saturating_mul(replicas))
            }
        };
        if batch == 0 {
            bail!("{flag}: expected 1 or more, received 0");
        }
        Ok(batch)
    }
}
