"""augmentation.safetensors: random image layers in training, with the random numbers that they used.

Keras' random functions are replaced by functions of uniform numbers, which the fixture records in the order of their use
(`draw/i`, one row per sample). Phalanx computes the same functions of its own uniform numbers, so the test replaces those
by the recorded ones. Where Keras draws one number for a batch, all rows are equal.
"""

from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from common import Fixture, config_of, normal, rng_for
from keras import layers as L
from keras.src.backend.jax import numpy as backend_numpy
from keras.src.backend.jax import random as backend_random
from keras.src.ops.image import ElasticTransform

# As in crates/phalanx/src/layers/image_preprocessing/distribution.rs.
CANDIDATES = 8


class Draws:
    """Uniform random numbers: new ones, or those of an earlier run again."""

    def __init__(self, rng, rows):
        self.rng, self.rows, self.list, self.next = rng, rows, [], None

    def uniforms(self, shape, batch=True):
        """Numbers of a shape, which starts with the batch unless `batch` is false."""
        if self.next is not None:
            self.next += 1
            return self.list[self.next - 1][1]
        u = self.rng.integers(0, 1 << 24, shape).astype("float32") / np.float32(1 << 24)
        rows = u if batch else np.broadcast_to(u, (self.rows, *shape))
        self.list.append((np.ascontiguousarray(rows).astype("float32"), u))
        return u

    def replay(self):
        self.next = 0

    def per_sample(self, shape):
        return len(shape) > 0 and shape[0] == self.rows

    def uniform(self, shape, minval=0.0, maxval=1.0, dtype=None, seed=None):
        shape = tuple(shape)
        u = self.uniforms(shape, self.per_sample(shape))
        return jnp.asarray(u * np.float32(maxval - minval) + np.float32(minval))

    def randint(self, shape, minval, maxval, dtype="int32", seed=None):
        shape = tuple(shape)
        if self.per_sample(shape):
            values = self.uniforms(shape)
        else:
            # Phalanx draws them one after the other.
            values = np.array([self.uniforms((1,), False)[0] for _ in range(shape[0])])
        return jnp.asarray(minval + np.floor(values * (maxval - minval))).astype(dtype)

    def normal(self, shape):
        shape = tuple(shape)
        batch = self.per_sample(shape)
        u, v = self.uniforms(shape, batch), self.uniforms(shape, batch)
        return np.sqrt(-2.0 * np.log1p(-u.astype("float64"))) * np.cos(2 * np.pi * v.astype("float64"))

    def log_gamma(self, count, alpha, rows):
        """`count` logarithms of gamma-distributed numbers, by the method of Marsaglia and Tsang; for each row, if any."""
        lead = (self.rows,) if rows else ()
        z = self.normal((*lead, CANDIDATES, count))
        test = self.uniforms((*lead, CANDIDATES, count), rows).astype("float64")
        boost = self.uniforms((*lead, count), rows).astype("float64")
        d = alpha + 2.0 / 3.0
        base = 1.0 + z / (3.0 * np.sqrt(d))
        positive = base > 0
        log_v = 3.0 * np.log(np.where(positive, base, 1.0))
        passes = positive & (np.log1p(-test) < z * z / 2 + d * (1.0 - np.exp(log_v) + log_v))
        chosen = np.zeros((*lead, count))
        for i in reversed(range(CANDIDATES)):
            chosen = np.where(passes[..., i, :], log_v[..., i, :], chosen)
        return chosen + np.log(d) + np.log1p(-boost) / alpha

    def gamma(self, shape, alpha, dtype=None, seed=None):
        return jnp.asarray(np.exp(self.log_gamma(shape[0], alpha, False)), "float32")

    def beta(self, shape, alpha, beta, dtype=None, seed=None):
        rows = len(shape) > 0
        alpha = float(alpha)
        a, b = self.log_gamma(1, alpha, rows)[..., 0], self.log_gamma(1, alpha, rows)[..., 0]
        return jnp.asarray(1.0 / (1.0 + np.exp(b - a)), "float32")

    def shuffle(self, x, axis=0, seed=None):
        """The order of uniform keys."""
        return jnp.take(x, np.argsort(self.uniforms((self.rows,)), kind="stable"), axis=axis)

    def patches(self):
        fill = lambda shape, mean=0.0, stddev=1.0, dtype=None, seed=None: jnp.asarray(self.normal(shape), "float32")
        of_layers = {"uniform": self.uniform, "randint": self.randint, "gamma": self.gamma, "beta": self.beta, "normal": fill, "shuffle": self.shuffle}
        return [mock.patch.object(backend_random, name, function) for name, function in of_layers.items()]


class Elastic:
    """`jax.random.normal` of elastic_transform: both directions have the same seed, so the same numbers."""

    def __init__(self, draws):
        self.draws, self.last = draws, None

    def normal(self, seed, shape, dtype):
        self.last = self.draws.normal(shape) if self.last is None else self.last
        return jnp.asarray(self.last, dtype)


def call_aug_mix(layer, x, draws):
    """AugMix with the choices of every step of a chain drawn from `draws`, and numbers for all changes."""
    mixing = layer._sample_from_dirichlet([layer.num_chains], layer.alpha, None)
    weight = backend_random.beta((), layer.alpha, layer.alpha)
    chains = []
    for _ in range(layer.num_chains):
        chain = []
        for _ in range(layer.chain_depth):
            names = layer._augment_layers
            choice = int(np.floor(draws.uniforms((1,), False)[0] * (len(names) + 1)))
            for i, name in enumerate(names):
                numbers = getattr(layer, name).get_random_transformation(x, seed=layer.generator)
                if i == choice:
                    chain.append({"layer_name": name, "transformation": numbers})
        chains.append(chain)
    transformation = {"chain_mixing_weights": mixing, "weight_sample": weight, "chain_transforms": chains}
    return layer.transform_images(x, transformation, training=True)


def call_rand_augment(layer, x, draws):
    return layer.transform_images(x, layer.get_random_transformation(x, training=True), training=True)


def call_op(op, x, draws):
    return op.call(x)


CALLS = {L.AugMix: call_aug_mix, L.RandAugment: call_rand_augment, ElasticTransform: call_op}


def call(layer, x, draws):
    elastic = Elastic(draws)
    patches = [*draws.patches(), mock.patch.object(jax.random, "normal", elastic.normal)]
    # JAX does not take the tuple of a colour, which RandomErasing documents.
    fill = lambda x, value, dtype=None: jnp.full_like(x, jnp.asarray(value), dtype=dtype)
    patches.append(mock.patch.object(backend_numpy, "full_like", fill))
    for patch in patches:
        patch.start()
    try:
        special = CALLS.get(type(layer))
        return special(layer, x, draws) if special else layer.call(x, training=True)
    finally:
        for patch in patches:
            patch.stop()


def add_case(fixture, name, layer, shape=(3, 7, 6, 3), low=0.0, high=255.0):
    rng = rng_for(name)
    x = rng.uniform(low, high, shape).astype("float32")
    draws = Draws(rng, shape[0])
    output = call(layer, x, draws)
    seed = normal(rng, *output.shape)

    def loss(x):
        draws.replay()
        return (call(layer, x, draws) * seed).sum()

    tensors = {"input": x, "output": output, "seed": seed}
    gradient = jax.grad(loss)(x)
    # AutoContrast of a single value divides by zero; Keras' derivative is NaN there.
    if np.isfinite(gradient).all():
        tensors["grad_input"] = gradient
    tensors |= {f"draw/{i}": rows for i, (rows, _) in enumerate(draws.list)}
    case = {"name": name, "class_name": type(layer).__name__, "config": config_of(layer)}
    module = type(layer).__module__
    if module.startswith("keras.src.ops."):
        case["ops"] = [f"{module.rpartition('.')[2]}.{case['class_name']}"]
    fixture.add(case, tensors)


def cases():
    unit = {"value_range": (0, 1)}
    yield "brightness", L.RandomBrightness(0.4), {}
    yield "brightness_range", L.RandomBrightness((-0.1, 0.6), value_range=(-1, 1), seed=3), {"low": -1.0, "high": 1.0}
    yield "invert", L.RandomInvert((0.4, 0.8)), {"shape": (9, 2, 2, 1)}
    yield "posterization", L.RandomPosterization(6), {}
    yield "posterization_unit", L.RandomPosterization((3, 3), **unit), {"high": 1.0}
    yield "posterization_eight", L.RandomPosterization((2, 8), value_range=(-1, 1)), {"low": -1.0, "high": 1.0}
    yield "solarization", L.Solarization(addition_factor=0.4, threshold_factor=(0.2, 0.9)), {}
    yield "solarization_unit", L.Solarization(addition_factor=(0.1, 0.3), threshold_factor=0.5, **unit), {"high": 1.0}
    yield "solarization_all", L.Solarization(), {}
    yield "auto_contrast", L.AutoContrast(), {"low": 30.0, "high": 180.0}
    yield "auto_contrast_unit", L.AutoContrast(**unit), {"low": 0.2, "high": 0.7}
    yield "auto_contrast_flat", L.AutoContrast(), {"low": 9.0, "high": 9.0}
    yield "grayscale", L.RandomGrayscale(0.6), {"shape": (9, 3, 2, 3)}
    yield "grayscale_of_grey", L.RandomGrayscale(), {"shape": (4, 3, 2, 1)}
    yield "degeneration", L.RandomColorDegeneration(0.7), {}
    yield "degeneration_range", L.RandomColorDegeneration((0.2, 0.9), value_range=(20, 200)), {}
    yield "saturation", L.RandomSaturation((0.2, 0.9)), {}
    yield "saturation_unit", L.RandomSaturation(0.5, **unit), {"high": 1.0}
    yield "hue", L.RandomHue(0.7), {"shape": (6, 3, 4, 3)}
    yield "hue_unit", L.RandomHue((0.2, 1.0), **unit), {"high": 1.0, "shape": (6, 3, 4, 3)}
    yield "jitter", L.RandomColorJitter(brightness_factor=0.2, contrast_factor=(0.1, 0.3), saturation_factor=(0.3, 0.6), hue_factor=0.4), {}
    yield "jitter_some", L.RandomColorJitter(value_range=(0, 1), contrast_factor=0.3, hue_factor=(0.1, 0.2)), {"high": 1.0}
    yield "jitter_nothing", L.RandomColorJitter(), {}
    yield "sharpness", L.RandomSharpness(0.9), {}
    yield "sharpness_unit", L.RandomSharpness((0.1, 0.4), **unit), {"high": 1.0}
    yield "blur", L.RandomGaussianBlur(factor=(0.6, 0.9), kernel_size=(5, 3), sigma=(0.3, 1.0)), {}
    yield "blur_large", L.RandomGaussianBlur(kernel_size=21, sigma=1.0, value_range=(0, 1)), {"high": 1.0}
    yield "mix_up", L.MixUp(), {"shape": (7, 4, 3, 3)}
    yield "mix_up_half", L.MixUp(alpha=0.5, seed=4), {"shape": (5, 3, 4, 1), "high": 1.0}
    yield "mix_up_one_image", L.MixUp(alpha=1.0), {"shape": (1, 3, 3, 2)}
    yield "cut_mix", L.CutMix(), {"shape": (7, 9, 8, 3)}
    yield "cut_mix_range", L.CutMix(factor=(0.6, 0.9)), {"shape": (6, 5, 11, 2)}
    yield "erasing", L.RandomErasing(factor=(0.7, 1.0)), {"shape": (5, 9, 8, 3)}
    yield "erasing_number", L.RandomErasing(scale=(0.1, 0.6), fill_value=0.3, **unit), {"high": 1.0, "shape": (5, 9, 8, 2)}
    yield "erasing_colour", L.RandomErasing(scale=0.5, fill_value=(30.0, 400.0, 7.0)), {"shape": (5, 9, 8, 3)}
    for mode in ("reflect", "wrap", "constant", "nearest"):
        yield f"shear_{mode}", L.RandomShear(0.4, (0.1, 0.5), fill_mode=mode, fill_value=9.0), {}
    yield "shear_nearest_pixel", L.RandomShear((0.3, 0.8), 0.2, interpolation="nearest"), {}
    yield "perspective", L.RandomPerspective(scale=0.6, factor=(0.8, 1.0)), {}
    yield "perspective_fill", L.RandomPerspective(scale=1.0, fill_value=50.0), {"shape": (6, 8, 5, 2)}
    yield "perspective_nearest", L.RandomPerspective(scale=0.3, interpolation="nearest"), {}
    for mode in ("reflect", "wrap", "constant", "nearest", "mirror"):
        yield f"elastic_{mode}", L.RandomElasticTransform((0.8, 1.0), (0.5, 1.0), fill_mode=mode, fill_value=9.0), {"shape": (4, 22, 25, 2)}
    yield "elastic_nearest_pixel", L.RandomElasticTransform(interpolation="nearest", scale=(0.9, 1.0)), {"shape": (4, 30, 21, 1)}
    yield "elastic_none", L.RandomElasticTransform(scale=0.0), {}
    yield "op_elastic", ElasticTransform(alpha=3.0, sigma=1.3, seed=1), {"shape": (4, 9, 8, 2)}
    yield "op_elastic_wide", ElasticTransform(2.0, 4.0, "nearest", "constant", 9.0, 1), {"shape": (3, 7, 10, 3)}
    yield "op_elastic_first", ElasticTransform(4.0, 0.9, fill_mode="mirror", seed=1, data_format="channels_first"), {"shape": (3, 2, 8, 9)}
    yield "equalization", L.Equalization(), {}
    yield "equalization_bins", L.Equalization(bins=9, **unit), {"low": 0.1, "high": 0.8}
    yield "equalization_flat", L.Equalization(), {"low": 77.0, "high": 77.0}
    yield "adaptive_equalization", L.ContrastLimitedAdaptiveHistogramEqualization(tile_grid_size=(2, 3)), {"shape": (2, 12, 18, 2)}
    yield "adaptive_equalization_padded", L.ContrastLimitedAdaptiveHistogramEqualization(value_range=(0, 1), tile_grid_size=(3, 2), clip_limit=40.0), {"shape": (2, 13, 9, 1), "high": 1.0}
    yield "adaptive_equalization_unlimited", L.ContrastLimitedAdaptiveHistogramEqualization(tile_grid_size=(4, 4), clip_limit=0.0), {"shape": (2, 3, 6, 1)}
    for i in range(8):
        yield f"rand_augment_{i}", L.RandAugment(), {}
    yield "rand_augment_unit", L.RandAugment(value_range=(0, 1), num_ops=3, factor=(0.2, 0.3), interpolation="nearest"), {"high": 1.0, "shape": (4, 7, 6, 3)}
    for i in range(3):
        yield f"aug_mix_{i}", L.AugMix(num_chains=2, chain_depth=2), {}
    yield "aug_mix_some", L.AugMix(value_range=(0, 1), all_ops=False, alpha=0.3, factor=0.6, num_chains=3, chain_depth=1), {"high": 1.0}


def make():
    fixture = Fixture("augmentation")
    for name, layer, options in cases():
        add_case(fixture, name, layer, **options)
    fixture.save()
