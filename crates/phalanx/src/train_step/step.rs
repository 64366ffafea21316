//! A described training step: its models, optimizers and function, and the graphs that follow from them.

use super::context::StepContext;
use crate::error::{Error, Result};
use crate::layer::{Layer, LayerContext, LayerHandle, ModelWeight, Outputs};
use crate::metrics::{Metric, weighted_mean};
use crate::model::steps::{self, Seeds};
use crate::model::update_graph::{self, WeightState};
use crate::model::{Definition, StepKind};
use crate::optimizers::Optimizer;
use crate::registry::Config;
use phalanx_graph::loss_scale::LossScale;
use phalanx_graph::passes::{checked, fuse_epilogues};
use phalanx_graph::{Fetch, Graph, NodeId, ParamId, ParamSpec, Step, Type};
use std::fmt;
use std::sync::Arc;

/// The function that describes a step.
pub(super) type Body = Box<dyn Fn(&mut StepContext<'_>) -> Result<()> + Send + Sync>;

/// An optimizer of a step, and its slots for the weights that it updates inside the graph.
pub(crate) struct StepOptimizer {
    pub name: String,
    /// `None` if the session holds it.
    pub optimizer: Option<Box<dyn Optimizer>>,
    pub slots: LayerHandle,
}

impl StepOptimizer {
    pub fn new(name: &str, optimizer: Box<dyn Optimizer>) -> StepOptimizer {
        let slots = LayerHandle::new(Box::new(SlotWeights), Some(name.into()), false);
        StepOptimizer { name: name.into(), optimizer: Some(optimizer), slots }
    }

    /// The name under which files of a run have the slots. It is that of no weight.
    pub fn member(&self) -> String {
        format!("@step/{}", self.name)
    }
}

/// The layer that holds an optimizer's slots.
#[derive(Debug)]
struct SlotWeights;

impl Layer for SlotWeights {
    fn class_name(&self) -> &'static str {
        "Optimizer"
    }

    fn config(&self) -> Config {
        Config::new()
    }

    fn call(&self, cx: &mut LayerContext<'_>, _: &[NodeId]) -> Result<Outputs> {
        Err(cx.argument("call", "none", "one"))
    }
}

/// One call of `minimize`.
pub(crate) struct Phase {
    /// The weighted sum of the loss over the samples.
    pub fetch: Fetch,
    /// The loss of each sample and its coefficient in the loss of the batch; then the same of each added term.
    pub seeds: Seeds,
    /// The penalties of the weights and the terms that layers add.
    pub penalty: NodeId,
    pub weights: Vec<ModelWeight>,
    /// Index of the optimizer.
    pub optimizer: usize,
}

impl Phase {
    /// Fails unless the loss depends on a weight.
    pub fn check_depends(&self, depends: bool) -> Result<()> {
        if depends {
            return Ok(());
        }
        let expected = "a value that depends on the trainable weights of its models";
        let owner = format!("loss '{}'", self.fetch.name);
        Err(Error::argument(owner, "value", expected, "one that depends on none"))
    }
}

/// An update inside the graph.
#[derive(Clone, Debug)]
pub(crate) struct Update {
    /// Index of the optimizer.
    pub optimizer: usize,
    /// How many updates of this optimizer the step has before this one.
    pub turn: u64,
    /// The state of the weights that it updates.
    pub weights: Vec<WeightState>,
    /// Whether the loss is scaled, so that the update is skipped if its gradients are not finite.
    pub scaled: bool,
    /// Whether they are finite, where the step trains.
    pub finite: Option<NodeId>,
}

impl Update {
    /// For how many numbers of finite updates before it the host feeds its numbers.
    pub fn candidates(&self) -> usize {
        if self.scaled { self.turn as usize + 1 } else { 1 }
    }
}

/// A metric, the length of its state, and its sums.
type RecordedMetric = (Box<dyn Metric>, usize, Fetch);

/// What a step function has asked for.
#[derive(Default)]
pub(crate) struct Recorded {
    pub phases: Vec<Phase>,
    pub updates: Vec<Update>,
    /// The phase that the executor's own update applies.
    pub main: Option<usize>,
    pub metrics: Vec<RecordedMetric>,
    pub penalty: Option<Fetch>,
    /// The reduced gradients of the phases with updates inside the graph.
    pub gradients: Vec<Fetch>,
    /// Targets that are classes: the index of the target, the number of classes and the ignored one.
    pub labels: Vec<(usize, usize, Option<i64>)>,
}

/// A mean that a step reports.
#[derive(Debug)]
pub(super) struct StepMean {
    pub name: String,
}

impl StepMean {
    pub fn new(name: &str) -> StepMean {
        StepMean { name: name.into() }
    }
}

impl Metric for StepMean {
    fn class_name(&self) -> &'static str {
        "Mean"
    }

    fn config(&self) -> Config {
        Config::new()
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn set_name(&mut self, name: &str) {
        self.name = name.into();
    }

    fn update(&self, g: &mut Graph, _: NodeId, value: NodeId, weight: NodeId) -> Result<NodeId> {
        weighted_mean(self, g, value, weight)
    }
}

/// What evaluation runs, if it is another function than that of the training step.
pub(crate) struct TestStep {
    pub body: Body,
    /// What it reports, once it was built.
    pub reports: Option<Reports>,
}

/// The names of the losses that a step reports, and the names of its metrics with the lengths of their states.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Reports {
    pub losses: Vec<String>,
    pub metrics: Vec<(String, usize)>,
}

impl Reports {
    pub fn of(recorded: &Recorded) -> Reports {
        let losses = recorded.phases.iter().map(|phase| phase.fetch.name.clone()).collect();
        let state = |(metric, len, _): &RecordedMetric| (metric.name().into(), *len);
        Reports { losses, metrics: recorded.metrics.iter().map(state).collect() }
    }

    /// Fails unless a later call of the same function reports the same.
    fn check(&self, later: &Reports, owner: String) -> Result<()> {
        let losses = (&self.losses, &later.losses);
        let names = |reports: &Reports| -> Vec<String> {
            reports.metrics.iter().map(|(name, _)| name.clone()).collect()
        };
        let (what, expected, received) = match (losses.0 == losses.1, self == later) {
            (_, true) => return Ok(()),
            (false, _) => ("losses", losses.0.join(", "), losses.1.join(", ")),
            (true, _) => ("metrics", names(self).join(", "), names(later).join(", ")),
        };
        let expected = format!("the {what} of its first call: {expected}");
        Err(Error::argument(owner, "step", expected, received))
    }
}

/// A step that a program describes itself.
pub(crate) struct CustomStep {
    pub name: String,
    pub inputs: Vec<(String, Type)>,
    pub targets: Vec<(String, Type)>,
    pub models: Vec<(String, Arc<Definition>)>,
    pub optimizers: Vec<StepOptimizer>,
    pub body: Body,
    /// What evaluation runs; `body` if there is none.
    pub test: Option<TestStep>,
    /// The parameters of the training step, once it was built.
    pub params: Vec<ParamSpec>,
    /// Its weights, which are among them.
    pub weights: Vec<ModelWeight>,
    /// The updates inside the graph. The host computes their numbers.
    pub updates: Vec<Update>,
    /// Whether the executor's own update applies the last phase.
    pub fused: bool,
    /// What it reports, once it was built.
    pub reports: Option<Reports>,
}

impl fmt::Debug for CustomStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CustomStep").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A step, and the parameters and constants that its graph declares.
pub(crate) struct BuiltCustomStep {
    pub step: Step,
    pub weights: Vec<ModelWeight>,
    pub constants: Vec<(ParamId, Vec<f32>)>,
    /// The values of the constants that are its last feeds.
    pub fed_constants: Vec<Vec<f32>>,
    pub scaling: Option<LossScale>,
    pub recorded: Recorded,
}

impl CustomStep {
    pub(super) fn owner(&self) -> String {
        format!("training step '{}'", self.name)
    }

    /// The function that evaluation runs in place of that of the training step, if any.
    pub(super) fn own_test(&self, kind: StepKind) -> Option<&TestStep> {
        self.test.as_ref().filter(|_| kind == StepKind::Test)
    }

    /// The names of the losses that a step of a kind reports.
    pub(crate) fn losses(&self, kind: StepKind) -> &[String] {
        let reports = match self.own_test(kind) {
            Some(test) => test.reports.as_ref(),
            None => self.reports.as_ref(),
        };
        reports.map_or(&[], |reports| &reports.losses)
    }

    pub(super) fn model(&self, name: &str) -> Result<Arc<Definition>> {
        let found = self.models.iter().find(|(known, _)| known == name);
        found.map(|(_, def)| def.clone()).ok_or_else(|| Error::Unknown {
            kind: "model of the training step",
            name: name.into(),
            known: self.models.iter().map(|(name, _)| name.clone()).collect(),
        })
    }

    pub(crate) fn optimizer_index(&self, name: &str) -> Result<usize> {
        let found = self.optimizers.iter().position(|known| known.name == name);
        found.ok_or_else(|| Error::Unknown {
            kind: "optimizer of the training step",
            name: name.into(),
            known: self.optimizers.iter().map(|known| known.name.clone()).collect(),
        })
    }

    /// Keras' path of a weight in its model.
    pub(super) fn keras_path(&self, weight: &ModelWeight) -> Result<String> {
        // Names of models have no slash.
        let (model, layer) = weight.layer_name.split_once('/').unwrap_or(("", &weight.layer_name));
        Ok(update_graph::path(&*self.model(model)?, layer, weight))
    }

    /// An optimizer; `main` is the one that the session holds.
    pub fn optimizer<'a>(
        &'a self,
        index: usize,
        main: Option<&'a dyn Optimizer>,
    ) -> &'a dyn Optimizer {
        let own = self.optimizers[index].optimizer.as_deref();
        own.or(main).expect("the session holds the optimizers that the step does not")
    }

    /// Runs the function and builds the step.
    pub fn build(
        &self,
        kind: StepKind,
        main: Option<&dyn Optimizer>,
        (synchronized, max_batch): (bool, usize),
    ) -> Result<BuiltCustomStep> {
        let mut cx = StepContext::new(self, main, kind, synchronized)?;
        cx.graph().set_max_batch(max_batch);
        let (body, known) = match self.own_test(kind) {
            Some(test) => (&test.body, &test.reports),
            None => (&self.body, &self.reports),
        };
        body(&mut cx)?;
        let (mut low, mut recorded) = cx.finish()?;
        if let Some(known) = known {
            known.check(&Reports::of(&recorded), self.owner())?;
        }
        let main_phase = recorded.main.map(|at| &recorded.phases[at]);
        let optimizer = main_phase.map(|phase| self.optimizer(phase.optimizer, main));
        let scaling = optimizer.and_then(|optimizer| optimizer.inner()).map(|(_, s)| s);
        let scaling = scaling.map(|s| LossScale::declare(&mut low.graph, s.growth_steps));
        let scaling = scaling.filter(|_| kind == StepKind::Train);
        let (weights, constants) = (low.weights.clone(), std::mem::take(&mut low.constants));
        let fed_constants = std::mem::take(&mut low.fed_constants);
        let checks = low.integer_fetches()?;
        let mut fetches: Vec<Fetch> = match kind {
            StepKind::Gradients => std::mem::take(&mut recorded.gradients),
            _ => {
                let losses = recorded.phases.iter().map(|phase| phase.fetch.clone());
                let metrics = recorded.metrics.iter().map(|(.., fetch)| fetch.clone());
                let finite = recorded.updates.iter().filter_map(|update| update.finite);
                let finite = finite.map(|node| Fetch { name: "finite".into(), node });
                losses.chain(recorded.penalty.clone()).chain(metrics).chain(finite).collect()
            }
        };
        fetches.extend(checks);
        let step = match (kind, main_phase.zip(optimizer)) {
            (StepKind::Train | StepKind::Gradients, Some((phase, optimizer))) => {
                let seeds = phase.seeds.clone();
                let fetches = std::mem::take(&mut fetches);
                let step = steps::with_update(low, fetches, seeds, scaling, optimizer.rule())?;
                phase.check_depends(step.gradients.iter().any(|g| g.node.is_some()))?;
                match kind {
                    StepKind::Gradients => {
                        steps::fetch_gradients(step, &format!("{}/", phase.fetch.name))?
                    }
                    _ => step,
                }
            }
            (StepKind::Train | StepKind::Gradients | StepKind::Test, _) => {
                let name = match kind {
                    StepKind::Test => "test",
                    StepKind::Gradients => "gradients",
                    _ => "train",
                };
                let mut step = Step::new(name, low.graph);
                step.fetches = fetches;
                if kind == StepKind::Train {
                    step.assigns = low.assigns;
                }
                checked("fuse_epilogues", fuse_epilogues(step))?
            }
            (StepKind::Predict, _) => {
                let expected = "a model (predict with the models of the step)";
                return Err(Error::argument(self.owner(), "predict", expected, "a training step"));
            }
        };
        Ok(BuiltCustomStep { step, weights, constants, fed_constants, scaling, recorded })
    }
}
