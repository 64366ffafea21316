"""Trains models with Keras on JAX under a ModelParallel distribution over 8 CPU devices, and with the command under the same
layout; the losses of ten steps must agree: check_model_parallel.py DIRECTORY

PHALANX names the command (default: target/debug/phalanx).
"""

import json
import os
import subprocess
import sys

os.environ["KERAS_BACKEND"] = "jax"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import keras
import numpy as np
from keras import layers as L

STEPS = 10
TOLERANCE = 1e-4


def transformer():
    tokens = keras.Input((6,), dtype="int32")
    x = L.Embedding(16, 12, name="tokens")(tokens)
    y = L.LayerNormalization()(x)
    y = L.MultiHeadAttention(4, 3, name="attention")(y, y, use_causal_mask=True)
    x = x + y
    y = L.LayerNormalization()(x)
    y = L.Dense(16, activation="gelu", name="ffn_up")(y)
    y = L.Dense(12, name="ffn_down")(y)
    x = L.GlobalAveragePooling1D()(x + y)
    model = keras.Model(tokens, L.Dense(8, name="classes")(x))
    layout = {
        "tokens/embeddings": ("model", None),
        "attention/(query|key|value)/kernel": (None, "model", None),
        "attention/(query|key|value)/bias": ("model", None),
        "attention/attention_output/kernel": ("model", None, None),
        "ffn_up/kernel": (None, "model"),
        "ffn_up/bias": ("model",),
        "ffn_down/kernel": ("model", None),
        "classes/kernel": (None, "model"),
        "classes/bias": ("model",),
    }
    return model, layout, np.random.default_rng(0).integers(0, 16, (24, 6)).astype("int32")


def convolutions():
    image = keras.Input((8, 8, 3))
    x = L.Conv2D(8, 3, padding="same", activation="relu", name="first")(image)
    x = L.Conv2D(16, 3, strides=2, activation="relu", name="second")(x)
    x = L.MaxPooling2D()(x)
    model = keras.Model(image, L.Dense(8, name="classes")(L.Flatten()(x)))
    layout = {"first/kernel": (None, None, None, "model"), "first/bias": ("model",), "second/kernel": (None, None, "model", None)}
    return model, layout, np.random.default_rng(1).random((24, 8, 8, 3)).astype("float32")


def check(name, build, directory):
    keras.utils.set_random_seed(1)
    model, layout, x = build()
    y = np.random.default_rng(2).integers(0, 8, len(x)).astype("int32")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.2, momentum=0.9), loss)
    path = os.path.join(directory, f"{name}.keras")
    model.save(path)
    np.savez(os.path.join(directory, f"{name}.npz"), x_train=x, y_train=y)

    mesh = keras.distribution.DeviceMesh((2, 4), ["batch", "model"], jax.devices("cpu"))
    layout_map = keras.distribution.LayoutMap(mesh)
    for key, axes in layout.items():
        layout_map[key] = axes
    keras.distribution.set_distribution(keras.distribution.ModelParallel(layout_map=layout_map, batch_dim_name="batch"))
    divided = keras.models.load_model(path)
    history = divided.fit(x, y, batch_size=len(x), epochs=STEPS, shuffle=False, verbose=0)
    keras.distribution.set_distribution(None)

    layout_path = os.path.join(directory, f"{name}.toml")
    with open(layout_path, "w") as file:
        for key, axes in layout.items():
            file.write(f"{json.dumps(key)} = {json.dumps([axis or '-' for axis in axes])}\n")
    log = os.path.join(directory, f"{name}.jsonl")
    command = [os.environ.get("PHALANX", "target/debug/phalanx"), "train", path, "--data", os.path.join(directory, f"{name}.npz")]
    command += ["--mesh", "batch=2,model=4", "--layout", layout_path, "--threads", "1", "--global-batch-size", str(len(x))]
    command += ["--epochs", str(STEPS), "--no-shuffle", "--json", log, "--no-scaling"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{name}: {done.stderr}")
    if "each replica among 4 devices" not in done.stdout + done.stderr:
        sys.exit(f"{name}: expected replicas of four devices, received\n{done.stdout}{done.stderr}")
    with open(log) as file:
        epochs = [json.loads(line) for line in file]
    losses = [epoch["loss"] for epoch in epochs if "loss" in epoch and "epoch" in epoch]
    worst = max(abs(ours - theirs) / abs(theirs) for ours, theirs in zip(losses, history.history["loss"], strict=True))
    print(f"{name}: {len(losses)} losses, largest difference {worst:.1e}")
    return worst < TOLERANCE


if __name__ == "__main__":
    os.makedirs(sys.argv[1], exist_ok=True)
    if not all([check("transformer", transformer, sys.argv[1]), check("convolutions", convolutions, sys.argv[1])]):
        sys.exit("losses differ")
