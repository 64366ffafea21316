"""Loads the files that `text::files_for_python` writes, runs them in Keras and compares with Phalanx' outputs.

    PHALANX_TEXT_FILES=DIRECTORY cargo test -p phalanx --test suite text::files_for_python -- --ignored
    tf-venv/bin/python tests/python/check_text.py DIRECTORY
"""

import json
import os
import sys

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import keras
import numpy as np
import tensorflow as tf


def array(value):
    if "strings" in value:
        return tf.constant(np.array(value["strings"], dtype=object).reshape(value["dims"]))
    kind, data = ("int32", value["ints"]) if "ints" in value else ("float32", value["floats"])
    return tf.constant(np.array(data, dtype=kind).reshape(value["dims"]))


BATCH = 4  # as in text.py


def in_batches(model, inputs):
    names = [x.name for x in model.inputs]
    outputs = []
    for at in range(0, len(next(iter(inputs.values()))), BATCH):
        part = {name: x[at : at + BATCH] for name, x in inputs.items()}
        fed = next(iter(part.values())) if len(names) == 1 else {name: part[name] for name in names}
        if len(names) > 1 and not isinstance(model.input, dict):
            fed = [part[name] for name in names]
        outputs.append(np.asarray(model(fed, training=False)))
    return np.concatenate(outputs)


def expected_array(value):
    return np.array(value["floats"] if "floats" in value else value["ints"]).reshape(value["dims"])


def check(name, output, value):
    """Prints and returns the largest difference."""
    distance = np.abs(np.asarray(output) - expected_array(value)).max()
    print(f"{name}: {distance:.1e}")
    return distance


def check_spaces(directory, spaces):
    """Feature spaces that Phalanx loaded or adapted, and their models."""
    wrong = 0
    for case in spaces:
        inputs = {name: array(value) for name, value in case["inputs"].items()}
        kinds = ("loaded", "again", "model") + (("adapted",) if case["name"] == "space_concat" else ())
        for kind in kinds:
            loaded = keras.models.load_model(os.path.join(directory, f"{case['name']}.{kind}.keras"))
            space = kind != "model"
            assert isinstance(loaded, keras.utils.FeatureSpace) == space
            fed = inputs if space else {name: tf.expand_dims(x, -1) for name, x in inputs.items()}
            encoded = loaded(fed)
            if isinstance(encoded, list):
                # Features before crosses, each in the order of the alphabet.
                encoded = dict(zip(sorted(case["encoded"], key=lambda name: ("_X_" in name, name)), encoded))
            encoded = encoded if isinstance(encoded, dict) else {"features": encoded}
            assert set(encoded) == set(case["encoded"]), (set(encoded), set(case["encoded"]))
            for name, value in case["encoded"].items():
                wrong += check(f"{case['name']} {kind} {name}", encoded[name], value) > 1e-5
    return wrong


def main():
    directory = sys.argv[1]
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../fixtures/text.json"), encoding="utf-8") as file:
        fixture = json.load(file)
    wrong = check_spaces(directory, fixture["spaces"])
    for case in fixture["oracles"]:
        model = keras.models.load_model(os.path.join(directory, f"{case['name']}.keras"))
        inputs = [array(case["batches"][0]["inputs"][x.name]) for x in model.inputs]
        wrong += check(case["name"], model(inputs, training=False), case["output"]) > 1e-5
    for case in fixture["models"]:
        for kind in ("loaded", "again"):
            model = keras.models.load_model(os.path.join(directory, f"{case['name']}.{kind}.keras"))
            inputs = {name: array(value) for name, value in case["inputs"].items()}
            wrong += check(f"{case['name']} {kind}", in_batches(model, inputs), case["output"]) > 1e-5
    sys.exit(f"{wrong} wrong" if wrong else 0)


if __name__ == "__main__":
    main()
