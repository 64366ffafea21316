"""Compares the `phalanx` command with Python Keras on the same model and data files.

    python tests/python/check_command.py [--random N] [--seed S] [--only NAME] [directory]

First the fixed cases: regression, several labels, soft labels, images as targets, two inputs and two outputs, sample
weights, bytes, splits and tables, each trained for three epochs by Keras' `fit` and by `phalanx train`. Losses, validation
losses and predictions must agree within 1e-5. Then N random models (default: 12; every third has two inputs): the command
predicts with, trains and saves them, Keras loads them, and the numbers must agree within 1e-4 of the largest.

Uses the binary in $PHALANX_BIN, or target/debug/phalanx.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np
from keras import layers as L

import random_models

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
TARGET = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
BINARY = os.environ.get("PHALANX_BIN", os.path.join(TARGET, "debug", "phalanx"))
BATCH = 8


def phalanx(directory, *arguments):
    """Runs the command; fails with its error message."""
    environment = os.environ | {"PHALANX_PIN": "0"}
    done = subprocess.run(
        [BINARY, *arguments], cwd=directory, env=environment, capture_output=True, text=True, timeout=300
    )
    if done.returncode != 0:
        raise AssertionError(f"phalanx {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def apart(a, b, scale=None):
    """The largest difference, relative to the largest number of `b` or to `scale`."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if a.shape != b.shape or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return np.inf
    scale = np.abs(b).max(initial=1e-3) if scale is None else scale
    return np.abs(a - b).max(initial=0.0) / max(scale, 1e-3)


def output_names(model):
    return getattr(model, "output_names", None) or [model.layers[-1].name]


def predictions(model, x):
    found = model.predict(x, batch_size=BATCH, verbose=0)
    return found if isinstance(found, list) else [found]


def check(directory, model, train, flags, x, limit, epochs=3):
    """Trains a model with Keras and with the command; returns the differences.

    `train(model)` trains with Keras, `flags` select the data for the command, and `x` is the input of predictions."""
    faults = []
    names = [tensor.name for tensor in model.inputs] if len(model.inputs) > 1 else ["x"]
    inputs = [x[tensor.name] for tensor in model.inputs] if isinstance(x, dict) else [x]
    model.save(os.path.join(directory, "model.keras"))
    np.savez(os.path.join(directory, "x.npz"), **dict(zip(names, inputs)))
    expected = predictions(model, inputs if len(inputs) > 1 else inputs[0])
    predict = ["--input", "x.npz", "--output", "y.npz"]
    # Before training, no file says how inputs are scaled.
    if not any(flag.startswith("--rescale") for flag in flags):
        phalanx(directory, "predict", "model.keras", *predict)
        written = np.load(os.path.join(directory, "y.npz"))
        for name, wanted in zip(output_names(model), expected):
            if apart(written[name], wanted) > limit:
                faults.append(f"prediction of {name} is {apart(written[name], wanted):.1e} apart")
    history = train(model).history
    options = ["--epochs", str(epochs), "--batch-size", str(BATCH), "--no-shuffle", "--json", "log.jsonl"]
    log = os.path.join(directory, "log.jsonl")
    if os.path.exists(log):
        os.remove(log)
    phalanx(directory, "train", "model.keras", *flags, *options, "--save", "back.keras")
    lines = [json.loads(line) for line in open(log)]
    for epoch, line in enumerate(lines[:-1]):
        for key in ["loss", "val_loss"]:
            if (key in history) != (key in line):
                faults.append(f"{key} is only on one side")
            elif key in history and apart(line[key], history[key][epoch], abs(history[key][epoch])) > limit:
                faults.append(f"epoch {epoch + 1}: {key} {line[key]}, in Keras {history[key][epoch]}")
    back = keras.models.load_model(os.path.join(directory, "back.keras"), compile=False)
    found = predictions(back, inputs if len(inputs) > 1 else inputs[0])
    for name, wanted, found in zip(output_names(model), predictions(model, inputs if len(inputs) > 1 else inputs[0]), found):
        if apart(found, wanted) > limit:
            faults.append(f"trained prediction of {name} is {apart(found, wanted):.1e} apart")
    return faults


def dense(top, loss, inputs=(4,), metrics=None):
    keras.utils.set_random_seed(11)
    model = keras.Sequential([keras.Input(inputs, name="data"), L.Flatten(), L.Dense(8, activation="tanh"), top])
    model.compile(keras.optimizers.SGD(0.1), loss, metrics=metrics)
    return model


def fixed_cases():
    """(name, model, arrays, flags, arguments of Keras' fit)."""
    rng = np.random.default_rng(5)
    x = rng.random((37, 4), dtype=np.float32)
    floats = lambda *shape: rng.random((37, *shape), dtype=np.float32)
    several = (floats(3) > 0.6).astype(np.int64)
    soft = floats(3) / 2
    classes = rng.integers(0, 3, 37)
    weights = floats()
    bytes_ = rng.integers(0, 256, (37, 5, 5, 3)).astype(np.uint8)

    yield "regression", dense(L.Dense(3), "mse"), dict(x=x, y=floats(3)), [], {}
    yield "regression of one column", dense(L.Dense(1), "mse"), dict(x=x, y=floats()), [], {}
    yield "absolute error", dense(L.Dense(2), "mae"), dict(x=x, y=floats(2)), [], {}
    yield "whole numbers as regression", dense(L.Dense(1), "mse"), dict(x=x, y=classes), [], {}
    top = L.Dense(3, activation="sigmoid")
    yield "several labels", dense(top, "binary_crossentropy"), dict(x=x, y=several), [], {}
    top = L.Dense(3, activation="softmax")
    yield "soft labels", dense(top, "categorical_crossentropy"), dict(x=x, y=soft), [], {}
    top = L.Dense(3, activation="softmax")
    yield "class numbers", dense(top, "sparse_categorical_crossentropy"), dict(x=x, y=classes), [], {}
    yield "sample weights", dense(L.Dense(3), "mse"), dict(x=x, y=floats(3), sample_weight=weights), [], {}
    split = dict(validation_split=0.3)
    flags = ["--validation-split", "0.3"]
    yield "validation split", dense(L.Dense(3), "mse"), dict(x=x, y=floats(3)), flags, split
    arrays = dict(x_train=x, y_train=floats(3), x_val=x[:9], y_val=floats(3)[:9])
    yield "validation rows", dense(L.Dense(3), "mse"), arrays, [], {}

    keras.utils.set_random_seed(12)
    images = keras.Sequential([keras.Input((6, 6, 1)), L.Conv2D(4, 3, padding="same", activation="relu"), L.Conv2D(2, 1)])
    images.compile(keras.optimizers.SGD(0.1), "mse")
    yield "images as targets", images, dict(x=floats(6, 6, 1), y=floats(6, 6, 2)), [], {}

    keras.utils.set_random_seed(13)
    maps = keras.Sequential([keras.Input((4, 4, 2)), L.Conv2D(3, 1, activation="softmax")])
    maps.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
    yield "class maps as targets", maps, dict(x=floats(4, 4, 2), y=rng.integers(0, 3, (37, 4, 4))), [], {}

    keras.utils.set_random_seed(14)
    model = keras.Sequential([keras.Input((5, 5, 3)), L.Rescaling(1 / 255), L.Flatten(), L.Dense(2)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    yield "bytes into Rescaling", model, dict(x=bytes_, y=floats(2)), [], {}
    yield "bytes rescaled by a flag", dense(L.Dense(2), "mse", (5, 5, 3)), dict(x=bytes_, y=floats(2)), ["--rescale"], {}

    keras.utils.set_random_seed(15)
    left, right = keras.Input((4,), name="left"), keras.Input((2,), name="right")
    hidden = L.Dense(6, activation="tanh")(L.Concatenate()([left, right]))
    total, kind = L.Dense(1, name="total")(hidden), L.Dense(3, activation="softmax", name="kind")(hidden)
    model = keras.Model([left, right], [total, kind])
    model.compile(keras.optimizers.SGD(0.1), ["mse", "sparse_categorical_crossentropy"], loss_weights=[1.0, 0.5])
    arrays = dict(y_kind=classes, x_right=floats(2), x_left=x, y_total=floats(1))
    yield "two inputs and two outputs", model, arrays, [], {}


def run_fixed(directory, name, model, arrays, flags, options):
    np.savez(os.path.join(directory, "data.npz"), **arrays)
    part = lambda role: {key[len(role) + 1 :]: value for key, value in arrays.items() if key.startswith(role + "_")}
    if "x_train" in arrays:
        x, y, options = arrays["x_train"], arrays["y_train"], dict(validation_data=(arrays["x_val"], arrays["y_val"]))
    elif "x" in arrays:
        x, y = arrays["x"], arrays["y"]
    else:
        inputs, targets = part("x"), part("y")
        x = {tensor.name: inputs[tensor.name] for tensor in model.inputs}
        y = [targets[name] for name in model.output_names]
    fed = x.astype(np.float32) / 255 if "--rescale" in flags else x
    fed = [fed[tensor.name] for tensor in model.inputs] if isinstance(fed, dict) else fed

    def train(model):
        weight = arrays.get("sample_weight")
        return model.fit(
            fed, y, epochs=3, batch_size=BATCH, shuffle=False, verbose=0, sample_weight=weight, **options
        )

    shown = x if isinstance(x, dict) else (x.astype(np.float32) / 255 if "--rescale" in flags else x)
    return check(directory, model, train, ["--data", "data.npz", *flags], shown, 1e-5)


def run_table(directory):
    """A table with text and missing values, compared with the same numbers in Keras."""
    rng = np.random.default_rng(6)
    size, colour = rng.integers(1, 9, 30).astype(np.float32), rng.integers(0, 3, 30)
    price = rng.random(30, dtype=np.float32)
    names = ["blue", "green", "red"]
    with open(os.path.join(directory, "data.csv"), "w") as file:
        file.write("price,colour,size\n")
        for i in range(30):
            cell = "NA" if i == 4 else f"{size[i]:g}"
            file.write(f"{price[i]!r},{names[colour[i]]},{cell}\n".replace("np.float32(", "").replace(")", ""))
    size[4] = np.mean(np.delete(size, 4), dtype=np.float64)
    x = np.concatenate([np.eye(3, dtype=np.float32)[colour], size[:, None]], axis=1)
    model = dense(L.Dense(1), "mse")
    model.optimizer.learning_rate = 0.01

    def train(model):
        return model.fit(x, price, epochs=3, batch_size=BATCH, shuffle=False, verbose=0)

    flags = ["--data", "data.csv", "--label", "price", "--categories", "one-hot", "--missing", "mean"]
    return check(directory, model, train, flags, x, 1e-5)


def run_random(directory, seed):
    model, x, y = random_models.make(seed)
    names = [tensor.name for tensor in model.inputs]
    arrays = {f"x_{name}": x[name] for name in names}
    arrays |= {f"y_{name}": value for name, value in zip(model.output_names, y)}
    np.savez(os.path.join(directory, "data.npz"), **arrays)
    fed = [x[name] for name in names]

    def train(model):
        targets = y if len(y) > 1 else y[0]
        fed_or_one = fed if len(fed) > 1 else fed[0]
        return model.fit(fed_or_one, targets, epochs=2, batch_size=BATCH, shuffle=False, verbose=0)

    return check(directory, model, train, ["--data", "data.npz"], x, 1e-4, epochs=2)


def main():
    warnings.filterwarnings("ignore")
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", nargs="?")
    parser.add_argument("--random", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    started = time.time()
    directory = options.directory or tempfile.mkdtemp(prefix="phalanx-command-")
    os.makedirs(directory, exist_ok=True)
    jobs = [(name, lambda case=(name, *case): run_fixed(directory, *case)) for name, *case in fixed_cases()]
    jobs.append(("table", lambda: run_table(directory)))
    seeds = range(options.seed, options.seed + options.random)
    jobs += [(f"random model {seed}", lambda seed=seed: run_random(directory, seed)) for seed in seeds]
    passed = failed = 0
    for name, job in jobs:
        if options.only not in name:
            continue
        try:
            faults = job()
        except Exception as error:
            faults = [f"{type(error).__name__}: {str(error)[:600]}"]
        for fault in faults:
            print(f"{name}: {fault}", flush=True)
        passed, failed = passed + (not faults), failed + bool(faults)
        if (passed + failed) % 25 == 0:
            print(f"{passed + failed} of {len(jobs)} so far", flush=True)
        keras.backend.clear_session(free_memory=False)
    print(f"the command against Keras ({time.time() - started:.0f} s)")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
