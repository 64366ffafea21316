"""names.json: the names that Keras exports, by family. docs/keras.md is checked against it."""

import inspect
import json
import os

import keras
from common import FIXTURES
from keras.src.ops.operation import Operation


def classes(module, base):
    """The classes of a module that derive from `base`, by their public names."""
    names = {}
    for n, c in sorted(vars(module).items()):
        if inspect.isclass(c) and issubclass(c, base) and not n.startswith("_"):
            # A class with several names has the one it is defined under.
            if c not in names or n == c.__name__:
                names[c] = n
    return sorted(names.values())


def ops():
    """The classes of nodes, as `module.Class`."""
    found = set()
    for name in ("numpy", "nn", "math", "core", "image", "linalg", "einops"):
        module = getattr(__import__(f"keras.src.ops.{name}", fromlist=[name]), "__dict__")
        for n, c in module.items():
            if inspect.isclass(c) and issubclass(c, Operation) and c.__module__ == f"keras.src.ops.{name}":
                found.add(f"{name}.{n}")
    return sorted(found)


def activations():
    skip = {"get", "serialize", "deserialize"}
    return sorted(n for n, f in vars(keras.activations).items() if inspect.isfunction(f) and n not in skip)


def make():
    names = {
        "layers": classes(keras.layers, keras.layers.Layer),
        "losses": classes(keras.losses, keras.losses.Loss),
        "metrics": classes(keras.metrics, keras.metrics.Metric),
        "optimizers": classes(keras.optimizers, keras.optimizers.Optimizer),
        "activations": activations(),
        "callbacks": classes(keras.callbacks, keras.callbacks.Callback),
        "initializers": classes(keras.initializers, keras.initializers.Initializer),
        "regularizers": classes(keras.regularizers, keras.regularizers.Regularizer),
        "constraints": classes(keras.constraints, keras.constraints.Constraint),
        "optimizers.schedules": classes(keras.optimizers.schedules, keras.optimizers.schedules.LearningRateSchedule),
        "ops": ops(),
    }
    with open(os.path.join(FIXTURES, "names.json"), "w") as file:
        json.dump({"keras": keras.__version__} | names, file, indent=1)
        file.write("\n")
    print({family: len(list) for family, list in names.items()})
