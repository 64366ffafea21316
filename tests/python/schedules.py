"""schedules.safetensors: learning rates at a list of steps."""

import numpy as np
from common import Fixture, config_of
from keras.optimizers import schedules as K

STEPS = [0, 1, 2, 3, 5, 7, 9, 10, 11, 13, 15, 19, 20, 21, 25, 29, 31, 35, 42, 50, 69, 71, 100, 1000]

CASES = [
    ("polynomial", K.PolynomialDecay, {"initial_learning_rate": 0.1, "decay_steps": 20}),
    ("polynomial_power", K.PolynomialDecay, {"initial_learning_rate": 0.1, "decay_steps": 20, "end_learning_rate": 0.01, "power": 2.0}),
    ("polynomial_cycle", K.PolynomialDecay, {"initial_learning_rate": 0.1, "decay_steps": 10, "end_learning_rate": 0.02, "power": 0.5, "cycle": True}),
    ("cosine", K.CosineDecay, {"initial_learning_rate": 0.1, "decay_steps": 30}),
    ("cosine_alpha", K.CosineDecay, {"initial_learning_rate": 0.1, "decay_steps": 30, "alpha": 0.2}),
    ("cosine_warmup", K.CosineDecay, {"initial_learning_rate": 0.0, "decay_steps": 30, "alpha": 0.1, "warmup_target": 0.2, "warmup_steps": 10}),
    ("cosine_restarts", K.CosineDecayRestarts, {"initial_learning_rate": 0.1, "first_decay_steps": 8}),
    ("cosine_restarts_options", K.CosineDecayRestarts, {"initial_learning_rate": 0.1, "first_decay_steps": 8, "t_mul": 1.5, "m_mul": 0.8, "alpha": 0.1}),
    ("cosine_restarts_even", K.CosineDecayRestarts, {"initial_learning_rate": 0.1, "first_decay_steps": 8, "t_mul": 1.0, "m_mul": 0.5}),
    ("exponential", K.ExponentialDecay, {"initial_learning_rate": 0.1, "decay_steps": 10, "decay_rate": 0.5}),
    ("exponential_staircase", K.ExponentialDecay, {"initial_learning_rate": 0.1, "decay_steps": 10, "decay_rate": 0.5, "staircase": True}),
    ("piecewise", K.PiecewiseConstantDecay, {"boundaries": [5, 20, 50], "values": [1.0, 0.5, 0.1, 0.01]}),
    ("inverse_time", K.InverseTimeDecay, {"initial_learning_rate": 0.1, "decay_steps": 10, "decay_rate": 0.5}),
    ("inverse_time_staircase", K.InverseTimeDecay, {"initial_learning_rate": 0.1, "decay_steps": 10, "decay_rate": 0.5, "staircase": True}),
]


def make():
    fixture = Fixture("schedules")
    for name, cls, kwargs in CASES:
        schedule = cls(**kwargs)
        values = [float(schedule(step)) for step in STEPS]
        fixture.add(
            {"name": name, "class_name": cls.__name__, "config": config_of(schedule)},
            {"step": np.array(STEPS, "int32"), "value": np.array(values, "float32")},
        )
    fixture.save()
