"""network_*.safetensors: whole models through ten training steps.

Weights, inputs and labels are not stored: a small generator (see GENERATOR) computes them here and in the Rust tests.
"""

import json

import jax
import keras
import numpy as np
from common import Fixture, config_of, one_hot
from keras import layers as L

STEPS = 10
CLASSES = 10
INPUT_SEED, LABEL_SEED, SAMPLE_SEED, NUDGE_SEED = 100_000, 200_000, 300_000, 400_000
# Tensors of up to MAX_WHOLE elements are stored whole, larger ones as SAMPLES elements.
MAX_WHOLE, SAMPLES = 512, 64

GENERATOR = """\
Element k (k = 0, 1, ... in row-major order) of a tensor with seed s, all in wrapping u64 arithmetic (splitmix64):
z = s + (k + 1) * 0x9E3779B97F4A7C15; z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
z = (z ^ (z >> 27)) * 0x94D049BB133111EB; z = z ^ (z >> 31).
u = float32(z >> 40) / 2^24, in [0, 1).  value = ((u - 0.5) * 2) * scale, in float32.
kind "uniform": value; "ones_plus": 1 + value (float32); "off_zero": value + 2.5 with the sign of value (float32).
The kind, seed and scale of each weight are in the list "weights" (Keras' model.weights order).
The input of step t is "uniform" with scale 1 and seed 100000 + t; label j of step t is (z >> 40) % 10 with seed 200000 + t, k = j.
For a categorical loss the labels are one-hot rows.  t = 0, ..., 9.
The sampled flat indices of weight i are stored as sample_index/i.
losses_nudged, grad_spread/i (L2 norm of the difference) and final_spread/i (largest difference) come from a second run
whose start weights are off by one unit in the last place: how far rounding alone moves the numbers."""


def bits(seed, count):
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return (z ^ (z >> np.uint64(31))) >> np.uint64(40)


def generate(kind, seed, scale, shape):
    count = int(np.prod(shape))
    u = bits(seed, count).astype("float32") / np.float32(2**24)
    value = (u - np.float32(0.5)) * np.float32(2) * np.float32(scale)
    if kind == "ones_plus":
        value = np.float32(1) + value
    elif kind == "off_zero":
        value = value + np.copysign(np.float32(2.5), value)
    return value.astype("float32").reshape(shape)


def weight_recipe(weight, seed):
    """The recipe of a weight: its kind, seed and scale."""
    kind, scale = "uniform", 0.05
    if weight.name == "kernel":
        receptive = int(np.prod(weight.shape[:-2]))
        fan_in, fan_out = weight.shape[-2] * receptive, weight.shape[-1] * receptive
        scale = np.sqrt(6.0 / (fan_in + fan_out))
    elif weight.name in ("gamma", "moving_variance"):
        kind, scale = "ones_plus", 0.1
    elif weight.name == "beta":
        # Far from 0, so that few normalized values are near the kink of the following ReLU.
        kind = "off_zero"
    scale = float(np.float32(scale))
    return {"name": weight.path, "shape": list(weight.shape), "kind": kind, "seed": seed, "scale": scale}


def mlp():
    i = keras.Input((784,))
    x = L.Dense(256, activation="relu")(i)
    x = L.Dense(256, activation="relu")(x)
    return keras.Model(i, L.Dense(CLASSES)(x))


def cnn():
    i = keras.Input((28, 28, 1))
    x = L.MaxPooling2D()(L.Conv2D(32, 3, activation="relu")(i))
    x = L.Dense(64, activation="relu")(L.Flatten()(x))
    return keras.Model(i, L.Dense(CLASSES, activation="softmax")(x))


def convolution(x, filters, size, strides=1, padding="same"):
    x = L.Conv2D(filters, size, strides=strides, padding=padding)(x)
    return L.Activation("relu")(L.BatchNormalization()(x))


def minigooglenet():
    def inception(x, ones, threes):
        return L.Concatenate()([convolution(x, ones, 1), convolution(x, threes, 3)])

    def downsample(x, filters):
        return L.Concatenate()([convolution(x, filters, 3, 2, "valid"), L.MaxPooling2D(3, 2)(x)])

    i = keras.Input((32, 32, 3))
    x = convolution(i, 96, 3)
    x = inception(inception(x, 32, 32), 32, 48)
    x = downsample(x, 80)
    for ones, threes in ((112, 48), (96, 64), (80, 80), (48, 96)):
        x = inception(x, ones, threes)
    x = downsample(x, 96)
    x = inception(inception(x, 176, 160), 176, 160)
    x = L.Flatten()(L.Dropout(0.0)(L.AveragePooling2D(7)(x)))
    return keras.Model(i, L.Dense(CLASSES, activation="softmax")(x))


# Two correct programs differ in the last digits. If that moves one of MiniGoogLeNet's 1.3 million ReLUs across its kink, or
# changes the largest pixel of a pooling window, a gradient moves by half a percent. Its weight seed was chosen so that in the
# first step no ReLU input is closer to 0, and no two largest pixels are closer to each other, than 9e-6 (2e-6 in all ten).
# Its learning rate prevents the remaining differences from growing.
NETWORKS = [
    dict(
        name="mlp",
        build=mlp,
        size=8,
        weight_seed=1_000,
        loss=lambda: keras.losses.SparseCategoricalCrossentropy(from_logits=True, name="loss"),
        optimizer=lambda: keras.optimizers.Adam(name="optimizer"),
    ),
    dict(
        name="cnn",
        build=cnn,
        size=8,
        weight_seed=1_000,
        loss=lambda: keras.losses.SparseCategoricalCrossentropy(name="loss"),
        optimizer=lambda: keras.optimizers.Adam(name="optimizer"),
    ),
    dict(
        name="minigooglenet",
        build=minigooglenet,
        size=4,
        weight_seed=21_800,
        loss=lambda: keras.losses.CategoricalCrossentropy(name="loss"),
        optimizer=lambda: keras.optimizers.SGD(5e-4, momentum=0.9, name="optimizer"),
    ),
]


def batch(t, size, shape, loss):
    x = generate("uniform", INPUT_SEED + t, 1.0, (size, *shape))
    labels = (bits(LABEL_SEED + t, size) % np.uint64(CLASSES)).astype("int32")
    categorical = isinstance(loss, keras.losses.CategoricalCrossentropy)
    return x, one_hot(labels, CLASSES) if categorical else labels, labels


def train(model, loss, optimizer, batches):
    """Trains without fit(); yields the loss, the output and the gradients of each step."""
    optimizer.build(model.trainable_variables)

    @jax.jit
    def step(trainable, state, slots, x, y):
        def objective(trainable):
            output, new_state = model.stateless_call(trainable, state, x, training=True)
            return loss(y, output), (output, new_state)

        (value, (output, new_state)), grads = jax.value_and_grad(objective, has_aux=True)(trainable)
        new_trainable, new_slots = optimizer.stateless_apply(slots, grads, trainable)
        return value, output, grads, new_trainable, new_state, new_slots

    for x, y, _ in batches:
        variables = (model.trainable_variables, model.non_trainable_variables, optimizer.variables)
        value, output, grads, *updated = step(*[[v.value for v in group] for group in variables], x, y)
        for group, values in zip(variables, updated):
            for variable, new in zip(group, values):
                variable.assign(new)
        yield value, output, grads


def sampled(name, i, array):
    """A small tensor whole, a larger one at the indices sample_index/<i>."""
    array = np.asarray(array)
    if array.size <= MAX_WHOLE:
        return {f"{name}/{i}": array}
    index = sample_index(i, array.size)
    return {f"{name}_samples/{i}": array.reshape(-1)[index]}


def sample_index(i, size):
    return (bits(SAMPLE_SEED + i, SAMPLES) % np.uint64(size)).astype("int32")


def nudge(i, value):
    """The weight, changed by about one unit in the last place."""
    noise = generate("uniform", NUDGE_SEED + i, 2.0**-22, value.shape)
    return value * (np.float32(1) + noise)


class Run:
    """One model through its training steps."""

    def __init__(self, build, size, weight_seed, loss, optimizer, nudged):
        keras.backend.clear_session()  # Layer names restart: dense, dense_1, ...
        self.model = model = build()
        self.recipes = [weight_recipe(w, weight_seed + i) for i, w in enumerate(model.weights)]
        trainable = {id(w) for w in model.trainable_variables}
        for i, (weight, recipe) in enumerate(zip(model.weights, self.recipes)):
            recipe["trainable"] = id(weight) in trainable
            value = generate(recipe["kind"], recipe["seed"], recipe["scale"], recipe["shape"])
            weight.assign(nudge(i, value) if nudged else value)
        self.batches = [batch(t, size, model.input_shape[1:], loss) for t in range(STEPS)]
        self.start = [w.numpy() for w in model.weights]
        self.output_inference = model(self.batches[0][0], training=False)
        values, outputs, grads = zip(*train(model, loss, optimizer, self.batches))
        self.losses = np.array(values, "float32")
        self.output_training = outputs[0]
        index = {id(w): i for i, w in enumerate(model.weights)}
        self.grads = {index[id(v)]: np.asarray(g) for v, g in zip(model.trainable_variables, grads[0])}
        self.final = [w.numpy() for w in model.weights]
        self.output_inference_final = model(self.batches[0][0], training=False)


def norm(array):
    return np.float32(np.linalg.norm(array.astype("float64").reshape(-1)))


def make_network(name, build, size, weight_seed, loss, optimizer):
    run = Run(build, size, weight_seed, loss(), optimizer(), nudged=False)
    other = Run(build, size, weight_seed, loss(), optimizer(), nudged=True)
    tensors = {
        # The first values, to check the generator with.
        "input_head": run.batches[0][0].reshape(-1)[:8],
        "labels": np.stack([labels for _, _, labels in run.batches]),
        "output_inference": run.output_inference,
        "output_training": run.output_training,
        "output_inference_final": run.output_inference_final,
        "losses": run.losses,
        "losses_nudged": other.losses,
    }
    for i, weight in enumerate(run.start):
        tensors[f"weight_head/{i}"] = weight.reshape(-1)[:4]
        if weight.size > MAX_WHOLE:
            tensors[f"sample_index/{i}"] = sample_index(i, weight.size)
    for i, grad in run.grads.items():
        tensors |= sampled("grad", i, grad)
        tensors[f"grad_norm/{i}"] = norm(grad)
        tensors[f"grad_spread/{i}"] = norm(grad - other.grads[i])
    for i, weight in enumerate(run.final):
        tensors |= sampled("final", i, weight)
        tensors[f"final_spread/{i}"] = np.float32(np.abs(weight - other.final[i]).max())

    fixture = Fixture(f"network_{name}")
    case = {
        "name": name,
        "batch": size,
        "steps": STEPS,
        "input_shape": list(run.model.input_shape[1:]),
        "parameters": run.model.count_params(),
        "weights": run.recipes,
        "loss": {"class_name": type(loss()).__name__, "config": config_of(loss())},
        "optimizer": {"class_name": type(optimizer()).__name__, "config": config_of(optimizer())},
    }
    fixture.add(case, tensors)
    fixture.save(generator=GENERATOR, model_config=json.dumps(config_of(run.model)))


def make():
    for network in NETWORKS:
        make_network(**network)
