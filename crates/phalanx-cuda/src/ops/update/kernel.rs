//! The text of the kernels: statements over four elements of a chunk.

use super::Update;
use phalanx_graph::program::SHARDS;
use std::fmt::Write;

/// The parts in which kernels differ.
pub(super) struct KernelParts {
    /// Before the loop over the chunk.
    pub before: String,
    /// In the loop, for every four elements.
    pub each: String,
    /// After the loop.
    pub after: String,
}

impl Update<'_> {
    /// Statements that leave the reduced gradient of four elements in `g`; with gradient
    /// accumulation, the gradient to apply.
    pub(super) fn gradient_statements(&self) -> String {
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
    pub(super) fn sum_statements(&self, penalty: &str) -> String {
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

    /// The start of a kernel that does nothing if the step is skipped.
    pub(super) fn unless_skipped(&self) -> String {
        if self.scaled() { "    if (scaling[0] == 0.0f) return;\n".into() } else { String::new() }
    }

    /// Statements that run the rule on `w` and `g` and store its results.
    pub(super) fn apply(&self, function: &str) -> String {
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
    pub(super) fn params(&self) -> String {
        let mut text = "(const Inputs* in, const Word* chunks".to_string();
        (0..self.sources).for_each(|s| text += &format!(", float* g{s}"));
        text += ", float* accumulated";
        for r in 0..self.replicas {
            text += &format!(", float* w{r}");
            (0..self.slots()).for_each(|s| text += &format!(", float* s{r}_{s}"));
        }
        text + ", double* norms" + if self.scaled() { ", const float* scaling" } else { "" }
    }
}

/// Adds eight parts as one tree, regardless of which replica computed which.
fn tree(p: &[String]) -> String {
    let pair = |i: usize| format!("({} + {})", p[i], p[i + 1]);
    format!("({} + {}) + ({} + {})", pair(0), pair(2), pair(4), pair(6))
}
