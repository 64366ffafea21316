"""open_sizes.safetensors and open_NAME.keras: models with open sizes, and batches of different shapes.

A case is a model with random weights. The fixture has batches `input/b` and `target/b` of different shapes, the outputs
`output/b`, and the losses of STEPS steps of SGD on the mean squared error, one step on each batch in turn, with the
outputs `after/b` after them.
"""

import os

import keras
import numpy as np
from common import FIXTURES, Fixture, normal, rng_for
from keras import layers
from models import random_weights

STEPS = 6
RATE = 0.05


def sequences(rng, lengths, features):
    """Sequences of `lengths` steps, padded with zeros to the longest."""
    x = np.zeros((len(lengths), max(lengths), features), "float32")
    for row, length in enumerate(lengths):
        x[row, :length] = normal(rng, length, features)
    return x


def tokens(rng, lengths, vocabulary):
    x = np.zeros((len(lengths), max(lengths)), "int32")
    for row, length in enumerate(lengths):
        x[row, :length] = rng.integers(1, vocabulary, length)
    return x


def lstm(rng):
    x = keras.Input((None, 3))
    y = layers.Masking()(x)
    y = layers.Bidirectional(layers.LSTM(4, return_sequences=True))(y)
    model = keras.Model(x, layers.Dense(2)(y))
    return model, [sequences(rng, lengths, 3) for lengths in ([5, 2, 4], [3, 1, 2, 3], [7, 7])]


def attention(rng):
    x = keras.Input((None,), dtype="int32")
    y = layers.Embedding(9, 6, mask_zero=True)(x)
    y = layers.Add()([y, layers.MultiHeadAttention(2, 3)(y, y)])
    y = layers.LayerNormalization()(y)
    model = keras.Model(x, layers.Dense(1)(layers.GlobalAveragePooling1D()(y)))
    return model, [tokens(rng, lengths, 9) for lengths in ([4, 3], [6, 2, 5], [1, 1, 1])]


def convolution(rng):
    x = keras.Input((None, None, 2))
    y = layers.Conv2D(4, 3, strides=2, padding="same", activation="relu")(x)
    y = layers.MaxPooling2D(2)(y)
    y = layers.Conv2DTranspose(3, 3, strides=2, padding="same")(y)
    model = keras.Model(x, layers.Dense(2)(layers.GlobalAveragePooling2D()(y)))
    return model, [normal(rng, *shape) for shape in ((2, 9, 12, 2), (3, 16, 6, 2), (1, 8, 8, 2))]


def resized(rng):
    x = keras.Input((None, None, 2))
    y = layers.Resizing(5, 6)(x)
    model = keras.Model(x, layers.Dense(3)(layers.Flatten()(y)))
    return model, [normal(rng, *shape) for shape in ((2, 9, 12, 2), (3, 5, 6, 2), (2, 3, 8, 2))]


def make():
    fixture = Fixture("open_sizes")
    for build in (lstm, attention, convolution, resized):
        name = build.__name__
        keras.utils.clear_session()
        rng = rng_for(f"open sizes of {name}")
        model, batches = build(rng)
        random_weights(rng, model)
        model.save(os.path.join(FIXTURES, f"open_{name}.keras"))
        outputs = [np.asarray(model(x, training=False)) for x in batches]
        targets = [normal(rng, *y.shape) for y in outputs]
        model.compile(optimizer=keras.optimizers.SGD(RATE), loss="mse", run_eagerly=True)
        losses = []
        for step in range(STEPS):
            batch = step % len(batches)
            model.reset_metrics()
            losses.append(float(model.train_on_batch(batches[batch], targets[batch])))
        after = [np.asarray(model(x, training=False)) for x in batches]
        tensors = {"losses": np.array(losses, "float32")}
        for field, values in (("input", batches), ("target", targets), ("output", outputs), ("after", after)):
            tensors |= {f"{field}/{b}": value for b, value in enumerate(values)}
        fixture.add({"name": name, "rate": RATE}, tensors)
    fixture.save()
