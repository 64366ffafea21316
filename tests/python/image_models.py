"""image_models.safetensors and models/NAME.keras: ops on images and signals, as in models.py."""

import keras
import numpy as np
from common import Fixture, normal, rng_for
from keras import layers as L
from keras import ops
from models import add_case
from op_cases import SCALE

CASES = {}


def group(name, layer, functions, shape):
    """A model of ops on the output of `layer`."""

    def build(rng):
        x = keras.Input(shape[1:])
        h = layer(x)
        outputs = []
        for function in functions:
            result = function(h)
            outputs += [y * SCALE for y in (result if isinstance(result, (list, tuple)) else [result])]
        return keras.Model(x, outputs), normal(rng, *shape)

    CASES[name] = build


def image(x):
    """An image of 6 by 7 with 3 channels."""
    return L.Conv2D(3, 1, activation="sigmoid")(x)


def first(function):
    return lambda h: function(ops.transpose(h, (0, 3, 1, 2)), data_format="channels_first")


group(
    "image_ops",
    image,
    [
        ops.image.rgb_to_hsv,
        ops.image.hsv_to_rgb,
        first(ops.image.rgb_to_hsv),
        first(ops.image.hsv_to_rgb),
        lambda h: ops.image.gaussian_blur(h, (3, 5), (0.7, 1.2)),
        lambda h: ops.image.gaussian_blur(h, (4, 2), (1.5, 0.4)),
        first(lambda h, **how: ops.image.gaussian_blur(h, **how)),
        ops.image.sobel_edges,
        first(ops.image.sobel_edges),
        lambda h: ops.image.ssim(h, ops.flip(h, 1), filter_size=4),
        lambda h: ops.image.ssim(h, h * 0.8, max_val=2.0, filter_size=3, filter_sigma=0.9, k1=0.1, k2=0.2),
        first(lambda h, **how: ops.image.ssim(h, h * 0.5, filter_size=5, **how)),
        lambda h: ops.image.scale_and_translate(h, (3, 8, 4, 3), np.array([1.3, 0.6], "float32"), np.array([0.4, -0.7], "float32"), (1, 2), "linear"),
        lambda h: ops.image.scale_and_translate(h, (3, 6, 9, 3), np.array([1.4], "float32"), np.array([0.9], "float32"), (2,), "cubic"),
        lambda h: ops.image.scale_and_translate(h, (3, 5, 7, 3), np.array([0.7], "float32"), np.array([0.2], "float32"), (1,), "lanczos3", antialias=False),
        lambda h: ops.image.scale_and_translate(h, (3, 6, 4, 3), np.array([0.5], "float32"), np.array([0.2], "float32"), (2,), "lanczos5"),
    ],
    (3, 6, 7, 3),
)


def numbers(h, count):
    """Numbers between -1 and 1 for each sample."""
    return L.Dense(count, activation="tanh")(L.Flatten()(h))


def affine(h, **how):
    base = np.array([[1.1, 0.2, 0.3, -0.1, 0.9, 0.6, 0.0, 0.0]], "float32")
    return ops.image.affine_transform(h, base + 0.2 * numbers(h, 8), **how)


def perspective(h, **how):
    corners = np.array([[[0, 0], [6, 0], [0, 5], [6, 5]]], "float32")
    moved = [corners + 0.4 * ops.reshape(numbers(h, 8), (-1, 4, 2)) for _ in range(2)]
    return ops.image.perspective_transform(h, *moved, **how)


group(
    "image_maps",
    image,
    [
        affine,
        *(lambda h, mode=mode: affine(h, fill_mode=mode) for mode in ("nearest", "wrap", "mirror", "reflect")),
        lambda h: affine(h, interpolation="nearest", fill_value=0.4),
        first(affine),
        perspective,
        lambda h: perspective(h, fill_value=0.5, interpolation="nearest"),
        first(perspective),
    ],
    (3, 6, 7, 3),
)


def signal(x):
    return L.Dense(16, activation="tanh")(x)


def halves(h):
    return h[:, :8], h[:, 8:]


def matrices(h):
    return tuple(ops.reshape(part, (-1, 2, 4)) for part in halves(h))


group(
    "signal_ops",
    signal,
    [
        lambda h: ops.fft(halves(h)),
        lambda h: ops.fft2(matrices(h)),
        lambda h: ops.ifft2(matrices(h)),
        ops.rfft,
        lambda h: ops.rfft(h, 13),
        lambda h: ops.rfft(h, 20),
        lambda h: ops.irfft(halves(h)),
        lambda h: ops.irfft(halves(h), 9),
        lambda h: ops.irfft(halves(h), 24),
        lambda h: ops.stft(h, 6, 3, 8),
        lambda h: ops.stft(h, 4, 2, 4, window=None, center=False),
        lambda h: ops.stft(ops.reshape(h, (-1, 2, 8)), 5, 2, 7, window="hamming"),
        lambda h: ops.istft(ops.stft(h, 6, 3, 8), 6, 3, 8),
        lambda h: ops.istft(ops.stft(h, 4, 2, 4, center=False), 4, 2, 4, center=False, window="hamming"),
        lambda h: ops.istft(ops.stft(h, 6, 2, 6), 6, 2, 6, length=11),
        lambda h: ops.istft(ops.stft(h, 4, 2, 4, window=None), 4, 2, 4, window=None),
        ops.view_as_real,
    ],
    (4, 6),
)


def make():
    fixture = Fixture("image_models")
    for name, build in CASES.items():
        keras.utils.clear_session()
        model, inputs = build(rng_for(f"inputs of {name}"))
        add_case(fixture, name, model, inputs)
    fixture.save()
