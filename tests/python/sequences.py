"""sequences.safetensors and models/NAME.keras: as models.safetensors, for masks between attention layers and cells as layers."""

import keras
import models
from common import normal
from keras import layers as L
from model_cases import words

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def embedded(name):
    x = keras.Input((5,), dtype="int32", name=name)
    return x, L.Embedding(9, 4, mask_zero=True)(x)


@case
def attention_removes_the_masks_of_its_inputs(rng):
    source, memory = embedded("source")
    target, x = embedded("target")
    y = L.Add()([x, L.MultiHeadAttention(2, 3)(x, x, use_causal_mask=True)])
    first = L.MultiHeadAttention(2, 3)(query=y, value=memory, key=memory)
    second = L.MultiHeadAttention(2, 3)(first, memory)
    model = keras.Model([source, target], [L.Dense(2)(second), L.GRU(3)(y), L.GRU(2)(x)])
    return model, [words(rng, (6, 5)), words(rng, (6, 5))[::-1].copy()]


@case
def mask_given_to_a_nested_model_stays(rng):
    tokens, x = embedded("tokens")
    y = L.Add()([x, L.MultiHeadAttention(2, 3)(x, x)])
    body = keras.Sequential([L.Dense(5, activation="relu"), L.Dense(4)])
    return keras.Model(tokens, L.GRU(3)(L.Add()([y, body(y)]))), words(rng, (6, 5))


@case
def softmax_over_axes_with_a_mask(rng):
    x, mask = keras.Input((4, 3, 2)), keras.Input((4, 3, 1), dtype="bool")
    y = L.Softmax(axis=[1, 2])(x, mask=mask)
    z = L.Softmax(axis=(-1, 1))(L.Dense(2)(x))
    w = L.Softmax(axis=[2])(x, mask=mask)
    flags = rng.integers(0, 2, (5, 4, 3, 1)).astype("float32")
    flags[-1] = 0
    return keras.Model([x, mask], [L.Dense(2)(y), z, w]), [normal(rng, 5, 4, 3, 2), flags]


def states(rng, *sizes):
    """Inputs of these sizes, and data for them."""
    return [keras.Input((size,)) for size in sizes], [normal(rng, 4, size) for size in sizes]


@case
def lstm_cell_as_layer(rng):
    inputs, data = states(rng, 3, 4, 4)
    x, h, c = inputs
    cell = L.LSTMCell(4, recurrent_activation="hard_sigmoid")
    y, first = cell(x, [h, c])
    z, (_, c) = cell(L.Dense(3)(y), states=first)
    return keras.Model(inputs, [y, z, c]), data


@case
def gru_cells_as_layers(rng):
    inputs, data = states(rng, 3, 4, 2)
    x, h, k = inputs
    y, [h] = L.GRUCell(4)(x, [h])
    z, k = L.GRUCell(2, reset_after=False)(L.Add()([y, h]), k)
    return keras.Model(inputs, [z, k]), data


@case
def simple_rnn_cell_as_layer(rng):
    inputs, data = states(rng, 3, 4)
    y, _ = L.SimpleRNNCell(4)(*inputs)
    return keras.Model(inputs, y), data


@case
def stacked_cells_as_layer(rng):
    inputs, data = states(rng, 3, 4, 4, 2)
    x, h, c, k = inputs
    y, ((h, c), k) = L.StackedRNNCells([L.LSTMCell(4), L.GRUCell(2)])(x, [[h, c], k])
    return keras.Model(inputs, [y, c, k]), data


def make(only=()):
    models.make(only, "sequences", CASES.items())
