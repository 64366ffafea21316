//! Where to run, and on how many samples at once.

use crate::args::{Batch, PrecisionArg, Where};
use anyhow::{Context, Result, bail};
use phalanx::prelude::*;
use std::time::Duration;

impl Where {
    /// The strategy these arguments ask for.
    pub fn strategy(&self) -> Result<MirroredStrategy> {
        let strategy = if !self.devices.is_empty() {
            MirroredStrategy::with_devices(&self.devices)?
        } else if let Some(n) = self.gpus {
            let found = list_physical_devices(DeviceKind::Gpu).len();
            if n == 0 || n > found {
                let has = if found == 0 {
                    "no GPU was found".into()
                } else {
                    format!("expected 1 to {found}")
                };
                bail!("--gpus: {has}, received {n}; --replicas N trains on N CPU devices");
            }
            MirroredStrategy::gpus(n)?
        } else if let Some(n) = self.replicas {
            MirroredStrategy::cpus(n).with_context(|| format!("--replicas {n}"))?
        } else {
            MirroredStrategy::new()
        };
        let policy = match self.precision {
            PrecisionArg::Float32 => Policy::Float32,
            PrecisionArg::MixedBfloat16 => Policy::MixedBfloat16,
            PrecisionArg::MixedFloat16 => Policy::MixedFloat16,
        };
        Ok(strategy.threads(self.threads).policy(policy))
    }
}

impl Where {
    /// The same on every worker, where a launcher started several.
    pub fn workers(&self) -> Result<MultiWorkerMirroredStrategy> {
        let timeout = Duration::from_secs(self.collective_timeout);
        Ok(MultiWorkerMirroredStrategy::within(self.strategy()?, timeout)?)
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
