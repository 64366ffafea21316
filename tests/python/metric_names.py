"""metric_names.safetensors and metric_names_*.keras: compiled models with metrics of the same names, whose outputs have masks,
or whose results are vectors, and what Keras reports for them. A model without a loss trains on its penalties.

The .keras files contain their creation time: a second run gives equal models in different bytes."""

import os

import keras
import numpy as np
from common import FIXTURES, Fixture, normal, rng_for
from keras import layers as L
from keras import losses
from keras import metrics as M

ROWS = 6


def one_output():
    x = keras.Input((3,))
    return keras.Model(x, L.Dense(2, name="a")(x))


def two_outputs():
    x = keras.Input((3,))
    return keras.Model(x, [L.Dense(2, name="a")(x), L.Dense(1, name="b")(x)])


def tagger(units, activation):
    """A class, or a yes or no, for every word of a text."""
    x = keras.Input((5,), dtype="int32")
    y = L.SimpleRNN(3, return_sequences=True)(L.Embedding(7, 3, mask_zero=True)(x))
    return keras.Model(x, L.Dense(units, activation=activation)(y))


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


# Results that are vectors, thresholds, weights of labels, and functions with arguments.
VECTORS = {
    "metrics": [
        M.F1Score(),
        M.FBetaScore(beta=2.0, threshold=0.4),
        M.R2Score(class_aggregation=None),
        M.Precision(thresholds=[0.3, 0.5, 0.6]),
        M.TrueNegatives(thresholds=[0.2, 0.6]),
        M.AUC(thresholds=[0.3, 0.5, 0.55], label_weights=[1.0, 2.0, 0.5]),
        M.MeanMetricWrapper(losses.huber, name="huber", delta=0.2),
        M.MeanMetricWrapper(M.binary_accuracy, name="hits", threshold=0.4),
    ],
    "weighted_metrics": [M.Recall(thresholds=[0.3, 0.6]), M.F1Score()],
}


def classifier():
    x = keras.Input((3,))
    return keras.Model(x, L.Dense(3, activation="sigmoid")(x))


def penalized():
    """A model whose layers have penalties of every kind."""
    x = keras.Input((3,))
    y = L.Dense(4, activation="tanh", kernel_regularizer="l2", activity_regularizer=keras.regularizers.L1(0.02))(x)
    y = L.Dense(2, kernel_regularizer=keras.regularizers.OrthogonalRegularizer(0.1), bias_regularizer="l1")(y)
    return keras.Model(x, y)


def words(units):
    """As `tagger`, without a mask."""
    x = keras.Input((5,), dtype="int32")
    return keras.Model(x, L.Dense(units, activation="softmax")(L.Embedding(7, 3)(x)))


def ignoring(name, label):
    return M.MeanMetricWrapper(losses.sparse_categorical_crossentropy, name=name, ignore_class=label)


# A mask of positions, an ignored class, and metrics with and without the axis of the classes.
MASKED = {
    "masked_binary": (
        lambda: tagger(1, "sigmoid"),
        "binary_crossentropy",
        {"metrics": ["accuracy", "auc"], "weighted_metrics": ["binary_accuracy", "mae"]},
        2,
    ),
    "masked_ignored": (
        lambda: tagger(4, "softmax"),
        keras.losses.SparseCategoricalCrossentropy(ignore_class=2),
        {"metrics": ["accuracy"]},
        4,
    ),
    "masked_ignored_metrics": (
        lambda: tagger(4, "softmax"),
        "sparse_categorical_crossentropy",
        {"metrics": [ignoring("a", 2), ignoring("b", 0)], "weighted_metrics": [ignoring("c", 2)]},
        4,
    ),
    "ignored_metrics": (
        lambda: words(4),
        "sparse_categorical_crossentropy",
        {"metrics": [ignoring("a", 2), ignoring("b", 3)]},
        4,
    ),
    "ignored_by_metrics": (lambda: words(4), None, {"metrics": [ignoring("a", -1)]}, -1),
    "masked_ignored_mean": (
        lambda: tagger(4, None),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=2, reduction="mean_with_sample_weight"),
        {"weighted_metrics": ["accuracy"]},
        4,
    ),
}


def masked_data(rng, model, classes):
    x = rng.integers(1, 7, (ROWS, 5)).astype("int32")
    for row in range(ROWS):
        x[row, 1 + row % 5 :] = 0
    shape = (ROWS, 5, 1) if classes == 2 else (ROWS, 5)
    if classes < 0:
        return x, [rng.integers(classes, 4, shape).astype("int32")]
    return x, [rng.integers(0, classes, shape).astype("float32" if classes == 2 else "int32")]


def case_of(name, build, arguments, loss="mse", classes=None):
    keras.utils.set_random_seed(5)
    rng, model = rng_for(f"metric_names {name}"), build()
    for variable in model.variables:
        variable.assign(normal(rng, *variable.shape))
    model.compile("sgd", loss, **arguments)
    if classes:
        x, y = masked_data(rng, model, classes)
    else:
        x, y = normal(rng, ROWS, 3), [normal(rng, ROWS, *output.shape[1:]) for output in model.outputs]
    # Keras refuses sample weights beside a mask of positions.
    weight = np.ones(ROWS, "float32") if classes else rng.uniform(0.5, 3.0, ROWS).astype("float32")
    result = model.evaluate(
        x, y if len(y) > 1 else y[0], sample_weight=None if classes else weight, batch_size=4, verbose=0, return_dict=True
    )
    model.save(os.path.join(FIXTURES, f"metric_names_{name}.keras"))
    tensors = {"x": x, "sample_weight": weight, "result": np.array(list(result.values()), "float32")}
    return {"name": name, "names": list(result)}, tensors | {f"y/{i}": y for i, y in enumerate(y)}


def vectors_case():
    keras.utils.set_random_seed(5)
    rng, model = rng_for("metric_names vectors"), classifier()
    for variable in model.variables:
        variable.assign(normal(rng, *variable.shape))
    model.compile("sgd", "mse", **VECTORS)
    x, y = normal(rng, ROWS, 3), np.eye(3, dtype="float32")[rng.integers(0, 3, ROWS)]
    weight = rng.uniform(0.5, 3.0, ROWS).astype("float32")
    result = model.evaluate(x, y, sample_weight=weight, batch_size=4, verbose=0, return_dict=True)
    path = os.path.join(FIXTURES, "metric_names_vectors.keras")
    # Keras cannot read the weights of labels that it writes.
    VECTORS["metrics"][5].label_weights = [1.0, 2.0, 0.5]
    model.save(path)
    again = keras.models.load_model(path)
    assert list(again.evaluate(x, y, sample_weight=weight, batch_size=4, verbose=0, return_dict=True)) == list(result)
    lengths = [np.size(value) if np.ndim(value) else 0 for value in result.values()]
    numbers = np.concatenate([np.ravel(value) for value in result.values()]).astype("float32")
    tensors = {"x": x, "y/0": y, "sample_weight": weight, "result": numbers}
    return {"name": "vectors", "names": list(result), "lengths": lengths}, tensors


def penalties_case():
    """Three epochs of a model that was compiled without a loss."""
    keras.utils.set_random_seed(5)
    rng, model = rng_for("metric_names penalties"), penalized()
    for variable in model.variables:
        variable.assign(normal(rng, *variable.shape))
    model.compile(keras.optimizers.Adam(0.05))
    model.save(os.path.join(FIXTURES, "metric_names_penalties.keras"))
    x = normal(rng, ROWS, 3)
    before = model.evaluate(x, batch_size=4, verbose=0)
    history = model.fit(x, batch_size=4, epochs=3, shuffle=False, verbose=0).history
    tensors = {f"weights/{i}": value for i, value in enumerate(model.get_weights())}
    result = np.array([before, *history["loss"]], "float32")
    return {"name": "penalties", "names": list(history)}, tensors | {"x": x, "result": result}


def make():
    fixture = Fixture("metric_names")
    for name, (build, arguments) in CASES.items():
        fixture.add(*case_of(name, build, arguments))
    for name, (build, loss, arguments, classes) in MASKED.items():
        fixture.add(*case_of(name, build, arguments, loss, classes))
    fixture.add(*vectors_case())
    fixture.add(*penalties_case())
    fixture.save()
