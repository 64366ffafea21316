//! Images: colours, filters, sizes, borders and patches.

use super::context::{OpCall, OpContext};
use super::ops;
use super::window::Taps;
use crate::error::Result;
use crate::layer::Outputs;
use crate::registry::Config;
use phalanx_graph::functions::image::{hsv_to_rgb, rgb_to_hsv, smooth};
use phalanx_graph::functions::layout::{PadMode, concat, pad, slice_steps};
use phalanx_graph::{Graph, NodeId, Op};
use serde_json::{Value, json};

/// The weights of red, green and blue in grey.
const GREY: [f32; 3] = [0.2989, 0.587, 0.114];

/// The largest kernel of a filter, and the largest side of an image that is filtered: filters are products with
/// matrices of that size.
const MAX_SIDE: usize = 1 << 12;

/// The images with their channels last, and whether they came first.
pub(super) fn images(cx: OpCall<'_, '_, '_>) -> Result<(NodeId, bool)> {
    images_of(cx, "images")
}

/// The images of an argument.
fn images_of(cx: OpCall<'_, '_, '_>, name: &str) -> Result<(NodeId, bool)> {
    let x = cx.tensor(name)?;
    let dims = cx.dims(x);
    if dims.len() != 3 || !cx.is_rows(x) || dims.contains(&0) {
        return Err(cx.argument(name, "a batch of images", format!("{dims:?}")));
    }
    match cx.option("data_format").as_str() {
        Some("channels_first") => {
            Ok((cx.graph().push(Op::Transpose { perm: vec![1, 2, 0] }, &[x])?, true))
        }
        Some("channels_last") | None => Ok((x, false)),
        Some(other) => Err(cx.argument("data_format", "channels_last or channels_first", other)),
    }
}

/// Moves the channels back.
pub(super) fn restored(cx: OpCall<'_, '_, '_>, y: NodeId, first: bool) -> Result<Outputs> {
    if !first {
        return Ok(y.into());
    }
    Ok(cx.graph().push(Op::Transpose { perm: vec![2, 0, 1] }, &[y])?.into())
}

fn grayscale(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let (x, first) = images(cx)?;
    let y = match cx.dims(x)[2] {
        1 => x,
        3 => {
            let weights = cx.layer().constant("weights", &[3], GREY.to_vec());
            let g = cx.graph();
            let product = g.mul(x, weights)?;
            g.sum_axes(product, &[2])?
        }
        other => return Err(cx.argument("images", "1 or 3 channels", other)),
    };
    restored(cx, y, first)
}

/// Changes the colour space of images with three channels.
fn colours(
    cx: OpCall<'_, '_, '_>,
    change: fn(&mut Graph, NodeId) -> phalanx_graph::Result<NodeId>,
) -> Result<Outputs> {
    let (x, first) = images(cx)?;
    let y = change(cx.graph(), x)?;
    restored(cx, y, first)
}

/// Numbers in an option, or in an array of the call; `None` without them.
pub(super) fn numbers(cx: &OpContext<'_, '_>, name: &str) -> Result<Option<Vec<f64>>> {
    let value = cx.option(name);
    let list = match value.pointer("/config/value").unwrap_or(&value) {
        Value::Null => return Ok(None),
        Value::Array(items) => items.iter().map(Value::as_f64).collect(),
        one => one.as_f64().map(|number| vec![number]),
    };
    let finite = list.filter(|list: &Vec<f64>| list.iter().all(|number| number.is_finite()));
    finite.map(Some).ok_or_else(|| cx.argument(name, "finite numbers", &value))
}

/// A filter: its sizes along the width and the height, and its deviations.
struct Gaussian {
    size: [usize; 2],
    sigma: [f64; 2],
}

impl Gaussian {
    /// Fails unless images of `dims` can be filtered.
    fn check(&self, cx: &OpContext<'_, '_>, dims: &[usize]) -> Result<()> {
        if self.size.iter().chain(&dims[..2]).any(|n| *n > MAX_SIDE) {
            let expected =
                format!("a kernel and an image of at most {MAX_SIDE} pixels along an axis");
            let received = format!("{:?} and {:?}", self.size, &dims[..2]);
            return Err(cx.argument("images", &expected, received));
        }
        if self.sigma.iter().any(|sigma| *sigma <= 0.0) {
            return Err(cx.argument("sigma", "numbers above 0", format!("{:?}", self.sigma)));
        }
        Ok(())
    }

    /// Smooths images; outside of them are zeros.
    fn apply(&self, g: &mut Graph, x: NodeId) -> phalanx_graph::Result<NodeId> {
        let mut y = x;
        for (axis, size, sigma) in
            [(1, self.size[0], self.sigma[0]), (0, self.size[1], self.sigma[1])]
        {
            let (sigma, reach) = (g.scalar(sigma), g.scalar((size as f64 - 1.0) / 2.0));
            y = smooth(g, y, axis, [sigma, reach], size)?;
        }
        Ok(y)
    }
}

fn gaussian_blur(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let (x, first) = images(cx)?;
    let sigma = numbers(cx, "sigma")?.unwrap_or_else(|| vec![1.0]);
    let sigma = match sigma[..] {
        [both] => [both; 2],
        [width, height] => [width, height],
        _ => return Err(cx.argument("sigma", "one or two numbers", format!("{sigma:?}"))),
    };
    let filter = Gaussian { size: cx.pair("kernel_size", 3, 1)?, sigma };
    filter.check(cx, &cx.dims(x))?;
    let y = filter.apply(cx.graph(), x)?;
    restored(cx, y, first)
}

/// The sum of three neighbours along an axis, with weights. The axis becomes shorter by two.
fn three(
    g: &mut Graph,
    x: NodeId,
    axis: usize,
    weights: [f64; 3],
) -> phalanx_graph::Result<NodeId> {
    let len = g.ty(x).dims[axis] - 2;
    let mut sum: Option<NodeId> = None;
    for (start, weight) in weights.into_iter().enumerate().filter(|(_, weight)| *weight != 0.0) {
        let part = g.push(Op::Slice { axis, start, len }, &[x])?;
        let part = g.scale(part, weight)?;
        sum = Some(sum.map_or(Ok(part), |sum| g.add(sum, part))?);
    }
    Ok(sum.unwrap_or(x))
}

/// Sobel's derivatives down and to the right, as a last axis. Outside of the images are zeros.
fn sobel_edges(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let (x, first) = images(cx)?;
    let dims = cx.dims(x);
    let g = cx.graph();
    let border = [1, 1, 0];
    let padded = pad(g, x, &border, &border, PadMode::Constant(0.0))?;
    let mut edges = vec![];
    for axis in [0, 1] {
        let y = three(g, padded, axis, [-1.0, 0.0, 1.0])?;
        let y = three(g, y, 1 - axis, [1.0, 2.0, 1.0])?;
        edges.push(g.reshape(y, &[&dims[..], &[1]].concat())?);
    }
    let y = concat(g, &edges, 3)?;
    Ok(if first { g.push(Op::Transpose { perm: vec![2, 0, 1, 3] }, &[y])? } else { y }.into())
}

/// The structural similarity of images: one number for each pair.
fn ssim(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let ((a, _), (b, _)) = (images_of(cx, "image1")?, images_of(cx, "image2")?);
    let dims = cx.dims(a);
    if cx.dims(b) != dims {
        return Err(cx.argument("image2", &format!("{dims:?}"), format!("{:?}", cx.dims(b))));
    }
    let option = |cx: &OpContext<'_, '_>, name: &str, default: f64| match cx.config_has(name) {
        true => cx.number_or(name, default),
        false => Ok(default),
    };
    let size = if cx.config_has("filter_size") { cx.size("filter_size", 1)? } else { 11 };
    if dims[..2].iter().any(|n| *n < size) {
        let expected = format!("at most the size of the images, {:?}", &dims[..2]);
        return Err(cx.argument("filter_size", &expected, size));
    }
    let filter = Gaussian { size: [size; 2], sigma: [option(cx, "filter_sigma", 1.5)?; 2] };
    filter.check(cx, &dims)?;
    let max_val = option(cx, "max_val", 1.0)?;
    let c1 = (option(cx, "k1", 0.01)? * max_val).powi(2);
    let c2 = (option(cx, "k2", 0.03)? * max_val).powi(2);
    let g = cx.graph();
    // Only windows that are inside of the image count.
    let mean = |g: &mut Graph, x: NodeId| -> phalanx_graph::Result<NodeId> {
        let mut y = filter.apply(g, x)?;
        for (axis, side) in dims[..2].iter().enumerate() {
            y = slice_steps(g, y, axis, ((size - 1) / 2, side - size + 1, 1))?;
        }
        Ok(y)
    };
    let (mean_a, mean_b) = (mean(g, a)?, mean(g, b)?);
    let covariance = |g: &mut Graph, [x, y]: [NodeId; 2], [mean_x, mean_y]: [NodeId; 2]| {
        let (product, of_means) = (g.mul(x, y)?, g.mul(mean_x, mean_y)?);
        let of_product = mean(g, product)?;
        Ok::<_, phalanx_graph::GraphError>((g.sub(of_product, of_means)?, of_means))
    };
    let (var_a, square_a) = covariance(g, [a, a], [mean_a, mean_a])?;
    let (var_b, square_b) = covariance(g, [b, b], [mean_b, mean_b])?;
    let (both, square_both) = covariance(g, [a, b], [mean_a, mean_b])?;
    let similarity = |g: &mut Graph, joint: NodeId, [x, y]: [NodeId; 2], least: f64| {
        let joint = g.scale(joint, 2.0)?;
        let (above, sum) = (g.offset(joint, least)?, g.add(x, y)?);
        let below = g.offset(sum, least)?;
        Ok::<_, phalanx_graph::GraphError>((above, below))
    };
    let (light, light_below) = similarity(g, square_both, [square_a, square_b], c1)?;
    let (shape, shape_below) = similarity(g, both, [var_a, var_b], c2)?;
    let (above, below) = (g.mul(light, shape)?, g.mul(light_below, shape_below)?);
    let map = g.div(above, below)?;
    let mean = g.mean_axes(map, &[0, 1, 2])?;
    Ok(g.reshape(mean, &[])?.into())
}

fn resize(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let (x, first) = images(cx)?;
    let [height, width] = cx.pair("size", 1, 1)?;
    let mut config = Config::new();
    config.insert("height".into(), json!(height));
    config.insert("width".into(), json!(width));
    let keys = ["interpolation", "antialias", "crop_to_aspect_ratio", "pad_to_aspect_ratio"];
    for key in keys.into_iter().chain(["fill_mode", "fill_value"]) {
        let value = cx.option(key);
        if !value.is_null() {
            config.insert(key.into(), value);
        }
    }
    let y = cx.call_layer("Resizing", config, x)?;
    restored(cx, y, first)
}

/// The sizes at the start of both axes, and those at the end. One of start, end and target follows from the others;
/// `sign` is 1 for padding and -1 for cropping.
fn sides(
    cx: &OpContext<'_, '_>,
    names: [[&str; 3]; 2],
    sizes: [usize; 2],
    sign: i64,
) -> Result<[[usize; 2]; 2]> {
    let mut out = [[0; 2]; 2];
    for (axis, [start, end, target]) in names.into_iter().enumerate() {
        let number = |name: &str| cx.option(name).as_i64();
        let (a, b, t) = (number(start), number(end), number(target));
        // Padding adds to the size, cropping takes from it.
        let size = i64::try_from(sizes[axis]).unwrap_or(i64::MAX);
        let total = t.map(|t| sign.saturating_mul(t.saturating_sub(size)));
        let pair = match (a, b, total) {
            (Some(a), Some(b), _) => Some((a, b)),
            (Some(a), None, Some(total)) => Some((a, total.saturating_sub(a))),
            (None, Some(b), Some(total)) => Some((total.saturating_sub(b), b)),
            _ => None,
        };
        let pair =
            pair.and_then(|(a, b)| Some((usize::try_from(a).ok()?, usize::try_from(b).ok()?)));
        let Some((a, b)) = pair else {
            let expected = format!("two of {start}, {end} and {target}, 0 or more");
            let received = format!("{a:?}, {b:?} and {t:?}");
            return Err(cx.argument(start, &expected, received));
        };
        (out[0][axis], out[1][axis]) = (a, b);
    }
    Ok(out)
}

fn pad_images(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let (x, first) = images(cx)?;
    let dims = cx.dims(x);
    let names = [
        ["top_padding", "bottom_padding", "target_height"],
        ["left_padding", "right_padding", "target_width"],
    ];
    let [before, after] = sides(cx, names, [dims[0], dims[1]], 1)?;
    let ends = |sizes: [usize; 2]| [sizes[0], sizes[1], 0];
    let y = pad(cx.graph(), x, &ends(before), &ends(after), PadMode::Constant(0.0))?;
    restored(cx, y, first)
}

fn crop_images(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let (x, first) = images(cx)?;
    let dims = cx.dims(x);
    let names = [
        ["top_cropping", "bottom_cropping", "target_height"],
        ["left_cropping", "right_cropping", "target_width"],
    ];
    let [before, after] = sides(cx, names, [dims[0], dims[1]], -1)?;
    let mut y = x;
    for axis in 0..2 {
        let len = dims[axis].checked_sub(before[axis]).and_then(|n| n.checked_sub(after[axis]));
        let Some(len) = len.filter(|n| *n > 0) else {
            let received = format!("{} and {}", before[axis], after[axis]);
            return Err(cx.argument("cropping", &format!("less than {}", dims[axis]), received));
        };
        y = slice_steps(cx.graph(), y, axis, (before[axis], len, 1))?;
    }
    restored(cx, y, first)
}

/// The windows of an image, each as the channels of one pixel.
fn extract_patches(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let (mut x, first) = images(cx)?;
    let size = cx.pair("size", 1, 1)?;
    let stride = if cx.option("strides").is_null() { size } else { cx.pair("strides", 1, 1)? };
    let taps = Taps { size, stride, dilation: cx.pair("dilation_rate", 1, 1)? };
    match cx.option("padding") {
        Value::Null => {}
        padding if padding == "valid" => {}
        padding if padding == "same" => {
            let dims = cx.dims(x);
            let (mut before, mut after) = ([0; 3], [0; 3]);
            for i in 0..2 {
                let span = (size[i] - 1).saturating_mul(taps.dilation[i]).saturating_add(1);
                let last = (dims[i].div_ceil(stride[i]) - 1).saturating_mul(stride[i]);
                let total = last.saturating_add(span).saturating_sub(dims[i]);
                (before[i], after[i]) = (total / 2, total - total / 2);
            }
            x = pad(cx.graph(), x, &before, &after, PadMode::Constant(0.0))?;
        }
        other => return Err(cx.argument("padding", "valid or same", other)),
    }
    let dims = cx.dims(x);
    let counts = taps.counts(cx, [dims[0], dims[1]])?;
    let mut parts = vec![];
    for at in taps.positions() {
        parts.push(taps.take(cx, x, 0, (at, counts))?);
    }
    let y = concat(cx.graph(), &parts, 2)?;
    restored(cx, y, first)
}

ops! {
    IMAGE, "image";
    CropImages(images) => crop_images,
    ExtractPatches(images) => extract_patches,
    GaussianBlur(images) => gaussian_blur,
    HSVToRGB(images) => |cx| colours(cx, hsv_to_rgb),
    PadImages(images) => pad_images,
    RGBToGrayscale(images) => grayscale,
    RGBToHSV(images) => |cx| colours(cx, rgb_to_hsv),
    Resize(images) => resize,
    SSIM(image1, image2) => ssim,
    SobelEdges(images) => sobel_edges,
}
