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


def main():
    directory = sys.argv[1]
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../fixtures/text.json"), encoding="utf-8") as file:
        models = json.load(file)["models"]
    wrong = 0
    for case in models:
        for kind in ("loaded", "again"):
            model = keras.models.load_model(os.path.join(directory, f"{case['name']}.{kind}.keras"))
            inputs = {name: array(value) for name, value in case["inputs"].items()}
            names = [x.name for x in model.inputs]
            fed = next(iter(inputs.values())) if len(names) == 1 else {name: inputs[name] for name in names}
            if len(names) > 1 and not isinstance(model.input, dict):
                fed = [inputs[name] for name in names]
            output = np.asarray(model(fed, training=False))
            expected = np.array(case["output"]["floats"]).reshape(case["output"]["dims"])
            distance = np.abs(output - expected).max()
            wrong += distance > 1e-5
            print(f"{case['name']} {kind}: {distance:.1e}")
    sys.exit(f"{wrong} wrong" if wrong else 0)


if __name__ == "__main__":
    main()
