//! Updates as nodes of the training step: of optimizers that need whole weights, and of the earlier phases of custom
//! training steps.
//!
//! Gradients are reduced first. Loss scaling, accumulation, clipping, weight decay, the optimizer's formula and the
//! average of the weights follow as nodes over mirrored values. Slots are parameters beside the weights, and the step
//! assigns all of them at its end. So every executor and strategy runs these updates without a kernel of their own.

mod fed;

pub(crate) use fed::{Fed, numbers};

use crate::constraints::Constraint;
use crate::error::Result;
use crate::layer::{Lowering, ModelWeight};
use crate::model::definition::{Definition, ModelKind};
use crate::optimizers::{Optimizer, TrainedWeight, WeightSlot, WeightUpdate, sum, sum_of_squares};
use phalanx_graph::loss_scale::{LossScale, STATE};
use phalanx_graph::ops::{Binary, Unary};
use phalanx_graph::update::{Clip, SlotInit};
use phalanx_graph::{Gradient, Graph, NodeId, Op, ParamId, Scope, Step};

/// The state that an optimizer keeps for one weight, as parameters of the graph.
#[derive(Clone, Debug)]
pub(crate) struct WeightState {
    pub of: TrainedWeight,
    pub param: ParamId,
    /// Which of the [`members`] updates it.
    pub member: usize,
    pub slots: Vec<(ParamId, WeightSlot)>,
    /// Gradients of the batches since the last update, if batches may be accumulated.
    pub accumulated: Option<ParamId>,
    /// The average of the weight, if the optimizer keeps one.
    pub average: Option<ParamId>,
    /// The projection that follows the update, unless the session applies it after the step.
    pub constraint: Option<Constraint>,
}

/// The state of an optimizer that updates whole weights.
#[derive(Clone, Debug)]
pub(crate) struct UpdateState {
    pub weights: Vec<WeightState>,
}

/// The optimizers that update weights: those that an optimizer joins, or itself.
pub(crate) fn members(optimizer: &dyn Optimizer) -> Vec<&dyn Optimizer> {
    let optimizer = optimizer.inner().map_or(optimizer, |(inner, _)| inner);
    let joined = optimizer.optimizers();
    if joined.is_empty() { vec![optimizer] } else { joined }
}

/// What an update reads and assigns.
pub(crate) trait Parameters {
    fn graph(&mut self) -> &mut Graph;

    /// The value of a parameter at this point of the step.
    fn value(&mut self, param: ParamId) -> NodeId;

    /// Assigns a value at the end of the step.
    fn assign(&mut self, param: ParamId, value: NodeId);
}

/// A step that has its backward pass: the only update of the step.
impl Parameters for Step {
    fn graph(&mut self) -> &mut Graph {
        &mut self.graph
    }

    fn value(&mut self, param: ParamId) -> NodeId {
        self.graph.param(param)
    }

    fn assign(&mut self, param: ParamId, value: NodeId) {
        self.assigns.push((param, value));
    }
}

/// A step under construction: what follows sees the update.
impl Parameters for Lowering {
    fn graph(&mut self) -> &mut Graph {
        &mut self.graph
    }

    fn value(&mut self, param: ParamId) -> NodeId {
        Lowering::value(self, param)
    }

    fn assign(&mut self, param: ParamId, value: NodeId) {
        Lowering::assign(self, param, value);
    }
}

/// Parts of the names of weights in files, and what Keras calls those sublayers in the paths of variables.
const SUBLAYERS: [(&str, &str); 4] = [
    ("query_dense/", "query/"),
    ("key_dense/", "key/"),
    ("value_dense/", "value/"),
    ("output_dense/", "attention_output/"),
];

/// Keras' path of a weight of a layer. Paths in a `Sequential` model start with its name.
pub(crate) fn path(def: &Definition, layer: &str, weight: &ModelWeight) -> String {
    let name = weight.layer.weights()[weight.index].spec.name.clone();
    let of_sublayer = SUBLAYERS
        .iter()
        .find_map(|(ours, keras)| name.strip_prefix(ours).map(|rest| format!("{keras}{rest}")));
    let path = format!("{layer}/{}", of_sublayer.unwrap_or(name));
    match def.kind() {
        ModelKind::Sequential => format!("{}/{path}", def.name),
        ModelKind::Functional => path,
    }
}

impl UpdateState {
    /// Declares the state as parameters of the graph. `None` if the optimizer's formula is a tape.
    pub fn declare(
        g: &mut Graph,
        def: &Definition,
        weights: &[ModelWeight],
        optimizer: &dyn Optimizer,
    ) -> Result<Option<UpdateState>> {
        if !optimizer.updates_whole_weights() {
            return Ok(None);
        }
        let mut states: Vec<WeightState> = vec![];
        for weight in weights {
            let spec = g.params()[weight.param.index()].clone();
            if !spec.trainable || states.iter().any(|s| s.param == weight.param) {
                continue;
            }
            let of = TrainedWeight {
                path: path(def, &weight.layer_name, weight),
                dims: spec.dims.clone(),
            };
            let member = optimizer.optimizer_of(&of)?;
            let optimizer = members(optimizer)[member];
            let mut add = |name: &str, dims: &[usize]| {
                g.add_param(&format!("{}/{name}", spec.name), dims, false)
            };
            let slots = optimizer.weight_slots(&of);
            let slots = slots.into_iter().map(|slot| (add(&slot.name, &slot.dims), slot)).collect();
            let average = optimizer.common().use_ema.then(|| add("average", &spec.dims));
            let accumulated = Some(add("gradient_accumulator", &spec.dims));
            states.push(WeightState {
                of,
                param: weight.param,
                member,
                slots,
                accumulated,
                average,
                constraint: None,
            });
        }
        Ok(Some(UpdateState { weights: states }))
    }

    /// The slots that do not start at zero.
    pub fn initial_values(&self) -> impl Iterator<Item = (ParamId, Vec<f32>)> {
        self.weights.iter().flat_map(|w| &w.slots).filter_map(|(param, slot)| match slot.init {
            SlotInit::Value(v) if v != 0.0 => {
                Some((*param, vec![v; slot.dims.iter().product::<usize>()]))
            }
            _ => None,
        })
    }

    /// The state of a weight.
    pub fn of(&self, param: ParamId) -> Option<&WeightState> {
        self.weights.iter().find(|w| w.param == param)
    }
}

/// An update of weights whose state is declared.
pub(crate) struct Update<'a> {
    pub optimizer: &'a dyn Optimizer,
    pub weights: &'a [WeightState],
    pub fed: Fed,
    pub scaling: Option<LossScale>,
}

/// What an update computes besides the new weights and their state.
pub(crate) struct Applied {
    /// The reduced gradients with their penalties, before clipping and accumulation.
    pub gradients: Vec<NodeId>,
    /// With loss scaling: whether all of them are finite, and the state of the scale after the update.
    pub scale: Option<(NodeId, NodeId)>,
}

/// Appends the update to a step that has gradients. With loss scaling, returns the state of the scale after the step.
pub(crate) fn append(
    step: &mut Step,
    state: &UpdateState,
    optimizer: &dyn Optimizer,
    scaling: Option<LossScale>,
) -> Result<Option<NodeId>> {
    step.graph.set_layer(0);
    let fed = Fed::declare(&mut step.graph, optimizer)?;
    let gradients = std::mem::take(&mut step.gradients);
    let update = Update { optimizer, weights: &state.weights, fed, scaling };
    let applied = update.append(step, &gradients)?;
    Ok(applied.scale.map(|(_, next)| next))
}

impl Update<'_> {
    /// Appends the update of the weights of these gradients.
    pub fn append(self, p: &mut impl Parameters, gradients: &[Gradient]) -> Result<Applied> {
        let reduced = reduce(p.graph(), gradients)?;
        let mut scale = None;
        if let Some(scaling) = self.scaling {
            let current = p.value(scaling.state);
            scale = Some((current, element(p.graph(), current, 0)?));
        }
        let factor = scale.map(|(_, factor)| factor);
        let mut reduced = penalized(p, gradients, reduced, factor)?;
        let mut finite = None;
        if let Some(factor) = factor {
            let g = p.graph();
            finite = Some(all_finite(g, &reduced)?);
            for gradient in &mut reduced {
                *gradient = g.div(*gradient, factor)?;
            }
        }
        let accumulates = self.weights.iter().any(|w| w.accumulated.is_some());
        let applies = match (accumulates, finite) {
            (true, Some(finite)) => Some(p.graph().mul(self.fed.apply, finite)?),
            (true, None) => Some(self.fed.apply),
            (false, finite) => finite,
        };
        let mut states = vec![];
        for (gradient, value) in gradients.iter().zip(&reduced) {
            let weight = self.weights.iter().find(|w| w.param == gradient.param);
            let Some(weight) = weight else { continue };
            states.push((weight, accumulated(p, &self.fed, weight, *value, finite)?));
        }
        for (i, member) in members(self.optimizer).into_iter().enumerate() {
            let of_member: Vec<(&WeightState, NodeId)> =
                states.iter().filter(|(weight, _)| weight.member == i).copied().collect();
            let clipped = clipped(p.graph(), member.common().clip(), &of_member)?;
            for ((weight, _), gradient) in of_member.into_iter().zip(clipped) {
                apply(p, &self.fed, member, weight, (gradient, applies))?;
            }
        }
        let scale = match (self.scaling, scale, finite) {
            (Some(scaling), Some((current, _)), Some(finite)) => {
                let next = scaling.next_node(p.graph(), current, finite)?;
                p.assign(scaling.state, next);
                Some((finite, next))
            }
            _ => None,
        };
        Ok(Applied { gradients: reduced, scale })
    }
}

/// The gradients summed over all workers. All sums come first, so that the workers wait only once.
fn reduce(g: &mut Graph, gradients: &[Gradient]) -> Result<Vec<NodeId>> {
    let sum = |gradient: &Gradient| match gradient.node {
        Some(partial) => Ok(g.push(Op::AllReduce { scope: Scope::All }, &[partial])?),
        None => {
            let dims = g.params()[gradient.param.index()].dims.clone();
            Ok(g.fill(0.0, &dims))
        }
    };
    gradients.iter().map(sum).collect()
}

/// Adds the gradients of the penalties `l1·|w| + l2·w²`, multiplied by the loss scale if any.
fn penalized(
    p: &mut impl Parameters,
    gradients: &[Gradient],
    reduced: Vec<NodeId>,
    scale: Option<NodeId>,
) -> Result<Vec<NodeId>> {
    let mut out = vec![];
    for (gradient, mut node) in gradients.iter().zip(reduced) {
        let w = p.value(gradient.param);
        let g = p.graph();
        for (coefficient, derivative) in [(gradient.l1, None), (2.0 * gradient.l2, Some(w))] {
            if coefficient == 0.0 {
                continue;
            }
            let derivative = match derivative {
                Some(w) => w,
                None => g.unary(Unary::Sign, w)?,
            };
            let mut term = g.scale(derivative, f64::from(coefficient))?;
            if let Some(scale) = scale {
                term = g.mul(term, scale)?;
            }
            node = g.add(node, term)?;
        }
        out.push(node);
    }
    Ok(out)
}

/// One element of a vector, as a scalar.
fn element(g: &mut Graph, vector: NodeId, at: usize) -> Result<NodeId> {
    debug_assert!(at < STATE);
    let one = g.push(Op::Slice { axis: 0, start: at, len: 1 }, &[vector])?;
    Ok(g.reshape(one, &[])?)
}

/// 1 if all gradients are finite, else 0: only a finite number times zero is zero.
fn all_finite(g: &mut Graph, gradients: &[NodeId]) -> Result<NodeId> {
    let zero = g.scalar(0.0);
    let mut finite = g.scalar(1.0);
    for gradient in gradients {
        let zeros = g.mul(*gradient, zero)?;
        let sum = sum(g, zeros)?;
        let of_gradient = g.binary(Binary::Eq, sum, zero)?;
        finite = g.mul(finite, of_gradient)?;
    }
    Ok(finite)
}

/// Adds a gradient to those of the batches before it. Returns the gradient to apply.
fn accumulated(
    p: &mut impl Parameters,
    fed: &Fed,
    weight: &WeightState,
    gradient: NodeId,
    finite: Option<NodeId>,
) -> Result<NodeId> {
    let Some(param) = weight.accumulated else { return Ok(gradient) };
    let old = p.value(param);
    let g = p.graph();
    let zero = g.scalar(0.0);
    let part = g.mul(gradient, fed.weight)?;
    let kept = g.select(fed.keep, old, zero)?;
    let sum = g.add(kept, part)?;
    let mut new = sum;
    if let Some(finite) = finite {
        new = g.select(finite, sum, old)?;
    }
    let mean = g.mul(sum, fed.mean)?;
    p.assign(param, new);
    Ok(mean)
}

/// The gradients of one optimizer, clipped.
fn clipped(
    g: &mut Graph,
    clip: Option<Clip>,
    gradients: &[(&WeightState, NodeId)],
) -> Result<Vec<NodeId>> {
    let limited = |g: &mut Graph, square: NodeId, limit: f32| -> Result<NodeId> {
        let norm = g.unary(Unary::Sqrt, square)?;
        let (limit, one) = (g.scalar(f64::from(limit)), g.scalar(1.0));
        let above = g.binary(Binary::Gt, norm, limit)?;
        let factor = g.div(limit, norm)?;
        Ok(g.select(above, factor, one)?)
    };
    let global = match clip {
        Some(Clip::GlobalNorm(limit)) => {
            let mut square = g.scalar(0.0);
            for (_, gradient) in gradients {
                let own = sum_of_squares(g, *gradient)?;
                square = g.add(square, own)?;
            }
            Some(limited(g, square, limit)?)
        }
        _ => None,
    };
    let mut out = vec![];
    for (_, gradient) in gradients {
        out.push(match clip {
            None => *gradient,
            Some(Clip::Value(limit)) => g.clamp(*gradient, -f64::from(limit), f64::from(limit))?,
            Some(Clip::Norm(limit)) => {
                let square = sum_of_squares(g, *gradient)?;
                let factor = limited(g, square, limit)?;
                g.mul(*gradient, factor)?
            }
            Some(Clip::GlobalNorm(_)) => g.mul(*gradient, global.expect("computed above"))?,
        });
    }
    Ok(out)
}

/// Updates one weight: its decay, the optimizer's formula and the average. Where `applies` is 0, nothing changes.
fn apply(
    p: &mut impl Parameters,
    fed: &Fed,
    optimizer: &dyn Optimizer,
    weight: &WeightState,
    (gradient, applies): (NodeId, Option<NodeId>),
) -> Result<()> {
    let numbers = &fed.members[weight.member];
    let old = p.value(weight.param);
    let held: Vec<NodeId> = weight.slots.iter().map(|(param, _)| p.value(*param)).collect();
    let average = weight.average.map(|param| (param, p.value(param)));
    let g = p.graph();
    let mut decayed = old;
    if let Some(decay) = optimizer.decay_of(&weight.of) {
        let rate = g.scale(numbers.rate, decay)?;
        let loss = g.mul(old, rate)?;
        decayed = g.sub(old, loss)?;
    }
    let mut slots = vec![];
    for ((_, slot), held) in weight.slots.iter().zip(&held) {
        slots.push(match slot.init {
            SlotInit::Value(_) => *held,
            SlotInit::Weight => g.select(fed.first, old, *held)?,
        });
    }
    let mut update = WeightUpdate {
        graph: &mut *g,
        weight: decayed,
        gradient,
        slots,
        scalars: numbers.own.clone(),
    };
    let (mut new, news) = optimizer.update(&weight.of, &mut update)?;
    let params = weight.slots.iter().map(|(param, _)| *param);
    let mut changes: Vec<(ParamId, NodeId, NodeId)> =
        params.zip(held).zip(news).map(|((param, old), new)| (param, old, new)).collect();
    if let Some(((param, held), keep)) = average.zip(numbers.average.first().copied()) {
        let one = g.scalar(1.0);
        let share = g.sub(one, keep)?;
        let (kept, part) = (g.mul(held, keep)?, g.mul(new, share)?);
        let average = g.add(kept, part)?;
        if let Some(overwrite) = numbers.average.get(1) {
            new = g.select(*overwrite, average, new)?;
        }
        changes.push((param, held, average));
    }
    if let Some(constraint) = &weight.constraint {
        new = constraint.project(g, new)?;
    }
    changes.push((weight.param, old, new));
    for (param, old, mut new) in changes {
        if old == new {
            continue;
        }
        if let Some(applies) = applies {
            new = p.graph().select(applies, new, old)?;
        }
        p.assign(param, new);
    }
    Ok(())
}
