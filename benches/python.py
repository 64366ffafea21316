#!/usr/bin/env python3
"""Compares Keras scripts on Phalanx with the same scripts on Keras' own backends, and with the command.

    cargo build --release -p phalanx-cli
    python3 benches/python.py --jax VENV --tf VENV [--torch VENV]

Each virtual environment has Keras, its backend and the package phalanx. Contestants take turns, three times each, and the
best counts. The script prints tables of ratios. Run it on an otherwise idle machine.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Batch size, samples and input shape of each workload.
WORKLOADS = {
    "mnist-mlp": (32, 50_000, (784,)),
    "mnist-cnn": (64, 25_600, (28, 28, 1)),
    "minigooglenet": (64, 1_280, (32, 32, 3)),
}
EPOCHS = 3

# The script that all contestants run. Times are of the last epochs, from one epoch's begin hook to its end hook.
SCRIPT = r'''
import json, os, resource, sys, time
start = time.perf_counter()
import numpy as np
spec = json.loads(sys.argv[1])
rng = np.random.default_rng(0)
x = rng.random((spec["samples"], *spec["shape"]), dtype="float32")
y = rng.integers(0, 10, spec["samples"]).astype("int32")
import keras
from keras import layers

def conv(x, filters, size, strides=1, padding="same"):
    x = layers.Conv2D(filters, size, strides=strides, padding=padding)(x)
    return layers.Activation("relu")(layers.BatchNormalization()(x))

def minigooglenet(inputs):
    x = conv(inputs, 96, 3)
    for block in ((32, 32), (32, 48), 80, (112, 48), (96, 64), (80, 80), (48, 96), 96, (176, 160), (176, 160)):
        if isinstance(block, tuple):
            x = layers.concatenate([conv(x, block[0], 1), conv(x, block[1], 3)])
        else:
            x = layers.concatenate([conv(x, block, 3, 2, "valid"), layers.MaxPooling2D(3, strides=2)(x)])
    return layers.Flatten()(layers.Dropout(0.5)(layers.AveragePooling2D(7)(x)))

def build():
    inputs = keras.Input(spec["shape"])
    if spec["workload"] == "mnist-mlp":
        out = layers.Dense(256, activation="relu")(layers.Dense(256, activation="relu")(inputs))
    elif spec["workload"] == "mnist-cnn":
        out = layers.MaxPooling2D()(layers.Conv2D(32, 3, activation="relu")(inputs))
        out = layers.Dense(64, activation="relu")(layers.Flatten()(out))
    else:
        out = minigooglenet(inputs)
    return keras.Model(inputs, layers.Dense(10, activation="softmax")(out))

def compiled():
    keras.utils.set_random_seed(1)
    model = build()
    model.compile("adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model

if spec["phalanx"]:
    import phalanx
    with phalanx.MirroredStrategy().scope():
        model = compiled()
else:
    model = compiled()
if spec.get("save"):
    model.save(spec["save"])
    np.savez(spec["save"].replace(".keras", ".npz"), x_train=x, y_train=y, x_test=x[:64], y_test=y[:64])
    sys.exit()

class Clock(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seconds = []
    def on_epoch_begin(self, epoch, logs=None):
        self.began = time.perf_counter()
    def on_epoch_end(self, epoch, logs=None):
        self.seconds.append(time.perf_counter() - self.began)

clock = Clock()
data = {"x": x, "y": y, "batch_size": spec["batch"]}
if spec["data"] == "tf.data":
    import tensorflow as tf
    data = {"x": tf.data.Dataset.from_tensor_slices((x, y)).shuffle(10_000).batch(spec["batch"]).prefetch(4)}
elif spec["data"] == "DataLoader":
    import torch
    pairs = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    data = {"x": torch.utils.data.DataLoader(pairs, batch_size=spec["batch"], shuffle=True)}
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
called = time.perf_counter()
model.fit(**data, epochs=spec["epochs"], callbacks=[clock], verbose=0)

def seconds_to_read():
    start = time.perf_counter()
    for _ in data["x"]:
        pass
    return time.perf_counter() - start

reading = {} if spec["data"] == "arrays" else {"reading": min(seconds_to_read() for _ in range(3))}
print(json.dumps({
    **reading, "epoch": min(clock.seconds[1:] or clock.seconds), "fit": time.perf_counter() - called,
    "first_epoch": clock.seconds[0], "script": time.perf_counter() - start, "memory_mib": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024,
}))
'''


def arguments():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--jax", metavar="VENV", help="Keras on JAX, and phalanx")
    ap.add_argument("--tf", metavar="VENV", help="Keras on TensorFlow, and phalanx")
    ap.add_argument("--torch", metavar="VENV", help="Keras on PyTorch, and phalanx, for DataLoader")
    ap.add_argument("--phalanx", default=str(ROOT / "target/release/phalanx"), help="the command")
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--only", help="one workload")
    ap.add_argument("--json", metavar="FILE", help="also write all measurements")
    return ap.parse_args()


def spec_of(workload, **more):
    batch, samples, shape = WORKLOADS[workload]
    base = {"workload": workload, "batch": batch, "samples": samples, "shape": shape, "epochs": EPOCHS, "data": "arrays"}
    return {**base, "phalanx": False, **more}


def run_script(venv, backend, spec):
    """Runs the script and returns what it measured, with the time of the whole process."""
    env = dict(os.environ, KERAS_BACKEND=backend, TF_CPP_MIN_LOG_LEVEL="3", JAX_PLATFORMS="cpu")
    command = [f"{venv}/bin/python", "-c", SCRIPT, json.dumps(spec)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=1800)
    if done.returncode:
        sys.exit(f"{backend}, {spec}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1]) if done.stdout.strip() else {}


def run_command(binary, workload, folder):
    """Trains the same model with the command and returns the seconds of its fastest epoch after the first."""
    batch, *_ = WORKLOADS[workload]
    log = folder / "log.jsonl"
    log.unlink(missing_ok=True)
    command = [binary, "train", folder / f"{workload}.keras", "--data", folder / f"{workload}.npz", "--epochs", str(EPOCHS),
               "--batch-size", str(batch), "--validation-split", "0", "--json", log]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=1800)
    if done.returncode:
        sys.exit(f"command: {done.stderr[-2000:]}")
    epochs = [event for event in map(json.loads, log.read_text().splitlines()) if "epoch" in event]
    return {"epoch": min(event["seconds"] for event in epochs[1:])}


def best(results):
    return {key: min(result[key] for result in results) for key in results[0]}


def contestants(args, workload, folder):
    """Yields the name of each contestant and a function that runs it."""
    home = args.jax or args.tf
    backend = "jax" if args.jax else "tensorflow"
    yield "command", lambda: run_command(args.phalanx, workload, folder)
    yield "phalanx, arrays", lambda: run_script(home, backend, spec_of(workload, phalanx=True))
    if args.tf:
        yield "phalanx, tf.data", lambda: run_script(
            args.tf, "tensorflow", spec_of(workload, phalanx=True, data="tf.data"))
        yield "phalanx in a TensorFlow script", lambda: run_script(args.tf, "tensorflow", spec_of(workload, phalanx=True))
        yield "keras on tensorflow", lambda: run_script(args.tf, "tensorflow", spec_of(workload))
    if args.jax:
        yield "keras on jax", lambda: run_script(args.jax, "jax", spec_of(workload))
    if args.torch:
        yield "phalanx, DataLoader", lambda: run_script(
            args.torch, "torch", spec_of(workload, phalanx=True, data="DataLoader"))


def ratios(found):
    """Yields rows of what is compared: description, ratio, bound."""
    def ratio(a, b, key):
        return found[a][key] / found[b][key] if a in found and b in found else None

    yield "epoch on arrays / command", ratio("phalanx, arrays", "command", "epoch"), "<= 1.05"
    yield "epoch from tf.data / command", ratio("phalanx, tf.data", "command", "epoch"), "<= 1.25"
    yield "epoch from DataLoader / command", ratio("phalanx, DataLoader", "command", "epoch"), "<= 1.15"
    for data in ("tf.data", "DataLoader"):
        result = found.get(f"phalanx, {data}")
        if result:
            # No run can be faster than reading alone, nor than steps alone.
            floor = max(found["command"]["epoch"], result["reading"])
            yield f"reading {data} / command", result["reading"] / found["command"]["epoch"], ""
            yield f"epoch from {data} / the longer of both", result["epoch"] / floor, ""
    yield ("script: Keras on TensorFlow / phalanx", ratio("keras on tensorflow", "phalanx in a TensorFlow script", "script"),
           ">= 2")
    yield "script: Keras on JAX / phalanx", ratio("keras on jax", "phalanx, arrays", "script"), ">= 1.5"
    yield "epoch: Keras on TensorFlow / phalanx", ratio("keras on tensorflow", "phalanx, arrays", "epoch"), ""
    yield "epoch: Keras on JAX / phalanx", ratio("keras on jax", "phalanx, arrays", "epoch"), ""


def seconds_of(command, env=None):
    """The fastest of five runs of a Python expression that prints a number."""
    runs = [subprocess.run(command, capture_output=True, text=True, env=env, check=True) for _ in range(5)]
    return min(float(run.stdout.split()[-1]) for run in runs)


def main():
    args = arguments()
    if not (args.jax or args.tf):
        sys.exit("expected --jax VENV or --tf VENV")
    home, backend = (args.jax, "jax") if args.jax else (args.tf, "tensorflow")
    everything = {}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for workload in WORKLOADS:
            if args.only and args.only != workload:
                continue
            run_script(home, backend, spec_of(workload, save=str(folder / f"{workload}.keras")))
            runs = {}
            for _ in range(args.rounds):
                for contestant, run in contestants(args, workload, folder):
                    runs.setdefault(contestant, []).append(run())
            found = everything[workload] = {contestant: best(results) for contestant, results in runs.items()}
            print(f"\n| {workload} | epoch, s | script, s | memory of fit, MiB |\n|---|---|---|---|")
            for contestant, result in found.items():
                cells = [f"{result[key]:.3f}" if key in result else "" for key in ("epoch", "script", "memory_mib")]
                print(f"| {contestant} | {' | '.join(cells)} |")
            print("\n| ratio | measured | bound |\n|---|---|---|")
            for description, ratio, bound in ratios(found):
                if ratio is not None:
                    print(f"| {description} | {ratio:.2f} | {bound} |")
    code = "import time; t = time.perf_counter(); import phalanx; phalanx.__version__; print(time.perf_counter() - t)"
    everything["import phalanx, s"] = seconds_of([f"{home}/bin/python", "-c", code])
    print(f"\nimport phalanx: {everything['import phalanx, s']:.3f} s")
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(everything, indent=1))


if __name__ == "__main__":
    main()
