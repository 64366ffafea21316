//! Geometric maps of images, and values at computed coordinates.

use super::context::{OpCall, OpContext};
use super::image::{images, numbers, restored};
use super::ops;
use crate::by_name::Named;
use crate::error::Result;
use crate::layer::Outputs;
use crate::layers::{AxisSampling, ElasticFillMode, Interpolation, Resampling, noise};
use phalanx_graph::functions::image::{
    Elastic, Extension, elastic, map_coordinates, perspective, project,
};
use phalanx_graph::{NodeId, Op};
use serde_json::Value;

/// The largest side of an image that noise deforms: smoothing multiplies with a matrix of that size.
const MAX_SIDE: usize = 1 << 12;

/// One of the names of an option.
fn named<T: Named>(cx: &OpContext<'_, '_>, name: &str, default: &str) -> Result<T> {
    let value = cx.option(name);
    let text = if value.is_null() { Some(default) } else { value.as_str() };
    let found = text.and_then(T::from_name);
    found.ok_or_else(|| cx.argument(name, &T::NAMES.join(", "), &value))
}

/// Whether values are interpolated.
fn linear(cx: &OpContext<'_, '_>) -> Result<bool> {
    Ok(named::<Interpolation>(cx, "interpolation", "bilinear")? == Interpolation::Bilinear)
}

/// The values outside of an image.
fn extension(cx: &OpContext<'_, '_>, default: &str) -> Result<Extension> {
    let mode: ElasticFillMode = named(cx, "fill_mode", default)?;
    let value = cx.number_or("fill_value", 0.0)?;
    if !value.is_finite() {
        return Err(cx.argument("fill_value", "a finite number", value));
    }
    Ok(mode.extension(value))
}

/// An argument of `dims` for each sample, or for all of them.
fn shaped(cx: OpCall<'_, '_, '_>, name: &str, dims: &[usize]) -> Result<NodeId> {
    let mut x = cx.tensor(name)?;
    let lead = [&[1], dims].concat();
    if !cx.is_rows(x) && cx.dims(x) == lead {
        x = cx.graph().reshape(x, dims)?;
    }
    if cx.dims(x) != dims {
        let expected = format!("{dims:?} for each sample");
        return Err(cx.argument(name, &expected, format!("{:?}", cx.dims(x))));
    }
    Ok(x)
}

/// Takes the pixel `(x, y)` from `((a0 x + a1 y + a2) / k, (b0 x + b1 y + b2) / k)` with `k = c0 x + c1 y + 1`.
fn affine_transform(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let (x, first) = images(cx)?;
    let transform = shaped(cx, "transform", &[8])?;
    let (extension, linear) = (extension(cx, "constant")?, linear(cx)?);
    let g = cx.graph();
    let one = g.fill(1.0, &[1, 1]);
    let mut matrix = [[one; 3]; 3];
    for i in 0..8 {
        let entry = g.push(Op::Slice { axis: 0, start: i, len: 1 }, &[transform])?;
        matrix[i / 3][i % 3] = g.reshape(entry, &[1, 1])?;
    }
    let y = project(g, x, &matrix, extension, linear)?;
    restored(cx, y, first)
}

/// Moves four points of an image to four others.
fn perspective_transform(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let (x, first) = images(cx)?;
    let start = shaped(cx, "start_points", &[4, 2])?;
    let end = shaped(cx, "end_points", &[4, 2])?;
    let (extension, linear) = (extension(cx, "constant")?, linear(cx)?);
    let y = perspective(cx.graph(), x, [start, end], extension, linear)?;
    restored(cx, y, first)
}

/// Elements at coordinates along all axes. In Keras the batch is one of these axes, so values with a batch would mix
/// their samples.
fn coordinates(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let (x, at) = (cx.tensor("inputs")?, cx.tensor("coordinates")?);
    for (name, node) in [("inputs", x), ("coordinates", at)] {
        if cx.is_rows(node) {
            let expected = "a value without a batch axis (indexing would mix samples)";
            return Err(cx.argument(name, expected, format!("samples of {:?}", cx.dims(node))));
        }
    }
    let (rank, dims) = (cx.dims(x).len(), cx.dims(at));
    if dims.len() < 2 || dims[0] != rank {
        let expected = format!("at least 2 axes, the first of size {rank}");
        return Err(cx.argument("coordinates", &expected, format!("{dims:?}")));
    }
    let linear = match cx.option("order").as_u64() {
        Some(0) => false,
        Some(1) => true,
        _ => return Err(cx.argument("order", "0 or 1", cx.option("order"))),
    };
    let extension = extension(cx, "constant")?;
    let g = cx.graph();
    let mut axes = vec![];
    for i in 0..rank {
        let axis = g.push(Op::Slice { axis: 0, start: i, len: 1 }, &[at])?;
        axes.push(g.reshape(axis, &dims[1..])?);
    }
    Ok(map_coordinates(g, x, &axes, extension, linear)?.into())
}

/// Deforms images by smoothed noise, in training and in inference. Keras' `seed` is not used: the run's seed is.
fn elastic_transform(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let (x, first) = images(cx)?;
    let (alpha, sigma) = (cx.number_or("alpha", 20.0)?, cx.number_or("sigma", 5.0)?);
    let [height, width] = [cx.dims(x)[0], cx.dims(x)[1]];
    if !alpha.is_finite() {
        return Err(cx.argument("alpha", "a finite number", alpha));
    }
    if !(0.0..=MAX_SIDE as f64).contains(&sigma) || sigma == 0.0 {
        return Err(cx.argument("sigma", &format!("a number above 0, up to {MAX_SIDE}"), sigma));
    }
    if height.max(width) > MAX_SIDE {
        let expected = format!("at most {MAX_SIDE} pixels along an axis");
        return Err(cx.argument("images", &expected, format!("{height} by {width}")));
    }
    let (extension, linear) = (extension(cx, "reflect")?, linear(cx)?);
    let noise = noise::normal(cx.layer(), &[height, width, 1], sigma)?;
    let g = cx.graph();
    let taps = (6.0 * sigma) as usize | 1;
    let (alpha, sigma) = (g.scalar(alpha), g.scalar(sigma));
    let y = elastic(g, x, Elastic { noise, alpha, sigma, taps }, extension, linear)?;
    restored(cx, y, first)
}

/// Resamples axes after moving their points `x` to `x · scale + translation`.
fn scale_and_translate(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let mut x = cx.tensor("images")?;
    let (rank, lead) = (cx.rank(x), usize::from(cx.is_rows(x)));
    let axes = cx.integers("spatial_dims")?.unwrap_or_default();
    let dims = axes.iter().map(|axis| cx.dim(x, *axis)).collect::<Result<Vec<_>>>()?;
    let constant = |name: &str| {
        let list = numbers(cx, name)?.filter(|list| list.len() == axes.len());
        let expected = format!("{} numbers, not a tensor", axes.len());
        list.ok_or_else(|| cx.argument(name, &expected, cx.option(name)))
    };
    let (scale, translation) = (constant("scale")?, constant("translation")?);
    if let Some(wrong) = scale.iter().find(|scale| **scale <= 0.0) {
        return Err(cx.argument("scale", "numbers above 0", wrong));
    }
    let shape = cx.integers("output_shape")?.unwrap_or_default();
    let size = |dim: usize| shape.get(dim + lead).and_then(|n| usize::try_from(*n).ok());
    let fits = |dim: usize| match dims.contains(&dim) {
        true => size(dim).is_some_and(|n| n > 0),
        false => size(dim) == Some(cx.dims(x)[dim]),
    };
    if shape.len() != rank || !(0..rank - lead).all(fits) {
        let expected = format!("{rank} sizes, those of the input for all axes but {axes:?}");
        return Err(cx.argument("output_shape", &expected, format!("{shape:?}")));
    }
    let resampling = match cx.option("method").as_str() {
        Some("linear" | "bilinear" | "trilinear") => Resampling::Bilinear,
        Some("cubic" | "bicubic" | "tricubic") => Resampling::Bicubic,
        Some("lanczos3") => Resampling::Lanczos3,
        Some("lanczos5") => Resampling::Lanczos5,
        _ => {
            let expected = "linear, cubic, lanczos3 or lanczos5";
            return Err(cx.argument("method", expected, cx.option("method")));
        }
    };
    let antialias = cx.option("antialias") != Value::Bool(false);
    for (i, dim) in dims.iter().enumerate() {
        let size = size(*dim).unwrap_or(1);
        let (scale, translation) = (scale[i], translation[i]);
        let axis = AxisSampling { resampling, antialias, size, scale, translation };
        x = axis.along(cx.layer(), x, *dim, "output_shape")?;
    }
    Ok(x.into())
}

ops! {
    IMAGE, "image";
    AffineTransform(images, transform) => affine_transform,
    ElasticTransform(images) => elastic_transform,
    MapCoordinates(inputs, coordinates) => coordinates,
    PerspectiveTransform(images, start_points, end_points) => perspective_transform,
    ScaleAndTranslate(images, output_shape, scale, translation) => scale_and_translate,
}
