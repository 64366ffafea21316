"""Makes tests/fixtures/*.safetensors from Python Keras.  See README.md in this folder.

    python make_fixtures.py            all groups
    python make_fixtures.py losses     only the named groups
"""

import importlib
import os
import sys

# Must be set before Keras is imported, which the groups do.
os.environ["KERAS_BACKEND"] = "jax"
os.environ["JAX_PLATFORMS"] = "cpu"

GROUPS = ["layers", "image_layers", "sampling", "losses", "metrics", "optimizers", "loss_scale", "accumulation", "schedules", "initializers", "penalties", "networks", "models", "names", "augment"]


def main():
    names = sys.argv[1:] or GROUPS
    unknown = sorted(set(names) - set(GROUPS))
    if unknown:
        sys.exit(f"unknown groups {unknown}; known: {GROUPS}")
    for name in names:
        importlib.import_module(name).make()


if __name__ == "__main__":
    main()
