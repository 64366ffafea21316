"""augment.safetensors: images transformed by apply_affine_transform of Keras' ImageDataGenerator."""

import numpy as np
from common import Fixture, rng_for
from keras.src.legacy.preprocessing.image import apply_affine_transform

MOTIONS = {
    "shift": {"tx": 1.3, "ty": -2.6},
    "far_shift": {"tx": -9.25, "ty": 8.75},
    "whole_shift": {"tx": 2.0, "ty": -1.0},
    "zoom": {"zx": 0.8, "zy": 1.3},
    "rotation": {"theta": 25.0},
    "shear": {"shear": 15.0},
    "all": {"theta": -40.0, "tx": 1.5, "ty": 0.7, "shear": -10.0, "zx": 1.2, "zy": 0.9},
}


def make():
    fixture = Fixture("augment")
    for name, motion in MOTIONS.items():
        for fill_mode in ["nearest", "constant", "reflect", "wrap"]:
            case = f"{name}_{fill_mode}"
            # Square, because Keras swaps the sides when it computes the centre of other shapes.
            x = rng_for(case).standard_normal((7, 7, 3)).astype("float32")
            y = apply_affine_transform(x.copy(), row_axis=0, col_axis=1, channel_axis=2, fill_mode=fill_mode, cval=0.5, **motion)
            fixture.add(
                {"name": case, "motion": motion, "fill_mode": fill_mode, "cval": 0.5},
                {"input": x, "output": y.astype("float32")},
            )
    fixture.save()
