//! Equalization of the distribution of pixel values. The output has the shape of the input.
//!
//! - `Equalization`: every value becomes its rank among the values of its channel in the whole batch; only in training
//! - `ContrastLimitedAdaptiveHistogramEqualization`: its rank within its tile of the image, interpolated between tiles

use super::super::spatial::Pair;
use super::super::support::{DataFormat, check_at_least_one, check_finite};
use super::{
    Augmentation, augment, bytes, change_range, check_wide_value_range, float_image, image_dims,
};
use crate::config::setters;
use crate::error::Result;
use crate::layer::{Layer, LayerContext, Outputs};
use crate::registry::keras_class;
use phalanx_graph::functions::index::{cumulative, min_axes, take};
use phalanx_graph::functions::layout::{PadMode, iota, pad, repeat_rows};
use phalanx_graph::functions::math::{less, trunc, truth};
use phalanx_graph::ops::{Binary, TakeAxis, Unary};
use phalanx_graph::{DType, Graph, NodeId, Op, Scope};
use serde::{Deserialize, Serialize};

/// The largest table of new values: its positions are exact as 32-bit floats.
const MAX_TABLE: usize = 1 << 24;

/// How often each number below `bins` occurs in each line of `x`, whole numbers `[lines, n]`.
fn histograms(g: &mut Graph, x: NodeId, bins: usize) -> phalanx_graph::Result<NodeId> {
    let index = g.cast(x, DType::I32)?;
    let dims = g.ty(x).dims.clone();
    let ones = g.fill(1.0, &dims);
    let ones = repeat_rows(g, ones, x)?;
    let at = TakeAxis { axis: 1, along: true };
    // Adding ones at positions counts them.
    g.push(Op::TakeGrad { at, size: bins, sum_rows: false }, &[index, ones])
}

/// Equalizes the histogram of every channel of a batch in training.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::Equalization;
///
/// assert_eq!(Equalization::new().config()["bins"], 256);
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Equalization {
    value_range: (f64, f64),
    bins: usize,
    data_format: DataFormat,
}

impl Default for Equalization {
    fn default() -> Equalization {
        Equalization::new()
    }
}

impl Equalization {
    /// Equalizes values from 0 to 255.
    pub fn new() -> Equalization {
        Equalization { value_range: bytes(), bins: 256, data_format: DataFormat::ChannelsLast }
    }

    setters! {
        /// The minimum and maximum pixel values; default to 0 and 255.
        value_range: (f64, f64),
        /// The number of different values; defaults to 256.
        bins: usize,
    }
}

/// Moves values from a range to another by `x · scale + offset`.
fn scale_values(
    g: &mut Graph,
    x: NodeId,
    from: (f64, f64),
    to: (f64, f64),
) -> phalanx_graph::Result<NodeId> {
    let scale = (to.1 - to.0) / (from.1 - from.0);
    let x = g.scale(x, scale)?;
    g.offset(x, to.0 - from.0 * scale)
}

impl Layer for Equalization {
    keras_class!("Equalization");

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        augment(self, cx, inputs)
    }
}

impl Augmentation for Equalization {
    fn check(&self, cx: &LayerContext<'_>, dims: [usize; 3]) -> Result<()> {
        check_wide_value_range(cx, self.value_range)?;
        check_at_least_one(cx, "bins", self.bins)?;
        if self.bins.checked_mul(dims[2]).is_none_or(|n| n > MAX_TABLE) {
            let expected = format!("at most {MAX_TABLE} for all channels");
            return Err(cx.argument("bins", &expected, self.bins));
        }
        Ok(())
    }

    fn draw(&self, _: &mut LayerContext<'_>, _: [usize; 3]) -> Result<Vec<NodeId>> {
        Ok(vec![])
    }

    fn apply(&self, cx: &mut LayerContext<'_>, x: NodeId, _: &[NodeId]) -> Result<NodeId> {
        let [height, width, channels] = image_dims(cx, x);
        let g = cx.graph();
        let (last, x) = ((self.bins - 1) as f64, scale_values(g, x, self.value_range, bytes())?);
        let white = g.scalar(255.0);
        let bin = g.scale(x, last)?;
        let bin = g.div(bin, white)?;
        let bin = trunc(g, bin)?;
        let bin = g.clamp(bin, 0.0, last)?;
        let lines = g.push(Op::Transpose { perm: vec![2, 0, 1] }, &[bin])?;
        let lines = g.reshape(lines, &[channels, height * width])?;
        let counts = histograms(g, lines, self.bins)?;
        let counts = g.push(Op::SumRows, &[counts])?;
        let counts = g.push(Op::AllReduce { scope: Scope::All }, &[counts])?;
        let table = new_values(g, counts, self.bins)?;

        let relative = g.div(x, white)?;
        let index = g.scale(relative, last)?;
        let index = g.clamp(index, 0.0, last)?;
        let index = trunc(g, index)?;
        let line = iota(g, channels)?;
        let line = g.scale(line, self.bins as f64)?;
        let index = g.add(index, line)?;
        let index = g.cast(index, DType::I32)?;
        let table = g.reshape(table, &[channels * self.bins])?;
        let found = take(g, table, index, 0)?;

        let used = truth(g, counts)?;
        let used = g.sum_axes(used, &[1])?;
        let one = g.scalar(1.0);
        let several = less(g, one, used)?;
        let several = g.reshape(several, &[channels])?;
        let y = g.select(several, found, x)?;
        Ok(scale_values(g, y, bytes(), self.value_range)?)
    }
}

/// The new values of bins from their counts, `[channels, bins]`.
fn new_values(g: &mut Graph, counts: NodeId, bins: usize) -> phalanx_graph::Result<NodeId> {
    let ranks = cumulative(g, counts, 1, false)?;
    let (zero, one, far) = (g.scalar(0.0), g.scalar(1.0), g.scalar(f64::from(f32::MAX)));
    let occurs = less(g, zero, ranks)?;
    let known = g.select(occurs, ranks, far)?;
    let first = min_axes(g, known, &[1])?;
    let total = g.push(Op::Slice { axis: 1, start: bins - 1, len: 1 }, &[ranks])?;
    let span = g.sub(total, first)?;
    let nothing = g.binary(Binary::Eq, span, zero)?;
    let span = g.select(nothing, one, span)?;
    let above = g.sub(ranks, first)?;
    let above = g.scale(above, 255.0)?;
    let value = g.div(above, span)?;
    let value = g.unary(Unary::Round, value)?;
    g.clamp(value, 0.0, 255.0)
}

/// Equalizes the histograms of the tiles of images, with limited contrast, also outside of training.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::ContrastLimitedAdaptiveHistogramEqualization;
///
/// let layer = ContrastLimitedAdaptiveHistogramEqualization::new().tile_grid_size((4, 4));
/// assert_eq!(layer.config()["tile_grid_size"], serde_json::json!([4, 4]));
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ContrastLimitedAdaptiveHistogramEqualization {
    value_range: (f64, f64),
    clip_limit: f64,
    tile_grid_size: Pair,
    data_format: DataFormat,
}

impl Default for ContrastLimitedAdaptiveHistogramEqualization {
    fn default() -> Self {
        Self::new()
    }
}

impl ContrastLimitedAdaptiveHistogramEqualization {
    /// 8 by 8 tiles of values from 0 to 255.
    pub fn new() -> Self {
        Self {
            value_range: bytes(),
            clip_limit: 4.0,
            tile_grid_size: 8.into(),
            data_format: DataFormat::ChannelsLast,
        }
    }

    setters! {
        /// The minimum and maximum pixel values; default to 0 and 255.
        value_range: (f64, f64),
        /// How often a value may occur, relative to an even distribution; no limit if 0 or less. Defaults to 4.
        clip_limit: f64,
        /// The number of tiles along height and width; defaults to 8.
        tile_grid_size: impl Into<Pair>,
    }

    /// New values of all bytes in every tile: `[rows of tiles, columns of tiles, channels · 256]`.
    fn tables(
        &self,
        g: &mut Graph,
        pixels: NodeId,
        tile: [usize; 2],
    ) -> phalanx_graph::Result<NodeId> {
        let [rows, columns] = self.tile_grid_size.0;
        let ([height, width], channels) = (tile, g.ty(pixels).last());
        let tiles = g.reshape(pixels, &[rows, height, columns, width, channels])?;
        let tiles = g.push(Op::Transpose { perm: vec![0, 2, 4, 1, 3] }, &[tiles])?;
        let tiles = g.reshape(tiles, &[rows * columns * channels, height * width])?;
        let mut counts = histograms(g, tiles, BYTES)?;
        let area = (height * width) as f64;
        if self.clip_limit > 0.0 {
            let clipped = g.clamp(counts, 0.0, self.clip_limit * area / BYTES as f64)?;
            let excess = g.sub(counts, clipped)?;
            let excess = g.sum_axes(excess, &[1])?;
            let each = g.scale(excess, 1.0 / BYTES as f64)?;
            counts = g.add(clipped, each)?;
        }
        let ranks = cumulative(g, counts, 1, false)?;
        let first = min_axes(g, ranks, &[1])?;
        let above = g.sub(ranks, first)?;
        let above = g.scale(above, 255.0)?;
        let (zero, one, total) = (g.scalar(0.0), g.scalar(1.0), g.scalar(area));
        let span = g.sub(total, first)?;
        let nothing = g.binary(Binary::Eq, span, zero)?;
        let span = g.select(nothing, one, span)?;
        let values = g.div(above, span)?;
        let values = g.clamp(values, 0.0, 255.0)?;
        g.reshape(values, &[rows, columns, channels * BYTES])
    }
}

/// The number of different bytes.
const BYTES: usize = 256;

/// The tiles on both sides of every pixel of an axis with `count` tiles of `size` pixels, counted from one before the
/// first, and the weight of the second: `[count · size]` each.
fn neighbours(g: &mut Graph, count: usize, size: usize) -> phalanx_graph::Result<[NodeId; 3]> {
    let pixels = iota(g, count * size)?;
    let from_middle = g.offset(pixels, -(size as f64) / 2.0)?;
    let length = g.scalar(size as f64);
    let at = g.div(from_middle, length)?;
    let at = g.offset(at, 1.0)?;
    let low = g.unary(Unary::Floor, at)?;
    let weight = g.sub(at, low)?;
    let high = g.offset(low, 1.0)?;
    let last = (count + 1) as f64;
    Ok([g.clamp(low, 0.0, last)?, g.clamp(high, 0.0, last)?, weight])
}

/// `a · (1 - w) + b · w`
fn blend(g: &mut Graph, [a, b]: [NodeId; 2], weight: NodeId) -> phalanx_graph::Result<NodeId> {
    let one = g.scalar(1.0);
    let rest = g.sub(one, weight)?;
    let (a, b) = (g.mul(a, rest)?, g.mul(b, weight)?);
    g.add(a, b)
}

impl Layer for ContrastLimitedAdaptiveHistogramEqualization {
    keras_class!("ContrastLimitedAdaptiveHistogramEqualization");

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        let (x, [height, width, channels]) = float_image(cx, inputs)?;
        check_wide_value_range(cx, self.value_range)?;
        check_finite(cx, "clip_limit", self.clip_limit)?;
        let [rows, columns] = self.tile_grid_size.0;
        let table = [rows, columns].iter().try_fold(channels * BYTES, |n, tiles| {
            n.checked_mul(tiles.checked_add(2)?).filter(|n| *tiles > 0 && *n <= MAX_TABLE)
        });
        if table.is_none() {
            let expected = format!("1 or more, with at most {MAX_TABLE} values of all tiles");
            return Err(cx.argument("tile_grid_size", &expected, self.tile_grid_size));
        }
        let tile = [height.div_ceil(rows), width.div_ceil(columns)];
        let more = [tile[0] * rows - height, tile[1] * columns - width];
        let g = cx.graph();
        let mut bright = change_range(g, x, self.value_range, bytes())?;
        if more != [0, 0] {
            bright = pad(g, bright, &[0; 3], &[more[0], more[1], 0], PadMode::Symmetric)?;
        }
        let pixels = trunc(g, bright)?;
        let pixels = g.clamp(pixels, 0.0, 255.0)?;
        let tables = self.tables(g, pixels, tile)?;
        // The tiles at the border continue outside.
        let tables = pad(g, tables, &[1, 1, 0], &[1, 1, 0], PadMode::Edge)?;
        let across = channels * BYTES;
        let down = across * (columns + 2);
        let tables = g.reshape(tables, &[down * (rows + 2)])?;
        let [top, bottom, w_down] = neighbours(g, rows, tile[0])?;
        let [left, right, w_across] = neighbours(g, columns, tile[1])?;
        let start = iota(g, channels)?;
        let start = g.scale(start, BYTES as f64)?;
        let start = g.add(pixels, start)?;
        let mut value = |row: NodeId, column: NodeId| -> phalanx_graph::Result<NodeId> {
            let (row, column) = (g.scale(row, down as f64)?, g.scale(column, across as f64)?);
            let row = g.reshape(row, &[tile[0] * rows, 1, 1])?;
            let column = g.reshape(column, &[1, tile[1] * columns, 1])?;
            let corner = g.add(row, column)?;
            let index = g.add(start, corner)?;
            let index = g.cast(index, DType::I32)?;
            take(g, tables, index, 0)
        };
        let upper = [value(top, left)?, value(top, right)?];
        let lower = [value(bottom, left)?, value(bottom, right)?];
        let w_across = g.reshape(w_across, &[tile[1] * columns, 1])?;
        let w_down = g.reshape(w_down, &[tile[0] * rows, 1, 1])?;
        let lines = [blend(g, upper, w_across)?, blend(g, lower, w_across)?];
        let y = blend(g, lines, w_down)?;
        let y = super::window(cx, y, [0, 0], [height, width])?;
        Ok(change_range(cx.graph(), y, bytes(), self.value_range)?.into())
    }
}
