"""Round trip of Python Keras models through Phalanx.

    python tests/python/cross_check.py [--published] [directory] [name part]

Saves the models of file_models.py, or with `--published` those of published_models.py. The Rust test `keras_files` loads, predicts with, saves and trains them. The script then
checks the saved files: configs, weights and optimizer state must be equal; predictions and three training steps must
agree. Needs keras, jax and h5py; prints a message and exits with 0 if they are missing.
"""

import os
import subprocess
import sys
import tempfile
import time
import warnings

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

try:
    import h5py
    import keras
    import numpy as np
except ImportError as error:
    print(f"cross check skipped: {error}")
    sys.exit(0)

import check_files
import file_models
import published_models
import resnet_files

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))


def rust(directory):
    """Runs the Rust test on the models in a directory."""
    command = ["cargo", "test", "-q", "-p", "phalanx", "--test", "suite", "keras_files::", "--", "--ignored"]
    environment = os.environ | {"PHALANX_CROSS_CHECK": directory, "PHALANX_PIN": "0"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        print(done.stdout[-20000:], done.stderr[-4000:], sep="\n")
    return done.returncode


def main():
    warnings.filterwarnings("ignore")
    started = time.time()
    arguments = [a for a in sys.argv[1:] if a != "--published"]
    source = file_models if len(arguments) == len(sys.argv[1:]) else published_models
    directory = arguments[0] if arguments else tempfile.mkdtemp(prefix="phalanx-cross-check-")
    part = arguments[1] if len(arguments) > 1 else ""
    os.makedirs(directory, exist_ok=True)
    cases = []
    for name, model, options in source.all_models():
        if part in name:
            cases.append(check_files.write(directory, name, model, options))
        keras.backend.clear_session(free_memory=False)
    if source is file_models and part in "resnet50_files":
        resnet_files.write(directory)
    print(f"{len(cases)} models written ({time.time() - started:.0f} s)", flush=True)
    failed = rust(directory)
    print(f"Phalanx done ({time.time() - started:.0f} s)", flush=True)
    faults = []
    for case in cases:
        try:
            faults += [f"{case.name}: {fault}" for fault in check_files.check(directory, case)]
        except Exception as error:
            faults.append(f"{case.name}: {type(error).__name__}: {str(error)[:500]}")
        keras.backend.clear_session(free_memory=False)
    print("\n".join(faults))
    trained = sum(case.trained is not None for case in cases)
    print(f"{len(cases)} models, {trained} trained, {len(faults)} faults ({time.time() - started:.0f} s)")
    return 1 if failed or faults else 0


if __name__ == "__main__":
    sys.exit(main())
