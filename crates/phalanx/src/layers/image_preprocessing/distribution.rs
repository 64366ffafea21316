//! Gamma and beta distributed random numbers, from uniform ones.

use super::super::noise::normal;
use super::uniform;
use crate::error::Result;
use crate::layer::LayerContext;
use phalanx_graph::functions::math::{less, logical_and};
use phalanx_graph::ops::Unary;
use phalanx_graph::{NodeId, Op};

/// How many candidates are drawn for each number. All of them are rejected with a probability below 1e-10.
const CANDIDATES: usize = 8;

/// `n` logarithms of gamma-distributed numbers for each sample, by the method of Marsaglia and Tsang: of several
/// candidates the first that passes its test. `alpha` is positive, one number or `[1]`.
pub(super) fn log_gamma(cx: &mut LayerContext<'_>, n: usize, alpha: NodeId) -> Result<NodeId> {
    let z = normal(cx, &[CANDIDATES, n], 1.0)?;
    let test = uniform(cx, &[CANDIDATES, n])?;
    let boost = uniform(cx, &[n])?;
    let g = cx.graph();
    let (zero, one) = (g.scalar(0.0), g.scalar(1.0));
    // A number of shape alpha + 1, times u^(1 / alpha).
    let d = g.offset(alpha, 2.0 / 3.0)?;
    let root = g.unary(Unary::Rsqrt, d)?;
    let c = g.scale(root, 1.0 / 3.0)?;
    let scaled = g.mul(z, c)?;
    let base = g.offset(scaled, 1.0)?;
    let positive = less(g, zero, base)?;
    let safe = g.select(positive, base, one)?;
    let log_v = g.unary(Unary::Log, safe)?;
    let log_v = g.scale(log_v, 3.0)?;
    let v = g.unary(Unary::Exp, log_v)?;
    // ln u < z² / 2 + d (1 - v + ln v)
    let rest = g.sub(log_v, v)?;
    let rest = g.offset(rest, 1.0)?;
    let rest = g.mul(rest, d)?;
    let square = g.unary(Unary::Square, z)?;
    let half = g.scale(square, 0.5)?;
    let bound = g.add(half, rest)?;
    let log_test = log_rest(g, test)?;
    let passes = less(g, log_test, bound)?;
    let passes = logical_and(g, passes, positive)?;
    let mut chosen = g.fill(0.0, &[1, n]);
    for i in (0..CANDIDATES).rev() {
        let mut at = |x: NodeId| g.push(Op::Slice { axis: 0, start: i, len: 1 }, &[x]);
        let (pass, value) = (at(passes)?, at(log_v)?);
        chosen = g.select(pass, value, chosen)?;
    }
    let chosen = g.reshape(chosen, &[n])?;
    let log_d = g.unary(Unary::Log, d)?;
    let sample = g.add(chosen, log_d)?;
    let log_boost = log_rest(g, boost)?;
    let log_boost = g.div(log_boost, alpha)?;
    Ok(g.add(sample, log_boost)?)
}

/// `ln(1 - u)`, which is finite.
fn log_rest(g: &mut phalanx_graph::Graph, u: NodeId) -> phalanx_graph::Result<NodeId> {
    let below = g.neg(u)?;
    g.unary(Unary::Log1p, below)
}

/// A beta-distributed number for each sample, `[1]`, with both parameters `alpha`.
pub(super) fn symmetric_beta(cx: &mut LayerContext<'_>, alpha: NodeId) -> Result<NodeId> {
    let (a, b) = (log_gamma(cx, 1, alpha)?, log_gamma(cx, 1, alpha)?);
    let g = cx.graph();
    let ratio = g.sub(a, b)?;
    Ok(g.unary(Unary::Sigmoid, ratio)?)
}

/// `n` numbers for each sample that sum to one, from the symmetric Dirichlet distribution.
pub(super) fn dirichlet(cx: &mut LayerContext<'_>, n: usize, alpha: NodeId) -> Result<NodeId> {
    let logarithms = log_gamma(cx, n, alpha)?;
    Ok(cx.graph().push(Op::Softmax, &[logarithms])?)
}
