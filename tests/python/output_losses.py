"""output_losses.safetensors and output_losses_*.keras: models with outputs that have no loss, some with metrics alone,
and with several outputs of one layer; their logs, and their weights after two epochs.

The .keras files contain their creation time: a second run gives equal models in different bytes."""

import os

import keras
import numpy as np
from common import FIXTURES, Fixture, normal, rng_for
from keras import layers as L

ROWS = 6


def heads(names, units):
    x = keras.Input((3,), name="x")
    h = L.Dense(4, activation="tanh", name="h")(x)
    return x, {name: L.Dense(n, name=name)(h) for name, n in zip(names, units)}


def lists(*units):
    x, outputs = heads("abc", units)
    return keras.Model(x, list(outputs.values()))


def dicts(*units):
    x, outputs = heads("pqr", units)
    return keras.Model(x, outputs)


def nested():
    """Outputs in a dict of a list."""
    x, outputs = heads("abc", (2, 1, 4))
    return keras.Model(x, {"p": [outputs["a"], outputs["b"]], "k": outputs["c"]})


def nested_list():
    """Outputs in a list of a tuple."""
    x, outputs = heads("abc", (2, 1, 4))
    return keras.Model(x, [(outputs["a"], outputs["b"]), outputs["c"]])


def penalized(*units):
    """As `lists`, with a penalty and an activation that gives probabilities."""
    x = keras.Input((3,), name="x")
    h = L.Dense(4, activation="tanh", kernel_regularizer="l2", name="h")(x)
    outputs = [L.Dense(n, activation="softmax", name=name)(h) for name, n in zip("abc", units)]
    return keras.Model(x, outputs)


def states():
    """The last value of a layer and its states."""
    x = keras.Input((4, 2), name="x")
    return keras.Model(x, list(L.LSTM(3, return_state=True, name="g")(x)))


def twice():
    """Two calls of one layer."""
    x = keras.Input((2,), name="x")
    d = L.Dense(2, name="d")
    return keras.Model(x, [d(x), d(d(x))])


CASES = {
    "second_none": (lambda: lists(2, 1), ["mse", None], {"metrics": [["mae"], []]}),
    "first_none": (lambda: lists(2, 1), [None, "mse"], {"metrics": [["mae"], ["mse"]], "loss_weights": [5.0, 2.0]}),
    "middle_none": (lambda: lists(2, 1, 4), ["mse", None, "mae"], {"metrics": {"b": ["mae", "mse"]}, "weighted_metrics": {"b": ["mae"]}}),
    "weights_none": (lambda: lists(2, 1, 4), ["mse", None, "mae"], {"loss_weights": [2.0, None, 0.5]}),
    "dict_lacks_one": (lambda: dicts(2, 1, 4), {"p": "mse", "r": "mae"}, {"metrics": {"q": ["mae"]}, "loss_weights": {"p": 2.0, "r": 3.0}}),
    "dict_has_one": (lambda: dicts(2, 1, 4), {"q": "mse"}, {}),
    "nested": (nested, "mse", {}),
    "nested_full": (nested, {"p": ["mse", "mae"], "k": "mse"}, {"loss_weights": {"p": [1.0, 2.0], "k": 3.0}, "metrics": {"p": [["mae"], ["mse", "mae"]], "k": ["mae"]}}),
    "nested_partial": (nested, {"p": ["mse", None]}, {"metrics": {"p": ["mae", ["mse"]], "k": None}, "weighted_metrics": {"p": [[], ["mae"]], "k": "mse"}}),
    "nested_flat": (nested, ["mse", "mae", "mse"], {"loss_weights": {"p": [1.0, 2.0], "k": 3.0}}),
    "nested_weights_flat": (nested, {"p": ["mse", "mae"], "k": "mse"}, {"loss_weights": [3.0, 1.0, 2.0]}),
    "nested_in_list": (nested_list, [["mse", None], "mae"], {"loss_weights": [[1.0, 2.0], 3.0], "metrics": [[["mae"], []], "mae"]}),
    "nested_by_name": (nested_list, {"a": "mse", "b": "mae", "c": "mse"}, {"loss_weights": {"a": 1.0, "b": 2.0, "c": 3.0}}),
    "labels": (lambda: lists(2, 4), ["mse", None], {"metrics": [[], ["sparse_categorical_accuracy", "sparse_top_k_categorical_accuracy"]]}),
    "metrics_only": (lambda: lists(2, 1), None, {"metrics": [["mae"], ["mse"]], "weighted_metrics": [["mae"], []]}),
    "metrics_of_one": (lambda: lists(3, 1), None, {"metrics": {"a": ["accuracy", "mae"]}}),
    "metrics_and_penalties": (lambda: penalized(3, 4), None, {"metrics": [["accuracy"], ["acc"]]}),
    "nothing_but_metrics": (lambda: lists(2, 1), [None, None], {"metrics": [[], ["accuracy"]]}),
    "accuracies": (lambda: penalized(3, 4, 3), ["mse", None, None], {"metrics": [["mae"], ["acc", "accuracy"], ["accuracy", "categorical_crossentropy"]]}),
    "outputs_of_a_layer": (states, "mse", {"metrics": [["mae"]] * 3, "weighted_metrics": [["mae"], ["mae"], ["mse"]]}),
    "calls_of_a_layer": (twice, ["mse", "mae"], {"metrics": [["mae"], ["mae", "mse"]], "loss_weights": [1.0, 0.5]}),
}


# Outputs whose targets are class numbers.
LABELS = {"labels": [1], "metrics_and_penalties": [1], "accuracies": [1]}


def case_of(name, build, loss, arguments):
    keras.utils.set_random_seed(5)
    rng, model = rng_for(f"output_losses {name}"), build()
    for variable in model.variables:
        variable.assign(normal(rng, *variable.shape))
    model.compile(keras.optimizers.SGD(0.05), loss, **arguments)
    x = normal(rng, ROWS, *model.inputs[0].shape[1:])
    y = [normal(rng, ROWS, *output.shape[1:]) for output in model.outputs]
    for output in LABELS.get(name, []):
        y[output] = rng.integers(0, model.outputs[output].shape[-1], ROWS).astype("int32")
    weight = rng.uniform(0.5, 3.0, ROWS).astype("float32")
    given = keras.tree.pack_sequence_as(model._outputs_struct, y)
    weights = keras.tree.map_structure(lambda _: weight, given)
    model.save(os.path.join(FIXTURES, f"output_losses_{name}.keras"))
    result = model.evaluate(x, given, sample_weight=weights, batch_size=4, verbose=0, return_dict=True)
    history = model.fit(x, given, sample_weight=weights, batch_size=4, epochs=2, shuffle=False, verbose=0).history
    last = [history[key][-1] for key in result]
    tensors = {"x": x, "sample_weight": weight, "result": np.array(list(result.values()), "float32")}
    tensors |= {"history": np.array(last, "float32")}
    tensors |= {f"y/{i}": y for i, y in enumerate(y)}
    tensors |= {f"after/{i}": np.array(v) for i, v in enumerate(model.get_weights())}
    return {"name": name, "names": list(result), "outputs": model.output_names}, tensors


def make():
    fixture = Fixture("output_losses")
    for name, (build, loss, arguments) in CASES.items():
        fixture.add(*case_of(name, build, loss, arguments))
    fixture.save()
