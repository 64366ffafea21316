"""sampling.safetensors: images sampled through one affine map each, and the gradient with respect to the image."""

import jax
import numpy as np
from common import Fixture, normal, rng_for
from keras import ops

SHAPE = (6, 7, 5, 2)


def matrices(rng):
    """Random rotations, shears, zooms and shifts, near the identity and far from it."""
    near = np.array([1, 0, 0, 0, 1, 0], "float32") + normal(rng, 3, 6) * np.float32(0.4)
    far = normal(rng, 3, 6) * np.array([2, 2, 9, 2, 2, 9], "float32")
    return np.concatenate([near, far])


def add_case(fixture, fill_mode, interpolation):
    name = f"{fill_mode}_{interpolation}"
    rng = rng_for(f"sampling_{name}")
    image, matrix, seed = normal(rng, *SHAPE), matrices(rng), normal(rng, *SHAPE)
    transform = np.concatenate([matrix, np.zeros((len(matrix), 2), "float32")], axis=1)

    def read(image):
        return ops.image.affine_transform(image, transform, interpolation, fill_mode, 0.7)

    output, back = jax.vjp(read, image)
    case = {"name": name, "fill_mode": fill_mode, "interpolation": interpolation, "fill_value": 0.7}
    tensors = {"input": image, "matrix": matrix, "output": output, "seed": seed, "grad_input": back(seed)[0]}
    fixture.add(case, tensors)


def make():
    fixture = Fixture("sampling")
    for fill_mode in ("constant", "nearest", "reflect", "wrap"):
        for interpolation in ("nearest", "bilinear"):
            add_case(fixture, fill_mode, interpolation)
    fixture.save()
