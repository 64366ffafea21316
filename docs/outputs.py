"""Writes the outputs that README.md and docs/guide.md show: runs each command again and puts what it printed into its block.

    python docs/outputs.py [--list] [NAME ...]

A block is the fenced text after a comment `<!-- output NAME: ... -->`; the comment says on what machine it was made. Without
names, all blocks are made that this machine can make: some want MNIST or CIFAR-10 in $PHALANX_DATA, Python with Keras, or a
GPU. Commands run in a temporary directory with the release build.
"""

import argparse
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
PAGES = [os.path.join(ROOT, "README.md"), os.path.join(ROOT, "docs", "guide.md")]
TARGET = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))

KERAS = """import keras
from keras import layers as L
keras.utils.set_random_seed(1)
keras.Sequential([keras.Input((28, 28, 1)), L.Conv2D(32, 3, activation="relu"), L.MaxPooling2D(), L.Flatten(),
                  L.Dense(10, activation="softmax")]).save("model.keras")
"""
EVALUATE = """import gzip, keras, numpy as np, os
mnist = os.path.join(os.environ["PHALANX_DATA"], "mnist")
def read(name, skip):
    plain = os.path.join(mnist, name)
    file = open(plain, "rb") if os.path.exists(plain) else gzip.open(plain + ".gz")
    return np.frombuffer(file.read(), np.uint8, offset=skip)
x = read("t10k-images-idx3-ubyte", 16).reshape(-1, 28, 28, 1)
y = read("t10k-labels-idx1-ubyte", 8)
print(keras.models.load_model("trained.keras").evaluate(x / np.float32(255), y, verbose=0))
"""
# The same Keras script twice: on its own backend, then on Phalanx.
FROM_PYTHON = r"""import contextlib, gzip, keras, numpy as np, os, phalanx, sys
mnist = os.path.join(os.environ["PHALANX_DATA"], "mnist")
def read(name, skip):
    plain = os.path.join(mnist, name)
    file = open(plain, "rb") if os.path.exists(plain) else gzip.open(plain + ".gz")
    return np.frombuffer(file.read(), np.uint8, offset=skip)
x = read("train-images-idx3-ubyte", 16).reshape(-1, 784).astype("float32") / 255
y = read("train-labels-idx1-ubyte", 8)
strategy = phalanx.MirroredStrategy()
for name, scope in (("Keras on " + keras.backend.backend(), contextlib.nullcontext()), ("phalanx", strategy.scope())):
    keras.utils.set_random_seed(1)
    print(name, flush=True)
    with scope:
        model = keras.Sequential([keras.Input((784,)), keras.layers.Dense(256, "relu"), keras.layers.Dense(256, "relu"),
                                  keras.layers.Dense(10, "softmax")])
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(x, y, epochs=3, validation_split=0.1, verbose=2)
"""


class Output:
    """A command, what the page shows as the command, and how much of its output is kept."""

    def __init__(self, command, shown=None, needs=(), head=None, tail=None, prompt=True, before=None, script=EVALUATE):
        self.command, self.shown, self.needs = command, shown or command, needs
        self.head, self.tail, self.prompt, self.before = head, tail, prompt, before
        self.script = script


OUTPUTS = {
    "first-run": Output("phalanx train mnist-mlp --epochs 3", prompt=False),
    "mnist-cnn": Output(
        "example mnist_cnn", "cargo run --release -p phalanx --example mnist_cnn", head=3, tail=4
    ),
    "mnist-mlp": Output("example mnist_mlp", "cargo run --release -p phalanx --example mnist_mlp"),
    "resnet50": Output(
        "example resnet50_transfer --devices cpu:0,cpu:1 --steps 10",
        "cargo run --release -p phalanx --example resnet50_transfer -- --devices cpu:0,cpu:1 --steps 10",
    ),
    "model-file": Output(
        "phalanx train model.keras --data mnist --rescale --epochs 1 --save trained.keras",
        needs=["mnist", "keras"],
        before=KERAS,
    ),
    "model-file-in-keras": Output(
        "python evaluate.py", "python evaluate.py      # keras.models.load_model(\"trained.keras\").evaluate(x_test / 255, y_test)",
        needs=["mnist", "keras"],
    ),
    "from-python": Output(
        "python evaluate.py", prompt=False, needs=["mnist", "keras", "phalanx"], script=FROM_PYTHON
    ),
    "gpu": Output(
        "phalanx train minigooglenet --data cifar-10 --gpus 1 --epochs 70 --output plot.png",
        needs=["cifar-10", "gpu"],
        head=6,
        tail=5,
    ),
    "plan": Output("phalanx plan resnet50 --batch-size 64 --device gpu --memory 16GiB"),
}


def has(need):
    """Whether this machine has what a block wants."""
    if need == "gpu":
        return os.path.exists("/dev/nvidia0")
    if need in ("keras", "phalanx"):
        return subprocess.run([sys.executable, "-c", f"import {need}"], capture_output=True).returncode == 0
    places = {"mnist": ["mnist"], "cifar-10": ["cifar-10-batches-bin", "cifar-10-binary.tar.gz", "cifar-10"]}[need]
    return any(os.path.exists(os.path.join(os.environ.get("PHALANX_DATA", ""), place)) for place in places)


def machine(output):
    if "gpu" in output.needs:
        line = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        return subprocess.run(line, capture_output=True, text=True).stdout.strip() or "a GPU"
    names = [line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")]
    return f"{len(os.sched_getaffinity(0))} cores of {names[0] if names else platform.processor()}"


def run(directory, output):
    """What the command prints, standard error apart."""
    words = shlex.split(output.command)
    with open(os.path.join(directory, "evaluate.py"), "w") as file:
        file.write(output.script)
    if output.before:
        subprocess.run([sys.executable, "-c", output.before], cwd=directory, check=True, capture_output=True)
    release = os.path.join(TARGET, "release")
    if words[0] == "phalanx":
        words[0] = os.environ.get("PHALANX_BIN", os.path.join(release, "phalanx"))
    elif words[0] == "example":
        words = [os.path.join(release, "examples", words[1]), *words[2:]]
    elif words[0] == "python":
        words[0] = sys.executable
    done = subprocess.run(words, cwd=directory, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{output.command}: {done.stderr}")
    return done.stdout.rstrip("\n").split("\n")


def build():
    if "PHALANX_BIN" not in os.environ:
        command = ["cargo", "build", "--release", "-q", "--locked"]
        subprocess.run([*command, "-p", "phalanx-cli"], cwd=ROOT, check=True)
        subprocess.run([*command, "-p", "phalanx", "--examples"], cwd=ROOT, check=True)


def replace_block(name, new):
    """Replaces the block of this name on the page that has it; returns the page."""
    block = re.compile(rf"<!-- output {name}: [^>]*-->\n```text\n(?:[^\n]*\n)*?```\n")
    for page in PAGES:
        with open(page) as file:
            text = file.read()
        if block.search(text):
            with open(page, "w") as file:
                file.write(block.sub(lambda _: new, text, count=1))
            return os.path.relpath(page, ROOT)
    sys.exit(f"README.md, docs/guide.md: expected a block for '{name}'")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    if options.list:
        for name, output in OUTPUTS.items():
            print(f"{name}: {output.shown} (needs: {', '.join(output.needs) or 'nothing'})")
        return
    unknown = [name for name in options.names if name not in OUTPUTS]
    if unknown:
        sys.exit(f"expected {', '.join(OUTPUTS)}, received {', '.join(unknown)}")
    if "model-file-in-keras" in options.names:
        options.names.append("model-file")
    build()
    with tempfile.TemporaryDirectory() as directory:
        for name, output in OUTPUTS.items():
            missing = [need for need in output.needs if not has(need)]
            if (options.names and name not in options.names) or (missing and not options.names):
                if missing:
                    print(f"{name}: left as it is, without {', '.join(missing)}")
                continue
            lines = run(directory, output)
            if output.head is not None and len(lines) > output.head + output.tail:
                lines = [*lines[: output.head], "…", *lines[-output.tail :]]
            if output.prompt:
                lines.insert(0, f"$ {output.shown}")
            new = f"<!-- output {name}: {machine(output)} -->\n```text\n" + "\n".join(lines) + "\n```\n"
            print(f"{name}: written to {replace_block(name, new)}")


if __name__ == "__main__":
    main()
