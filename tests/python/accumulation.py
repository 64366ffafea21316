"""accumulation.safetensors and accumulated_*.keras: models saved between two updates of an optimizer that accumulates
gradients, and their weights after each following step.

Each batch counts as one regardless of its size, so batches have different sizes. The .keras files contain their creation
time: a second run gives equal models in different bytes."""

import os

import keras
import numpy as np
from common import FIXTURES, Fixture, normal, rng_for
from keras import layers as L
from keras import optimizers as K

ROWS = [4, 2, 4, 3, 4, 2, 4, 1, 4]


# The last element is the number of steps before saving: never a multiple of the accumulation steps.
def cases():
    decay = K.schedules.ExponentialDecay(0.1, decay_steps=2, decay_rate=0.5)
    yield "sgd", K.SGD(0.1, gradient_accumulation_steps=3), 4
    yield "sgd_momentum_clip", K.SGD(0.1, momentum=0.8, clipnorm=0.5, gradient_accumulation_steps=4), 3
    yield "adam", K.Adam(0.05, gradient_accumulation_steps=3), 2
    yield "adamw_schedule", K.AdamW(decay, weight_decay=0.02, gradient_accumulation_steps=2), 5
    yield "nadam", K.Nadam(0.05, gradient_accumulation_steps=3), 4


def make():
    fixture = Fixture("accumulation")
    for name, optimizer, saved in cases():
        keras.utils.set_random_seed(5)
        rng = rng_for(name)
        chain = [L.Dense(4, activation="tanh", kernel_regularizer="l2"), L.Dense(2)]
        model = keras.Sequential([keras.Input((3,)), *chain], name="net")
        model.compile(optimizer, "mse")
        tensors = {}
        for step, rows in enumerate(ROWS):
            if step == saved:
                model.save(os.path.join(FIXTURES, f"accumulated_{name}.keras"))
            x, y = normal(rng, rows, 3), normal(rng, rows, 2)
            model.train_on_batch(x, y)
            if step >= saved:
                tensors |= {f"x/{step}": x, f"y/{step}": y}
                tensors |= {f"after/{step}/{i}": np.asarray(w) for i, w in enumerate(model.weights)}
        fixture.add({"name": name, "saved": saved, "steps": len(ROWS)}, tensors)
    fixture.save()
