//! The session of a training step that a program describes itself.

use super::objective::TestReport;
use super::shapes::BatchShape;
use super::step_cache::BuiltStep;
use super::train_state::OptimizerCounters;
use super::{BatchChecks, BatchOrigin, Declared, Objective, Session, StepKind, Tracked, indices};
use crate::data::Digest;
use crate::error::Result;
use crate::model::definition::Definition;
use crate::model::steps;
use crate::train_step::{BuiltCustomStep, CustomStep};
use crate::workers::MultiWorkerMirroredStrategy;
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
        let tracked = |(metric, state_len, _)| Tracked {
            metric,
            weighted: false,
            state_len,
            undecided: false,
        };
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
            of_batch: vec![],
            trained: vec![],
            loss_weights: vec![1.0; recorded.phases.len()],
            metrics,
            described: described.into_iter().collect(),
            output_names: vec![],
            loss_names: vec![],
            custom: Some(custom),
            compiled: true,
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
        session.programs.load_constraints(constraints)?;
        let inputs = session.def.example_shapes();
        let shape = BatchShape::new(&session.objective, inputs, vec![], vec![])?;
        shape.steps.set(StepKind::Train, BuiltStep { step, constants: vec![] });
        session.programs.add_only_shape(shape);
        Ok(session)
    }
}
