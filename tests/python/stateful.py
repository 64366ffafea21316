"""stateful.safetensors and models/stateful_NAME.keras: recurrent layers whose states outlive a batch.

The outputs are those of eager calls, one batch after the other. Then the states are reset, and three steps of SGD run on
the mean squared error, each on one batch; a last call has the outputs after them. On JAX the steps of `fit` do not keep
states, so the script takes the gradients itself and lets an eager call of the weights before the update set the states.
"""

import os

import jax
import keras
import numpy as np
from common import FIXTURES, Fixture, normal, rng_for
from keras import layers as L
from model_cases import words
from models import random_weights

BATCH = 4
STEPS = 3
RATE = 0.1

CASES = {}


def case(name, shape, *layers, dtype="float32"):
    CASES[name] = (shape, layers, dtype)


case("lstm", (3, 2), lambda: L.LSTM(4, stateful=True))
case("gru_sequences", (3, 2), lambda: L.GRU(3, return_sequences=True, stateful=True), lambda: L.Dense(2))
case("gru_reset_before", (3, 2), lambda: L.GRU(3, reset_after=False, stateful=True))
case("simple_rnn_backwards", (3, 2), lambda: L.SimpleRNN(4, go_backwards=True, stateful=True))
case("stack", (3, 2), lambda: L.RNN([L.LSTMCell(3), L.GRUCell(2)], stateful=True))
case("two_layers", (3, 2), lambda: L.LSTM(3, return_sequences=True, stateful=True), lambda: L.LSTM(2, stateful=True), lambda: L.Dense(2))
case("bidirectional", (3, 2), lambda: L.Bidirectional(L.LSTM(3, return_sequences=True, stateful=True)))
case("bidirectional_gru", (3, 2), lambda: L.Bidirectional(L.GRU(3, stateful=True), merge_mode="sum"))
case("conv_lstm", (2, 4, 5, 2), lambda: L.ConvLSTM2D(3, 3, strides=(1, 2), stateful=True))
case("masked_gru", (5,), lambda: L.Embedding(9, 3, mask_zero=True), lambda: L.GRU(3, stateful=True), dtype="int32")
case("open_lstm", (None, 2), lambda: L.LSTM(3, stateful=True))


def recurrent_layers(model):
    return [layer for layer in model.layers if getattr(layer, "stateful", False)]


def reset(model):
    for layer in recurrent_layers(model):
        for part in [layer.forward_layer, layer.backward_layer] if isinstance(layer, L.Bidirectional) else [layer]:
            for state in keras.tree.flatten(part.states):
                state.assign(np.zeros(state.shape, "float32"))


def train(model, x, y):
    """One step; returns its loss."""
    before = [v.value for v in model.non_trainable_variables]

    def loss(trained):
        output, _ = model.stateless_call(trained, before, x, training=True)
        return keras.ops.mean((output - y) ** 2)

    value, gradients = jax.value_and_grad(loss)([v.value for v in model.trainable_variables])
    model(x)
    for variable, gradient in zip(model.trainable_variables, gradients):
        variable.assign(variable.value - RATE * gradient)
    return float(value)


def add_case(fixture, name, shape, layers, dtype):
    keras.utils.clear_session()
    rng = rng_for(name)
    model = keras.Sequential([keras.Input(batch_shape=(BATCH, *shape), dtype=dtype), *[make() for make in layers]])
    random_weights(rng, model)
    model.save(os.path.join(FIXTURES, "models", f"stateful_{name}.keras"))
    known = tuple(3 if n is None else n for n in shape)
    draw = lambda: words(rng, (BATCH, *known)) if dtype == "int32" else normal(rng, BATCH, *known)
    x = [draw() for _ in range(STEPS)]
    reset(model)
    outputs = [np.asarray(model(batch)) for batch in x]
    tensors = {f"input/{i}": batch for i, batch in enumerate(x)}
    tensors |= {f"output/{i}": output for i, output in enumerate(outputs)}
    targets = [normal(rng, *output.shape) for output in outputs]
    tensors |= {f"target/{i}": target for i, target in enumerate(targets)}
    reset(model)
    tensors["losses"] = np.array([train(model, *pair) for pair in zip(x, targets)], "float32")
    tensors["after"] = np.asarray(model(x[0]))
    fixture.add({"name": name, "batch": BATCH, "steps": STEPS, "rate": RATE}, tensors)


def make():
    fixture = Fixture("stateful")
    for name, (shape, layers, dtype) in CASES.items():
        add_case(fixture, name, shape, layers, dtype)
    fixture.save()
