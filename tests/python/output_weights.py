"""output_weights.safetensors and output_weights_*.keras: sample weights of each output, and of each time step.

Keras' JAX trainer passes outputs through `jax.grad`, where they lose their masks: its metrics of training, but not those of
evaluation, count masked positions.

The .keras files contain their creation time: a second run gives equal models in different bytes."""

import os

import keras
import numpy as np
from common import FIXTURES, Fixture, normal, rng_for
from keras import layers as L
from keras import losses, metrics

ROWS, STEPS = 6, 5


def heads():
    x = keras.Input((3,), name="x")
    h = L.Dense(4, activation="tanh", name="h")(x)
    return keras.Model(x, [L.Dense(2, name="a")(h), L.Dense(1, name="b")(h)])


def tagger(units, activation=None, mask=False, head=False):
    """Numbers or probabilities for every word of a text, and one number for the text."""
    x = keras.Input((STEPS,), dtype="int32", name="x")
    h = L.SimpleRNN(3, return_sequences=True)(L.Embedding(7, 3, mask_zero=mask)(x))
    tags = L.Dense(units, activation=activation, name="tags")(h)
    return keras.Model(x, [tags, L.Dense(1, name="text")(L.Flatten()(h))] if head else tags)


def image():
    x = keras.Input((4, 4, 2), name="x")
    return keras.Model(x, L.Conv2D(3, 3, padding="same", name="c")(x))


PER_OUTPUT = {"metrics": [["mae"], ["mae"]], "weighted_metrics": [["mae", "mse"], ["mae"]]}
BINARY = {"weighted_metrics": ["accuracy", "mae"]}
SPARSE = {"weighted_metrics": ["accuracy", "sparse_top_k_categorical_accuracy"], "metrics": ["accuracy"]}
ERRORS = {"weighted_metrics": ["mae", "mse", metrics.RootMeanSquaredError, metrics.CosineSimilarity], "metrics": ["mae"]}
COUNTS = {"weighted_metrics": ["auc", metrics.Precision, metrics.TruePositives]}
MEAN_SQUARED, SPARSE_LOSS = losses.MeanSquaredError, losses.SparseCategoricalCrossentropy

# The model, its loss, its metrics and the shape of the weights of each output, without the samples; None for none.
CASES = {
    "per_output": (heads, "mse", PER_OUTPUT, [[], []]),
    "columns": (heads, "mse", PER_OUTPUT, [[1], [1]]),
    "one_none": (heads, "mse", PER_OUTPUT, [[], None]),
    "no_loss": (heads, ["mse", None], PER_OUTPUT, [[], []]),
    "per_output_sums": (heads, [MEAN_SQUARED(reduction="sum"), MEAN_SQUARED(reduction="mean_with_sample_weight")], {}, [[], []]),
    "steps": (lambda: tagger(1, "sigmoid"), "binary_crossentropy", BINARY, [[STEPS]]),
    "steps_last_axis": (lambda: tagger(1), "mse", ERRORS, [[STEPS, 1]]),
    "steps_same": (lambda: tagger(3), "mse", ERRORS, [[1]]),
    "steps_sum": (lambda: tagger(2), MEAN_SQUARED(reduction="sum"), ERRORS, [[STEPS]]),
    "steps_mean": (lambda: tagger(2), MEAN_SQUARED(reduction="mean_with_sample_weight"), ERRORS, [[STEPS]]),
    "steps_same_mean": (lambda: tagger(2), MEAN_SQUARED(reduction="mean_with_sample_weight"), {}, [[1]]),
    "steps_counts": (lambda: tagger(1, "sigmoid"), "binary_crossentropy", COUNTS, [[STEPS]]),
    "steps_labels": (lambda: tagger(4, "softmax"), "sparse_categorical_crossentropy", SPARSE, [[STEPS]]),
    "steps_ignored": (lambda: tagger(4, "softmax"), SPARSE_LOSS(ignore_class=2), SPARSE, [[STEPS]]),
    "steps_and_text": (lambda: tagger(2, head=True), "mse", PER_OUTPUT, [[STEPS], []]),
    "masked": (lambda: tagger(2, mask=True), "mse", ERRORS, [[STEPS]]),
    "masked_sum": (lambda: tagger(2, mask=True), MEAN_SQUARED(reduction="sum"), ERRORS, [[STEPS]]),
    "masked_mean": (lambda: tagger(2, mask=True), MEAN_SQUARED(reduction="mean_with_sample_weight"), ERRORS, [[STEPS]]),
    "masked_same_mean": (lambda: tagger(2, mask=True), MEAN_SQUARED(reduction="mean_with_sample_weight"), {}, [[1]]),
    "masked_labels": (lambda: tagger(4, "softmax", mask=True), SPARSE_LOSS(ignore_class=2), SPARSE, [[STEPS]]),
    "pixels": (image, "mse", ERRORS, [[4, 4]]),
}


def arguments_of(values):
    """New metrics, so that every case has Keras' default names."""
    make = lambda value: value(name=value.__name__.lower()) if isinstance(value, type) else value
    return {key: [[make(m) for m in v] if isinstance(v, list) else make(v) for v in lists] for key, lists in values.items()}


def inputs_of(rng, model):
    shape = model.inputs[0].shape[1:]
    if model.inputs[0].dtype != "int32":
        return normal(rng, ROWS, *shape)
    x = rng.integers(1, 7, (ROWS, *shape)).astype("int32")
    for row in range(ROWS):
        x[row, 1 + row % STEPS :] = 0
    return x


def target_of(rng, name, output):
    if name.endswith(("labels", "ignored")):
        return rng.integers(0, 4, (ROWS, STEPS)).astype("int32")
    if name in ("steps", "steps_counts"):
        return rng.integers(0, 2, (ROWS, STEPS, 1)).astype("float32")
    return normal(rng, ROWS, *output.shape[1:])


def case_of(name, build, loss, arguments, shapes):
    keras.utils.set_random_seed(5)
    rng, model = rng_for(f"output_weights {name}"), build()
    for variable in model.variables:
        variable.assign(normal(rng, *variable.shape))
    model.compile(keras.optimizers.SGD(0.05), loss, **arguments_of(arguments))
    x = inputs_of(rng, model)
    y = [target_of(rng, name, output) for output in model.outputs]
    weights = [None if shape is None else rng.uniform(0.5, 3.0, (ROWS, *shape)).astype("float32") for shape in shapes]
    data = (x, y, weights) if len(y) > 1 else (x, y[0], weights[0])
    model.save(os.path.join(FIXTURES, f"output_weights_{name}.keras"))
    result = model.evaluate(*data[:2], sample_weight=data[2], batch_size=4, verbose=0, return_dict=True)
    fit = model.fit(*data[:2], sample_weight=data[2], batch_size=4, epochs=2, shuffle=False, verbose=0)
    last = [fit.history[key][-1] for key in result]
    tensors = {"x": x, "result": np.array(list(result.values()), "float32"), "history": np.array(last, "float32")}
    tensors |= {f"y/{i}": y for i, y in enumerate(y)}
    tensors |= {f"weight/{i}": w for i, w in enumerate(weights) if w is not None}
    tensors |= {f"after/{i}": np.array(v) for i, v in enumerate(model.get_weights())}
    return {"name": name, "names": list(result), "outputs": len(y)}, tensors


def make():
    fixture = Fixture("output_weights")
    for name, (build, loss, arguments, shapes) in CASES.items():
        fixture.add(*case_of(name, build, loss, arguments, shapes))
    fixture.save()
