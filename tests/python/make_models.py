"""Writes model files for the tests of the command: tests/fixtures/described_*.keras.

The files contain their creation time, so a second run gives equal models in different bytes."""

import os

import keras
from keras import layers as L

FIXTURES = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures"))


def save(model, name):
    model.save(os.path.join(FIXTURES, f"described_{name}.keras"))


def small_cnn(shape, *top):
    keras.utils.set_random_seed(7)
    chain = [L.Conv2D(4, 3, strides=2, activation="relu"), L.MaxPooling2D(), L.Flatten(), *top]
    return keras.Sequential([keras.Input(shape), *chain], name="small_cnn")


def main():
    model = small_cnn((28, 28, 1), L.Dense(10, activation="softmax"))
    optimizer = keras.optimizers.Adam(0.005)
    model.compile(optimizer, "categorical_crossentropy", metrics=["accuracy"])
    save(model, "cnn")
    # Not compiled: the outputs are logits, and samples are flat.
    keras.utils.set_random_seed(8)
    save(keras.Sequential([keras.Input((784,)), L.Dense(10)], name="plain"), "flat")
    # A single output for two classes.
    model = small_cnn((8, 8, 3), L.Dense(1, activation="sigmoid"))
    model.compile("rmsprop", "binary_crossentropy", metrics=["accuracy"])
    save(model, "binary")
    # A dict of outputs, whose keys are the names of other layers.
    inputs = keras.Input((3,))
    first = L.Dense(1, name="u", kernel_initializer="ones")(inputs)
    second = L.Dense(1, name="v", kernel_initializer=keras.initializers.Constant(2))(inputs)
    model = keras.Model(inputs, {"u": second, "v": first}, name="swapped")
    model.compile("sgd", loss={"u": "mse", "v": "mae"}, loss_weights={"u": 10.0, "v": 1.0})
    save(model, "dict")
    # Mixed precision with 32-bit outputs, as Keras' guide advises.
    keras.config.set_dtype_policy("mixed_float16")
    rnn = L.Bidirectional(L.GRU(4))
    model = keras.Sequential([keras.Input((6, 3)), rnn, L.Dense(5, activation="relu"), L.Dense(2, dtype="float32")])
    model.compile("adam", "mse")
    save(model, "mixed")
    keras.config.set_dtype_policy("float32")
    # Not a classifier.
    save(small_cnn((28, 28, 1), L.Reshape((12, 12))), "map")


if __name__ == "__main__":
    main()
