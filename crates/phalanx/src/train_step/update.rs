//! Updates of phases inside the graph: the state of their optimizers, their gradients and their fed numbers.
//!
//! A step has one update of its own, which an executor fuses with the reduction of the gradients. A step with several
//! optimizers computes the others from nodes on reduced gradients ([`update_graph`]): every executor runs them, and what
//! follows reads the new weights. The state of an optimizer is held by a layer without a call, so that it is saved with
//! the run.

use super::step::{CustomStep, Phase, StepOptimizer, Update};
use crate::error::{Error, Result};
use crate::initializers::Initializer;
use crate::layer::{Lowering, ModelWeight, WeightSpec};
use crate::model::steps;
use crate::model::update_graph::{self, Applied, Fed, WeightState, members};
use crate::optimizers::{Optimizer, TrainedWeight};
use phalanx_graph::loss_scale::{LossScale, STATE};
use phalanx_graph::ops::Binary;
use phalanx_graph::update::SlotInit;
use phalanx_graph::{Fetch, Gradient, NodeId, Op, ParamId, Type, autodiff};
use std::collections::HashMap;

/// The name of the loss scale among the slots of an optimizer.
pub(super) const LOSS_SCALE: &str = "loss_scale";

/// Declares a slot, or finds it if an earlier phase has declared it.
fn slot(
    low: &mut Lowering,
    state: &StepOptimizer,
    name: &str,
    dims: &[usize],
    value: f64,
) -> Result<ParamId> {
    let known = low.weights.iter().filter(|w| w.layer.same(&state.slots));
    let found = known.clone().find(|w| state.slots.weights()[w.index].spec.name == name);
    if let Some(found) = found {
        return Ok(found.param);
    }
    let index = known.count();
    let spec = WeightSpec::new(name, dims, Initializer::Constant { value }).non_trainable();
    let declared = low.declare(&state.slots, &state.member(), index, spec);
    declared.map_err(|(what, expected, received)| {
        Error::argument(format!("optimizer '{}'", state.name), what, expected, received)
    })?;
    Ok(low.weights[low.weights.len() - 1].param)
}

/// Declares the state of every weight of a phase. An optimizer that is used again has the same.
pub(super) fn declare_state(
    low: &mut Lowering,
    step: &CustomStep,
    optimizer: &dyn Optimizer,
    state: &StepOptimizer,
    weights: &[ModelWeight],
) -> Result<Vec<WeightState>> {
    let mut all = vec![];
    for weight in weights {
        let spec = weight.layer.weights()[weight.index].spec.clone();
        let name = format!("{}/{}", weight.layer_name, spec.name);
        let of = TrainedWeight { path: step.keras_path(weight)?, dims: spec.dims.clone() };
        let member = optimizer.optimizer_of(&of)?;
        let optimizer = members(optimizer)[member];
        let mut slots = vec![];
        for declared in optimizer.weight_slots(&of) {
            let initial = match declared.init {
                SlotInit::Value(value) => f64::from(value),
                // The first update takes the weight.
                SlotInit::Weight => 0.0,
            };
            let name = format!("{name}/{}", declared.name);
            slots.push((slot(low, state, &name, &declared.dims, initial)?, declared));
        }
        let mut add = |wanted: bool, kind: &str| {
            let name = format!("{name}/{kind}");
            wanted.then(|| slot(low, state, &name, &spec.dims, 0.0)).transpose()
        };
        let common = optimizer.common();
        let average = add(common.use_ema, "average")?;
        let accumulated =
            add(common.gradient_accumulation_steps.is_some(), "gradient_accumulator")?;
        let (param, constraint) = (weight.param, spec.constraint);
        all.push(WeightState { of, param, member, slots, accumulated, average, constraint });
    }
    Ok(all)
}

/// Declares the loss scale of an optimizer that scales its loss.
pub(super) fn declare_scale(
    low: &mut Lowering,
    optimizer: &dyn Optimizer,
    state: &StepOptimizer,
) -> Result<Option<LossScale>> {
    let Some((_, scaling)) = optimizer.inner() else { return Ok(None) };
    let param = slot(low, state, LOSS_SCALE, &[STATE], 1.0)?;
    Ok(Some(LossScale { state: param, growth_steps: scaling.growth_steps }))
}

/// What an update is made of.
pub(super) struct UpdateArguments<'a> {
    pub phase: &'a Phase,
    pub optimizer: &'a dyn Optimizer,
    pub update: &'a Update,
    pub scaling: Option<LossScale>,
    /// The number of the update in the step.
    pub number: usize,
    /// Whether the earlier updates of this optimizer in the step were finite, if losses are scaled.
    pub finite: Vec<NodeId>,
}

/// The reduced gradients of an update, and whether they are finite, if losses are scaled.
pub(super) type AppliedPhase = (Vec<Fetch>, Option<NodeId>);

/// Appends the gradients of a phase and the update of its weights and their state.
pub(super) fn apply(
    low: &mut Lowering,
    arguments: UpdateArguments<'_>,
    versions: &HashMap<ParamId, Vec<NodeId>>,
) -> Result<AppliedPhase> {
    let gradients = gradients(low, &arguments, versions)?;
    let fed = fed_numbers(low, &arguments)?;
    let UpdateArguments { phase, optimizer, update, scaling, .. } = arguments;
    let update = update_graph::Update { optimizer, weights: &update.weights, fed, scaling };
    let Applied { gradients: reduced, scale } = update.append(low, &gradients)?;
    low.graph.enter("");
    let params = low.graph.params();
    let fetch = |(gradient, node): (&Gradient, &NodeId)| {
        let name = format!("{}/{}", phase.fetch.name, params[gradient.param.index()].name);
        Fetch { name, node: *node }
    };
    let fetches = gradients.iter().zip(&reduced).map(fetch).collect();
    Ok((fetches, scale.map(|(finite, _)| finite)))
}

/// How many numbers an update is fed.
pub(super) fn number_count(optimizer: &dyn Optimizer) -> usize {
    update_graph::numbers(optimizer, None, 1, |_| 0.0).len()
}

/// The nodes of the numbers that the host feeds. Where earlier updates of the step may be skipped, the host feeds the
/// numbers for every number of finite ones, and the graph selects among them.
fn fed_numbers(low: &mut Lowering, arguments: &UpdateArguments<'_>) -> Result<Fed> {
    let UpdateArguments { optimizer, update, number, finite, .. } = arguments;
    let count = number_count(*optimizer);
    let g = &mut low.graph;
    let feed = Type::mirrored([count * update.candidates()]);
    let feed = g.add_feed(&format!("update_numbers_{number}"), feed);
    let fed = g.feed(feed);
    let mut row = |at: usize| g.push(Op::Slice { axis: 0, start: at * count, len: count }, &[fed]);
    let rows = (0..update.candidates()).map(&mut row).collect::<Result<Vec<_>, _>>()?;
    let mut chosen = rows[rows.len() - 1];
    if finite.len() + 1 == rows.len() && rows.len() > 1 {
        let mut total = g.scalar(0.0);
        for one in finite {
            total = g.add(total, *one)?;
        }
        chosen = rows[0];
        for (at, row) in rows.iter().enumerate().skip(1) {
            let least = g.scalar(at as f64);
            let reached = g.binary(Binary::Ge, total, least)?;
            chosen = g.select(reached, *row, chosen)?;
        }
    }
    let mut at = 0;
    Fed::new(*optimizer, || {
        let one = g.push(Op::Slice { axis: 0, start: at, len: 1 }, &[chosen])?;
        at += 1;
        Ok(g.reshape(one, &[])?)
    })
}

/// The gradients of a phase by its weights, not yet reduced. Further nodes belong to the update.
fn gradients(
    low: &mut Lowering,
    arguments: &UpdateArguments<'_>,
    versions: &HashMap<ParamId, Vec<NodeId>>,
) -> Result<Vec<Gradient>> {
    let phase = arguments.phase;
    let mut seeds = phase.seeds.clone();
    if let Some(scaling) = arguments.scaling {
        let state = low.value(scaling.state);
        for (_, coefficient) in &mut seeds {
            *coefficient = LossScale::seed(&mut low.graph, state, *coefficient)?;
        }
    }
    let g = &mut low.graph;
    let mut sources: Vec<(ParamId, NodeId)> = vec![];
    for weight in &phase.weights {
        let param = weight.param;
        sources.extend(versions.get(&param).into_iter().flatten().map(|node| (param, *node)));
    }
    for id in g.ids() {
        if let Op::Param { id: param } = g.node(id).op
            && phase.weights.iter().any(|w| w.param == param)
        {
            sources.push((param, id));
        }
    }
    let nodes: Vec<NodeId> = sources.iter().map(|(_, node)| *node).collect();
    let partials = autodiff::gradients(g, &seeds, &nodes)?;
    g.enter(&format!("update of {}", phase.fetch.name));
    let mut out = vec![];
    for weight in &phase.weights {
        let mut sum: Option<NodeId> = None;
        let of_weight =
            sources.iter().zip(&partials).filter(|(source, _)| source.0 == weight.param);
        for partial in of_weight.filter_map(|(_, partial)| *partial) {
            sum = Some(match sum {
                Some(sum) => low.graph.add(sum, partial)?,
                None => partial,
            });
        }
        let (l1, l2) = steps::coefficients(&low.graph, weight).unwrap_or_default();
        let (l1, l2) = (l1 as f32, l2 as f32);
        out.push(Gradient { param: weight.param, node: sum, l1, l2 });
    }
    phase.check_depends(out.iter().any(|gradient| gradient.node.is_some()))?;
    Ok(out)
}
