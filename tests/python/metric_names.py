"""metric_names.safetensors and metric_names_*.keras: compiled models with metrics of the same names, and what Keras reports
for them.

The .keras files contain their creation time: a second run gives equal models in different bytes."""

import os

import keras
import numpy as np
from common import FIXTURES, Fixture, normal, rng_for
from keras import layers as L
from keras import metrics as M

ROWS = 6


def one_output():
    x = keras.Input((3,))
    return keras.Model(x, L.Dense(2, name="a")(x))


def two_outputs():
    x = keras.Input((3,))
    return keras.Model(x, [L.Dense(2, name="a")(x), L.Dense(1, name="b")(x)])


CASES = {
    "weighted": (one_output, {"metrics": ["mae", "mse"], "weighted_metrics": ["mae", M.RootMeanSquaredError(), "mse"]}),
    "repeated": (
        one_output,
        {"metrics": ["mae", "mae", "mae"], "weighted_metrics": ["mae", "mae", M.MeanSquaredError(name="weighted_mae")]},
    ),
    "taken": (
        one_output,
        {"metrics": [M.MeanSquaredError(name="weighted_mae"), "mae"], "weighted_metrics": ["mape", "mape", "mae"]},
    ),
    "outputs": (
        two_outputs,
        {"metrics": {"a": ["mae"], "b": ["mse", "mae"]}, "weighted_metrics": {"a": ["mae", "mse"], "b": ["mae", "mae"]}},
    ),
}


def case_of(name, build, arguments):
    keras.utils.set_random_seed(5)
    rng, model = rng_for(f"metric_names {name}"), build()
    for variable in model.variables:
        variable.assign(normal(rng, *variable.shape))
    model.compile("sgd", "mse", **arguments)
    x, weight = normal(rng, ROWS, 3), rng.uniform(0.5, 3.0, ROWS).astype("float32")
    y = [normal(rng, ROWS, *output.shape[1:]) for output in model.outputs]
    result = model.evaluate(x, y if len(y) > 1 else y[0], sample_weight=weight, batch_size=4, verbose=0, return_dict=True)
    model.save(os.path.join(FIXTURES, f"metric_names_{name}.keras"))
    tensors = {"x": x, "sample_weight": weight, "result": np.array(list(result.values()), "float32")}
    return {"name": name, "names": list(result)}, tensors | {f"y/{i}": y for i, y in enumerate(y)}


def make():
    fixture = Fixture("metric_names")
    for name, (build, arguments) in CASES.items():
        fixture.add(*case_of(name, build, arguments))
    fixture.save()
