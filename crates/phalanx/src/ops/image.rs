//! Images: colours, sizes, borders and patches.

use super::context::OpContext;
use super::ops;
use super::window::Taps;
use crate::error::Result;
use crate::layer::Outputs;
use crate::registry::Config;
use phalanx_graph::functions::layout::{PadMode, concat, pad, slice_steps};
use phalanx_graph::{NodeId, Op};
use serde_json::{Value, json};

type Cx<'a, 'b, 'c> = &'c mut OpContext<'a, 'b>;

/// The weights of red, green and blue in grey.
const GREY: [f32; 3] = [0.2989, 0.587, 0.114];

/// The images with their channels last, and whether they came first.
fn images(cx: Cx<'_, '_, '_>) -> Result<(NodeId, bool)> {
    let x = cx.tensor("images")?;
    let dims = cx.dims(x);
    if dims.len() != 3 || !cx.is_rows(x) || dims.contains(&0) {
        return Err(cx.argument("images", "a batch of images", format!("{dims:?}")));
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
fn restored(cx: Cx<'_, '_, '_>, y: NodeId, first: bool) -> Result<Outputs> {
    if !first {
        return Ok(y.into());
    }
    Ok(cx.graph().push(Op::Transpose { perm: vec![2, 0, 1] }, &[y])?.into())
}

fn grayscale(cx: Cx<'_, '_, '_>) -> Result<Outputs> {
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

fn resize(cx: Cx<'_, '_, '_>) -> Result<Outputs> {
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

fn pad_images(cx: Cx<'_, '_, '_>) -> Result<Outputs> {
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

fn crop_images(cx: Cx<'_, '_, '_>) -> Result<Outputs> {
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
fn extract_patches(cx: Cx<'_, '_, '_>) -> Result<Outputs> {
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
    PadImages(images) => pad_images,
    RGBToGrayscale(images) => grayscale,
    Resize(images) => resize,
}
