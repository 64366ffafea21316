"""Models of many ops of `keras.ops`, one output for each. A group is a list of functions of the output of a layer with
weights, so that the fixture has the derivatives too."""

import importlib

import keras
import numpy as np
from common import normal
from keras import layers as L
from keras import ops
from model_cases import CASES

# Small outputs have small derivatives: the weights of many outputs stay in range.
SCALE = 0.2


def group(name, layer, functions, shape=(5, 6), cases=CASES):
    """A model of ops on the output of `layer`."""

    def build(rng):
        x = keras.Input(shape[1:])
        h = layer(x)
        outputs = []
        for function in functions:
            result = function(h)
            for y in result if isinstance(result, (list, tuple)) else [result]:
                outputs.append(ops.cast(y, "float32") * SCALE)
        return keras.Model(x, outputs), normal(rng, *shape)

    cases[name] = build


def real(x):
    """Numbers between -1 and 1."""
    return L.Dense(6, activation="tanh")(x)


def positive(x):
    """Numbers between 0.1 and 1.1."""
    return L.Dense(6, activation="sigmoid")(x) + 0.1


def matrix(x):
    """A matrix of 3 by 4 per sample."""
    return L.Reshape((3, 4))(L.Dense(12, activation="tanh")(x))


def cube(x):
    """A value of 2 by 3 by 4 per sample."""
    return L.Reshape((2, 3, 4))(L.Dense(24, activation="tanh")(x))


def image(x):
    """An image of 6 by 6 with 4 channels."""
    return L.Conv2D(4, 1, activation="tanh")(x)


def holes(h):
    """NaN in place of small numbers, except the first three."""
    nan = ops.stop_gradient(ops.log(h * 0.0 - 1.0))
    first = np.array([1, 1, 1, -1, -1, -1], "float32")
    return ops.where(ops.maximum(h, first) > -0.4, h, nan)


def infinities(h):
    return ops.stop_gradient(ops.divide(h, ops.maximum(ops.sign(h), 0.0) * 0.0))


def array(*shape):
    return normal(np.random.default_rng(sum(shape)), *shape)


def op(module, name, *args, **kwargs):
    """A class of keras.ops whose function does not make it, or does not pass its arguments on."""
    return getattr(importlib.import_module(f"keras.src.ops.{module}"), name)(*args, **kwargs)


group(
    "ops_unary",
    real,
    [
        lambda h: op("numpy", "Abs").symbolic_call(h),
        ops.absolute,
        ops.angle,
        ops.arccos,
        ops.arcsin,
        ops.arcsinh,
        ops.arctan,
        lambda h: ops.arctanh(h * 0.9),
        lambda h: ops.array(h, dtype="float32"),
        ops.ceil,
        lambda h: ops.clip(h, -0.5, 0.4),
        lambda h: op("numpy", "Conj").symbolic_call(h),
        ops.conjugate,
        ops.copy,
        ops.cos,
        ops.cosh,
        ops.deg2rad,
        ops.empty_like,
        ops.exp,
        ops.exp2,
        ops.expm1,
        lambda h: op("numpy", "Fabs").symbolic_call(h),
    ],
)
group(
    "ops_unary_more",
    real,
    [
        lambda h: ops.floor(h * 3.0),
        lambda h: ops.full_like(h, 1.5),
        ops.imag,
        ops.isreal,
        lambda h: ops.logical_not(ops.floor(h)),
        ops.negative,
        ops.ones_like,
        ops.rad2deg,
        ops.real,
        lambda h: ops.round(h * 7.0),
        lambda h: ops.round(h, 1),
        ops.sign,
        ops.signbit,
        ops.sin,
        lambda h: ops.sinc(h * 2.0),
        ops.sinh,
        ops.square,
        ops.tan,
        ops.tanh,
        lambda h: ops.trunc(h * 3.0),
        ops.zeros_like,
        ops.erf,
        ops.erfc,
        lambda h: ops.erfinv(h * 0.9),
        lambda h: ops.stop_gradient(h) * h,
        lambda h: ops.convert_to_tensor(h, dtype="float32"),
        lambda h: ops.saturate_cast(h * 300.0, "uint8"),
        lambda h: ops.cast(h * 3.0, "int32"),
        lambda h: ops.cast(ops.floor(h), "bool"),
    ],
)
group(
    "ops_positive",
    positive,
    [
        lambda h: ops.arccosh(h + 1.0),
        ops.cbrt,
        lambda h: ops.geomspace(h, h + 2.0, num=4, axis=-1),
        ops.log,
        ops.log10,
        ops.log1p,
        ops.log2,
        lambda h: ops.power(h, 1.7),
        ops.reciprocal,
        ops.rsqrt,
        ops.sqrt,
    ],
)
group(
    "ops_not_finite",
    real,
    [
        lambda h: ops.isfinite(infinities(h)),
        lambda h: ops.isinf(infinities(h)),
        lambda h: ops.isnan(holes(h)),
        lambda h: ops.isneginf(infinities(h)),
        lambda h: ops.isposinf(infinities(h)),
        lambda h: ops.nan_to_num(holes(h), nan=0.5),
        lambda h: ops.nan_to_num(infinities(h), posinf=2.0, neginf=-3.0),
        lambda h: ops.nanargmax(holes(h), axis=1),
        lambda h: ops.nanargmin(holes(h), axis=1),
        lambda h: ops.nancumprod(holes(h), axis=1),
        lambda h: ops.nancumsum(holes(h), axis=1),
        lambda h: ops.nanmax(holes(h), axis=1),
        lambda h: ops.nanmean(holes(h), axis=1, keepdims=True),
        lambda h: ops.nanmedian(holes(h), axis=1),
        lambda h: ops.nanmin(holes(h), axis=1),
        lambda h: ops.nanpercentile(holes(h), 30, axis=1),
        lambda h: ops.nanprod(holes(h), axis=1),
        lambda h: ops.nanquantile(holes(h), 0.6, axis=1, method="lower"),
        lambda h: ops.nanstd(holes(h), axis=1),
        lambda h: ops.nansum(holes(h), axis=1),
        lambda h: ops.nanvar(holes(h), axis=1),
        lambda h: ops.fmax(holes(h), h * 0.5),
        lambda h: ops.fmin(h * 0.5, holes(h)),
    ],
)
group(
    "ops_binary",
    real,
    [
        lambda h: h + ops.flip(h, 1),
        lambda h: ops.arctan2(h, ops.flip(h, 1) + 0.1),
        lambda h: h / (ops.flip(h, 1) + 2.0),
        lambda h: ops.true_divide(h, 3.0),
        lambda h: ops.divide_no_nan(h, ops.maximum(h, 0.0)),
        lambda h: ops.equal(ops.floor(h), 0.0),
        lambda h: ops.floor_divide(h * 5.0, 2.0),
        lambda h: ops.fmod(h * 5.0, 1.5),
        lambda h: h > 0.1,
        lambda h: h >= 0.1,
        lambda h: h < 0.1,
        lambda h: h <= 0.1,
        lambda h: ops.heaviside(h, ops.array(0.5)),
        lambda h: ops.hypot(h, ops.flip(h, 1)),
        lambda h: ops.isclose(h, h + 0.01, rtol=0.1),
        lambda h: ops.ldexp(h, ops.cast(ops.array([1, 2, 3, -1, 0, 2]), "int32")),
        lambda h: ops.logaddexp(h, ops.flip(h, 1)),
        lambda h: ops.logaddexp2(h, ops.flip(h, 1)),
        lambda h: ops.logical_and(h > 0.0, h < 0.5),
        lambda h: ops.logical_or(h < 0.0, h > 0.5),
        lambda h: ops.logical_xor(h < 0.5, h > 0.0),
        lambda h: ops.maximum(h, array(1, 6)),
        lambda h: ops.minimum(h, array(6)),
        lambda h: ops.mod(h * 5.0, -1.5),
        lambda h: h * h,
        lambda h: ops.not_equal(ops.floor(h), 0.0),
        lambda h: ops.select([h > 0.3, h > 0.0], [h * 2.0, h * 3.0], -1.0),
        lambda h: 1.0 - h,
        lambda h: ops.where(h > 0.0, h, h * 0.1),
    ],
)
group(
    "ops_reductions",
    cube,
    [
        lambda h: ops.all(h > -0.5, axis=3),
        lambda h: ops.amax(h, axis=(1, 3)),
        lambda h: ops.amin(h, axis=-1, keepdims=True),
        lambda h: ops.any(h > 0.5, axis=(1, 2)),
        lambda h: ops.argmax(h, axis=2),
        lambda h: ops.argmin(h, axis=-1, keepdims=True),
        lambda h: ops.average(h, axis=2),
        lambda h: ops.average(h, axis=3, weights=ops.array([1.0, 2.0, 3.0, 4.0])),
        lambda h: ops.average(h, axis=3, weights=h + 2.0),
        lambda h: ops.count_nonzero(h > 0.0, axis=2),
        lambda h: ops.cumprod(h, axis=3),
        lambda h: ops.cumsum(h, axis=1),
        lambda h: ops.logsumexp(h, axis=(2, 3)),
        lambda h: ops.max(h, axis=1, initial=0.2),
        lambda h: ops.mean(h, axis=(1, 2)),
        lambda h: ops.median(h, axis=3),
        lambda h: ops.median(h, axis=(1, 2), keepdims=True),
        lambda h: ops.min(h, axis=1),
        lambda h: ops.moments(h, axes=(1, 2)),
        lambda h: ops.percentile(h, 80, axis=3, method="higher"),
        lambda h: ops.prod(h, axis=(1, 3)),
        lambda h: ops.ptp(h, axis=2),
        lambda h: ops.quantile(h, 0.35, axis=(2, 3)),
        lambda h: ops.percentile(h, 70, axis=2, method="midpoint"),
        lambda h: ops.percentile(h, 30, axis=2, method="nearest", keepdims=True),
        lambda h: ops.std(h, axis=1),
        lambda h: ops.sum(h, axis=-1),
        lambda h: ops.var(h, axis=(1, 2, 3)),
    ],
)
group(
    "ops_batch",
    real,
    [
        lambda h: h - ops.mean(h, axis=0),
        lambda h: h - ops.sum(h, axis=0, keepdims=True),
        lambda h: h * ops.mean(h),
        lambda h: h / (1.0 + ops.std(h, axis=0)),
        lambda h: h * ops.var(h, axis=(0, 1), keepdims=True),
        lambda h: h * ops.cast(ops.count_nonzero(h > 0.0), "float32"),
        lambda h: h * ops.cast(ops.any(h > 0.99, axis=0), "float32"),
        lambda h: h * ops.cast(ops.all(h > -2.0), "float32"),
        lambda h: h * ops.cast(op("numpy", "AllClose").symbolic_call(h, h), "float32"),
        lambda h: h * ops.vdot(h, ops.flip(h, 1)),
        lambda h: h * ops.psnr(h, h * 0.5, 2.0),
        lambda h: h + ops.flipud(ops.mean(h, axis=0)),
        lambda h: h + ops.ravel(ops.mean(h, axis=0, keepdims=True)),
        lambda h: ops.matmul(h, ops.outer(ops.mean(h, axis=0), ops.var(h, axis=0))),
        lambda h: ops.matmul(h, ops.vstack([ops.mean(h, axis=0, keepdims=True), ops.var(h, axis=0, keepdims=True)] * 3)),
        lambda h: h + ops.vsplit(ops.stack([ops.mean(h, axis=0), ops.var(h, axis=0)]), 2)[1],
        lambda h: ops.batch_normalization(h, *ops.moments(h, axes=0), axis=-1),
        lambda h: h + ops.cumsum(ops.mean(h, axis=0)),
        lambda h: h + ops.sort(ops.mean(h, axis=0)),
        lambda h: h * ops.linalg.norm(h),
    ],
)
group(
    "ops_shapes",
    matrix,
    [
        lambda h: ops.append(h, h * 2.0, axis=1),
        lambda h: ops.array_split(h, 3, axis=2),
        lambda h: ops.broadcast_to(h[:, :, :1], (5, 3, 4)),
        lambda h: ops.concatenate([h, h * 2.0], axis=2),
        lambda h: ops.dsplit(h, 2),
        lambda h: ops.dstack([h, h * 2.0]),
        lambda h: ops.dstack([h[:, :, 0], h[:, :, 1]]),
        lambda h: ops.expand_dims(h, (1, -1)),
        lambda h: ops.hsplit(h, [1]),
        lambda h: ops.hstack([h, h * 2.0]),
        lambda h: ops.moveaxis(h, 1, 2),
        lambda h: ops.pad(h, ((0, 0), (1, 2), (0, 1))),
        lambda h: ops.pad(h, ((0, 0), (1, 2), (0, 1)), constant_values=0.5),
        lambda h: ops.pad(h, ((0, 0), (1, 2), (0, 1)), mode="edge"),
        lambda h: ops.pad(h, ((0, 0), (2, 1), (1, 1)), mode="reflect"),
        lambda h: ops.pad(h, ((0, 0), (2, 1), (1, 1)), mode="symmetric"),
        lambda h: ops.pad(h, ((0, 0), (1, 1), (1, 3)), mode="wrap"),
        lambda h: ops.repeat(h, 2, axis=1),
        lambda h: ops.reshape(h, (-1, 2, 6)),
        lambda h: ops.split(h, 2, axis=2),
        lambda h: ops.squeeze(ops.expand_dims(h, 2), 2),
        lambda h: ops.stack([h, h * 2.0], axis=1),
        lambda h: ops.swapaxes(h, 1, -1),
        lambda h: ops.tile(h, (1, 2, 3)),
        lambda h: ops.transpose(h, (0, 2, 1)),
        lambda h: ops.unstack(h, axis=1),
    ],
)
group(
    "ops_index",
    matrix,
    [
        lambda h: ops.diagonal(h, axis1=1, axis2=2),
        lambda h: ops.diagonal(h, offset=-1, axis1=2, axis2=1),
        lambda h: ops.diff(h, n=2, axis=-1),
        lambda h: ops.flip(h, axis=(1, 2)),
        ops.fliplr,
        lambda h: h[:, 1],
        lambda h: h[:, ::-1, 1:],
        lambda h: h[..., 3:0:-2],
        lambda h: h[:, None, :2, ::3],
        lambda h: ops.roll(h, 2, axis=2),
        lambda h: ops.roll(h, (1, -1), axis=(1, 2)),
        lambda h: ops.rot90(h, axes=(1, 2)),
        lambda h: ops.rot90(h, k=2, axes=(1, 2)),
        lambda h: ops.rot90(h, k=3, axes=(1, 2)),
        lambda h: ops.take(h, [2, 0, -1], axis=2),
        lambda h: ops.take(h, np.array([[0, 1], [2, 2]], "int32"), axis=1),
        lambda h: ops.take(array(7, 3), ops.cast(ops.abs(h) * 6.0, "int32"), axis=0) * 1.0,
        lambda h: ops.take_along_axis(h, ops.argsort(h, axis=1), axis=1),
        lambda h: ops.trace(h, axis1=1, axis2=2),
        lambda h: ops.trapezoid(h, dx=0.5, axis=1),
        lambda h: ops.tril(h),
        lambda h: ops.triu(h, k=1),
        lambda h: ops.slice(h, (0, 1, 1), (-1, 2, 2)),
        lambda h: ops.slice_update(h, (0, 1, 2), h[:, :2, :2]),
        lambda h: ops.extract_sequences(h, 2, 1),
        lambda h: ops.argsort(h, axis=1),
        lambda h: ops.sort(h, axis=1),
        lambda h: ops.top_k(h, 2),
        lambda h: ops.digitize(h, ops.array([-0.5, 0.0, 0.5])),
        lambda h: ops.searchsorted(ops.array([-0.5, 0.0, 0.5]), h, side="right"),
        lambda h: op("numpy", "IsIn").symbolic_call(ops.floor(h * 2.0), np.array([0.0, 1.0], "float32")),
        lambda h: ops.in_top_k(ops.argmin(h[:, 0], axis=1), h[:, 1], 2),
        lambda h: ops.linspace(h, h + 1.0, num=4, axis=-1),
        lambda h: ops.logspace(h, h + 1.0, num=3, endpoint=False, base=2, axis=1),
        lambda h: ops.unravel_index(ops.cast(ops.abs(h) * 11.0, "int32"), (3, 4)),
        lambda h: ops.vander(h[:, 0, 0], 4),
        lambda h: ops.vander(h[:, 0, 0], 3, increasing=True),
    ],
)
group(
    "ops_products",
    cube,
    [
        lambda h: ops.cross(h[..., :3], h[..., 1:]),
        lambda h: ops.cross(h[..., :2], h[..., 2:]),
        lambda h: ops.dot(h, array(4, 3)),
        lambda h: ops.einsum("bijk,bilk->bijl", h, h),
        lambda h: ops.einsum("...k,kl->...l", h, array(4, 2)),
        lambda h: ops.inner(h, array(3, 4)),
        lambda h: ops.matmul(h, ops.swapaxes(h, 2, 3)),
        lambda h: ops.matmul(h, array(4, 3)),
        lambda h: ops.outer(h[:, 0, 0, 0], array(3)),
        lambda h: ops.tensordot(h, array(4, 5), axes=1),
        lambda h: ops.tensordot(h, array(4, 2, 3), axes=[[1, 3], [1, 0]]),
        lambda h: ops.cdist(h[:, 0], h[:, 1]),
        lambda h: ops.linalg.norm(h, axis=(-1,)),
        lambda h: ops.linalg.norm(h, ord=1, axis=(2,), keepdims=True),
        lambda h: ops.linalg.norm(h, ord=3, axis=(1,)),
        lambda h: ops.linalg.norm(h, ord="fro", axis=(2, 3)),
        lambda h: ops.linalg.norm(h, ord=1, axis=(2, 3)),
        lambda h: ops.normalize(h, axis=-1),
        lambda h: ops.normalize(h, axis=2, order=3),
    ],
)
group(
    "ops_nn",
    matrix,
    [
        lambda h: ops.elu(h, alpha=0.7),
        lambda h: ops.gelu(h),
        lambda h: ops.gelu(h, approximate=False),
        ops.hard_sigmoid,
        lambda h: ops.leaky_relu(h, negative_slope=0.3),
        lambda h: ops.log_softmax(h, axis=1),
        ops.relu,
        ops.relu6,
        ops.selu,
        ops.sigmoid,
        ops.silu,
        lambda h: ops.softmax(h, axis=1),
        ops.softplus,
        ops.softsign,
        ops.sparsemax,
        lambda h: ops.threshold(h, 0.1, -0.5),
        lambda h: ops.binary_crossentropy(ops.cast(h > 0.0, "float32"), ops.sigmoid(h * 2.0)),
        lambda h: ops.binary_crossentropy(ops.cast(h > 0.3, "float32"), h, from_logits=True),
        lambda h: ops.categorical_crossentropy(ops.softmax(h * 3.0), ops.softmax(h)),
        lambda h: ops.categorical_crossentropy(ops.softmax(h, axis=1), h, from_logits=True, axis=1),
        lambda h: ops.sparse_categorical_crossentropy(ops.argmax(h, axis=2), h, from_logits=True),
        lambda h: ops.sparse_categorical_crossentropy(ops.argmin(h, axis=2), h + 1.5),
        lambda h: ops.one_hot(ops.argmax(h, axis=2), 4),
        lambda h: ops.one_hot(ops.argmax(h, axis=2), 4, axis=1),
        lambda h: ops.multi_hot(ops.argmax(h, axis=2), 5),
        lambda h: ops.layer_normalization(h, array(4), array(4), epsilon=1e-3),
        lambda h: ops.layer_normalization(h, array(3, 4), None, axis=(1, 2)),
        lambda h: ops.rms_normalization(h, array(4)),
        lambda h: ops.batch_normalization(h, array(4), ops.exp(array(4)), axis=-1, offset=array(4), scale=array(4)),
    ],
)
group(
    "ops_attention",
    lambda x: L.Reshape((5, 4, 3))(L.Dense(60, activation="tanh")(x)),
    [
        lambda h: ops.dot_product_attention(h, h[:, :3], h[:, 1:4]),
        lambda h: ops.dot_product_attention(h, h[:, :, :2], h[:, :, 2:], is_causal=True, scale=0.3),
        lambda h: ops.dot_product_attention(h, h, h, bias=array(1, 4, 5, 5), mask=h[:, None, :, :, 0][:, :, :, :1] > -0.5),
    ],
)
group(
    "ops_windows",
    image,
    [
        lambda h: ops.max_pool(h, 2, strides=2),
        lambda h: ops.average_pool(h, (3, 2), strides=2, padding="same"),
        lambda h: ops.adaptive_max_pool(h, (4, 4)),
        lambda h: ops.adaptive_average_pool(h, (2, 4)),
        lambda h: ops.conv(h, array(3, 3, 4, 5), strides=2, padding="same"),
        lambda h: ops.conv(h, array(3, 2, 4, 2), dilation_rate=2),
        lambda h: ops.conv(h[:, 0], array(3, 4, 5)),
        lambda h: ops.depthwise_conv(h, array(3, 3, 4, 2)),
        lambda h: ops.separable_conv(h, array(3, 3, 4, 2), array(1, 1, 8, 3), padding="same"),
        lambda h: ops.unfold(h, (2, 3), dilation=(1, 2), padding=1, stride=(2, 1)),
        lambda h: ops.fold(ops.unfold(h, 3, padding=1, stride=2), (6, 4), 3, padding=1, stride=2),
        lambda h: ops.depth_to_space(h, 2),
        lambda h: ops.depth_to_space(ops.space_to_depth(h, 2, data_format="channels_first"), 2, data_format="channels_first"),
        lambda h: ops.space_to_depth(h, 3),
        lambda h: ops.image.rgb_to_grayscale(h[..., :3]),
        lambda h: ops.image.resize(h, (4, 9)),
        lambda h: ops.image.pad_images(h, top_padding=1, left_padding=2, target_height=9, target_width=8),
        lambda h: ops.image.crop_images(h, top_cropping=1, left_cropping=2, target_height=3, target_width=2),
        lambda h: ops.image.extract_patches(h, 2),
        lambda h: ops.image.extract_patches(h, (3, 2), strides=2, padding="same"),
    ],
    (3, 6, 6, 3),
)


def colours(h):
    """Three channels between 0 and 1."""
    return h[..., :3] * 0.5 + 0.5


def some(h, count):
    """A few numbers per sample."""
    return ops.reshape(h, (-1, 144))[:, :count]


def transforms(h):
    """Affine maps near one that turns and moves an image a little."""
    return some(h, 8) * np.array([0.1] * 6 + [0, 0], "float32") + np.array([0.9, 0.2, 0.4, -0.1, 1.1, -0.3, 0, 0], "float32")


CORNERS = np.array([[0, 0], [5, 0], [0, 5], [5, 5]], "float32")


def corners(h, first=0):
    return ops.reshape(some(h, first + 8)[:, first:], (-1, 4, 2)) + CORNERS


def table(h):
    """The mean of a batch of images, a value without batch."""
    return ops.mean(h, axis=0)


def places(h):
    """Coordinates in `table`, some of them outside."""
    return table(h)[:3, :, 0] * 2.0 + np.array([[2.2], [3.1], [1.4]], "float32")


group(
    "ops_images",
    image,
    [
        lambda h: ops.image.rgb_to_hsv(colours(h)),
        lambda h: ops.image.hsv_to_rgb(colours(h)),
        lambda h: ops.image.rgb_to_hsv(ops.transpose(colours(h), (0, 3, 1, 2)), data_format="channels_first"),
        lambda h: op("image", "GaussianBlur", (3, 5), (1.2, 0.7)).symbolic_call(h),
        lambda h: op("image", "GaussianBlur", (4, 2), (0.8, 1.5), "channels_last").symbolic_call(h),
        lambda h: op("image", "GaussianBlur", (9, 7), (2.0, 1.5), "channels_first").symbolic_call(h),
        lambda h: ops.image.sobel_edges(h),
        lambda h: ops.image.sobel_edges(h, data_format="channels_first"),
        lambda h: ops.image.ssim(h, h[:, ::-1] * 0.8, max_val=2.0, filter_size=5),
        lambda h: ops.image.ssim(colours(h), colours(h) * 0.9, filter_size=4, filter_sigma=0.9, k1=0.02, k2=0.05),
        lambda h: ops.image.ssim(h, h * h, filter_size=3, data_format="channels_first"),
        lambda h: op("image", "ScaleAndTranslate", (1, 2), "linear").symbolic_call(h, (3, 8, 4, 4), np.array([1.3, 0.6], "float32"), np.array([0.4, -0.7], "float32")),
        lambda h: op("image", "ScaleAndTranslate", (2,), "cubic", antialias=False).symbolic_call(h, (3, 6, 5, 4), [0.7], [1.6]),
        lambda h: op("image", "ScaleAndTranslate", (-1, 1), "lanczos3").symbolic_call(h, (3, 3, 6, 7), [1.5, 0.4], [0.2, 0.3]),
        lambda h: op("image", "ScaleAndTranslate", (1,), "lanczos5").symbolic_call(h, (3, 9, 6, 4), [1.1], [-0.25]),
    ],
    (3, 6, 6, 3),
)
group(
    "ops_warps",
    image,
    [
        lambda h: ops.image.affine_transform(h, transforms(h)),
        lambda h: ops.image.affine_transform(h, transforms(h), interpolation="nearest", fill_mode="wrap"),
        lambda h: ops.image.affine_transform(h, transforms(h), fill_mode="mirror", fill_value=0.3),
        lambda h: ops.image.affine_transform(h, transforms(h), fill_mode="reflect"),
        lambda h: ops.image.affine_transform(h, transforms(h), fill_mode="nearest", data_format="channels_first"),
        lambda h: ops.image.affine_transform(h, transforms(h) * 1.2, fill_value=0.3),
        lambda h: ops.image.perspective_transform(h, corners(h), corners(h, 9)),
        lambda h: ops.image.perspective_transform(h, corners(h, 9), corners(h), interpolation="nearest", fill_value=0.6),
        lambda h: ops.image.perspective_transform(ops.transpose(h, (0, 3, 1, 2)), corners(h, 3), corners(h), data_format="channels_first"),
        lambda h: h[..., 0] + ops.image.map_coordinates(table(h), places(h), order=1),
        lambda h: h[..., 1] + ops.image.map_coordinates(table(h), places(h) * 2.0, order=0, fill_mode="nearest"),
        lambda h: h[..., 2] + ops.image.map_coordinates(table(h), places(h) * 3.0, order=1, fill_mode="reflect"),
    ],
    (3, 6, 6, 3),
)


def words(h):
    """Labels between 1 and 4 of three steps."""
    return ops.cast(ops.abs(h[:, :3, 0]) * 3.9 + 1.0, "int32")


def lengths(h, low, count):
    """A number from `low` to below `low + count` per sample."""
    return ops.cast(ops.abs(h[:, 0, 1]) * (count - 0.01) + low, "int32")


group(
    "ops_ctc",
    lambda x: L.Reshape((7, 5))(L.Dense(35, activation="tanh")(x)),
    [
        lambda h: ops.ctc_loss(words(h), h * 3.0, lengths(h, 1, 3), lengths(h, 5, 3)),
        lambda h: ops.ctc_loss(words(h) - 1, h, lengths(h, 2, 2), lengths(h, 6, 2), mask_index=4),
        lambda h: ops.ctc_decode(h, lengths(h, 4, 4))[1],
        lambda h: ops.ctc_decode(h, lengths(h, 4, 4))[0][0],
        lambda h: ops.ctc_decode(h, lengths(h, 4, 4), merge_repeated=False, mask_index=None)[0][0],
        lambda h: ops.squeeze(ops.ctc_decode(ops.round(h), lengths(h, 4, 4), mask_index=2)[0], 0),
    ],
)
group(
    "ops_fourier",
    cube,
    [
        lambda h: ops.fft((h, h[:, ::-1])),
        lambda h: ops.fft2((h, h[..., ::-1])),
        lambda h: ops.ifft2((h, h * h)),
        lambda h: ops.rfft(h),
        lambda h: ops.rfft(h, 3),
        lambda h: ops.rfft(h, 7),
        lambda h: ops.irfft((h, h[:, ::-1])),
        lambda h: ops.irfft((h, h * h), 5),
        lambda h: ops.irfft((h, h * h), 9),
    ],
)
group(
    "ops_long_fourier",
    lambda x: L.Dense(180, activation="tanh")(x),
    [
        # Lengths that are split into factors: 180 = 12 · 15, 151 and 178 = 2 · 89.
        lambda h: ops.fft((h, h[:, ::-1])),
        lambda h: ops.rfft(h, 151)[0],
        lambda h: ops.rfft(h, 178)[1],
        lambda h: ops.irfft((h, h * h), 358),
    ],
    (3, 6),
)
group(
    "ops_signals",
    lambda x: L.Dense(24, activation="tanh")(x),
    [
        lambda h: ops.stft(h, 5, 2, 8),
        lambda h: ops.stft(h, 6, 3, 7, window="hamming", center=False),
        lambda h: ops.stft(ops.reshape(h, (-1, 2, 12)), 4, 2, 4, window=None),
        lambda h: ops.istft(ops.stft(h, 6, 2, 8), 6, 2, 8),
        lambda h: ops.istft(ops.stft(h, 6, 2, 8, window="hamming"), 6, 2, 8, length=20, window="hamming"),
        lambda h: ops.istft((ops.reshape(h, (-1, 2, 3, 4)), ops.reshape(h, (-1, 2, 3, 4)) * 0.5), 5, 4, 7, center=False),
        lambda h: ops.istft((ops.reshape(h, (-1, 4, 6)), ops.reshape(h, (-1, 4, 6)) * 0.5), 8, 3, 10, window=None),
    ],
)
group(
    "ops_sizes",
    lambda x: L.Dense(3, activation="tanh")(x),
    [
        lambda h: h * ops.cast(ops.size(h), "float32") * 0.1,
        lambda h: h * ops.size(ops.mean(h, axis=0)),
        # Keras gives the number the shape (3,).
        lambda h: ops.expand_dims(h, 1) * ops.ndim(ops.expand_dims(h, 1)),
    ],
)
