"""Models and data for the tests. `KERAS_BACKEND` chooses the backend; JAX by default."""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Test programs run side by side: their workers must not all be bound to the same cores.
os.environ.setdefault("PHALANX_PIN", "0")

import keras  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402

import phalanx  # noqa: E402


@pytest.fixture(autouse=True)
def clean_state():
    keras.backend.clear_session()
    keras.utils.set_random_seed(7)
    yield


@pytest.fixture
def strategy():
    return phalanx.MirroredStrategy([os.environ.get("TEST_DEVICE", "cpu:0")])


@pytest.fixture
def data():
    """Inputs of 4 features, one-hot targets of 3 classes, which depend on the inputs."""
    return classification_data(60)


def classification_data(rows):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(rows, 4)).astype("float32")
    y = keras.utils.to_categorical(np.argmax(x[:, :3] + 0.3 * x[:, 1:], axis=1), 3)
    return x, y


def build_model(dropout=0.0):
    layers = [
        keras.layers.Input((4,)),
        keras.layers.Dense(8, activation="relu", name="hidden"),
        keras.layers.BatchNormalization(name="norm"),
        keras.layers.Dropout(dropout, name="dropout"),
        keras.layers.Dense(3, activation="softmax", name="out"),
    ]
    return keras.Sequential(layers, name="model")


def compile_model(model, optimizer="adam", **arguments):
    arguments = {"loss": "categorical_crossentropy", "metrics": ["accuracy"], **arguments}
    model.compile(optimizer, **arguments)
    return model


def attached(strategy, model=None, **arguments):
    """A model that is compiled in the strategy's scope."""
    with strategy.scope():
        return compile_model(build_model() if model is None else model, **arguments)


def twins(strategy, build=build_model, **arguments):
    """The same model twice: trained by Phalanx, and by Keras."""
    ours = attached(strategy, build(), **arguments)
    theirs = compile_model(build(), **arguments)
    theirs.set_weights(ours.get_weights())
    return ours, theirs


def assert_same_weights(a, b, **tolerance):
    for path, left, right in zip([w.path for w in a.weights], a.get_weights(), b.get_weights(), strict=True):
        np.testing.assert_allclose(left, right, err_msg=path, **tolerance)
