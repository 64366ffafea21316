"""sequences.safetensors and models/NAME.keras: as models.safetensors, for masks between attention layers and cells as layers."""

import keras
import models
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


def make(only=()):
    models.make(only, "sequences", CASES.items())
