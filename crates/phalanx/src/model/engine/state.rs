//! What a compiled model carries from step to step, taken out and put back.

use super::{Engine, StepKind};
use crate::error::{Error, Result};
use crate::json_float::JsonFloat;
use crate::layer::lock;
use phalanx_graph::loss_scale::STATE;
use phalanx_graph::{ParamId, Tensor};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// First letter of the names of tensors that are no weights.
const OTHER: &str = "@";

/// The tensor of the loss scale.
const LOSS_SCALE: &str = "@loss_scale";

/// The numbers that training counts along.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Counters {
    pub seed: u64,
    pub steps: u64,
    pub updates: u64,
    #[serde(default)]
    pub skipped: u64,
    gathered: (u64, JsonFloat),
    learning_rate: Option<JsonFloat>,
    optimizer: String,
    deterministic: bool,
}

/// Whether a tensor of a state is a weight of the model.
pub(crate) fn is_weight(name: &str) -> bool {
    !name.starts_with(OTHER)
}

impl Engine {
    /// Weights under their names, then what the optimizer keeps for each.
    pub(crate) fn state(&self) -> Result<(Counters, Vec<(String, Tensor)>)> {
        let (count, weight) = self.gathered;
        let counters = Counters {
            seed: self.seed,
            steps: self.steps,
            updates: self.updates,
            skipped: self.skipped,
            gathered: (count, JsonFloat(weight)),
            learning_rate: self.learning_rate.map(JsonFloat),
            optimizer: self.optimizer.rule().name,
            deterministic: lock(&self.executor).mesh().fixed,
        };
        let mut tensors = vec![];
        let mut named = self.named();
        let executor = lock(&self.executor);
        for (name, param, dims) in &named {
            tensors.push((name.clone(), Tensor::new(dims.clone(), executor.param(*param))?));
        }
        if let Some((scaling, _)) = self.scaling {
            let state = executor.param(scaling.state);
            tensors.push((LOSS_SCALE.into(), Tensor::new([STATE], state)?));
        }
        named.retain(|weight| self.trained.contains(&weight.1));
        for (name, param, dims) in named {
            for slot in 0..executor.slots() {
                let values = executor.slot(slot, param);
                tensors.push((slot_name(slot, &name), Tensor::new(dims.clone(), values)?));
            }
            if let Some(values) = executor.accumulated(param).filter(|_| count > 0) {
                tensors.push((gathered_name(&name), Tensor::new(dims, values)?));
            }
        }
        Ok((counters, tensors))
    }

    /// Compiles the training step for batches of this size.
    pub(crate) fn prepare(&mut self, kind: StepKind, batch: usize) -> Result<()> {
        self.ensure(kind, batch).map(|_| ())
    }

    /// Takes up a state where another engine of the same model left it. `batch` is the size of the
    /// batches to come.
    pub(crate) fn set_state(
        &mut self,
        counters: &Counters,
        tensors: &[(String, Tensor)],
        batch: usize,
    ) -> Result<()> {
        self.check_counters(counters)?;
        self.prepare(StepKind::Train, batch)?;
        let mut given: HashMap<&str, &Tensor> =
            tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
        let mut take = |name: &str, dims: &[usize]| {
            let tensor = given.remove(name).filter(|t| t.dims() == dims);
            let values = tensor.and_then(Tensor::f32);
            let expected = format!("'{name}' of shape {dims:?}");
            values.ok_or_else(|| self.misfit(&expected, "none such"))
        };
        let mut executor = lock(&self.executor);
        for (name, param, dims) in self.named() {
            executor.set_param(param, take(&name, &dims)?)?;
            if !self.trained.contains(&param) {
                continue;
            }
            for slot in 0..executor.slots() {
                executor.set_slot(slot, param, take(&slot_name(slot, &name), &dims)?)?;
            }
            if counters.gathered.0 > 0 {
                executor.set_accumulated(param, take(&gathered_name(&name), &dims)?)?;
            }
        }
        let mut scaled = None;
        if let Some((scaling, _)) = self.scaling {
            let state = take(LOSS_SCALE, &[STATE])?;
            executor.set_param(scaling.state, state)?;
            scaled = Some((scaling, state[0]));
        }
        drop(executor);
        if let Some(name) = given.keys().min() {
            return Err(self.misfit("the tensors of this model", &format!("'{name}' too")));
        }
        (self.steps, self.updates) = (counters.steps, counters.updates);
        (self.skipped, self.scaling) = (counters.skipped, scaled);
        self.gathered = (counters.gathered.0, counters.gathered.1.0);
        self.learning_rate = counters.learning_rate.map(|rate| rate.0);
        self.claim();
        Ok(())
    }

    /// Whether every weight is a number.
    pub(crate) fn is_finite(&self) -> bool {
        let executor = lock(&self.executor);
        let finite = |param: ParamId| executor.param(param).iter().all(|v| v.is_finite());
        self.weights.iter().all(|weight| finite(weight.param))
    }

    /// Fails unless the counters were saved by an engine set up as this one.
    pub(crate) fn check_counters(&self, counters: &Counters) -> Result<()> {
        let optimizer = self.optimizer.rule().name;
        if counters.optimizer != optimizer {
            return Err(self.misfit(&format!("optimizer {}", counters.optimizer), &optimizer));
        }
        let fixed = lock(&self.executor).mesh().fixed;
        if counters.deterministic != fixed {
            let word = |fixed: bool| if fixed { "deterministic mode" } else { "the usual mode" };
            return Err(self.misfit(word(counters.deterministic), word(fixed)));
        }
        if counters.seed != self.seed {
            let expected = format!("seed {}", counters.seed);
            return Err(self.misfit(&expected, &self.seed.to_string()));
        }
        Ok(())
    }

    fn misfit(&self, expected: &str, received: &str) -> Error {
        let owner = format!("model '{}'", self.def.name);
        Error::argument(owner, "state of an earlier run", expected, received)
    }

    /// Every weight with its name and dimensions, once.
    fn named(&self) -> Vec<(String, ParamId, Vec<usize>)> {
        let names = self.weight_names();
        let mut weights: Vec<(String, ParamId, Vec<usize>)> = vec![];
        for (weight, name) in self.weights.iter().zip(names) {
            if !weights.iter().any(|known| known.1 == weight.param) {
                let dims = weight.layer.weights()[weight.index].spec.dims.clone();
                weights.push((name, weight.param, dims));
            }
        }
        weights
    }
}

fn slot_name(slot: usize, weight: &str) -> String {
    format!("{OTHER}optimizer/{slot}/{weight}")
}

fn gathered_name(weight: &str) -> String {
    format!("{OTHER}gathered/{weight}")
}
