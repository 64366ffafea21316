//! The weights on the devices, and the layers on the host that own them.

use super::Engine;
use crate::error::{Error, Result};
use crate::layer::{LayerHandle, ModelWeight, lock};
use phalanx_graph::ParamId;

/// A layer with weights, its parameters, and the host's values that the devices have seen.
pub(super) struct HeldLayer {
    layer: LayerHandle,
    params: Vec<ParamId>,
    seen: Option<u64>,
}

/// The weights layer by layer.
pub(super) fn by_layer(weights: &[ModelWeight]) -> Vec<HeldLayer> {
    let mut layers: Vec<HeldLayer> = vec![];
    for w in weights {
        match layers.iter_mut().find(|held| held.layer.same(&w.layer)) {
            Some(held) => held.params.push(w.param),
            None => {
                layers.push(HeldLayer { layer: w.layer.clone(), params: vec![w.param], seen: None })
            }
        }
    }
    layers
}

impl Engine {
    /// Sends weights to the devices that were set on the host, or that another model with the same
    /// layers has trained, since these devices last saw them.
    pub(crate) fn refresh(&mut self) -> Result<()> {
        for held in &mut self.layers {
            let version = held.layer.pull_unless(Some(&self.executor));
            if version.is_none() || version == held.seen {
                continue;
            }
            // Copied first: whoever reads these devices' weights locks the devices before the layer.
            let values: Vec<_> = held.layer.weights().iter().map(|w| w.values.clone()).collect();
            for (values, param) in values.iter().zip(&held.params) {
                if let Some(values) = values {
                    lock(&self.executor).set_param(*param, values)?;
                }
            }
            held.seen = version;
        }
        Ok(())
    }

    /// Says that the newest weights will be here.
    pub(crate) fn claim(&self) {
        for held in &self.layers {
            held.layer.trained_by(&self.executor, &held.params);
        }
    }

    pub(crate) fn weight_names(&self) -> Vec<String> {
        let full =
            |w: &ModelWeight| format!("{}/{}", w.layer_name, w.layer.weights()[w.index].spec.name);
        self.weights.iter().map(full).collect()
    }

    pub(crate) fn weight(&self, name: &str) -> Option<Vec<f32>> {
        let at = self.weight_names().iter().position(|n| n == name)?;
        Some(lock(&self.executor).param(self.weights[at].param))
    }

    /// Sets weights by name.
    pub(crate) fn restore(&mut self, weights: &[(String, Vec<f32>)]) -> Result<()> {
        let names = self.weight_names();
        for (name, values) in weights {
            let Some(at) = names.iter().position(|n| n == name) else {
                return Err(Error::Unknown { kind: "weight", name: name.clone(), known: names });
            };
            lock(&self.executor).set_param(self.weights[at].param, values)?;
        }
        Ok(())
    }

    /// At the end of training an optimizer with a moving average leaves that in the weights.
    pub(crate) fn finish_training(&mut self) -> Result<()> {
        if !self.optimizer.common().use_ema || self.updates == 0 {
            return Ok(());
        }
        let mut executor = lock(&self.executor);
        let Some(last) = executor.slots().checked_sub(1) else { return Ok(()) };
        for param in &self.trained {
            let average = executor.slot(last, *param);
            executor.set_param(*param, &average)?;
        }
        Ok(())
    }
}

impl Drop for Engine {
    /// What was trained here stays with the layers.
    fn drop(&mut self) {
        self.layers.iter().for_each(|held| held.layer.release(&self.executor));
    }
}
