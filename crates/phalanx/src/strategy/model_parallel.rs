//! Replicas of several devices.

use super::{Device, LayoutMap, MirroredStrategy, Shard};
use crate::error::{Error, Result};
use crate::workers::MultiWorkerMirroredStrategy;

/// Training on a mesh of devices. Along the batch axis each replica has its own samples, as in [`MirroredStrategy`]; along
/// the model axis the devices of a replica divide the weights that a [`LayoutMap`] names, and the work with them. Only CPU
/// devices of one process can do this so far.
///
/// The gradient is that of one device, up to rounding. A weight that an op needs as a whole cannot be divided; `compile`
/// then fails.
///
/// ```no_run
/// # use phalanx::prelude::*;
/// # fn main() -> Result<()> {
/// let mesh = DeviceMesh::new([2, 4], ["batch", "model"])?;
/// let layout = LayoutMap::new(&mesh)
///     .insert(".*/query/kernel", [None, Some("model"), None])?
///     .insert(".*/ffn_up/kernel", [None, Some("model")])?
///     .insert(".*/ffn_down/kernel", [Some("model"), None])?;
/// let compile = Compile::new("adam").strategy(ModelParallel::new(layout)?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelParallel {
    strategy: MirroredStrategy,
}

impl ModelParallel {
    /// Logical CPU devices of this process. The outermost axis of the mesh divides the batch.
    ///
    /// # Errors
    /// More devices than can be started.
    pub fn new(layout: LayoutMap) -> Result<ModelParallel> {
        let devices = layout.device_mesh().num_devices();
        ModelParallel::on(MirroredStrategy::cpus(devices)?, layout)
    }

    /// The named devices: those of the first replica, then those of the second, and so on.
    ///
    /// # Errors
    /// As many names as the mesh has devices are expected.
    pub fn with_devices<S: AsRef<str>>(
        layout: LayoutMap,
        names: impl IntoIterator<Item = S>,
    ) -> Result<ModelParallel> {
        ModelParallel::on(MirroredStrategy::with_devices(names)?, layout)
    }

    /// The devices of a strategy: those of the first replica, then those of the second, and so on.
    ///
    /// # Errors
    /// A strategy with another number of devices than the mesh.
    pub fn on(strategy: MirroredStrategy, layout: LayoutMap) -> Result<ModelParallel> {
        let mesh = layout.device_mesh();
        if mesh.num_devices() != strategy.devices().len() {
            let expected = format!("the {} devices of the mesh {mesh}", mesh.num_devices());
            let received = strategy.devices().len();
            return Err(Error::argument("ModelParallel", "devices", expected, received));
        }
        Ok(ModelParallel { strategy: strategy.with_layout(layout)? })
    }

    /// The axis that divides the batch, which must be the outermost; it is by default.
    ///
    /// # Errors
    /// Another axis, or none of this name.
    pub fn batch_dim_name(self, name: &str) -> Result<ModelParallel> {
        if let Some(layout) = self.strategy.layout() {
            layout.device_mesh().split(Some(name))?;
        }
        Ok(self)
    }

    /// Also divides the training state among memories: see [`MirroredStrategy::shard`].
    pub fn shard(self, shard: Shard) -> ModelParallel {
        ModelParallel { strategy: self.strategy.shard(shard) }
    }

    /// Sets the number of worker threads of each CPU device: see [`MirroredStrategy::threads`].
    pub fn threads(self, threads: usize) -> ModelParallel {
        ModelParallel { strategy: self.strategy.threads(threads) }
    }

    /// Number of replicas: the factor between a per-replica and the global batch.
    pub fn num_replicas_in_sync(&self) -> usize {
        self.strategy.num_replicas_in_sync()
    }

    /// The devices.
    pub fn devices(&self) -> &[Device] {
        self.strategy.devices()
    }
}

impl From<ModelParallel> for MirroredStrategy {
    fn from(parallel: ModelParallel) -> MirroredStrategy {
        parallel.strategy
    }
}

impl From<ModelParallel> for MultiWorkerMirroredStrategy {
    fn from(parallel: ModelParallel) -> MultiWorkerMirroredStrategy {
        parallel.strategy.into()
    }
}
