"""Losses, targets and sample weights of single outputs, against Keras."""

import keras
import numpy as np
import pytest
from conftest import attached, twins

import phalanx

TOLERANCE = {"rtol": 1e-5, "atol": 1e-6}

rng = np.random.default_rng(0)
x = rng.random((40, 5, 4)).astype("float32")
a, b = x[:, 0, :1], x[:, :, 1:2]
of_rows, of_steps = np.linspace(0, 2, 40, dtype="float32"), rng.random((40, 5)).astype("float32")
WAYS = ["arrays", "generator", "evaluate", "train_on_batch", "test_on_batch"]


def model_of(outputs):
    """A model with a number `a` for each sample and a number `b` for each time step."""

    def build():
        inputs = keras.Input((5, 4))
        steps = keras.layers.Dense(3, activation="tanh")(inputs)
        heads = {
            "a": keras.layers.Dense(1, name="a")(keras.layers.Flatten()(steps)),
            "b": keras.layers.Dense(1, name="b")(steps),
        }
        return keras.Model(inputs, heads if outputs is dict else [heads[name] for name in outputs])

    return build


def batches(*parts):
    # Keras on TensorFlow takes no lists.
    parts = tuple(tuple(part) if isinstance(part, list) else part for part in parts)
    for start in range(0, 40, 10):
        yield keras.tree.map_structure(lambda part, at=start: part if part is None else part[at : at + 10], parts)


def run(model, way, y, sample_weight):
    """Trains or evaluates, and returns all results by name."""
    if way == "arrays":
        held_out = (x, y, sample_weight)
        # Keras on TensorFlow counts the loss of an output in a last, smaller batch as that of a whole one. Keras on JAX
        # was seen to lose the penalties of such a batch, once in some hundred runs.
        whole_batches = keras.backend.backend() == "tensorflow" or not any(keras.tree.flatten(model.loss))
        rows = 10 if whole_batches else 16
        arguments = {"batch_size": rows, "shuffle": False, "epochs": 2, "verbose": 0}
        history = model.fit(x, y, sample_weight=sample_weight, validation_data=held_out, **arguments).history
    elif way == "generator":
        # Without a number of steps, Keras on TensorFlow counts a batch too many.
        history = model.fit(batches(x, y, sample_weight), steps_per_epoch=4, verbose=0).history
    elif way == "evaluate":
        return model.evaluate(x, y, sample_weight=sample_weight, batch_size=10, verbose=0, return_dict=True)
    else:
        y, sample_weight = keras.tree.map_structure(
            lambda part: part if part is None else part[:20], (y, sample_weight)
        )
        return getattr(model, way)(x[:20], y, sample_weight, return_dict=True)
    return {f"{name} {epoch}": value for name, values in history.items() for epoch, value in enumerate(values)}


def compare(strategy, build, way, y, sample_weight=None, **arguments):
    """Checks results and weights against those of Keras."""
    ours, theirs = twins(strategy, build, **{"optimizer": "sgd", "metrics": None, **arguments})
    received, expected = (run(model, way, y, sample_weight) for model in (ours, theirs))
    assert list(received) == list(expected)
    np.testing.assert_allclose(list(received.values()), list(expected.values()), **TOLERANCE)
    for left, right in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(left, right, **TOLERANCE)


LOSSES = {
    "list": ("ab", {"loss": ["mse", None]}, [a, b]),
    "the second": ("ab", {"loss": [None, "mae"]}, [a, b]),
    "targets of the first alone": ("ab", {"loss": ["mse", None]}, [a]),
    "targets of the second alone": ("ab", {"loss": [None, "mse"]}, [b]),
    "no targets for the second": ("ab", {"loss": ["mse", None]}, [a, None]),
    "dict": (dict, {"loss": {"a": "mse", "b": None}}, {"a": a, "b": b}),
    "an output that is not named": (dict, {"loss": {"b": "mse"}}, {"a": a, "b": b}),
    "targets of the named output": (dict, {"loss": {"b": "mse"}}, {"b": b}),
    "metrics": ("ab", {"loss": ["mse", None], "metrics": [["mae"], ["mse"]]}, [a, b]),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", LOSSES)
def test_outputs_without_a_loss(strategy, name, way):
    outputs, arguments, y = LOSSES[name]
    compare(strategy, model_of(outputs), way, y, **arguments)


def test_a_dict_of_losses_that_lacks_an_output_of_a_list_is_an_error_as_in_keras(strategy):
    for model in twins(strategy, model_of("ab"), loss={"a": "mse"}, metrics=None):
        with pytest.raises(ValueError, match="Expected keys .* in loss dict"):
            model.fit(x, [a, b], verbose=0)


WEIGHTS = {
    "list": ("ab", [a, b], [of_rows, of_rows[::-1, None].copy()]),
    "list with None": ("ab", [a, b], [of_rows, None]),
    "list, steps": ("ab", [a, b], [of_rows, of_steps]),
    "columns": ("ab", [a, b], [of_rows[:, None], of_steps[:, :, None]]),
    "dict": (dict, {"a": a, "b": b}, {"a": of_rows, "b": of_steps}),
    "dict with None": (dict, {"a": a, "b": b}, {"a": None, "b": of_steps}),
    "steps": ("b", b, of_steps),
    "steps of integers": ("b", b, np.round(of_steps * 4).astype("int64")),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", WEIGHTS)
def test_sample_weights_of_outputs_and_time_steps(strategy, name, way):
    outputs, y, sample_weight = WEIGHTS[name]
    metrics = {"metrics": {"b": ["mae"]}, "weighted_metrics": {"b": ["mse"]}}
    compare(strategy, model_of(outputs), way, y, sample_weight, loss="mse", **metrics)


@pytest.mark.parametrize("reduction", ["sum", "mean_with_sample_weight"])
def test_reductions_of_weighted_steps(strategy, reduction):
    compare(strategy, model_of("b"), "arrays", b, of_steps, loss=keras.losses.MeanSquaredError(reduction=reduction))


def test_weights_of_an_output_besides_one_without_a_loss(strategy):
    compare(strategy, model_of("ab"), "arrays", [a, b], [of_rows, of_steps], loss=[None, "mse"])


def test_two_replicas_weight_time_steps_as_one_does(strategy):
    results = []
    for devices in (["cpu:0"], ["cpu:0", "cpu:1"]):
        keras.utils.set_random_seed(1)
        model = attached(phalanx.MirroredStrategy(devices), model_of("ab")(), loss="mse", metrics=None)
        results.append(list(run(model, "arrays", [a, b], [of_rows, of_steps]).values()))
    np.testing.assert_allclose(*results, **TOLERANCE)


@pytest.mark.parametrize("way", ["arrays", "train_on_batch"])
def test_weights_of_some_outputs_only_are_an_error(strategy, way):
    for model in twins(strategy, model_of("ab"), loss="mse", metrics=None):
        with pytest.raises((ValueError, IndexError)):
            run(model, way, [a, b], [of_rows])


def test_weights_of_steps_for_an_output_without_steps_are_an_error(strategy):
    model = attached(strategy, keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]), loss="mse", metrics=None)
    with pytest.raises(ValueError, match="sample weights: expected one for each sample, or"):
        model.fit(x[:, 0], a, sample_weight=of_steps, verbose=0)


def test_class_weights_of_time_steps_are_an_error_as_in_keras(strategy):
    y = keras.utils.to_categorical(np.zeros((40, 5)), 1)
    for model in twins(strategy, model_of("b"), loss="mse", metrics=None):
        with pytest.raises((ValueError, TypeError)):
            model.fit(x, y, class_weight={0: 2.0}, verbose=0)


def regularized():
    inputs = keras.Input((5, 4))
    hidden = keras.layers.Dense(3, kernel_regularizer="l2")(inputs)
    outputs = keras.layers.Dense(1, activity_regularizer=keras.regularizers.L1(0.1))(hidden)
    return keras.Model(inputs, keras.layers.ActivityRegularization(l2=0.01)(outputs))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("y", [None, b])
def test_training_on_penalties_alone(strategy, y, way):
    compare(strategy, regularized, way, y, loss=None)


def test_penalties_alone_of_a_model_with_a_list_of_no_losses(strategy):
    def build():
        model = regularized()
        return keras.Model(model.inputs, [model.outputs[0], model.layers[1].output])

    compare(strategy, build, "arrays", [b, x[:, :, :3]], loss=[None, None])


@pytest.mark.parametrize("way", WAYS)
def test_metrics_beside_penalties_alone(strategy, way):
    compare(strategy, regularized, way, b, loss=None, metrics=["mae"])


@pytest.mark.parametrize("way", WAYS)
def test_metrics_alone(strategy, way):
    compare(strategy, model_of("b"), way, b, loss=None, metrics=["mae"])


def test_an_accuracy_without_a_loss_is_that_of_the_targets(strategy):
    y = (x[:, :, :1] * 3).astype("int32")

    def build():
        return keras.Sequential([keras.Input((5, 4)), keras.layers.Dense(3, activation="softmax")])

    compare(strategy, build, "arrays", y, loss=None, metrics=["accuracy"])
    model = attached(strategy, build(), loss=None, metrics=["accuracy"])
    with pytest.raises(ValueError, match="sparse_categorical_accuracy.*read only once"):
        model.fit(batches(x, y), steps_per_epoch=4, verbose=0)


@pytest.mark.parametrize("data", ["tf.data", "PyDataset", "DataLoader"])
def test_weights_of_outputs_in_other_data(strategy, data):
    y, sample_weight = (a, b), (of_rows, of_steps)
    if data == "tf.data":
        tf = pytest.importorskip("tensorflow")

        def open_data():
            return tf.data.Dataset.from_tensor_slices((x, y, sample_weight)).batch(10)

    elif data == "DataLoader":
        torch = pytest.importorskip("torch")

        def open_data():
            rows = [(x[i], tuple(v[i] for v in y), tuple(v[i] for v in sample_weight)) for i in range(40)]
            return torch.utils.data.DataLoader(rows, batch_size=10)

    else:

        class Batches(keras.utils.PyDataset):
            def __len__(self):
                return 4

            def __getitem__(self, index):
                return list(batches(x, y, sample_weight))[index]

        open_data = Batches
    ours, theirs = twins(strategy, model_of("ab"), optimizer="sgd", loss="mse", metrics=None)
    losses = [model.fit(open_data(), shuffle=False, verbose=0).history["loss"] for model in (ours, theirs)]
    np.testing.assert_allclose(*losses, **TOLERANCE)
