//! The context of a training step: values, calls of models, metrics and updates.

mod values;

use super::step::{CustomStep, Phase, Recorded, StepMean, Update};
use super::update::{self, UpdateArguments};
use crate::error::{Error, Result};
use crate::layer::{Lowering, ModelWeight, Operand};
use crate::metrics::Metric;
use crate::model::sample_weights::without_ignored;
use crate::model::steps::{self, reduced_fetch};
use crate::model::update_graph::WeightState;
use crate::model::{Definition, StepKind};
use crate::optimizers::Optimizer;
use phalanx_graph::ops::Binary;
use phalanx_graph::program::Policy;
use phalanx_graph::update::SlotInit;
use phalanx_graph::{DType, Fetch, Graph, NodeId, Op, ParamId, Type};
use std::collections::HashMap;
use std::sync::Arc;

/// What a step function describes a step with. Values are nodes of a [`Graph`]; nothing is computed while the function
/// runs. See [`TrainStep`](super::TrainStep).
pub struct StepContext<'a> {
    step: &'a CustomStep,
    /// The optimizer that the session holds, once there is one.
    main: Option<&'a dyn Optimizer>,
    kind: StepKind,
    low: Lowering,
    values: Inputs,
    /// The masks of outputs of models.
    masks: HashMap<NodeId, NodeId>,
    /// The updated weights of earlier phases, which losses may depend on.
    versions: HashMap<ParamId, Vec<NodeId>>,
    /// The last phase, if nothing has read the weights since.
    open: Option<usize>,
    /// Terms that layers have added to the loss since the last phase, with the model that was called.
    added: Vec<(String, NodeId)>,
    recorded: Recorded,
}

/// The fed values of a step.
struct Inputs {
    named: Vec<(String, NodeId)>,
    sample_weight: NodeId,
    /// 1 for every sample.
    ones: NodeId,
    /// 1 divided by the number of samples of the global batch.
    share: NodeId,
}

impl<'a> StepContext<'a> {
    pub(super) fn new(
        step: &'a CustomStep,
        main: Option<&'a dyn Optimizer>,
        kind: StepKind,
        synchronized: bool,
    ) -> Result<StepContext<'a>> {
        let mut low = Lowering::new(kind != StepKind::Test);
        low.synchronized = synchronized;
        let mixed = |(_, def): &(String, Arc<Definition>)| def.dtype_policy() != Policy::Float32;
        low.mixed = step.models.iter().any(mixed);
        if step.own_test(kind).is_some() {
            low.share_parameters(&step.params, &step.weights);
        }
        let g = &mut low.graph;
        let mut named = vec![];
        for (name, ty) in step.inputs.iter().chain(&step.targets) {
            let feed = g.add_feed(name, ty.clone());
            named.push((name.clone(), g.feed(feed)));
        }
        let sample_weight = g.add_feed("sample_weight", Type::rows([]));
        let sample_weight = g.feed(sample_weight);
        let ones = g.binary(Binary::Eq, sample_weight, sample_weight)?;
        let share = g.add_feed("share_of_a_sample", Type::mirrored([]));
        let share = g.feed(share);
        Ok(StepContext {
            step,
            main,
            kind,
            low,
            values: Inputs { named, sample_weight, ones, share },
            masks: HashMap::new(),
            versions: HashMap::new(),
            open: None,
            added: vec![],
            recorded: Recorded::default(),
        })
    }

    /// Returns an input or a target by its name.
    ///
    /// # Errors
    /// If the step has none of this name.
    pub fn input(&self, name: &str) -> Result<NodeId> {
        let found = self.values.named.iter().find(|(known, _)| known == name);
        let known = || self.values.named.iter().map(|(name, _)| name.clone()).collect();
        found.map(|(_, node)| *node).ok_or_else(|| Error::Unknown {
            kind: "input of the training step",
            name: name.into(),
            known: known(),
        })
    }

    /// Returns whether the step trains. It does not in `evaluate`, where [`minimize`](Self::minimize) only reports the loss.
    pub fn training(&self) -> bool {
        self.kind != StepKind::Test
    }

    /// Returns the graph, for operations on values.
    pub fn graph(&mut self) -> &mut Graph {
        &mut self.low.graph
    }

    /// Returns the type of a value.
    pub fn ty(&self, x: NodeId) -> &Type {
        self.low.graph.ty(x)
    }

    /// Calls a model with one output, in training mode if the step trains. It uses the weights as the calls of
    /// [`minimize`](Self::minimize) before it have left them.
    ///
    /// # Errors
    /// If there is no such model, or the inputs are not those of the model.
    pub fn call(&mut self, model: &str, inputs: &[NodeId]) -> Result<NodeId> {
        let outputs = self.call_all(model, inputs, self.training())?;
        self.single(model, &outputs)
    }

    /// Calls a model with one output in inference mode: without dropout, with moving statistics.
    ///
    /// # Errors
    /// As for [`call`](Self::call).
    pub fn call_inference(&mut self, model: &str, inputs: &[NodeId]) -> Result<NodeId> {
        let outputs = self.call_all(model, inputs, false)?;
        self.single(model, &outputs)
    }

    fn single(&self, model: &str, outputs: &[NodeId]) -> Result<NodeId> {
        match outputs {
            [output] => Ok(*output),
            _ => {
                let expected = "1 (else call_all)";
                Err(Error::argument(format!("model '{model}'"), "outputs", expected, outputs.len()))
            }
        }
    }

    /// Calls a model in training or in inference mode and returns its outputs.
    ///
    /// # Errors
    /// As for [`call`](Self::call).
    pub fn call_all(
        &mut self,
        model: &str,
        inputs: &[NodeId],
        training: bool,
    ) -> Result<Vec<NodeId>> {
        self.close()?;
        let def = self.step.model(model)?;
        let owner = || format!("model '{model}'");
        if inputs.len() != def.inputs.len() {
            return Err(Error::argument(
                owner(),
                "inputs",
                def.inputs.len().to_string(),
                inputs.len(),
            ));
        }
        for (i, node) in inputs.iter().enumerate() {
            let (input, received) = (def.input(i), self.ty(*node));
            let sizes = input.known_shape().sizes_of(&received.dims);
            if sizes.is_none_or(|sizes| input.ty(&sizes) != *received) {
                let expected = format!("rows {} {}", input.dtype, input.known_shape());
                let received =
                    format!("{} {} {}", received.space, received.dtype, received.shape_text());
                let what = format!("input '{}'", def.input_name(i));
                return Err(Error::argument(owner(), what, expected, received));
            }
        }
        let operand = |node: &NodeId| Operand { node: *node, mask: self.masks.get(node).copied() };
        let operands: Vec<Operand> = inputs.iter().map(operand).collect();
        let outer = std::mem::replace(&mut self.low.training, training);
        let outputs = def.lower(&mut self.low, &operands, &format!("{model}/"));
        self.low.training = outer;
        let outputs = outputs?;
        let added = std::mem::take(&mut self.low.losses).into_iter();
        self.added.extend(added.map(|term| (model.to_string(), term)));
        for output in &outputs {
            if let Some(mask) = output.mask {
                self.masks.insert(output.node, mask);
            }
        }
        Ok(outputs.into_iter().map(|output| output.node).collect())
    }

    /// Takes the derivative of a loss by the trainable weights of some models, and updates these with an optimizer.
    ///
    /// The loss of the step is the mean of `loss` over the samples of the *global* batch, times their sample weights if
    /// there are any; a value with several numbers per sample counts with their mean. Added to it are the penalties of the
    /// weights' regularizers, and what layers of these models have added to the loss in the calls since the phase before.
    /// What layers of other models have added is left out. What is computed after this call sees the updated weights. What was computed before keeps its value.
    /// The loss is reported under `name`.
    ///
    /// # Errors
    /// If a name is unknown, `loss` has no value per sample, or it does not depend on the weights.
    pub fn minimize(
        &mut self,
        name: &str,
        loss: NodeId,
        models: &[&str],
        optimizer: &str,
    ) -> Result<()> {
        self.close()?;
        let owner = || format!("loss '{name}'");
        let ty = self.ty(loss);
        if !ty.is_rows() || ty.dtype != DType::F32 {
            let expected = "a float for every sample, not yet reduced over the batch";
            return Err(Error::argument(owner(), "value", expected, ty.to_string()));
        }
        let optimizer = self.step.optimizer_index(optimizer)?;
        let weights = self.trainable_weights(models)?;
        if weights.is_empty() {
            let expected = "trainable weights that a call before has used";
            return Err(Error::argument(owner(), "models", expected, models.join(", ")));
        }
        let g = &mut self.low.graph;
        let sample = g.mean_row(loss)?;
        let weighted = g.mul(sample, self.values.sample_weight)?;
        let sum = g.push(Op::SumRows, &[weighted])?;
        let fetch = reduced_fetch(g, name.into(), sum)?;
        let coefficient = g.mul(self.values.sample_weight, self.values.share)?;
        let mut seeds = vec![(sample, coefficient)];
        let mut penalty = steps::penalty_of(&mut self.low, &weights)?;
        let mut terms = steps::other_penalties(&mut self.low, &weights)?;
        let added = std::mem::take(&mut self.added).into_iter();
        let added = added.filter(|(model, _)| models.contains(&model.as_str()));
        terms.extend(added.map(|(_, term)| term));
        for term in terms {
            let g = &mut self.low.graph;
            let (value, seed) = steps::added_loss(g, term, self.values.ones)?;
            penalty = g.add(penalty, value)?;
            seeds.push(seed);
        }
        self.recorded.phases.push(Phase { fetch, seeds, penalty, weights, optimizer });
        self.open = Some(self.recorded.phases.len() - 1);
        Ok(())
    }

    /// The weights of some models that are trainable, each once.
    fn trainable_weights(&self, models: &[&str]) -> Result<Vec<ModelWeight>> {
        let mut layers = vec![];
        for model in models {
            layers.extend(self.step.model(model)?.layers());
        }
        let params = self.low.graph.params();
        let of_models = |w: &&ModelWeight| {
            params[w.param.index()].trainable && layers.iter().any(|(_, l)| l.same(&w.layer))
        };
        Ok(self.low.weights.iter().filter(of_models).cloned().collect())
    }

    /// Reports the mean of a value over the samples, or a value that is the same for all samples, under a name.
    ///
    /// # Errors
    /// If the value is a sum that is not reduced over the workers yet.
    pub fn metric(&mut self, name: &str, value: NodeId) -> Result<()> {
        let value = match self.ty(value).is_rows() {
            true => value,
            false => {
                let value = self.low.graph.reshape(value, &[])?;
                self.low.graph.mul(self.values.ones, value)?
            }
        };
        self.push_metric(Box::new(StepMean::new(name)), value, value)
    }

    /// Reports a metric of targets and predictions.
    ///
    /// # Errors
    /// If the metric does not match them.
    pub fn track(
        &mut self,
        metric: impl Metric + 'static,
        target: NodeId,
        prediction: NodeId,
    ) -> Result<()> {
        metric.validate()?;
        self.check_labels(target, prediction, None);
        self.push_metric(Box::new(metric), target, prediction)
    }

    fn push_metric(
        &mut self,
        metric: Box<dyn Metric>,
        target: NodeId,
        prediction: NodeId,
    ) -> Result<()> {
        let g = &mut self.low.graph;
        let mut weight = self.values.ones;
        if let Some(mask) = self.masks.get(&prediction).filter(|_| metric.uses_mask()) {
            let mut dims = g.ty(*mask).dims.clone();
            dims.fill(1);
            let of_row = g.reshape(weight, &dims)?;
            weight = g.mul(of_row, *mask)?;
            weight = without_ignored(g, metric.as_ref(), weight, target)?;
        }
        let state = metric.update(g, target, prediction, weight)?;
        let fetch = reduced_fetch(g, format!("metric {}", metric.name()), state)?;
        let state_len = metric.state_len(g.ty(prediction));
        self.recorded.metrics.push((metric, state_len, fetch));
        Ok(())
    }

    /// Applies the update of the last phase in the graph, so that what follows sees the new weights.
    fn close(&mut self) -> Result<()> {
        let Some(at) = self.open.take() else { return Ok(()) };
        if self.step.own_test(self.kind).is_some() {
            // It has the state of no optimizer, and updates nothing.
            return Ok(());
        }
        let index = self.recorded.phases[at].optimizer;
        let earlier = self.recorded.updates.iter().filter(|update| update.optimizer == index);
        let started: Vec<ParamId> =
            earlier.clone().flat_map(|update| &update.weights).map(|w| w.param).collect();
        let (turn, finite) =
            (earlier.clone().count() as u64, earlier.filter_map(|update| update.finite).collect());
        let optimizer = self.step.optimizer(index, self.main);
        let state = &self.step.optimizers[index];
        let phase = &self.recorded.phases[at];
        let low = &mut self.low;
        let weights = update::declare_state(low, self.step, optimizer, state, &phase.weights)?;
        // The first update of an optimizer starts slots from the weights that it updates, and no others.
        let late = |w: &WeightState| {
            !started.contains(&w.param)
                && w.slots.iter().any(|(_, slot)| slot.init == SlotInit::Weight)
        };
        if turn > 0 && weights.iter().any(late) {
            let expected =
                "the same models in every call of minimize: its state starts from their weights";
            let owner = format!("optimizer '{}'", state.name);
            return Err(Error::argument(owner, "models", expected, "other ones"));
        }
        let scaling = update::declare_scale(low, optimizer, state)?;
        let scaled = scaling.is_some();
        let mut update = Update { optimizer: index, turn, weights, scaled, finite: None };
        if self.training() {
            let number = self.recorded.updates.len();
            let scaling = scaling.filter(|_| self.kind == StepKind::Train);
            let arguments =
                UpdateArguments { phase, optimizer, update: &update, scaling, number, finite };
            let (gradients, finite) = update::apply(&mut self.low, arguments, &self.versions)?;
            update.finite = finite;
            self.recorded.gradients.extend(gradients);
            // Later losses take what the step has computed so far as given, as Keras' steps do.
            for at in 0..self.low.assigns.len() {
                let (param, node) = self.low.assigns[at];
                if self.versions.get(&param).and_then(|all| all.last()) == Some(&node) {
                    continue;
                }
                let node = self.low.graph.stop_gradient(node)?;
                self.low.assigns[at] = (param, node);
                self.versions.entry(param).or_default().push(node);
            }
        }
        self.recorded.updates.push(update);
        Ok(())
    }

    /// Whether the executor's own update can apply the last phase: nothing else updates its weights or uses its optimizer,
    /// and the optimizer's formula is a tape.
    fn main_phase(&self) -> Option<usize> {
        let at = self.open?;
        let phase = &self.recorded.phases[at];
        if self.step.optimizer(phase.optimizer, self.main).updates_whole_weights() {
            return None;
        }
        let free = self.recorded.phases[..at].iter().all(|earlier| {
            let same = |w: &ModelWeight| phase.weights.iter().any(|own| own.param == w.param);
            earlier.optimizer != phase.optimizer && !earlier.weights.iter().any(same)
        });
        free.then_some(at)
    }

    /// Ends the description: the last phase becomes the update of the step if it can, and the graph is complete.
    pub(super) fn finish(mut self) -> Result<(Lowering, Recorded)> {
        if self.step.own_test(self.kind).is_some() {
            if self.recorded.phases.is_empty() && self.recorded.metrics.is_empty() {
                let expected = "one loss or metric or more";
                return Err(Error::argument(self.step.owner(), "test step", expected, "none"));
            }
            self.add_penalties()?;
            return Ok((self.low, self.recorded));
        }
        if self.recorded.phases.is_empty() {
            let expected = "one call of minimize or more";
            return Err(Error::argument(self.step.owner(), "step", expected, "none"));
        }
        self.recorded.main = self.main_phase();
        if self.recorded.main.is_none() {
            self.close()?;
        }
        self.add_penalties()?;
        let main = self.recorded.main.map(|at| &self.recorded.phases[at].weights);
        for param in (0..self.low.graph.params().len() as u32).map(ParamId) {
            if !main.is_some_and(|weights| weights.iter().any(|w| w.param == param)) {
                self.low.graph.freeze(param);
            }
        }
        Ok((self.low, self.recorded))
    }

    /// Reports penalties and added terms with the loss of their phase. The session adds them to the only loss, as for a
    /// compiled model; of several losses each has its own.
    fn add_penalties(&mut self) -> Result<()> {
        let g = &mut self.low.graph;
        let node = match &mut self.recorded.phases[..] {
            [only] => only.penalty,
            several => {
                for phase in several {
                    // The session divides a sum over the samples by their number.
                    let of_samples = g.div(phase.penalty, self.values.share)?;
                    phase.fetch.node = g.add(phase.fetch.node, of_samples)?;
                }
                g.scalar(0.0)
            }
        };
        self.recorded.penalty = Some(Fetch { name: "penalty".into(), node });
        Ok(())
    }
}
