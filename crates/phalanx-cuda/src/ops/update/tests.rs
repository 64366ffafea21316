use super::*;
use crate::ops::harness::{Harness, SEEDS, close, numbers};
use phalanx_graph::ParamId;
use phalanx_graph::program::GradientPlan;
use phalanx_graph::update::{RuleBuilder, Slot, SlotInit, UpdateRule};

/// Momentum: `m = 0.9 m - rate · g`, `w = w + m`.
fn momentum(clip: Option<Clip>) -> UpdateRule {
    let slot = Slot { name: "momentum".into(), init: SlotInit::Value(0.0) };
    let mut b = RuleBuilder::new(vec![slot], 1);
    let kept = b.scale(b.slot(0), 0.9);
    let step = b.mul(b.scalar(0), b.gradient());
    let m = b.sub(kept, step);
    let w = b.add(b.weight(), m);
    b.finish("momentum", clip, w, &[m])
}

/// A parameter of the test: weights, momentum, both replicas' gradients, accumulated gradient.
struct Param {
    id: ParamId,
    w: Vec<f64>,
    m: Vec<f64>,
    parts: [Vec<f32>; 2],
    accumulated: Vec<f64>,
    penalty: (f32, f32),
}

impl Param {
    fn reduced_gradient(&self, e: usize) -> f64 {
        let (l1, l2) = (f64::from(self.penalty.0), f64::from(self.penalty.1));
        let sum: f64 = self.parts.iter().map(|p| f64::from(p[e])).sum();
        let sign = if self.w[e] == 0.0 { 0.0 } else { self.w[e].signum() };
        sum + l1 * sign + 2.0 * l2 * self.w[e]
    }
}

const RATE: f32 = 0.25;

#[phalanx_testing::needs(gxx)]
#[test]
fn one_update_on_two_replicas() {
    let clips = [None, Some(Clip::Value(0.5)), Some(Clip::Norm(3.0)), Some(Clip::GlobalNorm(5.0))];
    for clip in clips {
        for seed in SEEDS {
            check(seed, clip, &[None]);
        }
        check(None, clip, &[Some((1.0, None)), Some((3.0, Some(0.25))), Some((2.0, Some(0.5)))]);
    }
}

/// Steps, each with its weight and, if the sum is applied, the factor.
fn check(seed: Option<u64>, clip: Option<Clip>, steps: &[Option<(f32, Option<f32>)>]) {
    let mut harness = Harness::new(seed, 1);
    let mut params: Vec<Param> = vec![];
    // The third parameter is not trained.
    for (i, n) in [5000, 3, 70, 64].into_iter().enumerate() {
        let mut w = numbers(n, i as u64);
        w[0] = 0.0;
        let id = harness.param(&w);
        let parts = [numbers(n, 10 + i as u64), numbers(n, 20 + i as u64)];
        let at = harness.layout.params[i];
        (0..2).for_each(|r| harness.write(Ptr::new(r, Block::Gradients, at), &parts[r]));
        let penalty = if i == 0 { (0.0, 0.0) } else { (0.125, 0.5) };
        let w: Vec<f64> = w.iter().map(|v| f64::from(*v)).collect();
        params.push(Param { id, m: vec![0.0; n], accumulated: vec![0.0; n], w, parts, penalty });
    }
    let gradient = |p: &Param| GradientPlan {
        param: p.id,
        sharded: false,
        value: None,
        operands: None,
        granule: 1,
        l1: p.penalty.0,
        l2: p.penalty.1,
    };
    let trained = [0, 1, 3];
    let gradients = trained.map(|i| gradient(&params[i])).to_vec();
    let (rule, buckets) = (momentum(clip), vec![]);
    let plan = UpdatePlan { rule, gradients, buckets, loss_scale: None };
    harness.inputs.scalars[0] = RATE;
    let mut first = true;
    for step in steps {
        let accumulate = step.map(|(_, apply)| apply.is_some());
        if let Some((weight, apply)) = step {
            harness.inputs.keep = f32::from(u8::from(!first));
            harness.inputs.weight = *weight;
            harness.inputs.mean = apply.unwrap_or(0.0);
        }
        // Gradients are new at every step.
        for (i, p) in params.iter().enumerate() {
            let at = harness.layout.params[i];
            (0..2).for_each(|r| harness.write(Ptr::new(r, Block::Gradients, at), &p.parts[r]));
        }
        let u = Update { plan: &plan, replicas: 2, sources: 2, tree_sum: false, accumulate };
        let id = harness.prepare(|cx, tapes| update(cx, tapes, &u));
        harness.start(id);
        expect(&mut params, &trained, clip, *step, first);
        first = step.is_none_or(|(_, apply)| apply.is_some());
    }
    for (i, p) in params.iter().enumerate() {
        for r in 0..2 {
            let at = |block| Ptr::new(r, block, harness.layout.params[i]);
            let what = |part: &str| format!("{part} {i} of {r} with {clip:?} {steps:?}");
            close(&what("weight"), &harness.read(at(Block::Params), p.w.len()), &p.w, 1e-6);
            close(&what("slot"), &harness.read(at(Block::Slot(0)), p.m.len()), &p.m, 1e-6);
        }
    }
}

fn expect(
    params: &mut [Param],
    trained: &[usize],
    clip: Option<Clip>,
    step: Option<(f32, Option<f32>)>,
    first: bool,
) {
    let mut gradients: Vec<Vec<f64>> = vec![];
    for i in trained {
        let p = &mut params[*i];
        let g: Vec<f64> = (0..p.w.len()).map(|e| p.reduced_gradient(e)).collect();
        let Some((weight, apply)) = step else {
            gradients.push(g);
            continue;
        };
        for (sum, g) in p.accumulated.iter_mut().zip(g) {
            *sum = if first { 0.0 } else { *sum } + f64::from(weight) * g;
        }
        let mean = f64::from(apply.unwrap_or(0.0));
        gradients.push(p.accumulated.iter().map(|k| k * mean).collect());
    }
    if step.is_some_and(|(_, apply)| apply.is_none()) {
        return;
    }
    let square = |g: &Vec<f64>| g.iter().map(|v| v * v).sum::<f64>();
    let global: f64 = gradients.iter().map(square).sum();
    for (i, g) in trained.iter().zip(&gradients) {
        let scale = |square: f64, limit: f32| (f64::from(limit) / square.sqrt()).min(1.0);
        let own = square(g);
        let p = &mut params[*i];
        for (e, g) in g.iter().enumerate() {
            let g = match clip {
                None => *g,
                Some(Clip::Value(limit)) => g.clamp(-f64::from(limit), f64::from(limit)),
                Some(Clip::Norm(limit)) => g * scale(own, limit),
                Some(Clip::GlobalNorm(limit)) => g * scale(global, limit),
            };
            p.m[e] = 0.9 * p.m[e] - f64::from(RATE) * g;
            p.w[e] += p.m[e];
        }
    }
}
