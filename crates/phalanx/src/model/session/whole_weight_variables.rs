//! The state of an optimizer that updates whole weights as Keras' variables, in Keras' order.

use super::variables::{OptimizerVariables, check};
use crate::error::Result;
use crate::layer::{ModelWeight, lock};
use crate::model::update_graph::{UpdateState, WeightState, members};
use crate::optimizers::Optimizer;
use crate::saving::{TrainingState, Variable};
use crate::schedules::LearningRate;
use phalanx_exec::StateId;
use phalanx_graph::update::SlotInit;
use phalanx_graph::{ParamId, Tensor};
use std::ops::Range;

/// A variable of Keras' optimizer after iteration and learning rate.
enum Entry {
    /// A parameter of the graph, with its dimensions and the name of its slot.
    Param { param: ParamId, slot: String, dims: Vec<usize>, weight: ParamId },
    /// The accumulated gradient of a weight.
    Accumulated { param: ParamId, dims: Vec<usize>, weight: ParamId },
    /// A number that follows from the step, or from the options.
    Scalar { name: String, value: f32, integer: bool },
}

impl Entry {
    fn dims(&self) -> Vec<usize> {
        match self {
            Entry::Param { dims, .. } | Entry::Accumulated { dims, .. } => dims.clone(),
            Entry::Scalar { .. } => vec![],
        }
    }
}

/// The order in which Keras stores the slots of all weights: some weight by weight, the others slot by slot.
fn slots_in_order<'a>(
    optimizer: &dyn Optimizer,
    weights: &[&'a WeightState],
) -> Vec<(&'a WeightState, usize)> {
    let most = weights.iter().map(|w| w.slots.len()).max().unwrap_or(0);
    let together = match optimizer.updates_whole_weights() {
        true => most,
        false => optimizer.slots_per_weight().min(most),
    };
    let mut order = vec![];
    let alone = (together..most).map(|i| i..i + 1);
    for group in std::iter::once(0..together).chain(alone) {
        for weight in weights {
            let own = group.start.min(weight.slots.len())..group.end.min(weight.slots.len());
            order.extend(own.map(|slot| (*weight, slot)));
        }
    }
    order
}

impl OptimizerVariables<'_> {
    /// The variables after iteration and learning rate, with the joined optimizers in this order, and which of them
    /// belong to each.
    fn entries(
        &self,
        update: &UpdateState,
        weights: &[&ModelWeight],
        order: &[usize],
    ) -> (Vec<Entry>, Vec<(&'static str, Range<usize>)>) {
        let optimizer = &*self.objective.optimizer;
        let joined = !optimizer.optimizers().is_empty();
        let (mut entries, mut ranges) = (vec![], vec![]);
        let members = members(optimizer);
        for (i, member) in order.iter().map(|i| (*i, members[*i])) {
            let states = weights.iter().filter_map(|w| update.of(w.param));
            let states: Vec<&WeightState> = states.filter(|w| w.member == i).collect();
            let start = entries.len();
            if joined {
                // An optimizer without weights is never called.
                let iterations = if states.is_empty() { 0 } else { self.state.iterations() };
                let value = iterations.min(i32::MAX as u64) as f32;
                let own = |name: &str| format!("{}_{i}_{name}", member.common().name);
                entries.push(Entry::Scalar { name: own("iteration"), value, integer: true });
                if let LearningRate::Constant(rate) = member.common().learning_rate {
                    let (name, value) = (own("learning_rate"), rate as f32);
                    entries.push(Entry::Scalar { name, value, integer: false });
                }
            }
            if !states.is_empty() {
                let scaled = self.weights.loss_scale.is_some();
                entries.extend(member_entries(member, &states, self.state.updates, scaled));
            }
            if joined {
                ranges.push((member.class_name(), start..entries.len()));
            }
        }
        (entries, ranges)
    }

    /// The optimizer's state.
    pub(super) fn whole_weight_state(
        &self,
        update: &UpdateState,
        weights: &[&ModelWeight],
    ) -> Result<TrainingState> {
        let order: Vec<usize> = (0..members(&*self.objective.optimizer).len()).collect();
        let (entries, ranges) = self.entries(update, weights, &order);
        let executor = lock(self.executor);
        let (count, sum) = self.state.accumulated();
        let storable = count > 0 && count == self.accumulated_in_file();
        let scale = if storable { (count as f64 / sum) as f32 } else { 0.0 };
        let owner = |param: &ParamId| weights.iter().find(|w| w.param == *param);
        let mut variables = vec![];
        for entry in &entries {
            let (slot, weight, mut values) = match entry {
                Entry::Scalar { name, value, integer } => {
                    variables
                        .push(Variable { integer: *integer, ..Variable::scalar(name, *value) });
                    continue;
                }
                Entry::Param { param, slot, weight, .. } => {
                    let copies = update.of(*weight).is_some_and(|state| state.copies(*param));
                    let held = if copies && self.state.updates == 0 { weight } else { param };
                    (slot.as_str(), weight, executor.param(*held)?)
                }
                Entry::Accumulated { param, weight, .. } => {
                    ("gradient_accumulator", weight, executor.param(*param)?)
                }
            };
            if matches!(entry, Entry::Accumulated { .. }) {
                // Keras weights batches equally.
                values.iter_mut().for_each(|v| *v = if scale > 0.0 { *v * scale } else { 0.0 });
            }
            let Some(weight) = owner(weight) else { continue };
            let variable = Variable::for_weight(weight, slot, |_| values);
            variables.push(Variable { dims: entry.dims(), ..variable });
        }
        let scale = self.weights.loss_scale.map(|scaling| executor.param(scaling.state));
        Ok(TrainingState {
            iterations: self.state.iterations(),
            learning_rate: self.stored_learning_rate(),
            scale: scale.transpose()?.and_then(|state| state.try_into().ok()),
            variables,
            members: ranges,
        })
    }

    /// The parameters that the variables of a file after iteration and learning rate are.
    pub(super) fn whole_weight_values<'t>(
        &self,
        update: &UpdateState,
        found: &[&'t Tensor],
    ) -> Result<Vec<(StateId, &'t Tensor)>> {
        let order = match self.objective.optimizer.file_order() {
            order if order.is_empty() => vec![0],
            order => order,
        };
        let (entries, _) = self.entries(update, &self.trainable_weights(), &order);
        check(entries.iter().map(Entry::dims).collect(), found)?;
        let value = |(entry, tensor): (&Entry, &&'t Tensor)| match entry {
            Entry::Param { param, .. } | Entry::Accumulated { param, .. } => {
                Some((StateId::Param(*param), *tensor))
            }
            Entry::Scalar { .. } => None,
        };
        Ok(entries.iter().zip(found).filter_map(value).collect())
    }
}

/// Averages, accumulated gradients, slots and further numbers of an optimizer. Under a loss scale Keras does not store
/// what its optimizers keep outside their list of variables.
fn member_entries(
    optimizer: &dyn Optimizer,
    weights: &[&WeightState],
    updates: u64,
    scaled: bool,
) -> Vec<Entry> {
    let mut entries = vec![];
    for weight in weights {
        let (dims, of) = (weight.of.dims.clone(), weight.param);
        let slot = "average".to_string();
        entries.extend(weight.average.map(|param| Entry::Param { param, slot, dims, weight: of }));
    }
    if optimizer.common().gradient_accumulation_steps.is_some() {
        entries.extend(weights.iter().filter_map(|weight| {
            let dims = weight.of.dims.clone();
            Some(Entry::Accumulated { param: weight.accumulated?, dims, weight: weight.param })
        }));
    }
    for (weight, slot) in slots_in_order(optimizer, weights) {
        let (param, slot) = &weight.slots[slot];
        if slot.unused && scaled {
            continue;
        }
        let (slot, dims) = (slot.name.clone(), slot.dims.clone());
        entries.push(Entry::Param { param: *param, slot, dims, weight: weight.param });
    }
    let scalars = optimizer.state_scalars(updates).into_iter().filter(|_| !scaled);
    entries.extend(scalars.map(|value| Entry::Scalar {
        name: format!("{}_variable", optimizer.common().name),
        value: value as f32,
        integer: false,
    }));
    entries
}

impl WeightState {
    /// Whether a slot starts as a copy of the weight.
    fn copies(&self, param: ParamId) -> bool {
        self.slots.iter().any(|(p, slot)| *p == param && slot.init == SlotInit::Weight)
    }
}
