//! The state of a training run, taken out and put back: counters and tensors.

use super::train_state::mismatch;
use super::{Session, TrainState};
use crate::error::Result;
use crate::layer::lock;
use crate::model::update_graph::WeightState;
use phalanx_exec::StateId;
use phalanx_graph::loss_scale::STATE;
use phalanx_graph::{ParamId, Tensor};
use std::collections::HashMap;

/// First letter of the names of tensors that are not weights.
const OTHER: &str = "@";

/// The tensor of the loss scale.
const LOSS_SCALE: &str = "@loss_scale";

/// Whether a tensor of a state is a weight of the model.
pub(crate) fn is_weight(name: &str) -> bool {
    !name.starts_with(OTHER)
}

impl Session {
    /// The counters; the weights under their names, then the optimizer's slots of each.
    pub(crate) fn state(&self) -> Result<(TrainState, Vec<(String, Tensor)>)> {
        let mut tensors = vec![];
        let mut named = self.weights.named();
        let executor = lock(&self.executor);
        for (name, param, dims) in &named {
            tensors.push((name.clone(), Tensor::new(dims.clone(), executor.param(*param)?)?));
        }
        if let Some(scale) = self.weights.loss_scale {
            let state = executor.param(scale.state)?;
            tensors.push((LOSS_SCALE.into(), Tensor::new([STATE], state)?));
        }
        let (batches, _) = self.state.accumulated();
        named.retain(|weight| self.weights.is_trained(weight.1));
        for (name, param, dims) in named {
            if let Some(weight) = self.weights.update.as_ref().and_then(|update| update.of(param)) {
                for (tensor, param, dims) in weight.tensors(&name, batches > 0) {
                    tensors.push((tensor, Tensor::new(dims, executor.param(param)?)?));
                }
                continue;
            }
            for slot in 0..executor.slots() {
                let values = executor.read(StateId::Slot(slot, param))?.unwrap_or_default();
                tensors.push((slot_name(slot, &name), Tensor::new(dims.clone(), values)?));
            }
            let accumulated = executor.read(StateId::Accumulated(param))?;
            if let Some(values) = accumulated.filter(|_| batches > 0) {
                tensors.push((accumulated_name(&name), Tensor::new(dims, values)?));
            }
        }
        Ok((self.state.clone(), tensors))
    }

    /// Continues from the state of another session of the same model. `batch` is the size of the
    /// batches to come.
    pub(crate) fn set_state(
        &mut self,
        saved: &TrainState,
        tensors: &[(String, Tensor)],
        batch: usize,
    ) -> Result<()> {
        self.state.check(&self.def.name, saved)?;
        self.prepare_training(batch)?;
        let mut given: HashMap<&str, &Tensor> =
            tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
        let model = &self.def.name;
        let mut take = |name: &str, dims: &[usize]| {
            let tensor = given.remove(name).filter(|t| t.dims() == dims);
            let values = tensor.and_then(Tensor::f32);
            let expected = format!("'{name}' of shape {dims:?}");
            values.ok_or_else(|| mismatch(model, &expected, "none such"))
        };
        let mut executor = lock(&self.executor);
        for (name, param, dims) in self.weights.named() {
            executor.set_param(param, take(&name, &dims)?)?;
            if !self.weights.is_trained(param) {
                continue;
            }
            if let Some(weight) = self.weights.update.as_ref().and_then(|update| update.of(param)) {
                for (tensor, param, dims) in weight.tensors(&name, saved.accumulated().0 > 0) {
                    executor.set_param(param, take(&tensor, &dims)?)?;
                }
                continue;
            }
            for slot in 0..executor.slots() {
                let values = take(&slot_name(slot, &name), &dims)?;
                executor.write(StateId::Slot(slot, param), values)?;
            }
            if saved.accumulated().0 > 0 {
                let values = take(&accumulated_name(&name), &dims)?;
                executor.write(StateId::Accumulated(param), values)?;
            }
        }
        let mut loss_scale = None;
        if let Some(scale) = self.weights.loss_scale {
            let state = take(LOSS_SCALE, &[STATE])?;
            executor.set_param(scale.state, state)?;
            loss_scale = Some(state[0]);
        }
        drop(executor);
        if let Some(name) = given.keys().min() {
            let received = format!("'{name}' too");
            return Err(mismatch(model, "the tensors of this model", &received));
        }
        self.state = saved.clone();
        self.state.loss_scale = loss_scale;
        self.weights.take_ownership();
        Ok(())
    }
}

impl WeightState {
    /// The tensors of a weight's state: slots, average and accumulated gradients, if any.
    fn tensors(&self, weight: &str, accumulated: bool) -> Vec<(String, ParamId, Vec<usize>)> {
        let dims = || self.of.dims.clone();
        let slots = self.slots.iter().map(|(param, slot)| (*param, slot.dims.clone()));
        let slots = slots.chain(self.average.map(|param| (param, dims())));
        let named = |(i, (param, dims))| (slot_name(i, weight), param, dims);
        let sums = self.accumulated.filter(|_| accumulated);
        let sums = sums.map(|param| (accumulated_name(weight), param, dims()));
        slots.enumerate().map(named).chain(sums).collect()
    }
}

fn slot_name(slot: usize, weight: &str) -> String {
    format!("{OTHER}optimizer/{slot}/{weight}")
}

fn accumulated_name(weight: &str) -> String {
    format!("{OTHER}gathered/{weight}")
}
