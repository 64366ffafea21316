"""Round trip of Python Keras models through Phalanx.

    python tests/python/cross_check.py [--published] [--share K/N] [directory] [name part]

Saves the models of file_models.py, or with `--published` those of published_models.py. `--share 1/4` takes the second of every
four. The Rust test `keras_files` loads, predicts with, saves and trains them. The script then checks the saved files:
configs, weights and optimizer state must be equal; predictions and three training steps must agree. Needs keras, jax and
h5py. $PHALANX_SUITE names the Rust test program if it is already built; otherwise Cargo builds it.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
import warnings

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras

import check_files
import file_models
import published_models
import resnet_files

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))


def rust(directory):
    """Runs the Rust test on the models in a directory."""
    built = os.environ.get("PHALANX_SUITE")
    suite = [built] if built else ["cargo", "test", "-q", "-p", "phalanx", "--test", "suite", "--"]
    command = [*suite, "keras_files::", "--ignored"]
    environment = os.environ | {"PHALANX_CROSS_CHECK": directory, "PHALANX_PIN": "0"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        print(done.stdout[-20000:], done.stderr[-4000:], sep="\n")
    return done.returncode


def share(text):
    """K and N of `K/N`."""
    k, n = map(int, text.split("/"))
    if not 0 <= k < n:
        raise argparse.ArgumentTypeError(f"expected K/N with K below N, received {text}")
    return k, n


def main():
    warnings.filterwarnings("ignore")
    started = time.time()
    parser = argparse.ArgumentParser()
    parser.add_argument("--published", action="store_true")
    parser.add_argument("--share", type=share, default=(0, 1))
    parser.add_argument("directory", nargs="?")
    parser.add_argument("part", nargs="?", default="")
    arguments = parser.parse_args()
    source = published_models if arguments.published else file_models
    directory = arguments.directory or tempfile.mkdtemp(prefix="phalanx-cross-check-")
    part, (k, n) = arguments.part, arguments.share
    os.makedirs(directory, exist_ok=True)
    cases = []
    for i, (name, model, options) in enumerate(source.all_models()):
        if part in name and i % n == k:
            cases.append(check_files.write(directory, name, model, options))
        keras.backend.clear_session(free_memory=False)
    if source is file_models and part in "resnet50_files" and k == 0:
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
