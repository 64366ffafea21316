"""initializers.safetensors: [mean, std, min, max] of one large draw; individual values are not compared."""

import numpy as np
from common import Fixture, config_of
from keras import initializers as K

SHAPES = {"matrix": (200, 300), "kernel": (3, 3, 32, 64)}
SEED = 1234

CASES = [
    ("zeros", K.Zeros, {}),
    ("ones", K.Ones, {}),
    ("constant", K.Constant, {"value": 0.75}),
    ("identity", K.Identity, {"gain": 2.0}),
    ("random_normal", K.RandomNormal, {"seed": SEED}),
    ("random_normal_options", K.RandomNormal, {"mean": 1.0, "stddev": 0.5, "seed": SEED}),
    ("random_uniform", K.RandomUniform, {"seed": SEED}),
    ("random_uniform_options", K.RandomUniform, {"minval": -1.0, "maxval": 3.0, "seed": SEED}),
    ("truncated_normal", K.TruncatedNormal, {"seed": SEED}),
    ("truncated_normal_options", K.TruncatedNormal, {"mean": 1.0, "stddev": 0.5, "seed": SEED}),
    ("glorot_uniform", K.GlorotUniform, {"seed": SEED}),
    ("glorot_normal", K.GlorotNormal, {"seed": SEED}),
    ("he_uniform", K.HeUniform, {"seed": SEED}),
    ("he_normal", K.HeNormal, {"seed": SEED}),
    ("lecun_uniform", K.LecunUniform, {"seed": SEED}),
    ("lecun_normal", K.LecunNormal, {"seed": SEED}),
    ("variance_scaling", K.VarianceScaling, {"seed": SEED}),
    ("variance_scaling_fan_out", K.VarianceScaling, {"scale": 2.0, "mode": "fan_out", "distribution": "untruncated_normal", "seed": SEED}),
    ("variance_scaling_fan_avg", K.VarianceScaling, {"scale": 0.5, "mode": "fan_avg", "distribution": "uniform", "seed": SEED}),
    ("orthogonal", K.Orthogonal, {"gain": 1.5, "seed": SEED}),
]


def make():
    fixture = Fixture("initializers")
    for name, cls, kwargs in CASES:
        for short, shape in SHAPES.items():
            if cls is K.Identity and len(shape) != 2:
                continue
            initializer = cls(**kwargs)
            draw = np.asarray(initializer(shape)).astype("float64")
            stats = np.array([draw.mean(), draw.std(), draw.min(), draw.max()], "float32")
            # K.Identity is an alias: the class is called IdentityInitializer in some versions.
            class_name = {"IdentityInitializer": "Identity"}.get(cls.__name__, cls.__name__)
            fixture.add(
                {"name": f"{name}_{short}", "class_name": class_name, "config": config_of(initializer, **kwargs), "shape": list(shape)},
                {"stats": stats},
            )
    fixture.save()
