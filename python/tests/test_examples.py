"""The four programs of the tutorials run as they are, on small generated data."""

import os
import pathlib
import subprocess
import sys

EXAMPLES = pathlib.Path(__file__).resolve().parent.parent / "examples"

# Replaces Keras' downloads by generated images whose class shows in their brightness.
RUNNER = """
import runpy, sys
import keras, numpy as np
def images(count, shape):
    rng = np.random.default_rng(count)
    y = rng.integers(0, 10, count).astype("uint8")
    x = rng.integers(0, 60, (count, *shape)) + 18 * y.reshape(-1, *[1] * len(shape))
    return x.astype("uint8"), y
keras.datasets.mnist.load_data = lambda: (images(1200, (28, 28)), images(200, (28, 28)))
keras.datasets.cifar10.load_data = lambda: (images(128, (32, 32, 3)), images(64, (32, 32, 3)))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run(folder, name, *arguments, **environment):
    command = [sys.executable, "-c", RUNNER, str(EXAMPLES / name), *arguments]
    env = {**os.environ, **environment}
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=env, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_mnist_cnn(tmp_path):
    out = run(tmp_path, "mnist_cnn.py", EPOCHS="4")
    assert "Number of devices: 1" in out
    assert "Learning rate for epoch 4 is 9.999999747378752e-05" in out
    assert "['ckpt_1.weights.h5', 'ckpt_2.weights.h5', 'ckpt_3.weights.h5', 'ckpt_4.weights.h5']" in out
    assert float(out.split("Eval accuracy: ")[1]) > 0.3


def test_mnist_mlp_goes_on_from_its_checkpoint(tmp_path):
    out = run(tmp_path, "mnist_mlp.py", EPOCHS="2")
    assert "Creating a new model" in out and "Restoring from ./ckpt/ckpt-2.keras" in out
    assert sorted(os.listdir(tmp_path / "ckpt")) == ["ckpt-1.keras", "ckpt-2.keras"]
    losses = [float(line.split("- loss: ")[1].split()[0]) for line in out.splitlines() if "val_loss" in line]
    assert len(losses) == 4 and losses[-1] < losses[0]


def test_minigooglenet_draws_its_plot(tmp_path):
    out = run(tmp_path, "minigooglenet.py", "--output", "plot.png", "--gpus", "0", "--epochs", "2")
    assert "Epoch 2/2" in out and "val_accuracy" in out
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_resnet50_on_two_devices(tmp_path):
    out = run(tmp_path, "resnet50.py", "--size", "64", "--epochs", "1")
    assert "4/4" in out and "accuracy" in out
