//! The update of optimizers that need whole weights, as nodes of the training step.
//!
//! Gradients are reduced first. Loss scaling, accumulation, clipping, weight decay, the optimizer's formula and the
//! average of the weights follow as nodes over mirrored values. Slots are parameters beside the weights, and the step
//! assigns all of them at its end. So every executor and strategy runs these optimizers without a kernel of their own.

use crate::error::Result;
use crate::layer::ModelWeight;
use crate::model::definition::{Definition, ModelKind};
use crate::optimizers::{Optimizer, TrainedWeight, WeightSlot, WeightUpdate, sum, sum_of_squares};
use phalanx_exec::Accumulate;
use phalanx_graph::loss_scale::{LossScale, STATE};
use phalanx_graph::ops::{Binary, Unary};
use phalanx_graph::update::{Clip, SlotInit};
use phalanx_graph::{Gradient, Graph, NodeId, Op, ParamId, Scope, Step, Type};

/// The numbers that the host feeds to every step before the optimizers' own: how much of the accumulated gradients is
/// kept, the weight of this batch, what their sum is multiplied by, whether it is applied, and whether this is the first
/// update.
const NUMBERS: usize = 5;

/// The state that an optimizer keeps for one weight, as parameters of the graph.
#[derive(Clone, Debug)]
pub(crate) struct WeightState {
    pub of: TrainedWeight,
    pub param: ParamId,
    /// Which of the [`members`] updates it.
    pub member: usize,
    pub slots: Vec<(ParamId, WeightSlot)>,
    /// Gradients of the batches since the last update.
    pub accumulated: ParamId,
    /// The average of the weight, if the optimizer keeps one.
    pub average: Option<ParamId>,
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

/// Keras' path of a weight. Paths in a `Sequential` model start with its name.
fn path(def: &Definition, weight: &ModelWeight) -> String {
    let name = weight.layer.weights()[weight.index].spec.name.clone();
    let path = format!("{}/{name}", weight.layer_name);
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
            let of = TrainedWeight { path: path(def, weight), dims: spec.dims.clone() };
            let member = optimizer.optimizer_of(&of)?;
            let optimizer = members(optimizer)[member];
            let mut add = |name: &str, dims: &[usize]| {
                g.add_param(&format!("{}/{name}", spec.name), dims, false)
            };
            let slots = optimizer.weight_slots(&of);
            let slots = slots.into_iter().map(|slot| (add(&slot.name, &slot.dims), slot)).collect();
            let average = optimizer.common().use_ema.then(|| add("average", &spec.dims));
            let accumulated = add("gradient_accumulator", &spec.dims);
            states.push(WeightState {
                of,
                param: weight.param,
                member,
                slots,
                accumulated,
                average,
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

/// The numbers that the host feeds to update number `update`. `rate` gives the learning rate of each member.
pub(crate) fn numbers(
    optimizer: &dyn Optimizer,
    accumulate: Option<Accumulate>,
    update: u64,
    rate: impl Fn(&dyn Optimizer) -> f64,
) -> Vec<f32> {
    let flag = |set: bool| f32::from(u8::from(set));
    let mut out = match accumulate {
        None => vec![0.0, 1.0, 1.0, 1.0],
        Some(a) => vec![flag(!a.first), a.weight, a.apply.unwrap_or(0.0), flag(a.apply.is_some())],
    };
    out.push(flag(update <= 1));
    for member in members(optimizer) {
        let rate = rate(member);
        let own = member.step_scalars(rate, update);
        let all = [rate].into_iter().chain(own).chain(member.common().average_scalars(update));
        out.extend(all.map(|s| s as f32));
    }
    out
}

/// The nodes of the fed numbers.
struct Fed {
    keep: NodeId,
    weight: NodeId,
    mean: NodeId,
    apply: NodeId,
    first: NodeId,
    members: Vec<MemberNumbers>,
}

/// The fed numbers of one optimizer.
struct MemberNumbers {
    rate: NodeId,
    own: Vec<NodeId>,
    average: Vec<NodeId>,
}

impl Fed {
    fn declare(g: &mut Graph, optimizer: &dyn Optimizer) -> Fed {
        let mut count = 0;
        let mut feed = |g: &mut Graph| {
            let id = g.add_feed(&format!("update_{count}"), Type::mirrored([]));
            count += 1;
            g.feed(id)
        };
        let shared: [NodeId; NUMBERS] = std::array::from_fn(|_| feed(g));
        let [keep, weight, mean, apply, first] = shared;
        let mut all = vec![];
        for member in members(optimizer) {
            let rate = feed(g);
            let own = (0..member.step_scalars(0.0, 1).len()).map(|_| feed(g)).collect();
            let average = (0..member.common().average_scalars(1).len()).map(|_| feed(g)).collect();
            all.push(MemberNumbers { rate, own, average });
        }
        Fed { keep, weight, mean, apply, first, members: all }
    }
}

/// Appends the update to a step that has gradients. With loss scaling, returns the state of the scale after the step.
pub(crate) fn append(
    step: &mut Step,
    state: &UpdateState,
    optimizer: &dyn Optimizer,
    scaling: Option<LossScale>,
) -> Result<Option<NodeId>> {
    step.graph.set_scope(0);
    let fed = Fed::declare(&mut step.graph, optimizer);
    let gradients = std::mem::take(&mut step.gradients);
    let mut reduced = reduce(&mut step.graph, &gradients)?;
    let mut applies = fed.apply;
    let mut finite = None;
    if let Some(scaling) = scaling {
        let g = &mut step.graph;
        let current = g.param(scaling.state);
        let scale = element(g, current, 0)?;
        reduced = penalized(g, &gradients, reduced, Some(scale))?;
        let all_finite = all_finite(g, &reduced)?;
        applies = g.mul(applies, all_finite)?;
        finite = Some(all_finite);
        for gradient in &mut reduced {
            *gradient = g.div(*gradient, scale)?;
        }
    } else {
        reduced = penalized(&mut step.graph, &gradients, reduced, None)?;
    }
    let mut states = vec![];
    for (gradient, value) in gradients.iter().zip(&mut reduced) {
        let Some(weight) = state.of(gradient.param) else { continue };
        *value = accumulated(step, &fed, weight, *value, finite)?;
        states.push(weight);
    }
    for (i, member) in members(optimizer).into_iter().enumerate() {
        let of_member: Vec<(&WeightState, NodeId)> = states
            .iter()
            .zip(&reduced)
            .filter(|(weight, _)| weight.member == i)
            .map(|(weight, gradient)| (*weight, *gradient))
            .collect();
        let clipped = clipped(&mut step.graph, member.common().clip(), &of_member)?;
        for ((weight, _), gradient) in of_member.into_iter().zip(clipped) {
            apply(step, &fed, member, weight, (gradient, applies))?;
        }
    }
    let (Some(scaling), Some(finite)) = (scaling, finite) else { return Ok(None) };
    let next = scaling.next_node(&mut step.graph, finite)?;
    step.assigns.push((scaling.state, next));
    Ok(Some(next))
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

/// Adds the gradients of the penalties `l1·|w| + l2·w²`, multiplied by the loss scale if there is one.
fn penalized(
    g: &mut Graph,
    gradients: &[Gradient],
    reduced: Vec<NodeId>,
    scale: Option<NodeId>,
) -> Result<Vec<NodeId>> {
    let mut out = vec![];
    for (gradient, mut node) in gradients.iter().zip(reduced) {
        let w = g.param(gradient.param);
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
    step: &mut Step,
    fed: &Fed,
    weight: &WeightState,
    gradient: NodeId,
    finite: Option<NodeId>,
) -> Result<NodeId> {
    let g = &mut step.graph;
    let old = g.param(weight.accumulated);
    let zero = g.scalar(0.0);
    let part = g.mul(gradient, fed.weight)?;
    let kept = g.select(fed.keep, old, zero)?;
    let sum = g.add(kept, part)?;
    let mut new = sum;
    if let Some(finite) = finite {
        new = g.select(finite, sum, old)?;
    }
    let mean = g.mul(sum, fed.mean)?;
    step.assigns.push((weight.accumulated, new));
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
    step: &mut Step,
    fed: &Fed,
    optimizer: &dyn Optimizer,
    weight: &WeightState,
    (gradient, applies): (NodeId, NodeId),
) -> Result<()> {
    let numbers = &fed.members[weight.member];
    let g = &mut step.graph;
    let old = g.param(weight.param);
    let mut decayed = old;
    if let Some(decay) = optimizer.decay_of(&weight.of) {
        let rate = g.scale(numbers.rate, decay)?;
        let loss = g.mul(old, rate)?;
        decayed = g.sub(old, loss)?;
    }
    let (mut olds, mut slots) = (vec![], vec![]);
    for (param, slot) in &weight.slots {
        let held = g.param(*param);
        olds.push((*param, held));
        slots.push(match slot.init {
            SlotInit::Value(_) => held,
            SlotInit::Weight => g.select(fed.first, old, held)?,
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
    let mut changes: Vec<(ParamId, NodeId, NodeId)> =
        olds.into_iter().zip(news).map(|((param, old), new)| (param, old, new)).collect();
    if let Some((param, keep)) = weight.average.zip(numbers.average.first().copied()) {
        let held = g.param(param);
        let one = g.scalar(1.0);
        let share = g.sub(one, keep)?;
        let (kept, part) = (g.mul(held, keep)?, g.mul(new, share)?);
        let average = g.add(kept, part)?;
        if let Some(overwrite) = numbers.average.get(1) {
            new = g.select(*overwrite, average, new)?;
        }
        changes.push((param, held, average));
    }
    changes.push((weight.param, old, new));
    for (param, old, new) in changes {
        if old != new {
            let value = step.graph.select(applies, new, old)?;
            step.assigns.push((param, value));
        }
    }
    Ok(())
}
