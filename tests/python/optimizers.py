"""optimizers.safetensors: two variables after each of seven steps with given gradients."""

import keras
import numpy as np
from common import Fixture, config_of, normal, rng_for
from keras import optimizers as K

STEPS = 7
SHAPES = [(4, 3), (3,)]
# Large and small gradients, so that clipping affects only some steps.
GRADIENT_SCALES = (1.0, 10.0, 0.1, 3.0, 0.5, 20.0, 1.0)

COMMON_OPTIONS = {
    "clipnorm": {"clipnorm": 1.0},
    "global_clipnorm": {"global_clipnorm": 1.5},
    "clipvalue": {"clipvalue": 0.5},
    "ema": {"use_ema": True, "ema_momentum": 0.9},
    "ema_overwrite": {"use_ema": True, "ema_momentum": 0.9, "ema_overwrite_frequency": 3},
    "accumulate": {"gradient_accumulation_steps": 2},
    "accumulate_decay_clip": {"gradient_accumulation_steps": 2, "weight_decay": 0.1, "clipnorm": 1.0},
    "decay_clip_ema": {"weight_decay": 0.1, "global_clipnorm": 1.0, "use_ema": True, "ema_overwrite_frequency": 2},
    "schedule": {"learning_rate": K.schedules.ExponentialDecay(0.1, decay_steps=2, decay_rate=0.5)},
}


def cases():
    yield "sgd", K.SGD, {}
    yield "sgd_rate", K.SGD, {"learning_rate": 0.1}
    yield "sgd_momentum", K.SGD, {"learning_rate": 0.1, "momentum": 0.9}
    yield "sgd_nesterov", K.SGD, {"learning_rate": 0.1, "momentum": 0.9, "nesterov": True}
    yield "sgd_nesterov_no_momentum", K.SGD, {"learning_rate": 0.1, "nesterov": True}
    yield "sgd_decay", K.SGD, {"learning_rate": 0.1, "weight_decay": 0.05}
    yield "sgd_momentum_decay", K.SGD, {"learning_rate": 0.1, "momentum": 0.8, "weight_decay": 0.05}
    yield "adam", K.Adam, {}
    yield "adam_options", K.Adam, {"learning_rate": 0.05, "beta_1": 0.8, "beta_2": 0.95, "epsilon": 1e-3}
    yield "adam_amsgrad", K.Adam, {"learning_rate": 0.05, "amsgrad": True}
    yield "adam_decay", K.Adam, {"learning_rate": 0.05, "weight_decay": 0.1}
    yield "adamw", K.AdamW, {}
    yield "adamw_options", K.AdamW, {"learning_rate": 0.05, "weight_decay": 0.2, "amsgrad": True}
    yield "rmsprop", K.RMSprop, {}
    yield "rmsprop_rho", K.RMSprop, {"learning_rate": 0.01, "rho": 0.7, "epsilon": 1e-3}
    yield "rmsprop_momentum", K.RMSprop, {"learning_rate": 0.01, "momentum": 0.8}
    yield "rmsprop_centered", K.RMSprop, {"learning_rate": 0.01, "centered": True}
    yield "rmsprop_centered_momentum", K.RMSprop, {"learning_rate": 0.01, "centered": True, "momentum": 0.5}
    yield "adagrad", K.Adagrad, {}
    yield "adagrad_options", K.Adagrad, {"learning_rate": 0.1, "initial_accumulator_value": 0.5, "epsilon": 1e-3}
    yield "nadam", K.Nadam, {}
    yield "nadam_options", K.Nadam, {"learning_rate": 0.05, "beta_1": 0.8, "beta_2": 0.95, "weight_decay": 0.1}
    yield "nadam_accumulate", K.Nadam, {"learning_rate": 0.05, "gradient_accumulation_steps": 2}
    yield "adadelta", K.Adadelta, {}
    yield "adadelta_options", K.Adadelta, {"learning_rate": 1.0, "rho": 0.8, "epsilon": 1e-3, "weight_decay": 0.1}
    yield "adamax", K.Adamax, {}
    yield "adamax_options", K.Adamax, {"learning_rate": 0.05, "beta_1": 0.8, "beta_2": 0.95, "weight_decay": 0.1}
    yield "ftrl", K.Ftrl, {}
    yield "ftrl_regularized", K.Ftrl, {
        "learning_rate": 0.1,
        "l1_regularization_strength": 0.5,
        "l2_regularization_strength": 0.1,
        "l2_shrinkage_regularization_strength": 0.05,
    }
    yield "ftrl_options", K.Ftrl, {
        "learning_rate": 0.1,
        "learning_rate_power": -0.3,
        "initial_accumulator_value": 0.5,
        "beta": 0.2,
        "weight_decay": 0.1,
    }
    yield "schedule_free_adamw", K.ScheduleFreeAdamW, {}
    yield "schedule_free_adamw_options", K.ScheduleFreeAdamW, {
        "learning_rate": 0.05,
        "beta_1": 0.8,
        "beta_2": 0.95,
        "epsilon": 1e-3,
        "warmup_steps": 4,
        "weight_decay": 0.1,
    }
    for short, cls in (("adamax", K.Adamax), ("schedule_free_adamw", K.ScheduleFreeAdamW)):
        yield f"{short}_accumulate", cls, {"learning_rate": 0.05, "gradient_accumulation_steps": 2}
        yield f"{short}_ema", cls, {"learning_rate": 0.05, "use_ema": True, "ema_momentum": 0.9}
    yield "lion", K.Lion, {}
    yield "lion_options", K.Lion, {"learning_rate": 0.01, "beta_1": 0.8, "beta_2": 0.9, "weight_decay": 0.1}
    for short, cls in (("sgd", K.SGD), ("adam", K.Adam)):
        for suffix, options in COMMON_OPTIONS.items():
            yield f"{short}_{suffix}", cls, {"learning_rate": 0.1} | options


def add(fixture, name, optimizer, config, names=("variable_0", "variable_1")):
    """A case: two variables after each step."""
    rng = rng_for(name)
    start = [normal(rng, *shape) for shape in SHAPES]
    variables = [keras.Variable(value, name=of) for of, value in zip(names, start)]
    optimizer.build(variables)
    tensors = {f"var/{i}": value for i, value in enumerate(start)}
    for step, scale in enumerate(GRADIENT_SCALES):
        grads = [normal(rng, *shape) * np.float32(scale) for shape in SHAPES]
        optimizer.apply([keras.ops.convert_to_tensor(g) for g in grads])
        for i, (grad, variable) in enumerate(zip(grads, variables)):
            tensors[f"grad/{step}/{i}"] = grad
            tensors[f"after/{step}/{i}"] = variable.numpy()
    if optimizer.use_ema:
        for i, average in enumerate(optimizer._model_variables_moving_average):
            tensors[f"ema/{i}"] = average.numpy()
    fixture.add({"name": name, "class_name": type(optimizer).__name__, "config": config, "steps": STEPS}, tensors)


def make():
    fixture = Fixture("optimizers")
    for name, cls, kwargs in cases():
        optimizer = cls(name=cls.__name__.lower(), **kwargs)
        add(fixture, name, optimizer, config_of(optimizer))
    fixture.save()
