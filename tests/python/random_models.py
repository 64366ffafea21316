"""Random Keras models of the layers that Phalanx supports, with matching data."""

import keras
import numpy as np
from keras import layers as L

ROWS = 20
WORDS = 11


def activation(rng):
    return str(rng.choice(["relu", "tanh", "sigmoid", "elu", "gelu", "swish", "softplus", "selu", "linear"]))


def pick(rng, *choices):
    """Calls one of the functions, at random."""
    return choices[rng.integers(len(choices))]()


def image_block(rng, x):
    """One layer on images."""
    filters, size = int(rng.integers(2, 6)), int(rng.integers(1, 4))
    padding, strides = str(rng.choice(["same", "valid"])), int(rng.integers(1, 3))
    height, width = x.shape[1:3]
    if min(height, width) < 4:
        padding, strides, size = "same", 1, 1
    block = pick(
        rng,
        lambda: L.Conv2D(filters, size, strides=strides, padding=padding, activation=activation(rng)),
        lambda: L.DepthwiseConv2D(size, padding=padding, depth_multiplier=int(rng.integers(1, 3))),
        lambda: L.BatchNormalization(momentum=0.8),
        lambda: L.LayerNormalization(),
        lambda: L.MaxPooling2D(2, padding="same"),
        lambda: L.AveragePooling2D(2, padding="same"),
        lambda: L.ZeroPadding2D(1),
        lambda: L.UpSampling2D(2, interpolation=str(rng.choice(["nearest", "bilinear"]))),
        lambda: L.LeakyReLU(0.2),
        lambda: L.ReLU(max_value=6.0),
        lambda: L.Activation(activation(rng)),
    )
    return block(x)


def vector_block(rng, x):
    """One layer on vectors."""
    units = int(rng.integers(2, 9))
    block = pick(
        rng,
        lambda: L.Dense(units, activation=activation(rng), use_bias=bool(rng.integers(2))),
        lambda: L.Dense(units, activation=activation(rng), kernel_regularizer=keras.regularizers.L2(0.01)),
        lambda: L.BatchNormalization(momentum=0.8),
        lambda: L.LayerNormalization(),
        lambda: L.ReLU(negative_slope=0.1),
        lambda: L.Softmax(),
        lambda: L.Activation(activation(rng)),
    )
    return block(x)


def branch(rng, name, sequences=True):
    """A random input, its data, and a vector computed from it."""
    kind = rng.integers(3 if sequences else 2)
    if kind == 0:
        width = int(rng.integers(2, 8))
        inputs = keras.Input((width,), name=name)
        return inputs, rng.standard_normal((ROWS, width)).astype(np.float32), inputs
    if kind == 1:
        height, width, channels = (int(n) for n in rng.integers([5, 5, 1], [10, 10, 4]))
        inputs = keras.Input((height, width, channels), name=name)
        x = inputs
        for _ in range(rng.integers(1, 4)):
            y = image_block(rng, x)
            x = L.Add()([x, y]) if y.shape == x.shape and rng.integers(2) else y
        top = pick(rng, L.Flatten, L.GlobalAveragePooling2D, L.GlobalMaxPooling2D)
        return inputs, rng.random((ROWS, height, width, channels), dtype=np.float32), top(x)
    length = int(rng.integers(2, 6))
    inputs = keras.Input((length,), name=name, dtype="int32")
    words = L.Embedding(WORDS, int(rng.integers(2, 5)))(inputs)
    return inputs, rng.integers(0, WORDS, (ROWS, length)).astype(np.int64), L.Flatten()(words)


def head(rng, x, name):
    """A random output with its loss and targets."""
    units = int(rng.integers(1, 5))
    kind = rng.integers(4)
    if kind == 0:
        loss = str(rng.choice(["mse", "mae", "huber"]))
        return L.Dense(units, name=name)(x), loss, rng.standard_normal((ROWS, units)).astype(np.float32)
    if kind == 1:
        targets = rng.integers(0, 2, (ROWS, units))
        return L.Dense(units, activation="sigmoid", name=name)(x), "binary_crossentropy", targets
    classes = units + 1
    output = L.Dense(classes, activation="softmax", name=name)(x)
    labels = rng.integers(0, classes, ROWS)
    if kind == 2:
        return output, "sparse_categorical_crossentropy", labels
    soft = rng.random((ROWS, classes), dtype=np.float32)
    return output, "categorical_crossentropy", soft / soft.sum(axis=1, keepdims=True)


def optimizer(rng):
    o = keras.optimizers
    return pick(
        rng,
        lambda: o.SGD(0.05),
        lambda: o.SGD(0.02, momentum=0.9, nesterov=bool(rng.integers(2))),
        lambda: o.Adam(0.003),
        lambda: o.AdamW(0.003, weight_decay=0.01),
        lambda: o.RMSprop(0.002),
        lambda: o.Adagrad(0.02),
        lambda: o.Nadam(0.003),
    )


def make(seed):
    """A compiled model, its inputs by name and its targets in order. Every third model has two inputs, and some have two outputs."""
    rng = np.random.default_rng(seed)
    keras.utils.set_random_seed(seed + 1)
    branches = [branch(rng, f"in_{i}") for i in range(2 if seed % 3 == 0 else 1)]
    inputs = [inputs for inputs, _, _ in branches]
    data = {inputs.name: values for inputs, values, _ in branches}
    vectors = [L.Dense(6, activation="tanh")(vector) for _, _, vector in branches]
    merge = pick(rng, L.Concatenate, L.Add, L.Multiply, L.Average, L.Maximum)
    x = merge(vectors) if len(vectors) > 1 else vectors[0]
    for _ in range(rng.integers(0, 3)):
        x = vector_block(rng, x)
    heads = [head(rng, x, f"out_{i}") for i in range(1 + int(rng.integers(4) == 0))]
    model = keras.Model(inputs, [output for output, _, _ in heads])
    model.compile(optimizer(rng), [loss for _, loss, _ in heads])
    return model, data, [targets for _, _, targets in heads]
