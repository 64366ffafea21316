"""loss_scale.safetensors: two variables and the loss scale after each of twelve steps, some with infinite or NaN
gradients."""

import keras
import numpy as np
from common import Fixture, config_of, normal, rng_for
from keras import optimizers as K

SHAPES = [(4, 3), (3,)]
# The value that replaces one gradient element of a step. Fixture files contain only finite numbers.
SPOILED = [None, None, "inf", None, None, None, None, "nan", "inf", None, None, None]
GROWTH_STEPS = 3


# Without Nadam: inside a LossScaleOptimizer, Keras 3.15 does not track its product of momenta, which stays at one.
def cases():
    decay = K.schedules.ExponentialDecay(0.1, decay_steps=2, decay_rate=0.5)
    yield "sgd", K.SGD, {"learning_rate": 0.1}
    yield "sgd_momentum_decay", K.SGD, {"learning_rate": 0.1, "momentum": 0.8, "weight_decay": 0.05}
    yield "adam", K.Adam, {"learning_rate": 0.05}
    yield "adam_schedule", K.Adam, {"learning_rate": decay}
    yield "adam_clipnorm", K.Adam, {"learning_rate": 0.05, "clipnorm": 1.0}
    yield "sgd_global_clipnorm", K.SGD, {"learning_rate": 0.1, "global_clipnorm": 1.5}
    yield "sgd_clipvalue", K.SGD, {"learning_rate": 0.1, "clipvalue": 0.5}
    yield "sgd_accumulate", K.SGD, {"learning_rate": 0.1, "gradient_accumulation_steps": 2}
    yield "adam_accumulate", K.Adam, {"learning_rate": 0.05, "gradient_accumulation_steps": 3}
    yield "adam_ema", K.Adam, {"learning_rate": 0.05, "use_ema": True, "ema_momentum": 0.9, "ema_overwrite_frequency": 3}


def make():
    fixture = Fixture("loss_scale")
    for name, cls, kwargs in cases():
        rng = rng_for(name)
        start = [normal(rng, *shape) for shape in SHAPES]
        variables = [keras.Variable(value, name=f"variable_{i}") for i, value in enumerate(start)]
        inner = cls(name=cls.__name__.lower(), **kwargs)
        optimizer = K.LossScaleOptimizer(
            inner, initial_scale=1024.0, dynamic_growth_steps=GROWTH_STEPS, name="loss_scale_optimizer"
        )
        config = config_of(optimizer)
        optimizer.build(variables)
        tensors = {f"var/{i}": value for i, value in enumerate(start)}
        for step, spoiled in enumerate(SPOILED):
            grads = [normal(rng, *shape) for shape in SHAPES]
            scaled = [g * np.float32(optimizer.dynamic_scale) for g in grads]
            if spoiled:
                scaled[0][1, 1] = float(spoiled)
            # As Keras' JAX trainer does; `apply` would leak tracers.
            new, state = optimizer.stateless_apply(
                [v.value for v in optimizer.variables],
                [keras.ops.convert_to_tensor(g) for g in scaled],
                [v.value for v in variables],
            )
            for variable, value in zip(variables + optimizer.variables, new + state):
                variable.assign(value)
            for i, (grad, variable) in enumerate(zip(grads, variables)):
                tensors[f"grad/{step}/{i}"] = grad
                tensors[f"after/{step}/{i}"] = variable.numpy()
            tensors[f"scale/{step}"] = np.float32(optimizer.dynamic_scale)
            tensors[f"iterations/{step}"] = np.int32(optimizer.iterations)
        case = {"name": name, "class_name": "LossScaleOptimizer", "config": config, "spoiled": SPOILED}
        fixture.add(case, tensors)
    fixture.save()
