"""models.safetensors and models/NAME.keras: whole models from files of Keras.

A case is a model with random weights. The fixture has its inputs and targets, its outputs, and the losses and weights of
three steps of SGD on the mean squared error of every output.
"""

import os

import attention_cases  # noqa: F401, which adds its cases
import keras
import numpy as np
import op_cases  # noqa: F401, which adds its cases
from common import FIXTURES, Fixture, normal, rng_for
from model_cases import all_cases

STEPS = 3
RATE = 0.05


def random_weights(rng, model):
    for variable in model.variables:
        if "seed_generator" in variable.path:
            continue
        if "variance" in variable.name:
            variable.assign(rng.uniform(0.5, 2.0, variable.shape).astype("float32"))
        elif variable.name == "gamma":
            variable.assign(1 + normal(rng, *variable.shape) * np.float32(0.3))
        elif "float" in variable.dtype:
            variable.assign(normal(rng, *variable.shape) * np.float32(0.5))


def as_list(value):
    """The arrays of a structure. Dicts are sorted by their keys."""
    return keras.tree.flatten(value)


def op_names(model):
    """The classes of keras.ops in a model, as module.Class."""
    names = set()
    for layer in model.get_config()["layers"]:
        prefix, _, module = str(layer.get("module")).rpartition(".")
        if prefix == "keras.src.ops":
            names.add(f"{module}.{layer['class_name']}")
    return sorted(names)


def add_case(fixture, name, model, inputs):
    rng = rng_for(name)
    random_weights(rng, model)
    directory = os.path.join(FIXTURES, "models")
    os.makedirs(directory, exist_ok=True)
    model.save(os.path.join(directory, f"{name}.keras"))
    outputs = [np.asarray(y) for y in as_list(model(inputs, training=False))]
    targets = [normal(rng, *y.shape) for y in outputs]
    tensors = {f"input/{i}": x for i, x in enumerate(as_list(inputs))}
    tensors |= {f"output/{i}": y for i, y in enumerate(outputs)}
    tensors |= {f"target/{i}": y for i, y in enumerate(targets)}

    model.compile(optimizer=keras.optimizers.SGD(RATE), loss=["mse"] * len(outputs), run_eagerly=True)
    losses = []
    packed = targets if len(targets) > 1 else targets[0]
    for _ in range(STEPS):
        result = model.train_on_batch(inputs, packed, return_dict=True)
        losses.append(float(result["loss"]))
    after = [np.asarray(y) for y in as_list(model(inputs, training=False))]
    tensors |= {f"after/{i}": y for i, y in enumerate(after)}
    tensors["losses"] = np.array(losses, "float32")
    case = {"name": name, "inputs": len(as_list(inputs)), "outputs": len(outputs), "rate": RATE}
    if any("moving_mean" in variable.path for variable in model.variables):
        case["batch_statistics"] = True
    ops = op_names(model)
    fixture.add(case | ({"ops": ops} if ops else {}), tensors)


def make(only=(), group="models", cases=None):
    """Makes all cases, or those whose names start with one of `only`; the others are kept as they are."""
    fixture = Fixture(group)
    old = Fixture.load(group) if only else None
    for name, build in all_cases() if cases is None else cases:
        if old and not name.startswith(tuple(only)):
            fixture.copy_case(old, name)
            continue
        keras.utils.clear_session()
        model, inputs = build(rng_for(f"inputs of {name}"))
        add_case(fixture, name, model, inputs)
    fixture.save()
