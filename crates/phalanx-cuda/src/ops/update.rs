//! The optimizer: gradients are reduced and applied over chunks of the flat layout in one launch;
//! in three launches if they are clipped by norm, and with two more before them if the loss is
//! scaled. The kernels are generated around the rule's tape.

use crate::launch::{Block, Elem, Launch, Ptr, Source, Word};
use crate::lowering_context::LowerCtx;
use crate::tape::{Tapes, literal};
use phalanx_graph::loss_scale::LossScale;
use phalanx_graph::program::{SHARDS, UpdatePlan};
use phalanx_graph::update::Clip;
use std::fmt::Write;

const THREADS: usize = 256;

/// Elements that a block processes at once.
const STRIDE: usize = THREADS * 4;

/// Blocks that fill a GPU.
const TARGET_BLOCKS: usize = 132 * 4;

/// Side of a tile of a transposed matrix, as `SIDE` of the kernels.
const SIDE: usize = 64;

/// The parameters of an update besides the plan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Update<'a> {
    pub plan: &'a UpdatePlan,
    /// Replicas on this GPU. Weights and slots are read from the first and written to all.
    pub replicas: usize,
    /// How many of them hold a part of the gradient; one if the first holds the sum.
    pub sources: usize,
    /// Whether the parts of [`SHARDS`] sources are added as a tree.
    pub tree_sum: bool,
    /// With gradient accumulation, whether this step applies the sum. The first replica holds the
    /// sum.
    pub accumulate: Option<bool>,
}

/// A piece of a parameter, in elements of the flat layout.
struct Chunk {
    start: usize,
    len: usize,
    l1: f32,
    l2: f32,
    /// Index into the plan's gradients.
    gradient: usize,
}

impl Update<'_> {
    fn chunks(&self, cx: &LowerCtx<'_>) -> Vec<Chunk> {
        let len = |g: usize| cx.params[self.plan.gradients[g].param.index()].len();
        let total: usize = (0..self.plan.gradients.len()).map(len).sum();
        let size = total.div_ceil(TARGET_BLOCKS).next_multiple_of(STRIDE).clamp(STRIDE, 8 * STRIDE);
        let mut chunks = vec![];
        for (gradient, g) in self.plan.gradients.iter().enumerate() {
            let (first, len) = (cx.layout.params[g.param.index()] / 4, len(gradient));
            for at in (0..len).step_by(size) {
                let (start, len) = (first + at, size.min(len - at));
                chunks.push(Chunk { start, len, l1: g.l1, l2: g.l2, gradient });
            }
        }
        chunks
    }

    fn norm_clip(&self) -> Option<Clip> {
        self.plan.rule.clip.filter(|c| matches!(c, Clip::Norm(_) | Clip::GlobalNorm(_)))
    }

    /// Statements that leave the reduced gradient of four elements in `g`; with gradient
    /// accumulation, the gradient to apply.
    fn gradient_statements(&self) -> String {
        let mut text = match self.plan.loss_scale {
            None => self.sum_statements("l1, l2"),
            Some(_) => "        float g[4]; load_lanes<4>(g0 + e, g);\n        \
                        EVERY(4) g[k] /= scaling[0];\n"
                .into(),
        };
        if self.accumulate.is_some() {
            text += "        float sum[4]; load_lanes<4>(accumulated + e, sum);\n        \
                     EVERY(4) {\n            \
                     float part = in->weight * g[k];\n            \
                     sum[k] = in->keep != 0.0f ? sum[k] + part : part;\n            \
                     g[k] = sum[k] * in->mean;\n        }\n        \
                     store_lanes<4>(accumulated + e, sum);\n";
        }
        text
    }

    /// Statements that leave the sum of the parts of four elements' gradient, plus their penalty,
    /// in `g`.
    fn sum_statements(&self, penalty: &str) -> String {
        let mut text = String::new();
        for s in 0..self.sources {
            writeln!(text, "        float p{s}[4]; load_lanes<4>(g{s} + e, p{s});").expect("fits");
        }
        let parts: Vec<String> = (0..self.sources).map(|s| format!("p{s}[k]")).collect();
        let sum =
            if self.tree_sum && self.sources == SHARDS { tree(&parts) } else { parts.join(" + ") };
        writeln!(text, "        float g[4]; EVERY(4) g[k] = {sum};").expect("fits");
        writeln!(text, "        EVERY(4) g[k] = penalised(g[k], w[k], {penalty});").expect("fits");
        text
    }

    fn scaled(&self) -> bool {
        self.plan.loss_scale.is_some()
    }

    /// The start of a kernel that does nothing if the step is skipped.
    fn unless_skipped(&self) -> String {
        if self.scaled() { "    if (scaling[0] == 0.0f) return;\n".into() } else { String::new() }
    }

    fn slots(&self) -> usize {
        self.plan.rule.slots.len()
    }

    /// Statements that run the rule on `w` and `g` and store its results.
    fn apply(&self, function: &str) -> String {
        let (mut text, slots) = (String::new(), self.slots());
        for s in 0..slots {
            writeln!(text, "        float s{s}[4]; load_lanes<4>(s0_{s} + e, s{s});")
                .expect("fits");
        }
        let slot = |s: usize| format!("s{s}[k]");
        let scalar = |i: usize| format!("in->scalars[{i}]");
        let mut args: Vec<String> = vec!["w[k]".into(), "g[k]".into()];
        args.extend((0..slots).map(slot).chain((0..self.plan.rule.scalars).map(scalar)));
        args.push("w[k]".into());
        args.extend((0..slots).map(slot));
        writeln!(text, "        EVERY(4) {function}({});", args.join(", ")).expect("fits");
        for r in 0..self.replicas {
            writeln!(text, "        store_lanes<4>(w{r} + e, w);").expect("fits");
            for s in 0..slots {
                writeln!(text, "        store_lanes<4>(s{r}_{s} + e, s{s});").expect("fits");
            }
        }
        text
    }

    /// The parameters of every kernel here: inputs, chunks, gradients, accumulated gradients,
    /// weights, slots, norms, and the scale of the gradients, which is zero if they are not to be
    /// applied.
    fn params(&self) -> String {
        let mut text = "(const Inputs* in, const Word* chunks".to_string();
        (0..self.sources).for_each(|s| text += &format!(", float* g{s}"));
        text += ", float* accumulated";
        for r in 0..self.replicas {
            text += &format!(", float* w{r}");
            (0..self.slots()).for_each(|s| text += &format!(", float* s{r}_{s}"));
        }
        text + ", double* norms" + if self.scaled() { ", const float* scaling" } else { "" }
    }

    fn arguments(
        &self,
        launch: Launch,
        cx: &LowerCtx<'_>,
        chunks: &[Chunk],
        extra: Extra,
    ) -> Launch {
        let table: Vec<Word> = chunks
            .iter()
            .flat_map(|c| {
                [c.start.into(), c.len.into(), c.l1.into(), c.l2.into(), c.gradient.into()]
            })
            .collect();
        let mut launch = launch.arg(Ptr::new(cx.replica, Block::Inputs, 0)).arg(table);
        for r in 0..self.sources {
            launch = launch.arg(Ptr::new(r, Block::Gradients, 0));
        }
        let accumulated = self.accumulate.map(|_| Ptr::new(0, Block::Accumulated, 0));
        launch = launch.arg(accumulated);
        for r in 0..self.replicas {
            launch = launch.arg(Ptr::new(r, Block::Params, 0));
            for s in 0..self.slots() {
                launch = launch.arg(Ptr::new(r, Block::Slot(s), 0));
            }
        }
        let launch = launch.arg(extra.norms);
        if self.scaled() { launch.arg(extra.scaling) } else { launch }
    }

    /// A kernel that visits its chunk with `each` in the loop, and its launch.
    fn launch(
        &self,
        cx: &LowerCtx<'_>,
        tapes: &mut Tapes,
        chunks: &[Chunk],
        extra: Extra,
        parts: &KernelParts,
    ) -> Launch {
        let body = format!(
            "{}) {{\n    const Word* chunk = chunks + (i64)blockIdx.x * 5;\n    \
             const i64 start = chunk[0].number();\n    const int len = (int)chunk[1].number();\n    \
             const float l1 = chunk[2].real(), l2 = chunk[3].real();\n{}    \
             for (int i = (int)threadIdx.x * 4; i < len; i += {STRIDE}) {{\n        \
             const i64 e = start + i;\n        \
             float w[4]; load_lanes<4>(w0 + e, w);\n{}    }}\n{}}}",
            self.params(),
            parts.before,
            parts.each,
            parts.after
        );
        let head = format!("__global__ void __launch_bounds__({THREADS})");
        let kernel = tapes.add("update", &head, &body);
        self.arguments(tapes_launch(kernel, chunks.len()), cx, chunks, extra)
    }
}

/// Memory that only some kernels use.
#[derive(Clone, Copy, Default)]
struct Extra {
    norms: Option<Ptr>,
    scaling: Option<Ptr>,
}

/// The parts in which kernels differ.
#[derive(Default)]
struct KernelParts {
    before: String,
    each: String,
    after: String,
}

fn tapes_launch(kernel: String, blocks: usize) -> Launch {
    let (grid, threads) = ([blocks as u32, 1, 1], THREADS as u32);
    Launch { source: Source::Tapes, kernel, grid, threads, shared: 0, args: vec![] }
}

/// Adds eight parts as one tree, regardless of which replica computed which.
fn tree(p: &[String]) -> String {
    let pair = |i: usize| format!("({} + {})", p[i], p[i + 1]);
    format!("({} + {}) + ({} + {})", pair(0), pair(2), pair(4), pair(6))
}

/// The optimizer's step.
pub(crate) fn update(cx: &mut LowerCtx<'_>, tapes: &mut Tapes, u: &Update<'_>) -> Vec<Launch> {
    let chunks = u.chunks(cx);
    if chunks.is_empty() {
        return vec![];
    }
    let Some(scaling) = u.plan.loss_scale else {
        return apply_rule(cx, tapes, u, &chunks, Extra::default());
    };
    let (mut launches, verdict) = reduce_and_check_finite(cx, tapes, u, &chunks, scaling);
    let extra = Extra { scaling: Some(verdict), norms: None };
    launches.extend(apply_rule(cx, tapes, u, &chunks, extra));
    launches
}

/// Reduces the gradients of a scaled loss in place, then checks whether they are all finite and
/// computes the scale of the next step. Returns the address that the applying kernels read: the
/// gradients' scale, or zero.
fn reduce_and_check_finite(
    cx: &mut LowerCtx<'_>,
    tapes: &mut Tapes,
    u: &Update<'_>,
    chunks: &[Chunk],
    scaling: LossScale,
) -> (Vec<Launch>, Ptr) {
    let (wrong, verdict) = (cx.scratch.take(8 * chunks.len()), cx.scratch.take(4));
    let at = cx.layout.params[scaling.state.index()];
    let state = |replica: usize| Ptr::new(replica, Block::Params, at);
    let parts = KernelParts {
        before: "    double wrong = 0.0;\n".into(),
        each: u.sum_statements("l1 * scaling[0], l2 * scaling[0]")
            + "        store_lanes<4>(g0 + e, g);\n        \
               EVERY(4) if (i + k < len && !is_finite(g[k])) wrong = 1.0;\n",
        after: "    wrong = sum_of_256(wrong);\n    \
                 if (threadIdx.x == 0) norms[blockIdx.x] = wrong;\n"
            .into(),
    };
    let extra = Extra { norms: Some(wrong), scaling: Some(state(0)) };
    let reduce = u.launch(cx, tapes, chunks, extra, &parts);
    let states: Vec<Word> = (0..u.replicas).map(|r| Word::Ptr(state(r))).collect();
    let decide = Launch::blocks("update", "loss_scale", 1, THREADS as u32)
        .arg(wrong)
        .arg(chunks.len())
        .arg(scaling.growth_steps as i32)
        .arg(states)
        .arg(u.replicas as i32)
        .arg(verdict);
    (vec![reduce, decide], verdict)
}

/// Applies the rule to gradients that are reduced already or on the fly.
fn apply_rule(
    cx: &mut LowerCtx<'_>,
    tapes: &mut Tapes,
    u: &Update<'_>,
    chunks: &[Chunk],
    extra: Extra,
) -> Vec<Launch> {
    let applies = u.accumulate.unwrap_or(true);
    match u.norm_clip() {
        Some(clip) if applies => apply_clipped(cx, tapes, u, chunks, clip, extra),
        _ => {
            let mut each = u.gradient_statements();
            if let (true, Some(Clip::Value(limit))) = (applies, u.plan.rule.clip) {
                writeln!(each, "        EVERY(4) g[k] = limited(g[k], {});", literal(limit))
                    .expect("fits");
            }
            if applies {
                each += &u.apply(&tapes.function(&u.plan.rule.tape));
            }
            let parts = KernelParts { before: u.unless_skipped(), each, after: String::new() };
            vec![u.launch(cx, tapes, chunks, extra, &parts)]
        }
    }
}

/// Reduces gradients in place with the squared norm of every chunk; computes the squared norms of
/// the parameters; applies the rule to gradients scaled by them.
fn apply_clipped(
    cx: &mut LowerCtx<'_>,
    tapes: &mut Tapes,
    u: &Update<'_>,
    chunks: &[Chunk],
    clip: Clip,
    extra: Extra,
) -> Vec<Launch> {
    let gradients = u.plan.gradients.len();
    let (chunk_norms, gradient_norms) =
        (cx.scratch.take(8 * chunks.len()), cx.scratch.take(8 * gradients));
    let each = u.gradient_statements()
        + "        store_lanes<4>(g0 + e, g);\n        \
           EVERY(4) if (i + k < len) square += (double)g[k] * (double)g[k];\n";
    let sums = KernelParts {
        before: u.unless_skipped() + "    double square = 0.0;\n",
        each,
        after: "    square = sum_of_256(square);\n    \
                 if (threadIdx.x == 0) norms[blockIdx.x] = square;\n"
            .into(),
    };
    let first = u.launch(cx, tapes, chunks, Extra { norms: Some(chunk_norms), ..extra }, &sums);

    let position = |g: usize| chunks.partition_point(|c| c.gradient < g);
    let ranges: Vec<Word> =
        (0..gradients).flat_map(|g| [position(g).into(), position(g + 1).into()]).collect();
    let second = Launch::blocks("update", "squared_norms", gradients, THREADS as u32)
        .arg(ranges)
        .arg(chunk_norms)
        .arg(gradient_norms);

    let (square, limit) = match clip {
        Clip::GlobalNorm(limit) => ("sum_of_256(mine)", limit),
        Clip::Norm(limit) | Clip::Value(limit) => ("norms[chunk[4].number()]", limit),
    };
    let before = format!(
        "{}    double mine = 0.0;\n    \
         for (int i = (int)threadIdx.x; i < {gradients}; i += {THREADS}) mine += norms[i];\n    \
         const float scale = limit_scale({square}, {});\n",
        u.unless_skipped(),
        literal(limit)
    );
    let each = "        float g[4]; load_lanes<4>(g0 + e, g);\n        EVERY(4) g[k] *= scale;\n"
        .to_string()
        + &u.apply(&tapes.function(&u.plan.rule.tape));
    let third = KernelParts { before, each, after: String::new() };
    let extra = Extra { norms: Some(gradient_norms), ..extra };
    vec![first, second, u.launch(cx, tapes, chunks, extra, &third)]
}

/// A convolution's filters in both layouts: `[k][f]` of the weights, `[f][k]` of the vendor's
/// library.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Filters {
    /// `height * width * channels / groups`
    pub k: usize,
    pub f: usize,
    /// The weights or their gradient.
    pub weights: Ptr,
    pub packed: Ptr,
}

/// All convolutions' weights as `[f][k]` of another type, in one launch.
pub(crate) fn pack_filters(filters: &[Filters], elem: Elem) -> Vec<Launch> {
    let kernel = format!("transpose_many<float, {}>", elem.c_name());
    transpose_many(kernel, filters.iter().map(|w| (w.weights, w.packed, w.k, w.f)))
}

/// All convolutions' gradients converted back to the layout of the weights, in one launch.
pub(crate) fn unpack_gradients(filters: &[Filters], elem: Elem) -> Vec<Launch> {
    let kernel = format!("transpose_many<{}, float>", elem.c_name());
    transpose_many(kernel, filters.iter().map(|w| (w.packed, w.weights, w.f, w.k)))
}

fn transpose_many(
    kernel: String,
    matrices: impl Iterator<Item = (Ptr, Ptr, usize, usize)>,
) -> Vec<Launch> {
    let mut table: Vec<Word> = vec![];
    for (from, to, rows, columns) in matrices {
        for top in (0..rows).step_by(SIDE) {
            for left in (0..columns).step_by(SIDE) {
                table.extend([Word::Ptr(from), Word::Ptr(to)]);
                table.extend([rows, columns, top, left].map(Word::from));
            }
        }
    }
    if table.is_empty() {
        return vec![];
    }
    vec![Launch::blocks("update", kernel, table.len() / 6, THREADS as u32).arg(table)]
}

#[cfg(all(test, feature = "emulator"))]
mod tests {
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
        let clips =
            [None, Some(Clip::Value(0.5)), Some(Clip::Norm(3.0)), Some(Clip::GlobalNorm(5.0))];
        for clip in clips {
            for seed in SEEDS {
                check(seed, clip, &[None]);
            }
            check(
                None,
                clip,
                &[Some((1.0, None)), Some((3.0, Some(0.25))), Some((2.0, Some(0.5)))],
            );
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
            params.push(Param {
                id,
                m: vec![0.0; n],
                accumulated: vec![0.0; n],
                w,
                parts,
                penalty,
            });
        }
        let gradient = |p: &Param| GradientPlan {
            param: p.id,
            sliced: false,
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

    #[phalanx_testing::needs(gxx)]
    #[test]
    fn filters_survive_packing_and_unpacking() {
        for seed in SEEDS {
            let mut harness = Harness::new(seed, 1);
            let shapes = [(27, 96), (130, 65), (1, 1)];
            let filters: Vec<Filters> = shapes
                .iter()
                .enumerate()
                .map(|(i, (k, f))| {
                    let weights = Ptr::new(0, Block::Params, i << 16);
                    harness.write(weights, &numbers(k * f, i as u64));
                    Filters { k: *k, f: *f, weights, packed: Ptr::new(0, Block::Slot(0), i << 16) }
                })
                .collect();
            harness.run(|_, _| pack_filters(&filters, Elem::F32));
            for (i, w) in filters.iter().enumerate() {
                let (from, got) = (numbers(w.k * w.f, i as u64), harness.read(w.packed, w.k * w.f));
                let turned = |e: usize| f64::from(from[e % w.k * w.f + e / w.k]);
                close("packed", &got, &(0..w.k * w.f).map(turned).collect::<Vec<_>>(), 0.0);
                harness.write(w.weights, &vec![0.0; w.k * w.f]);
            }
            harness.run(|_, _| unpack_gradients(&filters, Elem::F32));
            for (i, w) in filters.iter().enumerate() {
                assert_eq!(harness.read(w.weights, w.k * w.f), numbers(w.k * w.f, i as u64));
            }
        }
    }
}
