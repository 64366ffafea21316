"""optimizer_files.safetensors and optimizer_*.keras: models saved during training by optimizers with variables of their
own shapes or order, and their weights after each following step.

The .keras files contain their creation time: a second run gives equal models in different bytes."""

import os

import keras
import numpy as np
from common import FIXTURES, Fixture, normal, rng_for
from keras import layers as L
from keras import optimizers as K

STEPS = 7


# The last element is the number of steps before saving.
def cases():
    decay = K.schedules.ExponentialDecay(0.05, decay_steps=2, decay_rate=0.5)
    every = K.OptimizerMap
    yield "lamb", K.Lamb(0.02, weight_decay=0.01, use_ema=True, ema_momentum=0.9), 3
    yield "adafactor", K.Adafactor(0.02, gradient_accumulation_steps=2), 3
    yield "multi_nadam", K.MultiOptimizer(every(K.Adafactor(0.02), {".*/kernel": K.Nadam(0.02)})), 2
    yield "adafactor_schedule", K.Adafactor(decay, clipnorm=0.5), 2
    yield "muon", K.Muon(0.02, exclude_layers=["head"]), 3
    yield "multi", K.MultiOptimizer(
        every(K.SGD(0.05, momentum=0.9), {"net/hidden/kernel": K.Muon(decay), "net/head/.*": K.Adam(0.02, amsgrad=True)})
    ), 3
    # Inside a LossScaleOptimizer, Keras does not store Nadam's product and the unused numbers of Adafactor.
    yield "scaled_multi", K.LossScaleOptimizer(
        K.MultiOptimizer(every(K.Adam(0.02), {".*/bias": K.Adafactor(0.02), ".*/unused": K.SGD()}))
    ), 2
    yield "scaled_lamb", K.LossScaleOptimizer(K.Lamb(0.02), dynamic_growth_steps=2), 3


def make():
    fixture = Fixture("optimizer_files")
    for name, optimizer, saved in cases():
        keras.utils.set_random_seed(5)
        rng = rng_for(name)
        chain = [
            L.Conv1D(4, 3, activation="tanh", kernel_regularizer="l2", name="conv"),
            L.Flatten(name="flat"),
            L.Dense(5, activation="tanh", name="hidden"),
            L.Dense(2, name="head"),
        ]
        model = keras.Sequential([keras.Input((6, 3)), *chain], name="net")
        model.compile(optimizer, "mse")
        tensors = {}
        for step in range(STEPS):
            if step == saved:
                model.save(os.path.join(FIXTURES, f"optimizer_{name}.keras"))
            x, y = normal(rng, 4, 6, 3), normal(rng, 4, 2)
            model.train_on_batch(x, y)
            if step >= saved:
                tensors |= {f"x/{step}": x, f"y/{step}": y}
                tensors |= {f"after/{step}/{i}": np.asarray(w) for i, w in enumerate(model.weights)}
        fixture.add({"name": name, "saved": saved, "steps": STEPS}, tensors)
    fixture.save()
