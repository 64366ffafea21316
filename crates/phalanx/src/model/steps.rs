//! Construction of the training, evaluation, prediction and gradient steps from a lowered model.
//!
//! Order of the feeds: the model's inputs, one target per output with a loss or metrics, the sample weights (one
//! vector, or those of each target), one loss scale per loss (the reciprocal of the divisor of its weighted loss sum), and the numbers of an update of whole weights.
//! Order of the fetches: one loss sum per loss, the regularization penalty, the metric sums, counts of integers that are
//! not exact and, with loss scaling, the loss scale after the update.

use crate::error::{Error, Result};
use crate::layer::{Lowering, ModelWeight, Operand, is_integer_check};
use crate::losses::{Loss, Reduction};
use crate::model::sample_weights::{
    SampleWeights, at_positions, check_ignored, of_metric, weighted_sample, without_ignored,
};
use crate::model::session::{Objective, Tracked};
use crate::model::update_graph::{self, UpdateState};
use crate::regularizers::Regularizer;
use phalanx_graph::autodiff;
use phalanx_graph::loss_scale::LossScale;
use phalanx_graph::ops::{Binary, Unary};
use phalanx_graph::passes::{checked, fuse_epilogues};
use phalanx_graph::update::UpdateRule;
use phalanx_graph::{Fetch, Gradient, Graph, NodeId, Op, ParamId, ParamSpec, Scope, Step, Type};
use std::collections::HashMap;

/// A lowered model: the graph and its outputs.
pub(crate) struct Lowered {
    pub low: Lowering,
    pub outputs: Vec<Operand>,
    /// Dimensions of the sample weights of each target, without the samples; none if all targets have one weight for each
    /// sample.
    pub weights: Vec<Vec<usize>>,
    /// Loss scaling in training, if any.
    pub scaling: Option<LossScale>,
    /// The state of an optimizer that updates whole weights.
    pub state: Option<UpdateState>,
}

/// The seeds of autodiff: per-sample losses and the coefficient of each sample in the total.
pub(crate) type Seeds = Vec<(NodeId, NodeId)>;

pub(crate) fn reduced_fetch(g: &mut Graph, name: String, partial: NodeId) -> Result<Fetch> {
    let node = g.push(Op::AllReduce { scope: Scope::All }, &[partial])?;
    Ok(Fetch { name, node })
}

/// Appends losses, metrics and penalty, for training and evaluation.
fn objective(l: &mut Lowered, objective: &Objective) -> Result<(Vec<Fetch>, Seeds)> {
    let g = &mut l.low.graph;
    let mut targets = HashMap::new();
    for output in objective.compared() {
        let ty = objective.target_type(output, g.ty(l.outputs[output].node))?;
        let feed = g.add_feed(&format!("target_{output}"), ty);
        targets.insert(output, g.feed(feed));
    }
    let weights = SampleWeights::declare(g, &objective.compared(), &l.weights)?;
    let ones = weights.ones;

    let (mut fetches, mut seeds) = (vec![], vec![]);
    for (i, loss) in objective.losses.iter().enumerate() {
        let scale_feed = g.add_feed(&format!("loss_scale_{i}"), Type::mirrored([]));
        let scale = g.feed(scale_feed);
        let output = objective.trained[i];
        let values = loss.call(g, targets[&output], l.outputs[output].node)?;
        let mask = l.outputs[output].mask;
        let weight = (&*objective.output_names[output], weights.of(output));
        let weight = at_positions(g, weight, values)?;
        let values = (targets[&output], values);
        let (values, share) = counted_values(g, loss.as_ref(), values, mask, [ones, weight])?;
        let (mut sample, weight) = weighted_sample(g, loss.as_ref(), values, &weights, weight)?;
        if let Some(share) = share {
            sample = g.mul(sample, share)?;
        }
        let weighted = g.mul(sample, weight)?;
        let sum = g.push(Op::SumRows, &[weighted])?;
        fetches.push(reduced_fetch(g, format!("loss_{i}"), sum)?);
        let coefficient = g.mul(weight, scale)?;
        let coefficient = g.scale(coefficient, objective.loss_weights[i])?;
        seeds.push((sample, coefficient));
    }
    let declared = l.low.weights.clone();
    let mut node = penalty_of(&mut l.low, &declared)?;
    let mut terms = other_penalties(&mut l.low, &declared)?;
    terms.append(&mut l.low.losses);
    let g = &mut l.low.graph;
    for term in terms {
        let (value, seed) = added_loss(g, term, ones)?;
        node = g.add(node, value)?;
        seeds.push(seed);
    }
    fetches.push(Fetch { name: "penalty".into(), node });
    for (i, metrics) in objective.metrics.iter().enumerate() {
        for Tracked { metric, weighted, .. } in metrics {
            let weight = if *weighted { weights.of(i) } else { ones };
            let Operand { node, mask } = l.outputs[i];
            let mut weight = of_metric(g, metric.as_ref(), weight, (mask, node))?;
            match mask {
                Some(_) => weight = without_ignored(g, metric.as_ref(), weight, targets[&i])?,
                None => check_ignored(metric.as_ref(), *weighted)?,
            }
            let state = metric.update(g, targets[&i], node, weight)?;
            fetches.push(reduced_fetch(g, format!("metric {}", metric.name()), state)?);
        }
    }
    fetches.extend(l.low.integer_fetches()?);
    Ok((fetches, seeds))
}

/// Whether layers add terms to the loss: their own, or penalties of weights that are trained.
pub(crate) fn has_penalties(low: &Lowering) -> bool {
    let penalized = |weight: &ModelWeight| {
        let trained = low.graph.params()[weight.param.index()].trainable;
        trained && weight.layer.weights()[weight.index].spec.regularizer.is_some()
    };
    !low.losses.is_empty() || low.weights.iter().any(penalized)
}

/// Appends the mean over the batch of a term that a layer added to the loss. Returns it with its seed.
pub(crate) fn added_loss(
    g: &mut Graph,
    term: NodeId,
    ones: NodeId,
) -> Result<(NodeId, (NodeId, NodeId))> {
    // A value that all samples share has the share of a sample in each of them.
    let of_sample = g.mul(term, ones)?;
    let mut sums = [of_sample, ones];
    for sum in &mut sums {
        let partial = g.push(Op::SumRows, &[*sum])?;
        *sum = g.push(Op::AllReduce { scope: Scope::All }, &[partial])?;
    }
    let [total, rows] = sums;
    let coefficient = g.div(ones, rows)?;
    Ok((g.div(total, rows)?, (of_sample, coefficient)))
}

/// Zeroes the loss values that do not count, because of the mask of the output or of the loss itself. Returns them with
/// the factor of [`valid_share`], if any.
pub(crate) fn counted_values(
    g: &mut Graph,
    loss: &dyn Loss,
    (y_true, values): (NodeId, NodeId),
    mask: Option<NodeId>,
    [ones, weight]: [NodeId; 2],
) -> Result<(NodeId, Option<NodeId>)> {
    let mut masks = vec![];
    if let Some(mask) = mask {
        masks.push(positions(g, mask, values)?);
    }
    masks.extend(loss.value_mask(g, y_true, values)?);
    let mask = match masks[..] {
        [] => return Ok((values, None)),
        [mask] => mask,
        [mask, own, ..] => g.mul(mask, own)?,
    };
    let values = g.mul(values, mask)?;
    let share = valid_share(g, loss, mask, [ones, weight])?;
    Ok((values, share))
}

/// Gives a mask as many axes as `values`, so that it broadcasts over the last ones.
fn positions(g: &mut Graph, mask: NodeId, values: NodeId) -> Result<NodeId> {
    let mut dims = g.ty(mask).dims.clone();
    let rank = g.ty(values).dims.len();
    if dims.len() == rank + 1 && dims.last() == Some(&1) {
        // The loss has reduced this axis.
        dims.pop();
    }
    if dims.len() > rank {
        let received = g.ty(mask).shape_text();
        let expected =
            format!("at most the axes of the loss values, {}", g.ty(values).shape_text());
        return Err(Error::argument("the mask of an output", "shape", expected, received));
    }
    dims.resize(rank, 1);
    Ok(g.reshape(mask, &dims)?)
}

/// The factor that turns a mean over all positions of the batch into a mean over the valid ones: the number of positions
/// over the number of valid ones, 0 if none is valid. A sum needs none. Samples or positions count with their weights if the
/// mean does.
fn valid_share(
    g: &mut Graph,
    loss: &dyn Loss,
    mask: NodeId,
    [ones, weight]: [NodeId; 2],
) -> Result<Option<NodeId>> {
    let positions = g.ty(mask).len();
    let mut valid = g.mean_row(mask)?;
    valid = g.scale(valid, positions as f64)?;
    let mut factor = positions as f64;
    let all = match loss.reduction() {
        Reduction::SumOverBatchSize => ones,
        Reduction::Sum => return Ok(None),
        Reduction::MeanWithSampleWeight if !g.ty(weight).dims.is_empty() => {
            let counted = g.mul(mask, weight)?;
            let elements = [counted, weight].map(|node| g.ty(node).len() as f64);
            let means = [g.mean_row(counted)?, g.mean_row(weight)?];
            valid = g.scale(means[0], elements[0])?;
            factor = elements[1];
            means[1]
        }
        Reduction::MeanWithSampleWeight => {
            valid = g.mul(valid, weight)?;
            weight
        }
    };
    let mut counts = [valid, all];
    for count in &mut counts {
        let partial = g.push(Op::SumRows, &[*count])?;
        *count = g.push(Op::AllReduce { scope: Scope::All }, &[partial])?;
    }
    let [valid, rows] = counts;
    let total = g.scale(rows, factor)?;
    let quotient = g.div(total, valid)?;
    let zero = g.scalar(0.0);
    let some = g.binary(Binary::Gt, valid, zero)?;
    Ok(Some(g.select(some, quotient, zero)?))
}

/// Returns the L1 and L2 coefficients of a trainable weight, if it is regularized.
pub(crate) fn coefficients(g: &Graph, weight: &ModelWeight) -> Option<(f64, f64)> {
    let trained = g.params()[weight.param.index()].trainable;
    let spec = &weight.layer.weights()[weight.index].spec;
    let (l1, l2) = spec.regularizer.as_ref().filter(|_| trained)?.coefficients();
    (l1 != 0.0 || l2 != 0.0).then_some((l1, l2))
}

/// Appends `Σ l1·|w| + l2·w²` over all regularized weights, as they are at this point of the step. Replicas do not
/// multiply it.
pub(crate) fn penalty_of(low: &mut Lowering, weights: &[ModelWeight]) -> Result<NodeId> {
    let mut total = low.graph.scalar(0.0);
    for weight in weights {
        let Some((l1, l2)) = coefficients(&low.graph, weight) else { continue };
        let w = low.value(weight.param);
        let g = &mut low.graph;
        let axes: Vec<usize> = (0..g.ty(w).dims.len()).collect();
        let penalty = Regularizer::l1_l2(l1, l2).penalty(g, w, &axes)?;
        if let Some(penalty) = penalty {
            total = g.add(total, penalty)?;
        }
    }
    Ok(total)
}

/// Appends the penalties that no coefficients describe. They are differentiated like other terms of the loss.
pub(crate) fn other_penalties(low: &mut Lowering, weights: &[ModelWeight]) -> Result<Vec<NodeId>> {
    let mut terms = vec![];
    for weight in weights {
        let trained = low.graph.params()[weight.param.index()].trainable;
        let regularizer = weight.layer.weights()[weight.index].spec.regularizer.clone();
        if let Some(regularizer) = regularizer.filter(|_| trained) {
            let value = low.value(weight.param);
            terms.extend(regularizer.other_penalty(&mut low.graph, value)?);
        }
    }
    Ok(terms)
}

/// Builds the training step: forward, backward, gradient reduction and update.
pub(crate) fn train(mut l: Lowered, goal: &Objective) -> Result<Step> {
    let (state, scaling) = (l.state.take(), l.scaling);
    let (fetches, seeds) = objective(&mut l, goal)?;
    let Some(state) = state else {
        return with_update(l.low, fetches, seeds, scaling, goal.optimizer.rule());
    };
    let mut step = backward(l.low, fetches, seeds, scaling)?;
    let scale = update_graph::append(&mut step, &state, &*goal.optimizer, scaling)?;
    step.fetches.extend(scale.map(|node| Fetch { name: "loss_scale".into(), node }));
    Ok(checked("autodiff", step)?)
}

/// Builds a training step whose weights the executor updates by a rule.
pub(crate) fn with_update(
    low: Lowering,
    fetches: Vec<Fetch>,
    seeds: Seeds,
    scaling: Option<LossScale>,
    rule: UpdateRule,
) -> Result<Step> {
    let mut step = backward(low, fetches, seeds, scaling)?;
    step.update = Some(rule);
    step.loss_scale = scaling;
    if let Some(scaling) = scaling {
        let node = step.graph.param(scaling.state);
        step.fetches.push(Fetch { name: "loss_scale".into(), node });
    }
    Ok(checked("autodiff", step)?)
}

/// Appends the backward pass from the seeds to the trainable parameters.
fn backward(
    mut low: Lowering,
    fetches: Vec<Fetch>,
    mut seeds: Seeds,
    scaling: Option<LossScale>,
) -> Result<Step> {
    if let Some(scaling) = scaling {
        let state = low.graph.param(scaling.state);
        for (_, coefficient) in &mut seeds {
            *coefficient = LossScale::seed(&mut low.graph, state, *coefficient)?;
        }
    }
    let Lowering { graph, assigns, weights, .. } = low;
    let mut step = Step::new("train", graph);
    let fetch_count = fetches.len();
    step.fetches = fetches;
    step.assigns = assigns;
    // The seeds go through the pass as fetches, which yields their new node ids.
    for (sample, coefficient) in &seeds {
        for node in [sample, coefficient] {
            step.fetches.push(Fetch { name: "seed".into(), node: *node });
        }
    }
    let mut step = checked("fuse_epilogues", fuse_epilogues(step))?;
    let seed_nodes: Vec<NodeId> = step.fetches.drain(fetch_count..).map(|f| f.node).collect();
    let seeds: Seeds = seed_nodes.chunks(2).map(|c| (c[0], c[1])).collect();

    let g = &mut step.graph;
    let trained: Vec<(ParamId, NodeId)> = g
        .ids()
        .filter_map(|id| match g.node(id).op {
            Op::Param { id: param } if g.params()[param.index()].trainable => Some((param, id)),
            _ => None,
        })
        .collect();
    let nodes: Vec<NodeId> = trained.iter().map(|(_, n)| *n).collect();
    let partials = autodiff::gradients(g, &seeds, &nodes)?;
    for weight in weights {
        let at = trained.iter().position(|(p, _)| *p == weight.param);
        let Some(at) = at else { continue };
        let (l1, l2) = coefficients(g, &weight).unwrap_or_default();
        let (l1, l2) = (l1 as f32, l2 as f32);
        step.gradients.push(Gradient { param: weight.param, node: partials[at], l1, l2 });
    }
    Ok(step)
}

/// Builds the step of forward and backward passes that fetches the reduced gradients, in the order of the
/// trainable weights.
pub(crate) fn gradients(mut l: Lowered, goal: &Objective) -> Result<Step> {
    let (mut fetches, seeds) = objective(&mut l, goal)?;
    fetches.retain(|fetch| is_integer_check(&fetch.name));
    fetch_gradients(backward(l.low, fetches, seeds, None)?, "")
}

/// Turns a training step into one that fetches the reduced gradients under their names with a prefix, and changes nothing.
pub(crate) fn fetch_gradients(mut step: Step, prefix: &str) -> Result<Step> {
    (step.update, step.loss_scale) = (None, None);
    step.name = "gradients".into();
    step.assigns.clear();
    for grad in std::mem::take(&mut step.gradients) {
        let g = &mut step.graph;
        let spec = g.params()[grad.param.index()].clone();
        let reduced = match grad.node {
            Some(partial) => Some(g.push(Op::AllReduce { scope: Scope::All }, &[partial])?),
            None => None,
        };
        let w = g.param(grad.param);
        let penalty = (f64::from(grad.l1), f64::from(grad.l2));
        let node = match add_penalty(g, reduced, w, penalty)? {
            Some(node) => node,
            None => g.fill(0.0, &spec.dims),
        };
        step.fetches.push(Fetch { name: format!("{prefix}{}", spec.name), node });
    }
    Ok(step)
}

/// A reduced gradient plus the derivative `l1·sign(w) + 2·l2·w` of the penalty; `None` if there is neither.
pub(crate) fn add_penalty(
    g: &mut Graph,
    reduced: Option<NodeId>,
    w: NodeId,
    (l1, l2): (f64, f64),
) -> Result<Option<NodeId>> {
    let mut terms: Vec<NodeId> = reduced.into_iter().collect();
    if l1 != 0.0 {
        let sign = g.unary(Unary::Sign, w)?;
        terms.push(g.scale(sign, l1)?);
    }
    if l2 != 0.0 {
        terms.push(g.scale(w, 2.0 * l2)?);
    }
    let mut sum = None;
    for term in terms {
        sum = Some(match sum {
            Some(sum) => g.add(sum, term)?,
            None => term,
        });
    }
    Ok(sum)
}

/// Builds the evaluation step: forward, losses and metrics.
pub(crate) fn test(mut l: Lowered, goal: &Objective) -> Result<Step> {
    let (fetches, _) = objective(&mut l, goal)?;
    let mut step = Step::new("test", l.low.graph);
    (step.fetches, step.assigns) = (fetches, l.low.assigns);
    Ok(checked("fuse_epilogues", fuse_epilogues(step))?)
}

/// Builds the prediction step: forward only.
pub(crate) fn predict(mut l: Lowered) -> Result<Step> {
    let checks = l.low.integer_fetches()?;
    let mut step = Step::new("predict", l.low.graph);
    step.assigns = l.low.assigns;
    step.fetches = l
        .outputs
        .iter()
        .enumerate()
        .map(|(i, output)| Fetch { name: format!("output_{i}"), node: output.node })
        .chain(checks)
        .collect();
    Ok(fuse_epilogues(step))
}

/// Builds the step that updates weights with gradients from the host. A gradient is the only row of a batch, so the sum
/// over the rows of all workers is the gradient itself.
pub(crate) fn apply(params: &[ParamSpec], trained: &[ParamId], rule: UpdateRule) -> Result<Step> {
    let mut step = Step::new("apply_gradients", Graph::new());
    for spec in params {
        step.graph.add_param(&spec.name, &spec.dims, spec.trainable);
    }
    for param in trained {
        let spec = &params[param.index()];
        let feed = step.graph.add_feed(&spec.name, Type::rows(spec.dims.clone()));
        let row = step.graph.feed(feed);
        let node = Some(step.graph.push(Op::SumRows, &[row])?);
        step.gradients.push(Gradient { param: *param, node, l1: 0.0, l2: 0.0 });
    }
    step.update = Some(rule);
    Ok(checked("apply", step)?)
}

/// Builds the step that projects constrained weights after an update; `None` if no weight is constrained.
pub(crate) fn constraints(params: &[ParamSpec], weights: &[ModelWeight]) -> Result<Option<Step>> {
    // The parameters are those of the other steps; there are no feeds.
    let mut step = Step::new("constrain", Graph::new());
    for spec in params {
        step.graph.add_param(&spec.name, &spec.dims, spec.trainable);
    }
    for weight in weights {
        let Some(constraint) = weight.layer.weights()[weight.index].spec.constraint.clone() else {
            continue;
        };
        if step.graph.params()[weight.param.index()].trainable {
            let w = step.graph.param(weight.param);
            let projected = constraint.project(&mut step.graph, w)?;
            step.assigns.push((weight.param, projected));
        }
    }
    Ok((!step.assigns.is_empty()).then_some(step))
}
