//! Strategies and batch sizes from the device arguments.

use crate::args::{BatchArgs, DeviceArgs, PrecisionArg, ShardArg};
use anyhow::{Context, Result, bail};
use phalanx::launch::is_first_worker;
use phalanx::prelude::*;
use phalanx::strategy::Backend;
use phalanx::{ProcessGroup, workers};
use std::sync::Arc;
use std::time::Duration;

impl DeviceArgs {
    /// The strategy for the devices of this process.
    pub fn strategy(&self) -> Result<MirroredStrategy> {
        let strategy = if !self.devices.is_empty() {
            MirroredStrategy::with_devices(&self.devices)?
        } else if let Some(n) = self.gpus {
            let found = list_physical_devices(DeviceKind::Gpu).len();
            if n == 0 || n > found {
                let reason = match (n, found) {
                    (0, _) => "expected 1 or more".into(),
                    (_, 0) => "no GPU was found".into(),
                    _ => format!("expected 1 to {found}"),
                };
                bail!("--gpus: {reason}, received {n}; --replicas N trains on N CPU devices");
            }
            MirroredStrategy::gpus(n)?
        } else if let Some(n) = self.replicas {
            MirroredStrategy::cpus(n).with_context(|| format!("--replicas {n}"))?
        } else if let Some(mesh) = &self.mesh {
            let workers = launch_size()?;
            match list_physical_devices(DeviceKind::Gpu).len() {
                0 => MirroredStrategy::cpus(mesh.local_devices(workers, 1)?).context("--mesh")?,
                found => {
                    MirroredStrategy::gpus(mesh.local_devices(workers, found)?).context("--mesh")?
                }
            }
        } else {
            MirroredStrategy::new()
        };
        let strategy = strategy.threads(self.threads.unwrap_or(0)).shard(shard(self.shard));
        let strategy = strategy.recompute(self.recompute);
        let strategy = match self.precision {
            Some(precision) => strategy.policy(precision.policy()),
            None => strategy,
        };
        match &self.mesh {
            Some(mesh) => mesh.strategy(strategy, self.layout.as_deref()),
            None => Ok(strategy),
        }
    }
}

/// The number of workers that a launcher started.
fn launch_size() -> Result<usize> {
    Ok(phalanx::launch::detect()?.map_or(1, |launch| launch.size))
}

/// What `--shard` divides.
pub fn shard(arg: Option<ShardArg>) -> Shard {
    match arg {
        None => Shard::None,
        Some(ShardArg::Optimizer) => Shard::Optimizer,
        Some(ShardArg::Gradients) => Shard::Gradients,
        Some(ShardArg::Weights) => Shard::Weights,
    }
}

impl PrecisionArg {
    /// The Keras policy of this name.
    pub fn policy(self) -> Policy {
        match self {
            PrecisionArg::Float32 => Policy::Float32,
            PrecisionArg::MixedBfloat16 => Policy::MixedBfloat16,
            PrecisionArg::MixedFloat16 => Policy::MixedFloat16,
        }
    }

    /// Warns, on the first worker only, if devices of a backend do not store 16-bit floats.
    pub fn warn_if_ignored(self, backend: &dyn Backend) {
        let name = self.policy().name();
        if stored_precision(self.policy(), backend) == name || !is_first_worker() {
            return;
        }
        let kind = backend.kind().to_uppercase();
        let scaled = match self {
            PrecisionArg::MixedFloat16 => "; only the loss is scaled",
            _ => "",
        };
        tracing::warn!("--precision {name}: {kind} devices store 32-bit floats{scaled}");
    }
}

/// The name of the precision in which devices of a backend store activations.
pub fn stored_precision(policy: Policy, backend: &dyn Backend) -> &'static str {
    backend.options(backend.mesh(1, 1), policy, 1).policy.name()
}

impl DeviceArgs {
    /// The devices of this worker, and the other workers if a launcher started several.
    pub fn connect(&self) -> Result<(MirroredStrategy, Option<Arc<dyn ProcessGroup>>)> {
        let timeout = Duration::from_secs(self.collective_timeout);
        let strategy = self.strategy()?;
        if let Some(precision) = self.precision {
            precision.warn_if_ignored(&**strategy.backend());
        }
        if strategy.backend().traits().on_host {
            warn_if_oversubscribed(strategy.num_replicas_in_sync(), phalanx::usable_cores());
        }
        Ok(workers::connect(strategy, timeout)?)
    }
}

/// Warns, on the first worker only, that CPU replicas have to share cores.
fn warn_if_oversubscribed(replicas: usize, cores: usize) {
    if replicas > cores && is_first_worker() {
        let share =
            if cores == 1 { "1 usable core".into() } else { format!("{cores} usable cores") };
        tracing::warn!("{replicas} replicas share {share}: fewer replicas would be faster");
    }
}

impl BatchArgs {
    /// Samples per step over all replicas.
    ///
    /// `default` is the number of samples per replica if no flag gives one.
    pub fn global(self, default: usize, replicas: usize) -> Result<usize> {
        let (flag, batch) = match (self.global_batch_size, self.batch_size) {
            (Some(global), _) => ("--global-batch-size", global),
            (None, each) => {
                let each = each.unwrap_or(default);
                ("--batch-size", each.saturating_mul(replicas))
            }
        };
        if batch == 0 {
            bail!("{flag}: expected 1 or more, received 0");
        }
        Ok(batch)
    }
}
