//! Updates inside the graph: an optimizer's rule as nodes, its slots as parameters that the step assigns.
//!
//! A step has one update of its own, which an executor fuses with the reduction of the gradients. A step with several
//! optimizers computes the others here, from elementwise ops on reduced gradients: every executor runs them, and what
//! follows reads the new weights.

use super::step::{Phase, StepOptimizer};
use crate::error::{Error, Result};
use crate::initializers::Initializer;
use crate::layer::{Lowering, ModelWeight, WeightSpec};
use crate::model::steps;
use crate::optimizers::Optimizer;
use phalanx_graph::ops::{Binary, Instr, Unary};
use phalanx_graph::update::{Clip, SlotInit, UpdateRule};
use phalanx_graph::{Fetch, Graph, NodeId, Op, ParamId, Scope, Type, autodiff};
use std::collections::HashMap;

/// Fails if an optimizer has an option that updates inside the graph do not have.
pub(super) fn check_options(name: &str, optimizer: &dyn Optimizer) -> Result<()> {
    let common = optimizer.common();
    let options = [
        ("use_ema", common.use_ema),
        ("gradient_accumulation_steps", common.gradient_accumulation_steps.is_some()),
        ("loss scaling", optimizer.inner().is_some()),
    ];
    match options.into_iter().find(|(_, set)| *set) {
        None => Ok(()),
        Some((option, _)) => {
            let expected =
                "none, unless the step ends with the only call of minimize that uses the optimizer";
            Err(Error::argument(format!("optimizer '{name}'"), option, expected, "one"))
        }
    }
}

/// The slots of a weight.
pub(super) type Slots = Vec<ParamId>;

/// Declares the slots of every weight of a phase. An optimizer that is used again has the same.
pub(super) fn declare_slots(
    low: &mut Lowering,
    optimizer: &dyn Optimizer,
    state: &StepOptimizer,
    weights: &[ModelWeight],
) -> Result<Vec<Slots>> {
    let mut all = vec![];
    for weight in weights {
        let (name, dims) = {
            let of_layer = weight.layer.weights();
            let spec = &of_layer[weight.index].spec;
            (format!("{}/{}", weight.layer_name, spec.name), spec.dims.clone())
        };
        let mut slots = vec![];
        for slot in optimizer.rule().slots {
            let value = match slot.init {
                SlotInit::Value(value) => f64::from(value),
                SlotInit::Weight => 0.0,
            };
            let initializer = Initializer::Constant { value };
            let name = format!("{name}/{}", slot.name);
            let spec = WeightSpec::new(&name, &dims, initializer).non_trainable();
            let known = low.weights.iter().filter(|w| w.layer.same(&state.slots));
            let found = known.clone().find(|w| state.slots.weights()[w.index].spec.name == name);
            let param = match found {
                Some(found) => found.param,
                None => {
                    let index = known.count();
                    let declared = low.declare(&state.slots, &state.member(), index, spec);
                    declared.map_err(|(what, expected, received)| {
                        Error::argument(
                            format!("optimizer '{}'", state.name),
                            what,
                            expected,
                            received,
                        )
                    })?;
                    low.weights[low.weights.len() - 1].param
                }
            };
            slots.push(param);
        }
        all.push(slots);
    }
    Ok(all)
}

/// What an update is made of.
pub(super) struct UpdateArguments<'a> {
    pub phase: &'a Phase,
    pub optimizer: &'a dyn Optimizer,
    /// Of every weight of the phase.
    pub slots: Vec<Slots>,
    /// The number of the update in the step.
    pub number: usize,
}

/// Appends the gradients of a phase and the update of its weights and slots. Returns the reduced gradients, before clipping.
pub(super) fn apply(
    low: &mut Lowering,
    arguments: UpdateArguments<'_>,
    versions: &HashMap<ParamId, Vec<NodeId>>,
) -> Result<Vec<Fetch>> {
    let UpdateArguments { phase, optimizer, slots, number } = arguments;
    let gradients = gradients(low, phase, versions)?;
    let rule = optimizer.rule();
    let feed = Type::mirrored([rule.scalars.max(1)]);
    let feed = low.graph.add_feed(&format!("optimizer_scalars_{number}"), feed);
    let fed = low.graph.feed(feed);
    let scalars = (0..rule.scalars)
        .map(|i| {
            let scalar = low.graph.push(Op::Slice { axis: 0, start: i, len: 1 }, &[fed])?;
            Ok(low.graph.reshape(scalar, &[])?)
        })
        .collect::<Result<Vec<NodeId>>>()?;
    let name = |param: ParamId, g: &Graph| {
        format!("{}/{}", phase.fetch.name, g.params()[param.index()].name)
    };
    let fetch =
        |(param, node): &(ParamId, NodeId)| Fetch { name: name(*param, &low.graph), node: *node };
    let fetches = gradients.iter().map(fetch).collect();
    let clipped = clip(&mut low.graph, rule.clip, &gradients)?;
    for (param, gradient) in clipped {
        let at = phase.weights.iter().position(|w| w.param == param);
        let Some(at) = at else { continue };
        let mut operands = vec![low.value(param), gradient];
        operands.extend(slots[at].iter().map(|slot| low.value(*slot)));
        operands.extend(&scalars);
        let mut results = evaluate(&mut low.graph, &rule, &operands)?.into_iter();
        let mut new = results.next().expect("a rule gives the weight");
        let weight = &phase.weights[at];
        let constraint = weight.layer.weights()[weight.index].spec.constraint.clone();
        if let Some(constraint) = constraint {
            new = constraint.project(&mut low.graph, new)?;
        }
        low.assign(param, new);
        for (slot, value) in slots[at].iter().zip(results) {
            low.assign(*slot, value);
        }
    }
    low.graph.enter("");
    Ok(fetches)
}

/// The reduced gradients of a phase by its weights, with their penalties. Further nodes belong to the update.
fn gradients(
    low: &mut Lowering,
    phase: &Phase,
    versions: &HashMap<ParamId, Vec<NodeId>>,
) -> Result<Vec<(ParamId, NodeId)>> {
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
    let partials = autodiff::gradients(g, &[phase.seed], &nodes)?;
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
        let reduced = match sum {
            Some(sum) => Some(low.graph.push(Op::AllReduce { scope: Scope::All }, &[sum])?),
            None => None,
        };
        let (l1, l2) = steps::coefficients(&low.graph, weight).unwrap_or_default();
        let value = low.value(weight.param);
        if let Some(node) = steps::add_penalty(&mut low.graph, reduced, value, (l1, l2))? {
            out.push((weight.param, node));
        }
    }
    if out.is_empty() {
        let expected = "a value that depends on the trainable weights of its models";
        let owner = format!("loss '{}'", phase.fetch.name);
        return Err(Error::argument(owner, "value", expected, "one that depends on none"));
    }
    Ok(out)
}

/// The factor that limits a norm: `limit / max(norm, limit)`.
fn limit_factor(g: &mut Graph, square: NodeId, limit: f32) -> Result<NodeId> {
    let norm = g.unary(Unary::Sqrt, square)?;
    let limit = g.scalar(f64::from(limit));
    let divisor = g.binary(Binary::Max, norm, limit)?;
    Ok(g.div(limit, divisor)?)
}

fn sum_of_squares(g: &mut Graph, x: NodeId) -> Result<NodeId> {
    let axes: Vec<usize> = (0..g.ty(x).dims.len()).collect();
    let squares = g.unary(Unary::Square, x)?;
    let sum = if axes.is_empty() { squares } else { g.sum_axes(squares, &axes)? };
    Ok(g.reshape(sum, &[])?)
}

/// Clips gradients as the rule says.
fn clip(
    g: &mut Graph,
    clip: Option<Clip>,
    gradients: &[(ParamId, NodeId)],
) -> Result<Vec<(ParamId, NodeId)>> {
    let mut out = gradients.to_vec();
    match clip {
        None => {}
        Some(Clip::Value(limit)) => {
            for (_, node) in &mut out {
                *node = g.clamp(*node, -f64::from(limit), f64::from(limit))?;
            }
        }
        Some(Clip::Norm(limit)) => {
            for (_, node) in &mut out {
                let square = sum_of_squares(g, *node)?;
                let factor = limit_factor(g, square, limit)?;
                *node = g.mul(*node, factor)?;
            }
        }
        Some(Clip::GlobalNorm(limit)) => {
            let mut total = g.scalar(0.0);
            for (_, node) in &out {
                let square = sum_of_squares(g, *node)?;
                total = g.add(total, square)?;
            }
            let factor = limit_factor(g, total, limit)?;
            for (_, node) in &mut out {
                *node = g.mul(*node, factor)?;
            }
        }
    }
    Ok(out)
}

/// Appends the arithmetic of a rule; returns the new weight and the new slots.
fn evaluate(g: &mut Graph, rule: &UpdateRule, operands: &[NodeId]) -> Result<Vec<NodeId>> {
    rule.check()?;
    let mut registers: Vec<NodeId> = vec![];
    for instr in &rule.tape.instrs {
        let at = |register: &u16| registers[usize::from(*register)];
        let node = match instr {
            Instr::Input(i) => operands[usize::from(*i)],
            Instr::Const(bits) => g.scalar(f64::from_bits(*bits)),
            Instr::Unary(op, a) => g.unary(*op, at(a))?,
            Instr::Binary(op, l, r) => g.binary(*op, at(l), at(r))?,
            Instr::Select(c, a, b) => g.select(at(c), at(a), at(b))?,
        };
        registers.push(node);
    }
    let dims = g.ty(operands[0]).dims.clone();
    let output = |register: &u16| {
        let node = registers[usize::from(*register)];
        // A result that no element decides is a scalar.
        match g.ty(node).dims == dims {
            true => Ok(node),
            false => {
                let zeros = g.fill(0.0, &dims);
                Ok(g.add(zeros, node)?)
            }
        }
    };
    rule.tape.outputs.iter().map(output).collect()
}
