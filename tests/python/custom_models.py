"""custom.safetensors and custom_*.keras: models with custom classes and functions that Python has registered, their outputs,
losses, metrics and weights; and files with classes that Phalanx must refuse.

The .keras files contain their creation time: a second run gives equal models in different bytes."""

import os

import keras
import numpy as np
from common import FIXTURES, Fixture, normal, rng_for
from keras import layers as L
from keras import ops

STEPS = 3


@keras.saving.register_keras_serializable(package="my")
class Scale(L.Layer):
    def __init__(self, factor=2.0, **arguments):
        super().__init__(**arguments)
        self.factor = factor

    def build(self, shape):
        self.gain = self.add_weight(name="gain", shape=(shape[-1],), initializer="ones")
        self.seen = self.add_weight(name="seen", shape=(), initializer="zeros", trainable=False)

    def call(self, x, training=False):
        if training:
            self.seen.assign(self.seen + 1)
        return x * self.gain * self.factor

    def get_config(self):
        return {**super().get_config(), "factor": self.factor}


@keras.saving.register_keras_serializable(package="my")
class Block(L.Layer):
    def __init__(self, units, **arguments):
        super().__init__(**arguments)
        self.units = units
        self.first = L.Dense(units, activation="relu")
        self.second = L.Dense(units)

    def build(self, shape):
        self.first.build(shape)
        self.second.build((*shape[:-1], self.units))

    def call(self, x):
        return self.second(self.first(x))

    def get_config(self):
        return {**super().get_config(), "units": self.units}


# The classes of crates/phalanx/examples/custom_layer.rs.
@keras.saving.register_keras_serializable(package="example")
class Pinball(keras.losses.Loss):
    def __init__(self, quantile=0.5, name="pinball", reduction="sum_over_batch_size", dtype=None):
        super().__init__(name=name, reduction=reduction, dtype=dtype)
        self.quantile = quantile

    def call(self, y_true, y_pred):
        error = y_true - y_pred
        return ops.mean(ops.maximum(self.quantile * error, (self.quantile - 1.0) * error), axis=-1)

    def get_config(self):
        return {**super().get_config(), "quantile": self.quantile}


@keras.saving.register_keras_serializable(package="example")
class Coverage(keras.metrics.Metric):
    def __init__(self, name="coverage", dtype=None):
        super().__init__(name=name, dtype=dtype)
        self.total = self.add_weight(name="total", initializer="zeros")
        self.count = self.add_weight(name="count", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        below = ops.mean(ops.cast(y_pred > y_true, "float32"), axis=-1)
        self.total.assign(self.total + ops.sum(below))
        self.count.assign(self.count + ops.shape(below)[0])

    def result(self):
        return self.total / self.count


@keras.saving.register_keras_serializable(package="my")
class Alternating(keras.initializers.Initializer):
    def __init__(self, value=0.0):
        self.value = value

    def __call__(self, shape, dtype=None):
        signs = np.resize(np.array([1.0, -1.0], np.float32), int(np.prod(shape))).reshape(shape)
        return ops.convert_to_tensor(signs * np.float32(self.value), dtype)

    def get_config(self):
        return {"value": self.value}


@keras.saving.register_keras_serializable(package="my")
class SquaredSum(keras.regularizers.Regularizer):
    def __init__(self, factor=0.0):
        self.factor = factor

    def __call__(self, x):
        return self.factor * ops.sum(x) ** 2

    def get_config(self):
        return {"factor": self.factor}


@keras.saving.register_keras_serializable(package="my")
class Clip(keras.constraints.Constraint):
    def __init__(self, limit=0.01):
        self.limit = limit

    def __call__(self, w):
        return ops.clip(w, -self.limit, self.limit)

    def get_config(self):
        return {"limit": self.limit}


@keras.saving.register_keras_serializable(package="my")
def bent(x):
    return 0.5 * x + ops.relu(0.5 * x)


@keras.saving.register_keras_serializable(package="my")
def quartic(y_true, y_pred):
    return ops.mean((y_true - y_pred) ** 4, axis=-1)


# Registered in Python only.
@keras.saving.register_keras_serializable(package="my")
class Unknown(L.Layer):
    def call(self, x):
        return x


@keras.saving.register_keras_serializable(package="my")
def unknown(x):
    return x


class Plain(L.Layer):
    def call(self, x):
        return x


def network(activation):
    chain = [Scale(1.5), Block(6), L.Dense(4, activation=activation), L.Activation(activation), L.Dense(2)]
    return keras.Sequential([keras.Input((3,)), *chain], name="net")


def weights_network():
    chain = [
        L.Dense(6, "tanh", kernel_initializer=Alternating(0.3), kernel_regularizer=SquaredSum(0.05), bias_constraint=Clip(0.02)),
        L.Dense(2, kernel_constraint=Clip(0.2), bias_regularizer=SquaredSum(0.1)),
    ]
    return keras.Sequential([keras.Input((3,)), *chain], name="net")


def models():
    """Models with their losses and metrics, by name."""
    yield "classes", network("tanh"), Pinball(0.9), [Coverage()]
    yield "functions", network(bent), quartic, [quartic, "mae"]
    yield "weights", weights_network(), "mse", ["mae"]


def save(name, model):
    model.save(os.path.join(FIXTURES, f"custom_{name}.keras"))


def refused():
    for name, layer in [
        ("unregistered", Unknown()),
        ("plain", Plain()),
        ("lambda", L.Lambda(lambda x: x)),
        ("function", L.Dense(2, activation=unknown)),
    ]:
        save(name, keras.Sequential([keras.Input((3,)), layer], name="net"))


def make():
    fixture = Fixture("custom")
    keras.utils.set_random_seed(8)
    for name, model, loss, metrics in models():
        rng = rng_for(name)
        for weight in model.trainable_weights:
            weight.assign(normal(rng, *weight.shape) * 0.5)
        model.compile(keras.optimizers.Adam(0.02), loss, metrics=metrics)
        save(name, model)
        x, y = normal(rng, 8, 3), normal(rng, 8, 2)
        tensors = {"x": x, "y": y, "output": np.asarray(model(x))}
        tensors["losses"] = np.array([model.train_on_batch(x, y)[0] for _ in range(STEPS)], np.float32)
        results = model.evaluate(x, y, batch_size=3, verbose=0, return_dict=True)
        tensors["metrics"] = np.array(list(results.values()), np.float32)
        tensors |= {f"after/{i}": np.asarray(w) for i, w in enumerate(model.get_weights())}
        fixture.add({"name": name, "metrics": list(results)}, tensors)
    fixture.save()
    refused()
