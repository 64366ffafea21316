"""Writes the files of cross_check.py for Phalanx, and checks the files that Phalanx writes back."""

import dataclasses
import json
import os
import struct
import warnings

import keras
import numpy as np

from file_models import BATCH, STEPS

DTYPES = {"float32": "F32", "int32": "I32"}


@dataclasses.dataclass
class Case:
    name: str
    inputs: list
    predictions: list
    trained: list | None  # the weights after three training steps, if any
    spread: list | None  # how far rounding moves them, for chaotic models


def save_tensors(path, tensors):
    """Writes a .safetensors file."""
    header, offset = {}, 0
    for name, array in tensors.items():
        shape = list(array.shape)
        header[name] = {"dtype": DTYPES[array.dtype.name], "shape": shape, "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for array in tensors.values():
            file.write(np.ascontiguousarray(array).tobytes())


def flat(value):
    if isinstance(value, dict):
        return [value[key] for key in sorted(value)]
    return list(value) if isinstance(value, (list, tuple)) else [value]


def samples(rng, model, options):
    def one(i, tensor):
        shape = (BATCH * STEPS, *options.get("sizes", {}).get(i, tensor.shape[1:]))
        if tensor.dtype == "bool":
            return rng.integers(0, 2, shape).astype("int32")
        if "int" in tensor.dtype or options.get("tokens"):
            return rng.integers(0, options.get("integers", 5), shape).astype("int32")
        if options.get("images"):
            return rng.random(shape, "float32")
        return rng.standard_normal(shape).astype("float32")

    return [one(i, x) for i, x in enumerate(model.inputs)]


def targets(rng, model, options, predictions):
    def one(shape):
        if "sparse" in str(model.get_compile_config().get("loss")).lower():
            return rng.integers(0, shape[-1], shape[:-1]).astype("int32")
        y = rng.standard_normal(shape).astype("float32")
        if options.get("probabilities"):
            y = np.abs(y) / np.abs(y).sum(-1, keepdims=True) if shape[-1] > 1 else (y > 0).astype("float32")
        return y

    return [one(p.shape) for p in predictions]


def single(values):
    return values[0] if len(values) == 1 else values


def packed(model, x):
    """The inputs as the model takes them."""
    structure = getattr(model, "_inputs_struct", None)
    return keras.tree.pack_sequence_as(structure, x) if isinstance(structure, dict) else single(x)


def train(model, x, y):
    for i in range(STEPS):
        rows = slice(i * BATCH, (i + 1) * BATCH)
        model.train_on_batch(packed(model, [a[rows] for a in x]), single([b[rows] for b in y]))
    if model.optimizer.use_ema:
        model.optimizer.finalize_variable_values(model.trainable_variables)
    return [w.numpy() for w in model.weights]


def write(directory, name, model, options):
    """Saves a model, possibly after some training steps, with inputs and its predictions."""
    rng = np.random.default_rng(sum(map(ord, name)))
    path = os.path.join(directory, f"{name}.keras")
    for w in model.weights:
        # Makes all weights distinct. An adapted layer keeps its own copies.
        if w.dtype == "float32" and name != "adapted":
            spread = float(np.std(w.numpy()))
            noise = rng.standard_normal(w.shape).astype("float32") * np.float32(0.5 * spread or 0.1)
            w.assign(np.abs(w.numpy() + noise) if "variance" in w.name else w.numpy() + noise)
    x = samples(rng, model, options)
    tensors = {f"x{i}": a for i, a in enumerate(x)}
    trains = model.compiled and options.get("train", True)
    if trains:
        y = targets(rng, model, options, flat(model.predict_on_batch(packed(model, x))))
        tensors |= {f"y{i}": a for i, a in enumerate(y)}
        if rng.integers(4):
            # Most files contain optimizer state.
            train(model, x, y)
    model.save(path)
    if options.get("legacy", True):
        model.save(os.path.join(directory, f"{name}.python.h5"))
    predictions = flat(model.predict_on_batch(packed(model, x)))
    predictions = [np.asarray(p, "float32") for p in predictions]
    tensors |= {f"p{i}": a for i, a in enumerate(predictions)}
    save_tensors(os.path.join(directory, f"{name}.safetensors"), tensors)
    trained = train(keras.models.load_model(path), x, y) if trains else None
    spread = rounding_spread(path, x, y, trained) if trains and options.get("chaotic") else None
    return Case(name, x, predictions, trained, spread)


def rounding_spread(path, x, y, trained):
    """How far changes of the start weights in the last place move the trained weights, at most."""
    spread = [0.0] * len(trained)
    for seed in range(3):
        model, rng = keras.models.load_model(path), np.random.default_rng(seed)
        for w in model.trainable_weights:
            sign = rng.integers(0, 2, w.shape).astype("float32") * 2 - 1
            w.assign(w.numpy() * (1 + np.float32(5e-7) * sign))
        moved = train(model, x, y)
        spread = [max(s, float(np.abs(a - b).max())) for s, a, b in zip(spread, trained, moved)]
    return spread


def difference(a, b, where=""):
    """The first difference between two configs, if any."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted(a.keys() | b.keys()):
            if key not in a or key not in b:
                return f"{where}/{key} is only in one"
            found = difference(a[key], b[key], f"{where}/{key}")
            if found:
                return found
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for i, (x, y) in enumerate(zip(a, b)):
            found = difference(x, y, f"{where}/{i}")
            if found:
                return found
    elif a != b and not (isinstance(a, float) and isinstance(b, float) and np.isclose(a, b, rtol=1e-7)):
        return f"{where}: {str(b)[:200]} for {str(a)[:200]}"
    return None


def config(model):
    """A model's config without the entries that Keras adds: the build shapes of layers, `mask`, `training`."""

    def strip(value):
        if isinstance(value, dict):
            kept = {k: strip(v) for k, v in value.items() if k not in ("kwargs", "build_config")}
            options = value.get("kwargs", {})
            return kept | {"kwargs": {k: v for k, v in options.items() if k not in ("mask", "training")}}
        return [strip(v) for v in value] if isinstance(value, list) else value

    return strip(json.loads(json.dumps(keras.saving.serialize_keras_object(model))))


def state(model):
    """The optimizer's variables. Nadam's product, which Phalanx computes from the step, is rounded to seven digits."""
    if not model.compiled:
        return []
    product = getattr(model.optimizer, "_u_product", None)
    return [np.round(np.asarray(v), 7) if v is product else np.asarray(v) for v in model.optimizer.variables]


def same(what, a, b):
    if len(a) != len(b):
        yield f"{what}: {len(b)} for {len(a)}"
        return
    for i, (x, y) in enumerate(zip(a, b)):
        if x.shape != y.shape or not np.array_equal(x, y):
            yield f"{what} {i} {x.shape} differs by {np.abs(x - y).max() if x.shape == y.shape else y.shape}"


def close(what, a, b, tolerance, spread=None):
    for i, (x, y) in enumerate(zip(a, b, strict=True)):
        scale = max(1.0, np.abs(x).max()) if np.size(x) else 1.0
        off = np.abs(np.asarray(x) - np.asarray(y)).max() / scale if np.size(x) else 0
        if not off <= tolerance + (10 * spread[i] / scale if spread else 0):
            yield f"{what} {i} is off by {off:.2g}"


def load_with_warnings(path):
    """A model, and the texts of the warnings that Keras gave when it loaded it."""
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always", UserWarning)
        model = keras.models.load_model(path)
    return model, {str(w.message) for w in noted if issubclass(w.category, UserWarning)}


def check(directory, case):
    """Yields every difference between a model and the files that Phalanx wrote."""
    path = lambda ending: os.path.join(directory, f"{case.name}.{ending}")
    model, usual = load_with_warnings(path("keras"))
    weights = [w.numpy() for w in model.weights]
    legacy = ("back.h5",) if os.path.exists(path("python.h5")) else ()
    for ending in ("back.keras", *legacy):
        back, warned = load_with_warnings(path(ending))
        if ending == "back.keras":
            yield from (f"{ending}: warning: {message}" for message in warned - usual)
        found = difference(config(model), config(back))
        if found and ending == "back.keras":
            yield f"{ending}: config {found}"
        yield from same(f"{ending}: weight", weights, [w.numpy() for w in back.weights])
        if ending == "back.keras":
            yield from same(f"{ending}: optimizer variable", state(model), state(back))
            predicted = flat(back.predict_on_batch(packed(back, case.inputs)))
            yield from close(f"{ending}: prediction", case.predictions, predicted, 1e-5)
    for ending in ("weights.h5", "named.h5"):
        back = keras.models.clone_model(model)
        back.load_weights(path(ending))
        yield from same(f"{ending}: weight", weights, [w.numpy() for w in back.weights])
    if case.trained is not None:
        trained = keras.models.load_model(path("trained.keras"))
        values = [w.numpy() for w in trained.weights]
        yield from close("trained weight", case.trained, values, 2e-5, case.spread)
