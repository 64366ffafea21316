//! Reductions. Sums and means also span the batch; maxima and products do not.

use super::context::{GraphResult, OpCall, OpContext};
use super::{elementwise, ops};
use crate::error::Result;
use crate::layer::Outputs;
use phalanx_graph::functions::index::{
    arg_max, arg_min, cumulative, max_axes, min_axes, prod_axes,
};
use phalanx_graph::functions::layout::repeat_rows;
use phalanx_graph::functions::math;
use phalanx_graph::ops::{Binary, Unary};
use phalanx_graph::{DType, Graph, GraphError, NodeId, Op, Scope};

/// The axes of a reduction.
#[derive(Clone, Debug)]
pub(super) struct Axes {
    /// Whether it spans the batch.
    pub batch: bool,
    /// The axes of a sample, ascending.
    pub inner: Vec<usize>,
}

impl Axes {
    /// The axes in the option `name`; without it, all axes.
    pub fn read(cx: &OpContext<'_, '_>, name: &str, x: NodeId) -> Result<Axes> {
        let (rank, lead) = (cx.rank(x), usize::from(cx.is_rows(x)));
        let list = cx.integers(name)?.unwrap_or_else(|| (0..rank as i64).collect());
        let mut all = list.iter().map(|a| cx.position(*a, rank)).collect::<Result<Vec<_>>>()?;
        all.sort_unstable();
        all.dedup();
        let inner = all.iter().filter_map(|axis| axis.checked_sub(lead)).collect();
        Ok(Axes { batch: lead == 1 && all.first() == Some(&0), inner })
    }

    /// The axes of a sample, for a reduction that cannot span the batch.
    fn within(&self) -> phalanx_graph::Result<&[usize]> {
        if self.batch {
            let expected = "axes other than the batch";
            return Err(GraphError::mismatch("axis", expected, "the batch"));
        }
        Ok(&self.inner)
    }

    /// Removes the reduced axes, or keeps them with size one.
    pub fn finish(&self, cx: OpCall<'_, '_, '_>, y: NodeId, keep: bool) -> Result<NodeId> {
        let mut dims = cx.dims(y);
        if keep {
            dims.splice(0..0, self.batch.then_some(1));
        } else {
            let kept = (0..dims.len()).filter(|i| !self.inner.contains(i));
            dims = kept.map(|i| dims[i]).collect();
        }
        Ok(cx.graph().reshape(y, &dims)?)
    }
}

/// Appends a reduction over axes, which remain with size one.
type Reduction = fn(&mut Graph, NodeId, &Axes) -> GraphResult;

fn reduce(cx: OpCall<'_, '_, '_>, reduction: Reduction) -> Result<Outputs> {
    let x = cx.tensor("x")?;
    let axes = Axes::read(cx, "axis", x)?;
    let y = reduction(cx.graph(), x, &axes)?;
    let keep = cx.flag("keepdims");
    Ok(axes.finish(cx, y, keep)?.into())
}

/// The sum over axes. That over the batch is equal on all devices.
pub(super) fn sum(g: &mut Graph, x: NodeId, axes: &Axes) -> GraphResult {
    let mut y = if axes.inner.is_empty() { x } else { g.sum_axes(x, &axes.inner)? };
    if axes.batch {
        y = g.push(Op::SumRows, &[y])?;
        y = g.push(Op::AllReduce { scope: Scope::All }, &[y])?;
    }
    Ok(y)
}

pub(super) fn mean(g: &mut Graph, x: NodeId, axes: &Axes) -> GraphResult {
    if !axes.batch {
        return g.mean_axes(x, &axes.inner);
    }
    let total = sum(g, x, axes)?;
    let each: usize = axes.inner.iter().map(|axis| g.ty(x).dims[*axis]).product();
    let one = g.scalar(each as f64);
    let counts = repeat_rows(g, one, x)?;
    let count = sum(g, counts, &Axes { batch: true, inner: vec![] })?;
    g.div(total, count)
}

fn max(g: &mut Graph, x: NodeId, axes: &Axes) -> GraphResult {
    max_axes(g, x, axes.within()?)
}

fn min(g: &mut Graph, x: NodeId, axes: &Axes) -> GraphResult {
    min_axes(g, x, axes.within()?)
}

fn prod(g: &mut Graph, x: NodeId, axes: &Axes) -> GraphResult {
    prod_axes(g, x, axes.within()?)
}

pub(super) fn variance(g: &mut Graph, x: NodeId, axes: &Axes) -> GraphResult {
    let center = mean(g, x, axes)?;
    let apart = g.sub(x, center)?;
    let square = g.unary(Unary::Square, apart)?;
    mean(g, square, axes)
}

fn log_sum_exp(g: &mut Graph, x: NodeId, axes: &Axes) -> GraphResult {
    let largest = max(g, x, axes)?;
    let apart = g.sub(x, largest)?;
    let apart = g.unary(Unary::Exp, apart)?;
    let total = sum(g, apart, axes)?;
    let total = g.unary(Unary::Log, total)?;
    g.add(total, largest)
}

/// 1 if no element is zero.
fn all(g: &mut Graph, x: NodeId, axes: &Axes) -> GraphResult {
    let zeros = math::logical_not(g, x)?;
    let count = sum(g, zeros, axes)?;
    math::logical_not(g, count)
}

/// 1 if an element is not zero.
fn any(g: &mut Graph, x: NodeId, axes: &Axes) -> GraphResult {
    let hits = math::truth(g, x)?;
    let count = sum(g, hits, axes)?;
    math::truth(g, count)
}

/// How many elements are not zero.
fn count_nonzero(g: &mut Graph, x: NodeId, axes: &Axes) -> GraphResult {
    let hits = math::truth(g, x)?;
    let count = sum(g, hits, axes)?;
    g.cast(count, DType::I32)
}

/// `x` with another number in place of NaN.
fn without_nan(g: &mut Graph, x: NodeId, number: f64) -> GraphResult {
    let (missing, number) = (math::is_nan(g, x)?, g.scalar(number));
    g.select(missing, number, x)
}

/// How many elements are not NaN.
pub(super) fn count_present(g: &mut Graph, x: NodeId, axes: &Axes) -> GraphResult {
    let present = g.binary(Binary::Eq, x, x)?;
    sum(g, present, axes)
}

fn nan_mean(g: &mut Graph, x: NodeId, axes: &Axes) -> GraphResult {
    let present = without_nan(g, x, 0.0)?;
    let (total, count) = (sum(g, present, axes)?, count_present(g, x, axes)?);
    g.div(total, count)
}

fn nan_variance(g: &mut Graph, x: NodeId, axes: &Axes) -> GraphResult {
    let center = nan_mean(g, x, axes)?;
    let apart = g.sub(x, center)?;
    // Before the square, whose derivative would be NaN.
    let apart = without_nan(g, apart, 0.0)?;
    let square = g.unary(Unary::Square, apart)?;
    let (total, count) = (sum(g, square, axes)?, count_present(g, x, axes)?);
    g.div(total, count)
}

/// The extreme of the elements that are not NaN; NaN if there are none.
fn nan_extreme(g: &mut Graph, x: NodeId, axes: &Axes, largest: bool) -> GraphResult {
    let y = match largest {
        true => {
            let x = without_nan(g, x, f64::NEG_INFINITY)?;
            max(g, x, axes)?
        }
        false => {
            let x = without_nan(g, x, f64::INFINITY)?;
            min(g, x, axes)?
        }
    };
    let count = count_present(g, x, axes)?;
    let nan = g.scalar(f64::NAN);
    g.select(count, y, nan)
}

/// The largest (or smallest) element, and at least (or at most) the option `initial`.
fn extreme(cx: OpCall<'_, '_, '_>, reduction: Reduction, bound: Binary) -> Result<Outputs> {
    let x = cx.tensor("x")?;
    let axes = Axes::read(cx, "axis", x)?;
    let mut y = reduction(cx.graph(), x, &axes)?;
    if !cx.option("initial").is_null() {
        let initial = cx.number_or("initial", 0.0)?;
        let initial = cx.graph().scalar(initial);
        y = cx.graph().binary(bound, y, initial)?;
    }
    let keep = cx.flag("keepdims");
    Ok(axes.finish(cx, y, keep)?.into())
}

/// The index of the largest or smallest element along one axis.
fn arg(
    cx: OpCall<'_, '_, '_>,
    function: fn(&mut Graph, NodeId, usize) -> GraphResult,
    nan: Option<f64>,
) -> Result<Outputs> {
    let mut x = cx.tensor("x")?;
    if let Some(number) = nan {
        x = without_nan(cx.graph(), x, number)?;
    }
    let (x, axis) = cx.axis_or_flat(x)?;
    let y = function(cx.graph(), x, axis)?;
    let mut dims = cx.dims(y);
    if cx.flag("keepdims") {
        dims.insert(axis, 1);
    }
    Ok(cx.graph().reshape(y, &dims)?.into())
}

/// The mean, weighted if the call has weights.
fn average(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let x = cx.tensor("x")?;
    let axes = Axes::read(cx, "axis", x)?;
    let y = match cx.optional("weights")? {
        None => mean(cx.graph(), x, &axes)?,
        Some(mut weights) => {
            let dims = cx.dims(weights);
            // Weights of one axis have no other axes.
            if let ([axis], [n], false) = (&axes.inner[..], &dims[..], axes.batch) {
                let mut aligned = vec![1; cx.dims(x).len()];
                aligned[*axis] = *n;
                weights = cx.graph().reshape(weights, &aligned)?;
            }
            let mut nodes = [x, weights];
            cx.align(&mut nodes)?;
            let weights = elementwise::spread_like(cx, nodes[1], x)?;
            let g = cx.graph();
            let product = g.mul(x, weights)?;
            let (total, weight) = (sum(g, product, &axes)?, sum(g, weights, &axes)?);
            g.div(total, weight)?
        }
    };
    Ok(axes.finish(cx, y, false)?.into())
}

fn all_close(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let close = elementwise::is_close(cx)?;
    let axes = Axes::read(cx, "axis", close)?;
    let y = all(cx.graph(), close, &axes)?;
    Ok(axes.finish(cx, y, false)?.into())
}

/// Sums or products of the elements up to each one.
fn accumulate(cx: OpCall<'_, '_, '_>, product: bool, skip_nan: bool) -> Result<Outputs> {
    let mut x = cx.tensor("x")?;
    if skip_nan {
        x = without_nan(cx.graph(), x, if product { 1.0 } else { 0.0 })?;
    }
    let (x, axis) = cx.axis_or_flat(x)?;
    Ok(cumulative(cx.graph(), x, axis, product)?.into())
}

/// Mean and variance.
fn moments(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let x = cx.tensor("x")?;
    let axes = Axes::read(cx, "axes", x)?;
    let (center, spread) = (mean(cx.graph(), x, &axes)?, variance(cx.graph(), x, &axes)?);
    let keep = cx.flag("keepdims");
    Ok(vec![axes.finish(cx, center, keep)?, axes.finish(cx, spread, keep)?].into())
}

/// The number of elements, those of all samples of the batch.
fn size(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let x = cx.any_tensor("x")?;
    let each: usize = cx.dims(x).iter().product();
    let (batch, g) = (cx.is_rows(x), cx.graph());
    let mut count = g.scalar(each as f64);
    if batch {
        let x = g.cast(x, DType::F32)?;
        let counts = repeat_rows(g, count, x)?;
        count = sum(g, counts, &Axes { batch, inner: vec![] })?;
    }
    Ok(g.cast(count, DType::I32)?.into())
}

/// The number of axes.
fn ndim(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let x = cx.any_tensor("x")?;
    let rank = cx.rank(x);
    Ok(cx.graph().scalar(rank as f64).into())
}

fn root(g: &mut Graph, x: NodeId) -> GraphResult {
    g.unary(Unary::Sqrt, x)
}

ops! {
    NUMPY, "numpy";
    All(x) => |cx| reduce(cx, all),
    AllClose(x1, x2) => all_close,
    Amax(x) => |cx| reduce(cx, max),
    Amin(x) => |cx| reduce(cx, min),
    Any(x) => |cx| reduce(cx, any),
    Argmax(x) => |cx| arg(cx, arg_max, None),
    Argmin(x) => |cx| arg(cx, arg_min, None),
    Average(x, weights) => average,
    CountNonzero(x) => |cx| reduce(cx, count_nonzero),
    Cumprod(x) => |cx| accumulate(cx, true, false),
    Cumsum(x) => |cx| accumulate(cx, false, false),
    Max(x) => |cx| extreme(cx, max, Binary::Max),
    Mean(x) => |cx| reduce(cx, mean),
    Min(x) => |cx| extreme(cx, min, Binary::Min),
    Nanargmax(x) => |cx| arg(cx, arg_max, Some(f64::NEG_INFINITY)),
    Nanargmin(x) => |cx| arg(cx, arg_min, Some(f64::INFINITY)),
    Nancumprod(x) => |cx| accumulate(cx, true, true),
    Nancumsum(x) => |cx| accumulate(cx, false, true),
    Nanmax(x) => |cx| reduce(cx, |g, x, axes| nan_extreme(g, x, axes, true)),
    Nanmean(x) => |cx| reduce(cx, nan_mean),
    Nanmin(x) => |cx| reduce(cx, |g, x, axes| nan_extreme(g, x, axes, false)),
    Nanprod(x) => |cx| reduce(cx, |g, x, axes| {
        let x = without_nan(g, x, 1.0)?;
        prod(g, x, axes)
    }),
    Nanstd(x) => |cx| reduce(cx, |g, x, axes| {
        let variance = nan_variance(g, x, axes)?;
        root(g, variance)
    }),
    Nansum(x) => |cx| reduce(cx, |g, x, axes| {
        let x = without_nan(g, x, 0.0)?;
        sum(g, x, axes)
    }),
    Nanvar(x) => |cx| reduce(cx, nan_variance),
    Ndim(x) => ndim,
    Prod(x) => |cx| reduce(cx, prod),
    Ptp(x) => |cx| reduce(cx, |g, x, axes| {
        let (high, low) = (max(g, x, axes)?, min(g, x, axes)?);
        g.sub(high, low)
    }),
    Size(x) => size,
    Std(x) => |cx| reduce(cx, |g, x, axes| {
        let variance = variance(g, x, axes)?;
        root(g, variance)
    }),
    Sum(x) => |cx| reduce(cx, sum),
    Var(x) => |cx| reduce(cx, variance),
}

ops! {
    MATH, "math";
    Logsumexp(x) => |cx| reduce(cx, log_sum_exp),
}

ops! {
    NN, "nn";
    Moments(x) => moments,
}
