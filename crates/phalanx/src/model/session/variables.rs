//! The optimizer's state as Keras' variables, in Keras' order.

use super::device_weights::{DeviceWeights, SharedExecutor};
use super::{Objective, Session, TrainState};
use crate::error::{Error, Result};
use crate::layer::{ModelWeight, lock};
use crate::model::definition::Definition;
use crate::model::update_graph::members;
use crate::saving::{Training, TrainingState, Variable, layers_in_order};
use crate::schedules::LearningRate;
use phalanx_exec::StateId;
use phalanx_graph::Tensor;
use phalanx_graph::loss_scale::STATE;
use phalanx_graph::update::{Slot, SlotInit};

/// Number of variables of a loss-scale optimizer before those of the inner optimizer.
const LOSS_SCALE_VARIABLES: usize = 4;

/// A variable of Keras' optimizer after iteration and learning rate.
enum VariableKind {
    /// A slot of a weight: the indices of slot and weight.
    Slot(usize, usize),
    /// The accumulated gradient of a weight: the sum over the batches since the last update.
    Accumulated(usize),
    /// A scalar of the optimizer, derived from the number of updates.
    Scalar(f64),
}

/// What the variables of Keras' optimizer are read from and written to.
pub(super) struct OptimizerVariables<'a> {
    pub def: &'a Definition,
    pub objective: &'a Objective,
    pub state: &'a TrainState,
    pub weights: &'a DeviceWeights,
    pub executor: &'a SharedExecutor,
}

/// What a file restores.
struct Stored<'t> {
    iteration: u64,
    /// Whether the file has variables after iteration and learning rate.
    has_variables: bool,
    /// The state on the devices that these variables are.
    values: Vec<(StateId, &'t Tensor)>,
    loss_scale: Option<[f32; STATE]>,
    learning_rate: Option<f64>,
}

impl Session {
    pub(super) fn optimizer_variables(&self) -> OptimizerVariables<'_> {
        let Session { def, objective, state, weights, executor, .. } = self;
        OptimizerVariables { def, objective, state, weights, executor }
    }

    /// Returns the compile config and the optimizer's state.
    pub(crate) fn training(&self) -> Result<Training> {
        let objective = &self.objective;
        let config = objective.compile_config(objective.learning_rate(&self.state));
        let optimizer = objective.optimizer.common().name.clone();
        let variables = self.optimizer_variables();
        let (state, not_saved) = (variables.training_state()?, variables.not_saved());
        Ok(Training { config, optimizer, state, not_saved })
    }

    /// Restores the state in a file: the iteration, then the learning rate (without a schedule) and the
    /// variables, if the file has any.
    pub(crate) fn set_training_state(&mut self, iteration: u64, found: &[Tensor]) -> Result<()> {
        if self.weights.loss_scale.is_some() && found.len() == LOSS_SCALE_VARIABLES - 1 {
            // A loss-scale optimizer that never ran has no inner variables: everything is as the config says.
            return Ok(());
        }
        let stored = self.optimizer_variables().read(iteration, found)?;
        if stored.has_variables && self.weights.update.is_none() {
            // Creates the slots.
            self.prepare_training(1)?;
        }
        let mut executor = lock(&self.executor);
        for (id, tensor) in &stored.values {
            let values = tensor.f32().unwrap_or_default();
            match id {
                StateId::Param(param) => executor.set_param(*param, values)?,
                id => executor.write(*id, values)?,
            }
        }
        if let (Some(scaling), Some(state)) = (self.weights.loss_scale, stored.loss_scale) {
            executor.set_param(scaling.state, &state)?;
            self.state.loss_scale = Some(state[0]);
        }
        drop(executor);
        let every = self.objective.accumulation_steps();
        self.state.set_iterations(stored.iteration, every);
        let batches = match stored.has_variables {
            true => self.optimizer_variables().accumulated_in_file(),
            false => 0,
        };
        self.state.set_accumulated((batches, batches as f64));
        if let Some(rate) = stored.learning_rate {
            self.objective.optimizer.common_mut().learning_rate = LearningRate::Constant(rate);
        }
        Ok(())
    }
}

impl<'a> OptimizerVariables<'a> {
    /// Returns the trainable weights in Keras' order.
    pub fn trainable_weights(&self) -> Vec<&'a ModelWeight> {
        let mut out = vec![];
        for layer in layers_in_order(self.def) {
            let of_layer = self.weights.all.iter().filter(|w| w.layer.same(&layer));
            out.extend(of_layer.filter(|w| self.weights.is_trained(w.param)));
        }
        out
    }

    /// Returns the variables of Keras' optimizer. Within a group of slots they are ordered by weight.
    fn variables(&self, slots: &[Slot], weights: usize) -> Vec<VariableKind> {
        let common = self.objective.optimizer.common();
        let mut groups: Vec<Vec<usize>> = vec![];
        let own_slots = slots.len() - usize::from(common.use_ema);
        if common.use_ema {
            groups.push(vec![own_slots]);
        }
        let together = self.objective.optimizer.slots_per_weight().min(own_slots);
        if together > 0 {
            groups.push((0..together).collect());
        }
        groups.extend((together..own_slots).map(|slot| vec![slot]));
        let mut out = vec![];
        for (i, group) in groups.iter().enumerate() {
            if i == usize::from(common.use_ema) && common.gradient_accumulation_steps.is_some() {
                out.extend((0..weights).map(VariableKind::Accumulated));
            }
            out.extend(
                (0..weights).flat_map(|w| group.iter().map(move |s| VariableKind::Slot(*s, w))),
            );
        }
        if groups.len() == usize::from(common.use_ema)
            && common.gradient_accumulation_steps.is_some()
        {
            out.extend((0..weights).map(VariableKind::Accumulated));
        }
        out.extend(
            self.objective
                .optimizer
                .state_scalars(self.state.updates)
                .into_iter()
                // Under a loss scale Keras does not store them.
                .filter(|_| self.weights.loss_scale.is_none())
                .map(VariableKind::Scalar),
        );
        out
    }

    /// The learning rate that a file stores beside the optimizer.
    pub fn stored_learning_rate(&self) -> Option<f64> {
        self.objective.stored_learning_rate(self.objective.learning_rate(self.state))
    }

    /// Describes state that Keras' file formats cannot store.
    fn not_saved(&self) -> Vec<String> {
        let mut not_saved = vec![];
        let (count, _) = self.state.accumulated();
        if count != self.accumulated_in_file() {
            let text = format!("the gradients of {count} batches accumulated towards an update");
            not_saved.push(format!("{text} (BackupAndRestore keeps them)"));
        }
        let schedule =
            matches!(self.objective.optimizer.common().learning_rate, LearningRate::Schedule(_));
        if let Some(rate) = self.state.set_rate().filter(|_| schedule) {
            let text = format!("the learning rate {rate} set in place of a schedule");
            not_saved.push(format!("{text} (BackupAndRestore keeps it)"));
        }
        for member in members(&*self.objective.optimizer) {
            if let LearningRate::Custom(schedule) = &member.common().learning_rate {
                let text = format!("the learning rate schedule {schedule:?}");
                not_saved.push(format!("{text} (the file has the current rate instead)"));
            }
        }
        not_saved
    }

    /// Returns the number of batches in a file's accumulators, which Keras derives from the iteration.
    pub fn accumulated_in_file(&self) -> u64 {
        self.objective
            .accumulation_steps()
            .map_or(0, |every| self.state.iterations() % every.max(1))
    }

    fn training_state(&self) -> Result<TrainingState> {
        let weights = self.trainable_weights();
        if let Some(update) = &self.weights.update {
            return self.whole_weight_state(update, &weights);
        }
        let slots = self.objective.optimizer.rule().slots;
        let own_slots = slots.len() - usize::from(self.objective.optimizer.common().use_ema);
        let executor = lock(self.executor);
        let started = executor.slots() == slots.len() && !slots.is_empty();
        let (count, weight) = self.state.accumulated();
        let storable = count > 0 && count == self.accumulated_in_file();
        let scale = if storable { (count as f64 / weight) as f32 } else { 0.0 };
        let variable = |kind: VariableKind| match kind {
            VariableKind::Scalar(value) => Ok(Variable::scalar("variable", value as f32)),
            VariableKind::Slot(slot, w) => {
                // Keras' average of the weights starts at zero.
                let copy = slots[slot].init == SlotInit::Weight && slot < own_slots;
                let held = match started {
                    true => executor.read(StateId::Slot(slot, weights[w].param))?,
                    false if copy => Some(executor.param(weights[w].param)?),
                    false => None,
                };
                let initial = match slots[slot].init {
                    SlotInit::Value(value) => value,
                    SlotInit::Weight => 0.0,
                };
                let values = |n: usize| held.unwrap_or_else(|| vec![initial; n]);
                Ok(Variable::for_weight(weights[w], &slots[slot].name, values))
            }
            VariableKind::Accumulated(w) => {
                let held = executor.read(StateId::Accumulated(weights[w].param))?;
                let values = |n: usize| match held {
                    // Keras weights batches equally; a run of an earlier version weights them by rows.
                    Some(sum) if scale > 0.0 => sum.iter().map(|v| v * scale).collect(),
                    _ => vec![0.0; n],
                };
                Ok(Variable::for_weight(weights[w], "gradient_accumulator", values))
            }
        };
        let kinds = self.variables(&slots, weights.len());
        let scale = self.weights.loss_scale.map(|scaling| executor.param(scaling.state));
        Ok(TrainingState {
            iterations: self.state.iterations(),
            learning_rate: self.stored_learning_rate(),
            scale: scale.transpose()?.and_then(|state| state.try_into().ok()),
            variables: kinds.into_iter().map(variable).collect::<Result<_>>()?,
            members: vec![],
        })
    }

    /// Returns the state of the loss scale and the iteration of the inner optimizer, if a file's variables
    /// start with those of a loss-scale optimizer: its learning rate, the finite steps, the scale and the
    /// iteration.
    fn stored_loss_scale(&self, found: &[Tensor]) -> Option<([f32; STATE], u64)> {
        self.weights.loss_scale?;
        let number = |tensor: &Tensor| match (tensor.dims(), tensor.f32()?) {
            ([], [number]) if number.is_finite() && *number >= 0.0 => Some(*number),
            _ => None,
        };
        let numbers: Option<Vec<f32>> =
            found.get(..LOSS_SCALE_VARIABLES)?.iter().map(number).collect();
        let [rate, steps, scale, iteration] = numbers?[..] else { return None };
        let usable = rate == 0.0 && scale.is_normal();
        usable.then_some(([scale, steps, 1.0], iteration as u64))
    }

    /// Reads what a file stores, and checks it.
    fn read<'t>(&self, iteration: u64, found: &'t [Tensor]) -> Result<Stored<'t>> {
        let scaled = self.stored_loss_scale(found);
        let (iteration, found) = match scaled {
            Some((_, iteration)) => (iteration, &found[LOSS_SCALE_VARIABLES..]),
            None => (iteration, found),
        };
        let mut found = found.iter();
        let rate = match self.stored_learning_rate() {
            None => None,
            Some(_) => {
                let rate = found.next().and_then(Tensor::f32).unwrap_or_default();
                let usable = |r: &f32| r.is_finite() && *r >= 0.0;
                let rate = <[f32; 1]>::try_from(rate).ok().map(|[r]| r).filter(usable);
                let expected = "a finite number from 0 up";
                let invalid = || Error::argument("optimizer", "learning_rate", expected, "another");
                Some(f64::from(rate.ok_or_else(invalid)?))
            }
        };
        let found: Vec<&Tensor> = found.collect();
        let has_variables = !found.is_empty();
        let values = match &self.weights.update {
            _ if !has_variables => vec![],
            Some(update) => self.whole_weight_values(update, &found)?,
            None => self.slot_values(&found)?,
        };
        let loss_scale = scaled.map(|(state, _)| state);
        Ok(Stored { iteration, has_variables, values, loss_scale, learning_rate: rate })
    }

    /// The slots and accumulated gradients that a file's variables are.
    fn slot_values<'t>(&self, found: &[&'t Tensor]) -> Result<Vec<(StateId, &'t Tensor)>> {
        let slots = self.objective.optimizer.rule().slots;
        let trained = self.trainable_weights();
        let kinds = self.variables(&slots, trained.len());
        let dims: Vec<Vec<usize>> =
            trained.iter().map(|w| w.layer.weights()[w.index].spec.dims.clone()).collect();
        let expected = |kind: &VariableKind| match kind {
            VariableKind::Slot(_, w) | VariableKind::Accumulated(w) => dims[*w].clone(),
            VariableKind::Scalar(_) => vec![],
        };
        check(kinds.iter().map(expected).collect(), found)?;
        let id = |kind: &VariableKind| match kind {
            VariableKind::Slot(slot, w) => Some(StateId::Slot(*slot, trained[*w].param)),
            VariableKind::Accumulated(w) => Some(StateId::Accumulated(trained[*w].param)),
            VariableKind::Scalar(_) => None,
        };
        let values =
            kinds.iter().zip(found).filter_map(|(kind, tensor)| Some((id(kind)?, *tensor)));
        Ok(values.collect())
    }
}

/// Fails unless the file's variables have the dimensions of the optimizer's.
pub(super) fn check(expected: Vec<Vec<usize>>, found: &[&Tensor]) -> Result<()> {
    if expected.len() != found.len() {
        let expected = format!("{} for the weights that are trained", expected.len());
        return Err(Error::argument("optimizer", "variables", expected, found.len()));
    }
    for (i, (dims, tensor)) in expected.iter().zip(found).enumerate() {
        if tensor.dims() != dims || tensor.f32().is_none() {
            let (expected, received) = (format!("{dims:?}"), tensor.dims());
            let what = format!("variable {i} after the learning rate");
            return Err(Error::argument("optimizer", what, expected, format!("{received:?}")));
        }
    }
    Ok(())
}

impl Variable {
    /// A variable without dimensions.
    pub(super) fn scalar(name: &str, value: f32) -> Variable {
        Variable { name: name.into(), dims: vec![], values: vec![value], integer: false }
    }

    /// Creates the variable `slot` of a weight; `values` receives the weight's length.
    pub(super) fn for_weight(
        weight: &ModelWeight,
        slot: &str,
        values: impl FnOnce(usize) -> Vec<f32>,
    ) -> Variable {
        let weights = weight.layer.weights();
        let spec = &weights[weight.index].spec;
        let owner = weight.layer_name.replace('/', "_");
        let len = spec.dims.iter().product();
        Variable {
            name: format!("{owner}_{}_{slot}", spec.name),
            dims: spec.dims.clone(),
            values: values(len),
            integer: false,
        }
    }
}
