//! Ops with windows: convolutions with given kernels, pooling, patches and blocks of pixels.

use super::context::{OpCall, OpContext};
use super::ops;
use crate::activations::ActivationFn;
use crate::by_name::ByName;
use crate::error::Result;
use crate::layer::Outputs;
use crate::layers::spatial::{ImageDataFormat, Padding, Sizes, Spatial, finish, spatial};
use crate::layers::window::{Window, convolve};
use crate::registry::Config;
use phalanx_graph::functions::layout::{PadMode, concat, pad, slice_steps};
use phalanx_graph::{NodeId, Op};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The largest number of elements of a window whose elements are taken one by one.
const MAX_TAPS: usize = 4096;

/// A value of an option with its own type.
fn parse<T: DeserializeOwned>(cx: &OpContext<'_, '_>, name: &str, default: T) -> Result<T> {
    match cx.option(name) {
        Value::Null => Ok(default),
        value => serde_json::from_value(value.clone())
            .map_err(|e| cx.argument(name, "a valid value", format!("{value}: {e}"))),
    }
}

/// The config of a convolution with `N` spatial axes.
struct Options<const N: usize> {
    strides: Sizes<N>,
    dilation: Sizes<N>,
    padding: ByName<Padding>,
    format: ByName<ImageDataFormat>,
}

impl<const N: usize> Options<N> {
    fn read(cx: &OpContext<'_, '_>) -> Result<Options<N>> {
        Ok(Options {
            strides: parse(cx, "strides", 1.into())?,
            dilation: parse(cx, "dilation_rate", 1.into())?,
            padding: parse(cx, "padding", Padding::Valid.into())?,
            format: parse(cx, "data_format", ByName::default())?,
        })
    }

    fn window(&self, size: [usize; N], groups: usize) -> Window<'_, N> {
        Window {
            key: "kernel",
            size: Sizes(size),
            strides: self.strides,
            dilation: self.dilation,
            padding: &self.padding,
            groups,
        }
    }
}

/// A kernel: the size of its window and its last two axes.
fn kernel<const N: usize>(
    cx: OpCall<'_, '_, '_>,
    name: &str,
) -> Result<(NodeId, [usize; N], [usize; 2])> {
    let kernel = cx.tensor(name)?;
    let dims = cx.dims(kernel);
    if cx.is_rows(kernel) || dims.len() != N + 2 || dims.contains(&0) {
        let expected = format!("{} axes, without batch", N + 2);
        return Err(cx.argument(name, &expected, format!("{dims:?}")));
    }
    Ok((kernel, std::array::from_fn(|i| dims[i]), [dims[N], dims[N + 1]]))
}

/// Calls a function for the number of spatial axes of the input.
macro_rules! by_rank {
    ($cx:ident, $function:ident) => {{
        let x = $cx.tensor("inputs")?;
        match $cx.dims(x).len() {
            2 => $function::<1>($cx, x),
            3 => $function::<2>($cx, x),
            4 => $function::<3>($cx, x),
            n => Err($cx.argument("inputs", "1 to 3 spatial axes and channels", n)),
        }
    }};
}

fn conv<const N: usize>(cx: OpCall<'_, '_, '_>, x: NodeId) -> Result<Outputs> {
    let options = Options::<N>::read(cx)?;
    let (kernel, size, [depth, filters]) = kernel::<N>(cx, "kernel")?;
    let x = spatial::<N>(cx.layer(), &[x], &options.format)?;
    if !x.channels.is_multiple_of(depth) {
        let expected = format!("channels that divide {}", x.channels);
        return Err(cx.argument("kernel", &expected, depth));
    }
    let window = options.window(size, x.channels / depth);
    let geom = window.geometry(cx.layer(), &x, filters)?;
    let y = convolve::<N>(cx.layer(), geom, x.x, kernel, None)?;
    Ok(finish(cx.layer(), y, ActivationFn::Linear, &options.format)?.into())
}

/// Convolves every channel with its own kernels.
fn each_channel<const N: usize>(
    cx: OpCall<'_, '_, '_>,
    options: &Options<N>,
    x: NodeId,
    name: &str,
) -> Result<Spatial<N>> {
    let (kernel, size, [channels, multiplier]) = kernel::<N>(cx, name)?;
    let x = spatial::<N>(cx.layer(), &[x], &options.format)?;
    if x.channels != channels {
        return Err(cx.argument(name, &format!("{} channels", x.channels), channels));
    }
    let geom = options.window(size, channels).depthwise(cx.layer(), &x, multiplier)?;
    convolve::<N>(cx.layer(), geom, x.x, kernel, None)
}

fn depthwise_conv<const N: usize>(cx: OpCall<'_, '_, '_>, x: NodeId) -> Result<Outputs> {
    let options = Options::<N>::read(cx)?;
    let y = each_channel(cx, &options, x, "kernel")?;
    Ok(finish(cx.layer(), y, ActivationFn::Linear, &options.format)?.into())
}

fn separable_conv<const N: usize>(cx: OpCall<'_, '_, '_>, x: NodeId) -> Result<Outputs> {
    let options = Options::<N>::read(cx)?;
    let y = each_channel(cx, &options, x, "depthwise_kernel")?;
    let (pointwise, size, [channels, filters]) = kernel::<N>(cx, "pointwise_kernel")?;
    if size != [1; N] || channels != y.channels {
        let expected = format!("windows of one pixel with {} channels", y.channels);
        return Err(cx.argument("pointwise_kernel", &expected, format!("{size:?}, {channels}")));
    }
    let pixels = Options { strides: 1.into(), dilation: 1.into(), ..Options::read(cx)? };
    let geom = pixels.window(size, 1).geometry(cx.layer(), &y, filters)?;
    let y = convolve::<N>(cx.layer(), geom, y.x, pointwise, None)?;
    Ok(finish(cx.layer(), y, ActivationFn::Linear, &options.format)?.into())
}

/// Pooling by the layer of the same config.
fn pool(cx: OpCall<'_, '_, '_>, classes: [&str; 3], keys: &[&str]) -> Result<Outputs> {
    let x = cx.tensor("inputs")?;
    let n = cx.dims(x).len();
    let Some(class) = n.checked_sub(2).and_then(|i| classes.get(i)) else {
        return Err(cx.argument("inputs", "1 to 3 spatial axes and channels", n));
    };
    let mut config = Config::new();
    for key in keys {
        let value = cx.option(key);
        if !value.is_null() {
            config.insert((*key).into(), value);
        }
    }
    Ok(cx.call_layer(class, config, x)?.into())
}

const POOL: &[&str] = &["pool_size", "strides", "padding", "data_format"];
const ADAPTIVE_POOL: &[&str] = &["output_size", "data_format"];

/// The windows of an image along both axes.
pub(super) struct Taps {
    pub size: [usize; 2],
    pub stride: [usize; 2],
    pub dilation: [usize; 2],
}

impl Taps {
    /// How many windows fit into an image.
    pub fn counts(&self, cx: &OpContext<'_, '_>, image: [usize; 2]) -> Result<[usize; 2]> {
        let [height, width] = self.size;
        if height.saturating_mul(width) > MAX_TAPS {
            return Err(cx.argument("size", &format!("at most {MAX_TAPS} pixels"), height * width));
        }
        let mut counts = [0; 2];
        for i in 0..2 {
            let span = (self.size[i] - 1).saturating_mul(self.dilation[i]).saturating_add(1);
            let Some(rest) = image[i].checked_sub(span) else {
                let expected = format!("windows inside {} by {}", image[0], image[1]);
                return Err(cx.argument("size", &expected, format!("{:?}", self.size)));
            };
            counts[i] = rest / self.stride[i] + 1;
        }
        Ok(counts)
    }

    /// The positions within a window.
    pub fn positions(&self) -> impl Iterator<Item = [usize; 2]> + use<> {
        let ([height, width], [down, right]) = (self.size, self.dilation);
        (0..height).flat_map(move |i| (0..width).map(move |j| [i * down, j * right]))
    }

    /// The element at one position of every window. `axis` is that of the height.
    pub fn take(
        &self,
        cx: OpCall<'_, '_, '_>,
        x: NodeId,
        axis: usize,
        (at, counts): ([usize; 2], [usize; 2]),
    ) -> Result<NodeId> {
        let mut y = x;
        for i in 0..2 {
            let steps = (at[i], counts[i], self.stride[i] as isize);
            y = slice_steps(cx.graph(), y, axis + i, steps)?;
        }
        Ok(y)
    }
}

fn taps(cx: &OpContext<'_, '_>) -> Result<(Taps, [usize; 2])> {
    let taps = Taps {
        size: cx.pair("kernel_size", 1, 1)?,
        stride: cx.pair("stride", 1, 1)?,
        dilation: cx.pair("dilation", 1, 1)?,
    };
    Ok((taps, cx.pair("padding", 0, 0)?))
}

/// The windows of an image with channels first, as columns.
fn unfold(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let x = cx.tensor("x")?;
    let (taps, [down, right]) = taps(cx)?;
    let dims = cx.dims(x);
    let [channels, height, width] = dims[..] else {
        return Err(cx.argument("x", "channels, height and width", format!("{dims:?}")));
    };
    let sides = [0, down, right];
    let x = pad(cx.graph(), x, &sides, &sides, PadMode::Constant(0.0))?;
    let counts = taps.counts(cx, [height + 2 * down, width + 2 * right])?;
    let windows = counts[0] * counts[1];
    let mut parts = vec![];
    for at in taps.positions() {
        let part = taps.take(cx, x, 1, (at, counts))?;
        parts.push(cx.graph().reshape(part, &[channels, 1, windows])?);
    }
    let (taken, g) = (parts.len(), cx.graph());
    let y = concat(g, &parts, 1)?;
    Ok(g.reshape(y, &[channels * taken, windows])?.into())
}

/// The image with channels first whose windows are the columns; windows that overlap are added.
fn fold(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let x = cx.tensor("x")?;
    let (taps, [down, right]) = taps(cx)?;
    let [height, width] = cx.pair("output_size", 1, 1)?;
    let padded = [height + 2 * down, width + 2 * right];
    let counts = taps.counts(cx, padded)?;
    let (dims, count) = (cx.dims(x), taps.size[0] * taps.size[1]);
    let fits = |dims: &[usize]| {
        dims.len() == 2 && dims[0].is_multiple_of(count) && dims[1] == counts[0] * counts[1]
    };
    if !fits(&dims) {
        let expected = format!("a multiple of {count} rows, {} columns", counts[0] * counts[1]);
        return Err(cx.argument("x", &expected, format!("{dims:?}")));
    }
    let channels = dims[0] / count;
    let g = cx.graph();
    let x = g.reshape(x, &[channels, count, counts[0], counts[1]])?;
    let mut sum: Option<NodeId> = None;
    for (i, at) in taps.positions().enumerate() {
        let part = g.push(Op::Slice { axis: 1, start: i, len: 1 }, &[x])?;
        let mut part = g.reshape(part, &[channels, counts[0], counts[1]])?;
        let (mut before, mut after) = ([0; 3], [0; 3]);
        for a in 0..2 {
            let len = (counts[a] - 1) * taps.stride[a] + 1;
            let step = taps.stride[a] as isize;
            part = g.push(Op::Dilate { axis: a + 1, step, len }, &[part])?;
            before[a + 1] = at[a];
            after[a + 1] = padded[a] - at[a] - len;
        }
        part = pad(g, part, &before, &after, PadMode::Constant(0.0))?;
        sum = Some(sum.map_or(Ok(part), |sum| g.add(sum, part))?);
    }
    let mut y = sum.unwrap_or(x);
    for (axis, (start, len)) in [(down, height), (right, width)].into_iter().enumerate() {
        y = slice_steps(g, y, axis + 1, (start, len, 1))?;
    }
    Ok(y.into())
}

/// The axes of an image, and whether its channels come first.
fn image(cx: &OpContext<'_, '_>, x: NodeId) -> Result<([usize; 3], bool)> {
    let dims = cx.dims(x);
    let first = match cx.option("data_format").as_str() {
        Some("channels_first") => true,
        Some("channels_last") | None => false,
        Some(other) => {
            return Err(cx.argument("data_format", "channels_last or channels_first", other));
        }
    };
    match dims[..] {
        [a, b, c] => Ok(([a, b, c], first)),
        _ => Err(cx.argument("x", "images", format!("{dims:?}"))),
    }
}

/// Moves blocks of channels to blocks of pixels.
fn depth_to_space(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let x = cx.tensor("x")?;
    let n = cx.size("block_size", 1)?;
    let (dims, first) = image(cx, x)?;
    let [height, width, channels] = if first { [dims[1], dims[2], dims[0]] } else { dims };
    let blocks = n.saturating_mul(n);
    if !channels.is_multiple_of(blocks) {
        return Err(cx.argument("block_size", &format!("a divisor of {channels}"), blocks));
    }
    let rest = channels / blocks;
    let (apart, perm, merged) = match first {
        false => ([height, width, n, n, rest], [0, 2, 1, 3, 4], [height * n, width * n, rest]),
        true => ([rest, n, n, height, width], [0, 3, 1, 4, 2], [rest, height * n, width * n]),
    };
    blocks_moved(cx, x, &apart, perm, &merged)
}

/// Moves blocks of pixels to blocks of channels.
fn space_to_depth(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let x = cx.tensor("x")?;
    let n = cx.size("block_size", 1)?;
    let (dims, first) = image(cx, x)?;
    let [height, width, channels] = if first { [dims[1], dims[2], dims[0]] } else { dims };
    if !height.is_multiple_of(n) || !width.is_multiple_of(n) {
        let expected = format!("a divisor of {height} and {width}");
        return Err(cx.argument("block_size", &expected, n));
    }
    let (h, w, c) = (height / n, width / n, channels.saturating_mul(n * n));
    let (apart, perm, merged) = match first {
        false => ([h, n, w, n, channels], [0, 2, 1, 3, 4], [h, w, c]),
        true => ([channels, h, n, w, n], [0, 2, 4, 1, 3], [c, h, w]),
    };
    blocks_moved(cx, x, &apart, perm, &merged)
}

fn blocks_moved(
    cx: OpCall<'_, '_, '_>,
    x: NodeId,
    apart: &[usize],
    perm: [usize; 5],
    merged: &[usize],
) -> Result<Outputs> {
    let g = cx.graph();
    let x = g.reshape(x, apart)?;
    let x = g.push(Op::Transpose { perm: perm.to_vec() }, &[x])?;
    Ok(g.reshape(x, merged)?.into())
}

ops! {
    NN, "nn";
    AdaptiveAveragePool(inputs) => |cx| pool(
        cx,
        ["AdaptiveAveragePooling1D", "AdaptiveAveragePooling2D", "AdaptiveAveragePooling3D"],
        ADAPTIVE_POOL,
    ),
    AdaptiveMaxPool(inputs) => |cx| pool(
        cx,
        ["AdaptiveMaxPooling1D", "AdaptiveMaxPooling2D", "AdaptiveMaxPooling3D"],
        ADAPTIVE_POOL,
    ),
    AveragePool(inputs) => |cx| pool(
        cx,
        ["AveragePooling1D", "AveragePooling2D", "AveragePooling3D"],
        POOL,
    ),
    Conv(inputs, kernel) => |cx| by_rank!(cx, conv),
    DepthToSpace(x) => depth_to_space,
    DepthwiseConv(inputs, kernel) => |cx| by_rank!(cx, depthwise_conv),
    Fold(x) => fold,
    MaxPool(inputs) => |cx| pool(cx, ["MaxPooling1D", "MaxPooling2D", "MaxPooling3D"], POOL),
    SeparableConv(inputs, depthwise_kernel, pointwise_kernel) => |cx| by_rank!(cx, separable_conv),
    SpaceToDepth(x) => space_to_depth,
    Unfold(x) => unfold,
}
