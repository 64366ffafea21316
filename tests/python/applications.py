"""Every network of keras.applications through Phalanx. Run by hand: it takes about an hour on two cores.

    python tests/python/applications.py [--jobs N] [name ...]

Builds each network without pretrained weights, with ten classes, logits and the smallest usable images, and saves it as
a `.keras` file. The Rust test `keras_applications::networks_of_keras` loads it, compares the logits (within 1e-4 of
the largest), saves it again and trains two steps. The script then compares the saved config and weights, and how far the
two steps moved every weight. Dropout rates are set to 0, since no two frameworks draw the same random numbers. One line
per network; the exit status is 1 if any failed. Needs keras, jax and up to 12 GB of memory for the largest networks.
`--jobs` takes several networks at a time, each in a process of its own. $PHALANX_SUITE names the Rust test program if it is
already built; otherwise Cargo builds it.
"""

import argparse
import concurrent.futures
import inspect
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import jax
import keras
import numpy as np

import check_files

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
BATCH, STEPS, CLASSES, RATE = 4, 2, 10, 1e-3
# The smallest images, except where those leave batch normalisation too few pixels.
SIZES = {"Xception": 71, "Inception": 75}
DEFAULT_SIZE = 64


def constructors():
    """The networks of keras.applications, by name."""
    found = inspect.getmembers(keras.applications, inspect.isfunction)
    return {name: build for name, build in found if "classifier_activation" in inspect.signature(build).parameters}


def without_dropout(model):
    def clean(value):
        if isinstance(value, dict):
            rates = {"rate": 0.0, "drop_path_rate": 0.0}
            return {key: rates.get(key, clean(inner)) for key, inner in value.items()}
        return [clean(inner) for inner in value] if isinstance(value, list) else value

    return keras.Model.from_config(clean(model.get_config()))


def network(name):
    size = next((size for part, size in SIZES.items() if part in name), DEFAULT_SIZE)
    build = constructors()[name]
    model = build(weights=None, input_shape=(size, size, 3), classes=CLASSES, classifier_activation=None)
    model = without_dropout(model)
    model.compile(keras.optimizers.SGD(RATE), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def spread_weights(model, rng):
    """Makes all weights distinct, so that exchanged ones show. Matrices keep their scale. The offsets of normalisations are
    far from 0: otherwise rounding moves some of the following ReLUs across their kink, which changes gradients visibly."""
    for weight in model.weights:
        value = weight.numpy()
        if weight.name == "beta":
            value = 2.5 * rng.choice([-1, 1], value.shape).astype("float32")
        if value.ndim < 2 or float(np.std(value)) == 0:
            value = value + rng.uniform(-0.1, 0.1, value.shape).astype("float32")
        weight.assign(np.abs(value) if "variance" in weight.name else value)


def settle_statistics(model, x):
    """Sets the moving statistics to those of a batch, so that inference does not fade or explode."""
    layers = [layer for layer in model.layers if isinstance(layer, keras.layers.BatchNormalization)]
    momentum = [layer.momentum for layer in layers]
    for layer in layers:
        layer.momentum = 0.0
    trainable = [v.value for v in model.trainable_variables]
    forward = jax.jit(lambda state: model.stateless_call(trainable, state, x, training=True)[1])
    for variable, value in zip(model.non_trainable_variables, forward([v.value for v in model.non_trainable_variables])):
        variable.assign(value)
    for layer, old in zip(layers, momentum):
        layer.momentum = old


def train(model, start, x, y):
    """The losses of the steps, and the weights after them."""
    model.set_weights(start)
    values = []
    for step in range(STEPS):
        rows = slice(step * BATCH, (step + 1) * BATCH)
        model.reset_metrics()
        values.append(float(model.train_on_batch(x[rows], y[rows])))
    return np.array(values, "float32"), model.get_weights()


def rust(directory):
    built = os.environ.get("PHALANX_SUITE")
    suite = [built] if built else ["cargo", "test", "-q", "-p", "phalanx", "--test", "suite", "--"]
    command = [*suite, "keras_applications::networks_of", "--ignored"]
    environment = os.environ | {"PHALANX_CROSS_CHECK": directory, "PHALANX_PIN": "0"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    return "" if done.returncode == 0 else (done.stdout[-1500:] + done.stderr[-1500:])


def faults(name, directory):
    """Takes a network through all checks; yields what is wrong."""
    rng = np.random.default_rng(sum(map(ord, name)))
    model = network(name)
    spread_weights(model, rng)
    size = model.input_shape[1]
    x = rng.standard_normal((BATCH * STEPS, size, size, 3)).astype("float32")
    # Networks that preprocess in the model take pixels.
    if any(layer.__class__.__name__ in ("Rescaling", "Normalization") for layer in model.layers):
        x = 127.5 + 60 * x
    y = rng.integers(0, CLASSES, BATCH * STEPS).astype("int32")
    path = lambda ending: os.path.join(directory, f"{name}.{ending}")
    # Some layers, such as Normalization, take their weights over only when a file is loaded.
    model.save(path("keras"))
    model = keras.models.load_model(path("keras"))
    settle_statistics(model, x)
    model.save(path("keras"))
    logits = np.asarray(model.predict_on_batch(x), "float32")
    start = model.get_weights()
    losses, trained = train(model, start, x, y)
    # How far a change in the last place of the start moves the result: rounding alone.
    if np.ptp(logits, axis=0).max() < 1e-3 * np.abs(logits).max():
        yield "the logits do not depend on the images"
    nudged = [w * (1 + rng.uniform(-(2.0**-22), 2.0**-22, w.shape).astype("float32")) for w in start]
    model.set_weights(nudged)
    nudged_logits = np.asarray(model.predict_on_batch(x), "float32")
    other_losses, other = train(model, nudged, x, y)
    spread = [np.abs((b - a) - (n - s)).max() if a.size else 0 for a, b, s, n in zip(trained, other, start, nudged)]
    tensors = {"x0": x, "y0": y, "p0": logits, "p0_nudged": nudged_logits, "losses": losses, "losses_nudged": other_losses}
    check_files.save_tensors(path("safetensors"), tensors)
    config = check_files.config(model)
    del model, nudged, other
    keras.backend.clear_session(free_memory=True)
    fault = rust(directory)
    if fault:
        yield fault
        return
    back = keras.models.load_model(path("back.keras"))
    found = check_files.difference(config, check_files.config(back))
    if found:
        yield f"config {found}"
    yield from check_files.same("weight", start, back.get_weights())
    after = keras.models.load_model(path("trained.keras"), compile=False)
    worst = 0.0
    norm = lambda array: float(np.linalg.norm(array.astype("float64").reshape(-1)))
    for weight, s, a, b, slack in zip(after.weights, start, trained, after.get_weights(), spread):
        # By norm: rounding moves isolated ReLUs across their kinks, and exchanges the largest pixels of pooling windows.
        moved, off = norm(a - s), norm(a - b) - (4 * slack + 1e-6) * np.sqrt(a.size)
        worst = max(worst, off / max(moved, 1e-9))
        if not off <= 0.03 * moved:
            yield f"{weight.path} moved by {moved:.2g} and is off by {off:.2g} (norms; rounding: {slack:.2g})"
    print(f"    {after.count_params():,} parameters; updates agree within {max(worst, 0):.1g}", flush=True)


def check(name):
    """Takes a network through all checks; prints its line and returns whether it passed."""
    started = time.time()
    with tempfile.TemporaryDirectory(prefix="phalanx-applications-") as directory:
        try:
            found = list(faults(name, directory))
        except Exception as error:
            found = [f"{type(error).__name__}: {str(error)[:500]}"]
    keras.backend.clear_session(free_memory=True)
    print(f"{name}: {'FAILED' if found else 'ok'} ({time.time() - started:.0f} s)", *found[:5], sep="\n    ", flush=True)
    return not found


def check_in_process(name):
    done = subprocess.run([sys.executable, __file__, name], capture_output=True, text=True)
    # The last line is the summary of the one network.
    print("\n".join(done.stdout.splitlines()[:-1]) or done.stderr[-500:], flush=True)
    return done.returncode == 0


def main():
    warnings.filterwarnings("ignore")
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    names = arguments.names or list(constructors())
    if arguments.jobs > 1:
        with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
            passed = list(pool.map(check_in_process, names))
    else:
        passed = [check(name) for name in names]
    failed = [name for name, ok in zip(names, passed) if not ok]
    print(f"{len(names)} networks, {len(failed)} failed: {json.dumps(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
