//! The optimizer: gradients are reduced and applied over chunks of the flat layout in one launch;
//! in three launches if they are clipped by norm, and with two more before them if the loss is
//! scaled. The kernels are generated around the rule's tape.

mod filters;
mod kernel;
#[cfg(all(test, feature = "emulator"))]
mod tests;

pub(crate) use filters::{Filters, pack_filters, unpack_gradients};

use crate::launch::{Block, Launch, Ptr, Source, Word};
use crate::lowering_context::LowerCtx;
use crate::tape::{Tapes, literal};
use kernel::KernelParts;
use phalanx_graph::loss_scale::LossScale;
use phalanx_graph::program::UpdatePlan;
use phalanx_graph::update::Clip;
use std::fmt::Write;

const THREADS: usize = 256;

/// Elements that a block processes at once.
const STRIDE: usize = THREADS * 4;

/// Blocks that fill a GPU.
const TARGET_BLOCKS: usize = 132 * 4;

/// The parameters of an update besides the plan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Update<'a> {
    pub plan: &'a UpdatePlan,
    /// Replicas on this GPU. Weights and slots are read from the first and written to all.
    pub replicas: usize,
    /// How many of them hold a part of the gradient; one if the first holds the sum.
    pub sources: usize,
    /// Whether the parts of [`SHARDS`](phalanx_graph::program::SHARDS) sources are added as a tree.
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

    fn scaled(&self) -> bool {
        self.plan.loss_scale.is_some()
    }

    fn slots(&self) -> usize {
        self.plan.rule.slots.len()
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

fn tapes_launch(kernel: String, blocks: usize) -> Launch {
    let (grid, threads) = ([blocks as u32, 1, 1], THREADS as u32);
    Launch { source: Source::Tapes, kernel, grid, threads, shared: 0, args: vec![] }
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
