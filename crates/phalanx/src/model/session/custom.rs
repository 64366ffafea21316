//! The session of a training step that a program describes itself.

use super::objective::TestReport;
use super::programs::BuiltStep;
use super::train_state::{OptimizerCounters, checked_rate};
use super::{BatchChecks, BatchOrigin, Declared, Objective, Session, StepKind, Tracked, indices};
use crate::data::Digest;
use crate::error::{Error, Result};
use crate::model::definition::Definition;
use crate::model::steps;
use crate::optimizers::Optimizer;
use crate::train_step::{BuiltCustomStep, CustomStep};
use crate::workers::MultiWorkerMirroredStrategy;
use phalanx_graph::ParamId;
use std::sync::Arc;

impl Session {
    /// The session of a step that a program describes itself, of which the training step was built, and what evaluation
    /// runs, if that is another function.
    pub(crate) fn custom(
        def: Arc<Definition>,
        mut custom: CustomStep,
        (built, tested): (BuiltCustomStep, Option<BuiltCustomStep>),
        strategy: MultiWorkerMirroredStrategy,
        seed: u64,
    ) -> Result<Session> {
        let BuiltCustomStep { step, weights, constants, scaling, recorded, .. } = built;
        let last = recorded.phases.len() - 1;
        let main = recorded.phases[recorded.main.unwrap_or(last)].optimizer;
        let taken = custom.optimizers[main].optimizer.take();
        let optimizer = taken.expect("a step that was just built has its optimizers");
        let tracked = |(metric, state_len, _)| Tracked { metric, weighted: false, state_len };
        let metrics = vec![recorded.metrics.into_iter().map(tracked).collect()];
        let labels = tested.iter().flat_map(|tested| &tested.recorded.labels);
        let labels = recorded.labels.iter().chain(labels);
        let class = |i: usize| labels.clone().find(|(target, ..)| *target == i);
        let targets = 0..custom.targets.len();
        let checks = BatchChecks {
            def: def.clone(),
            target_dtypes: custom.targets.iter().map(|(_, ty)| ty.dtype).collect(),
            custom_classes: Some(
                targets.clone().map(|i| class(i).map(|(_, classes, _)| *classes)).collect(),
            ),
            compared: targets.clone().collect(),
            ignored_classes: targets.map(|i| class(i).and_then(|(.., ignored)| *ignored)).collect(),
            padded_lengths: custom.targets.iter().map(|_| None).collect(),
            output_names: custom.targets.iter().map(|(name, _)| name.clone()).collect(),
            lookups: indices::lookups(&step.graph, def.fed.len()),
            origin: BatchOrigin::default(),
            stateful_layer: None,
        };
        // Workers and resumed runs must have the same step.
        let mut digest = Digest::default();
        digest.bytes(step.to_string().as_bytes());
        if let Some(tested) = &tested {
            digest.bytes(tested.step.to_string().as_bytes());
        }
        let described = [("step".to_string(), format!("{:016x}", digest.end()).into())];
        let test = tested.map(|tested| TestReport {
            loss_weights: vec![1.0; tested.recorded.phases.len()],
            metrics: tested.recorded.metrics.into_iter().map(tracked).collect(),
        });
        let objective = Objective {
            optimizer,
            losses: vec![],
            trained: vec![],
            loss_weights: vec![1.0; recorded.phases.len()],
            metrics,
            described: described.into_iter().collect(),
            output_names: vec![],
            loss_names: vec![],
            custom: Some(custom),
            test,
        };
        objective.check_names()?;
        let optimizers = objective.custom.iter().flat_map(|custom| &custom.optimizers);
        let counters = optimizers.map(|_| OptimizerCounters::default()).collect();
        let params = step.graph.params().to_vec();
        let constraints = steps::constraints(&params, &weights)?;
        let declared = Declared { params, weights, constants, scaling, update: None };
        let mut session = Session::with(objective, checks, declared, strategy, seed)?;
        session.state.optimizers = counters;
        session.load_constraints(constraints)?;
        let shape = session.new_shape(session.def.example_shapes(), vec![], vec![])?;
        shape.steps.set(StepKind::Train, BuiltStep { step, constants: vec![] });
        session.add_only_shape(shape);
        Ok(session)
    }

    /// Counts the updates inside the graph of the training step that has run.
    pub(super) fn advance_optimizers(&mut self) {
        let Some(custom) = &self.objective.custom else { return };
        let metrics: usize = self.objective.metrics.iter().map(Vec::len).sum();
        // Behind losses, penalty and metrics the step fetches whether the gradients of scaled losses are finite.
        let mut fetched =
            self.results.fetched.iter().skip(custom.losses(StepKind::Train).len() + 1 + metrics);
        for update in &custom.updates {
            let finite = match update.scaled {
                true => fetched.next().is_some_and(|values| values.first() == Some(&1.0)),
                false => true,
            };
            if finite {
                let optimizer = self.objective.step_optimizer(custom, update.optimizer);
                let counters = &mut self.state.optimizers[update.optimizer];
                *counters = counters.next(optimizer);
            }
        }
    }

    /// The moving averages that updates inside the graph keep, by weight. Before the first update they are the weights.
    pub(super) fn graph_averages(&self) -> impl Iterator<Item = (ParamId, ParamId)> {
        let updates = self.objective.custom.iter().flat_map(|custom| &custom.updates);
        let weights = updates.flat_map(|update| {
            let begun = self.state.optimizers[update.optimizer].updates > 0;
            update.weights.iter().map(move |weight| (weight, begun))
        });
        weights.filter_map(|(weight, begun)| {
            let average = weight.average?;
            Some((weight.param, if begun { average } else { weight.param }))
        })
    }

    /// The optimizer of a custom step by its name.
    fn optimizer_index(&self, name: &str) -> Result<usize> {
        let custom = self.objective.custom.as_ref();
        let found = custom.map(|custom| custom.optimizer_index(name));
        found.unwrap_or_else(|| Err(Error::argument("learning_rate", "optimizer", "none", name)))
    }

    /// The learning rate that an optimizer of a custom step has in the next step.
    pub(crate) fn learning_rate_of(&self, name: &str) -> Result<f64> {
        let index = self.optimizer_index(name)?;
        let Some(custom) = &self.objective.custom else { return Ok(self.learning_rate()) };
        Ok(match &custom.optimizers[index].optimizer {
            None => self.learning_rate(),
            Some(optimizer) => {
                let counters = &self.state.optimizers[index];
                let set = counters.learning_rate.map(|rate| rate.0);
                set.unwrap_or_else(|| counters.scheduled_rate(&**optimizer))
            }
        })
    }

    /// Overrides the learning rate of an optimizer of a custom step.
    pub(crate) fn set_learning_rate_of(&mut self, name: &str, rate: f64) -> Result<()> {
        let index = self.optimizer_index(name)?;
        let custom = self.objective.custom.as_ref();
        let Some(optimizer) = custom.and_then(|c| c.optimizers[index].optimizer.as_ref()) else {
            return self.set_learning_rate(rate);
        };
        check_has_one_rate(&format!("optimizer '{name}'"), &**optimizer)?;
        let rate = checked_rate(&format!("optimizer '{name}'"), rate)?;
        self.state.optimizers[index].learning_rate = Some(rate);
        Ok(())
    }
}

/// Fails if an optimizer joins several, each with its own learning rate.
pub(super) fn check_has_one_rate(owner: &str, optimizer: &dyn Optimizer) -> Result<()> {
    if optimizer.optimizers().is_empty() {
        return Ok(());
    }
    let expected = "an optimizer with one learning rate";
    Err(Error::argument(owner, "learning_rate", expected, optimizer.rule_name()))
}
