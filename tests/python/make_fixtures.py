"""Makes tests/fixtures/*.safetensors from Python Keras.  See README.md in this folder.

    python make_fixtures.py                all groups
    python make_fixtures.py losses         only the named groups
    python make_fixtures.py models:ops_    of the models, only those whose names start with ops_
"""

import importlib
import os
import sys

# Must be set before Keras is imported, which the groups do.
os.environ["KERAS_BACKEND"] = "jax"
os.environ["JAX_PLATFORMS"] = "cpu"

GROUPS = ["layers", "image_layers", "sampling", "losses", "metrics", "optimizers", "loss_scale", "accumulation", "schedules", "initializers", "penalties", "networks", "oracles", "models", "more_layers", "more_models", "open_sizes", "recurrent", "sequences", "stateful", "ctc", "whole_weights", "optimizer_files", "augmentation", "preprocessing", "train_steps", "custom_models", "names", "metric_names", "output_losses", "output_weights", "augment"]


def main():
    names = [name.partition(":") for name in sys.argv[1:] or GROUPS]
    unknown = sorted({group for group, _, _ in names} - set(GROUPS))
    if unknown:
        sys.exit(f"unknown groups {unknown}; known: {GROUPS}")
    for group, _, cases in names:
        module = importlib.import_module(group)
        module.make(cases.split(",")) if cases else module.make()


if __name__ == "__main__":
    main()
