//! A step before compilation: the graph and its outputs.

use crate::error::{GraphError, Result};
use crate::graph::{Graph, NodeId, ParamId};
use crate::loss_scale::{LossScale, STATE};
use crate::text::shown;
use crate::types::{DType, ModelSpace, Space};
use crate::update::UpdateRule;
use std::fmt;

/// A value that the host reads after the step.
#[derive(Clone, Debug, PartialEq)]
pub struct Fetch {
    /// Name, used for printing and lookup.
    pub name: String,
    /// Rows (predictions) or mirrored (losses, metrics).
    pub node: NodeId,
}

/// The gradient of a trainable parameter, as a partial sum.
#[derive(Clone, Debug, PartialEq)]
pub struct Gradient {
    /// The parameter.
    pub param: ParamId,
    /// Its partial gradient; `None` if the loss does not depend on it.
    pub node: Option<NodeId>,
    /// Coefficient of `Σ|w|` in the loss.
    pub l1: f32,
    /// Coefficient of `Σw²` in the loss.
    pub l2: f32,
}

impl Gradient {
    /// Whether the loss depends on the parameter only through its penalty.
    pub fn penalty_alone(&self) -> bool {
        self.node.is_none() && (self.l1 != 0.0 || self.l2 != 0.0)
    }
}

/// One training, evaluation or prediction step.
#[derive(Clone, Debug)]
pub struct Step {
    /// Name, used for printing.
    pub name: String,
    /// The computation.
    pub graph: Graph,
    /// The values that the host reads.
    pub fetches: Vec<Fetch>,
    /// Parameters that are assigned at the end of the step, such as moving statistics.
    pub assigns: Vec<(ParamId, NodeId)>,
    /// Gradients for the optimizer.
    pub gradients: Vec<Gradient>,
    /// The optimizer's rule; `None` outside training.
    pub update: Option<UpdateRule>,
    /// The loss scaling, if any.
    pub loss_scale: Option<LossScale>,
}

impl Step {
    /// A step without outputs.
    pub fn new(name: &str, graph: Graph) -> Step {
        Step {
            name: name.into(),
            graph,
            fetches: vec![],
            assigns: vec![],
            gradients: vec![],
            update: None,
            loss_scale: None,
        }
    }

    /// All nodes that are used outside the graph.
    pub fn roots(&self) -> impl Iterator<Item = NodeId> {
        let fetches = self.fetches.iter().map(|f| f.node);
        let assigns = self.assigns.iter().map(|(_, n)| *n);
        fetches.chain(assigns).chain(self.gradients.iter().filter_map(|g| g.node))
    }

    /// Replaces the graph by a rewritten one; `map` gives the new id of each root.
    pub fn with_graph(mut self, graph: Graph, map: impl Fn(NodeId) -> NodeId) -> Step {
        self.fetches.iter_mut().for_each(|f| f.node = map(f.node));
        self.assigns.iter_mut().for_each(|(_, n)| *n = map(*n));
        self.gradients.iter_mut().for_each(|g| g.node = g.node.map(&map));
        self.graph = graph;
        self
    }

    /// Whether each node is needed by a root.
    pub fn live(&self) -> Vec<bool> {
        let mut live = vec![false; self.graph.nodes().len()];
        self.roots().for_each(|r| live[r.index()] = true);
        // Operands come before their users, so a single backward walk is enough.
        for id in self.graph.ids().rev() {
            if live[id.index()] {
                self.graph.node(id).inputs.iter().for_each(|x| live[x.index()] = true);
            }
        }
        live
    }

    /// Checks the graph and its outputs.
    pub fn verify(&self, pass: &str) -> Result<()> {
        self.graph.verify(pass)?;
        let fail = |what: String| Err(GraphError::internal(pass, what));
        if let Some(root) = self.roots().find(|r| r.index() >= self.graph.nodes().len()) {
            return fail(format!("there is no node %{}", root.0));
        }
        let param = |p: ParamId| {
            let spec = self.graph.params().get(p.index());
            spec.ok_or_else(|| GraphError::internal(pass, format!("no parameter {}", p.0)))
        };
        for f in &self.fetches {
            let ty = self.graph.ty(f.node);
            if !matches!(ty.space, Space::Rows | Space::Mirrored) {
                return fail(format!("fetch '{}' is {ty}, not rows or mirrored", f.name));
            }
        }
        for (p, node) in &self.assigns {
            let (spec, ty) = (param(*p)?, self.graph.ty(*node));
            if ty.space != Space::Mirrored || ty.dtype != DType::F32 || ty.dims != spec.dims {
                return fail(format!("'{}' {:?} is assigned {ty}", spec.name, spec.dims));
            }
        }
        let mut seen = vec![false; self.graph.params().len()];
        for g in &self.gradients {
            let spec = param(g.param)?;
            if std::mem::replace(&mut seen[g.param.index()], true) {
                return fail(format!("'{}' has two gradients", spec.name));
            }
            let Some(node) = g.node else { continue };
            let ty = self.graph.ty(node);
            if ty.space != Space::Partial || ty.dtype != DType::F32 || ty.dims != spec.dims {
                return fail(format!("gradient of '{}' {:?} is {ty}", spec.name, spec.dims));
            }
        }
        if let Some(scaling) = self.loss_scale {
            let spec = param(scaling.state)?;
            if spec.dims != [STATE] || seen[scaling.state.index()] {
                return fail(format!("'{}' {:?} is not a loss scale", spec.name, spec.dims));
            }
        }
        self.verify_parts(pass)?;
        self.update.as_ref().map_or(Ok(()), |rule| rule.check())
    }

    /// If the devices of a replica divide the step: the host reads whole values, and parameters are assigned and updated
    /// with what their devices hold.
    fn verify_parts(&self, pass: &str) -> Result<()> {
        if self.graph.nodes().iter().all(|node| node.ty.model == ModelSpace::Mirrored) {
            return Ok(());
        }
        let of_param = |p: &ParamId| {
            let axis = self.graph.params()[p.index()].partition_axis;
            axis.map_or(ModelSpace::Mirrored, ModelSpace::Partitioned)
        };
        let fetches = self.fetches.iter().map(|f| (f.node, ModelSpace::Mirrored));
        let assigns = self.assigns.iter().map(|(p, node)| (*node, of_param(p)));
        let gradients = self.gradients.iter().filter_map(|g| Some((g.node?, of_param(&g.param))));
        for (node, expected) in fetches.chain(assigns).chain(gradients) {
            let ty = self.graph.ty(node);
            if ty.model != expected {
                let text = format!("%{} is {ty}, used as {expected:?} over the model axis", node.0);
                return Err(GraphError::internal(pass, text));
            }
        }
        Ok(())
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "step {}", shown(&self.name))?;
        write!(f, "{}", self.graph)?;
        for fetch in &self.fetches {
            writeln!(f, "fetch \"{}\" %{}", shown(&fetch.name), fetch.node.0)?;
        }
        for (p, node) in &self.assigns {
            let name = shown(&self.graph.params()[p.index()].name);
            writeln!(f, "assign \"{name}\" %{}", node.0)?;
        }
        for g in &self.gradients {
            let name = shown(&self.graph.params()[g.param.index()].name);
            match g.node {
                Some(node) => writeln!(f, "gradient \"{name}\" %{}", node.0)?,
                None => writeln!(f, "gradient \"{name}\" none")?,
            }
        }
        if let Some(scaling) = self.loss_scale {
            writeln!(f, "loss scale grows every {} steps", scaling.growth_steps)?;
        }
        match &self.update {
            Some(rule) => writeln!(f, "update {} {{{}}}", rule.name, rule.tape),
            None => Ok(()),
        }
    }
}
