//! Simulation of a training run in f64: the reference evaluator computes the gradients and runs the tape of
//! the rule; penalties, accumulation and clipping are implemented here.

use crate::harness::device_bindings;
use phalanx_cpu::reference::{Bindings, Context, Value, evaluate, run_tape};
use phalanx_exec::Accumulate;
use phalanx_graph::update::{Clip, SlotInit};
use phalanx_graph::{Mesh, NodeId, Space, Step, rng};

/// One batch of a run.
pub struct Minibatch {
    pub rows: usize,
    pub feeds: Vec<Value>,
    pub step: u64,
    pub scalars: Vec<f32>,
    pub accumulate: Option<Accumulate>,
}

/// The initial loss scale.
pub const SCALE: f64 = 1024.0;

/// The seed of every run.
pub const SEED: u64 = 77;

/// Random numbers for parameters and feeds, exact in f32.
pub struct Numbers(rng::Stream);

impl Numbers {
    pub fn new(stream: u32) -> Numbers {
        Numbers(rng::Stream::new(3, 0, stream, 0))
    }

    fn floats(&mut self, len: usize, lo: f64, hi: f64) -> Vec<f64> {
        let mut one = || f64::from((lo + (hi - lo) * self.0.unit()) as f32);
        (0..len).map(|_| one()).collect()
    }

    /// Initial values of a step's parameters: gamma near one, the others small.
    pub fn params(&mut self, step: &Step) -> Vec<Value> {
        let specs = step.graph.params();
        let mut one = |spec: &phalanx_graph::ParamSpec| {
            if spec.name == "loss_scale" {
                return Value::float(spec.dims.clone(), vec![SCALE, 0.0, 1.0]);
            }
            let (lo, hi) = if spec.name.ends_with("gamma") { (0.5, 1.5) } else { (-0.4, 0.4) };
            Value::float(spec.dims.clone(), self.floats(spec.len(), lo, hi))
        };
        specs.iter().map(&mut one).collect()
    }

    /// A batch for the test networks: inputs, labels below 5, sample weights, and a scale of 1 / rows.
    pub fn batch(&mut self, step: &Step, rows: usize, number: u64) -> Minibatch {
        let mut feeds = vec![];
        for spec in step.graph.feeds() {
            let dims = [&[rows], &spec.ty.dims[..]].concat();
            let len = rows * spec.ty.len();
            feeds.push(match spec.name.as_str() {
                "label" | "token" => {
                    Value::int(dims, (0..len).map(|_| self.0.below(5) as i32).collect())
                }
                "weight" => Value::float(dims, self.floats(len, 0.5, 1.5)),
                "scale" => Value::float([], vec![f64::from(1.0 / rows.max(1) as f32)]),
                _ => Value::float(dims, self.floats(len, -1.0, 1.0)),
            });
        }
        Minibatch { rows, feeds, step: number, scalars: vec![0.05], accumulate: None }
    }
}

/// Parameters and optimizer slots between steps.
pub struct Simulation<'a> {
    step: &'a Step,
    /// Number of devices with separate statistics; one if statistics span all devices.
    devices: usize,
    pub params: Vec<Value>,
    /// By slot, then by parameter.
    pub slots: Vec<Vec<Vec<f64>>>,
    sums: Vec<Vec<f64>>,
}

impl<'a> Simulation<'a> {
    pub fn new(step: &'a Step, devices: usize, params: Vec<Value>) -> Simulation<'a> {
        let rule = step.update.as_ref().expect("a training step");
        let slots = rule
            .slots
            .iter()
            .map(|slot| {
                let first = |p: &Value| match slot.init {
                    SlotInit::Value(v) => vec![f64::from(v); p.len()],
                    SlotInit::Weight => p.floats().to_vec(),
                };
                params.iter().map(first).collect()
            })
            .collect();
        let sums = params.iter().map(|p| vec![0.0; p.len()]).collect();
        Simulation { step, devices, params, slots, sums }
    }

    /// The values of nodes over all devices: rows concatenated, partial sums added, means weighted by rows.
    fn evaluate_nodes(&self, nodes: &[NodeId], batch: &Minibatch) -> Vec<Vec<f64>> {
        let mesh = Mesh::new(self.devices, 1);
        let all = Bindings { feeds: batch.feeds.clone(), params: self.params.clone() };
        let mut totals: Vec<Vec<f64>> = vec![vec![]; nodes.len()];
        for device in 0..self.devices {
            let bindings = device_bindings(&all, self.step, mesh, device);
            let rows = mesh.replica_rows(batch.rows, device).len();
            let context = Context { rows, seed: SEED, step: batch.step };
            let share = if self.devices == 1 { 1.0 } else { rows as f64 / batch.rows as f64 };
            let values = evaluate(&self.step.graph, nodes, &bindings, &context);
            for ((totals, v), node) in totals.iter_mut().zip(values).zip(nodes) {
                let factor = match self.step.graph.ty(*node).space {
                    Space::Rows => {
                        totals.extend(v.floats());
                        continue;
                    }
                    Space::Partial => 1.0,
                    Space::Device | Space::Mirrored => share,
                };
                totals.resize(v.len(), 0.0);
                totals.iter_mut().zip(v.floats()).for_each(|(w, v)| *w += factor * v);
            }
        }
        totals
    }

    /// Unscales the gradients and updates the loss scale. Returns whether the gradients are finite.
    fn unscale(&mut self, gradients: &mut [(usize, Vec<f64>)]) -> bool {
        let Some(scaling) = self.step.loss_scale else { return true };
        let finite = gradients.iter().flat_map(|(_, g)| g).all(|v| (*v as f32).is_finite());
        let state = self.params[scaling.state.index()].floats_mut();
        let scale = state[0];
        let next = scaling.next([state[0] as f32, state[1] as f32, state[2] as f32], finite);
        state.iter_mut().zip(next).for_each(|(s, n)| *s = f64::from(n));
        gradients.iter_mut().flat_map(|(_, g)| g).for_each(|v| *v /= scale);
        finite
    }

    /// Runs a step; returns the rows it fetches.
    pub fn run(&mut self, batch: &Minibatch) -> Vec<f64> {
        let step = self.step;
        let rule = step.update.as_ref().expect("a training step");
        let fetch = step.fetches.iter().find(|f| step.graph.ty(f.node).is_rows());
        let fetched = self.evaluate_nodes(&[fetch.expect("predictions").node], batch).remove(0);
        let assigned: Vec<NodeId> = step.assigns.iter().map(|(_, n)| *n).collect();
        let assigned = self.evaluate_nodes(&assigned, batch);
        let scale = step.loss_scale.map_or(1.0, |s| self.params[s.state.index()].floats()[0]);
        let mut gradients: Vec<(usize, Vec<f64>)> = vec![];
        for g in &step.gradients {
            let p = g.param.index();
            let mut sum = match g.node {
                Some(node) => self.evaluate_nodes(&[node], batch).remove(0),
                None => vec![0.0; self.params[p].len()],
            };
            for (s, w) in sum.iter_mut().zip(self.params[p].floats()) {
                let sign = if *w == 0.0 { 0.0 } else { w.signum() };
                *s += scale * (f64::from(g.l1) * sign + 2.0 * f64::from(g.l2) * w);
            }
            gradients.push((p, sum));
        }
        let finite = self.unscale(&mut gradients);
        if let Some(a) = batch.accumulate.filter(|_| finite) {
            for (p, sum) in &mut gradients {
                for (total, s) in self.sums[*p].iter_mut().zip(sum) {
                    *total = if a.first { 0.0 } else { *total } + f64::from(a.weight) * *s;
                    *s = *total * f64::from(a.apply.unwrap_or(0.0));
                }
            }
        }
        if finite && batch.accumulate.is_none_or(|a| a.apply.is_some()) {
            clip(rule.clip, &mut gradients);
            for (p, gradient) in &gradients {
                let scalars: Vec<[f64; 1]> =
                    batch.scalars.iter().map(|s| [f64::from(*s)]).collect();
                let mut inputs: Vec<&[f64]> = vec![self.params[*p].floats(), gradient];
                inputs.extend(self.slots.iter().map(|s| &s[*p][..]));
                inputs.extend(scalars.iter().map(|s| &s[..]));
                let mut outputs = run_tape(&rule.tape, &inputs, gradient.len()).into_iter();
                let weights = outputs.next().expect("the weight");
                self.params[*p].floats_mut().copy_from_slice(&weights);
                self.slots.iter_mut().zip(outputs).for_each(|(s, new)| s[*p] = new);
            }
        }
        for ((p, _), new) in step.assigns.iter().zip(assigned) {
            self.params[p.index()].floats_mut().copy_from_slice(&new);
        }
        fetched
    }
}

fn clip(how: Option<Clip>, gradients: &mut [(usize, Vec<f64>)]) {
    let square = |g: &[f64]| g.iter().map(|v| v * v).sum::<f64>();
    let limited = |square: f64, limit: f32| (f64::from(limit) / square.sqrt()).min(1.0);
    let global: f64 = gradients.iter().map(|(_, g)| square(g)).sum();
    for (_, g) in gradients {
        let factor = match how {
            Some(Clip::Norm(limit)) => limited(square(g), limit),
            Some(Clip::GlobalNorm(limit)) => limited(global, limit),
            Some(Clip::Value(limit)) => {
                let limit = f64::from(limit);
                g.iter_mut().for_each(|v| *v = v.clamp(-limit, limit));
                1.0
            }
            None => 1.0,
        };
        g.iter_mut().for_each(|v| *v *= factor);
    }
}
