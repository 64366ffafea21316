"""oracle_*.safetensors: sequence and image-to-image networks through ten training steps, with every gradient.

GPT-2, a vision transformer, a masked bidirectional LSTM, an encoder-decoder with states, a U-Net. As in networks.py, weights and
batches come from a generator that the Rust test `keras_oracles` shares, and are not stored.

    python tests/python/oracles.py gpt2_124m DIRECTORY    # the whole GPT-2; not in the repository, see the Rust test
"""

import os
import sys

os.environ.setdefault("KERAS_BACKEND", "jax")

import common
import keras
import numpy as np
from common import Fixture, config_of
from keras import layers as L
from keras import ops
from networks import GENERATOR, INPUT_SEED, LABEL_SEED, MAX_WHOLE, STEPS, bits, generate, norm, nudge, sample_index, sampled, train

INPUTS = """\
Inputs: input i of step t has the seed 100000 + 1000 * i + t. Kind "uniform": as above with scale 1. Kind "tokens": 1 + (z >> 40) %
(limit - 1), and 0 (padding) at position j of row r if `padded` and j >= length - r % 4. Label k of step t is (z >> 40) % classes
with seed 200000 + t; labels have the shape of the output without its last axis.
Weights: kind "ones_plus" with scale 0.1 for gamma, otherwise "uniform" with scale sqrt(3 / fan) for two axes and more, where fan is
the product of all axes but the last (of the last for embeddings), and 0.1 for one axis; seed 1000 + i in Keras' order."""


def transformer_block(x, name, width, heads, units, causal, epsilon, approximate):
    y = L.LayerNormalization(epsilon=epsilon, name=f"{name}_norm_1")(x)
    attention = L.MultiHeadAttention(heads, width // heads, name=f"{name}_attention")
    y = attention(y, y, use_causal_mask=True) if causal else attention(y, y)
    x = L.Add(name=f"{name}_add_1")([x, y])
    y = L.LayerNormalization(epsilon=epsilon, name=f"{name}_norm_2")(x)
    y = ops.gelu(L.Dense(units, name=f"{name}_dense_1")(y), approximate=approximate)
    return L.Add(name=f"{name}_add_2")([x, L.Dense(width, name=f"{name}_dense_2")(y)])


def positions(tokens):
    return ops.cumsum(ops.ones_like(tokens), axis=1) - 1.0


def gpt2(vocabulary=50257, length=1024, width=768, heads=12, layers=12):
    tokens = keras.Input((length,), dtype="int32", name="tokens")
    table = L.ReversibleEmbedding(vocabulary, width, name="token_embedding")
    place = L.Embedding(length, width, name="position_embedding")(positions(tokens))
    x = L.Add(name="embeddings")([table(tokens), place])
    for i in range(layers):
        x = transformer_block(x, f"block_{i}", width, heads, 4 * width, True, 1e-5, True)
    x = L.LayerNormalization(epsilon=1e-5, name="norm")(x)
    return keras.Model(tokens, table(x, reverse=True), name="gpt2")


def vit(image, patch, width, heads, layers, units, head, classes):
    inputs = keras.Input(image, name="images")
    length = (image[0] // patch) * (image[1] // patch)
    x = L.Conv2D(width, patch, strides=patch, name="patches")(inputs)
    x = L.Reshape((length, width), name="sequence")(x)
    if not head:
        zero = ops.zeros_like(ops.mean(x, axis=(1, 2)))
        token = L.Reshape((1, width), name="class_sequence")(L.Embedding(1, width, name="class_token")(zero))
        x = L.Concatenate(axis=1, name="with_class")([token, x])
        length += 1
    place = L.Embedding(length, width, name="position_embedding")(positions(ops.mean(x, axis=2)))
    x = L.Add(name="embeddings")([x, place])
    for i in range(layers):
        x = transformer_block(x, f"block_{i}", width, heads, units, False, 1e-6, False)
    x = L.LayerNormalization(epsilon=1e-6, name="norm")(x)
    if not head:
        x = L.Cropping1D((0, length - 1), name="class_result")(x)
    x = L.Flatten(name="flatten")(x)
    for i, units in enumerate(head):
        x = L.Dense(units, activation="gelu", name=f"head_{i + 1}")(x)
    return keras.Model(inputs, L.Dense(classes, name="logits")(x), name="vit")


def bilstm():
    tokens = keras.Input((9,), dtype="int32", name="tokens")
    x = L.Embedding(40, 8, mask_zero=True, name="embedding")(tokens)
    x = L.Bidirectional(L.LSTM(6, return_sequences=True), name="bidirectional_1")(x)
    x = L.Bidirectional(L.LSTM(5), name="bidirectional_2")(x)
    return keras.Model(tokens, L.Dense(4, name="logits")(x), name="bilstm")


def encoder_decoder():
    source = keras.Input((7,), dtype="int32", name="source")
    target = keras.Input((6,), dtype="int32", name="target")
    x = L.Embedding(30, 8, mask_zero=True, name="source_embedding")(source)
    _, h, c = L.LSTM(10, return_state=True, name="encoder")(x)
    y = L.Embedding(20, 8, mask_zero=True, name="target_embedding")(target)
    y = L.LSTM(10, return_sequences=True, name="decoder")(y, initial_state=[h, c])
    return keras.Model([source, target], L.Dense(20, name="logits")(y), name="encoder_decoder")


def unet():
    def convolutions(x, filters, name):
        for i in (1, 2):
            x = L.Conv2D(filters, 3, padding="same", activation="swish", name=f"{name}_conv_{i}")(x)
        return x

    inputs = keras.Input((16, 16, 3), name="images")
    x, skips = inputs, []
    for i, filters in enumerate((6, 10)):
        x = convolutions(x, filters, f"down_{i}")
        skips.append(x)
        x = L.AveragePooling2D(2, name=f"down_{i}_pool")(x)
    x = convolutions(x, 14, "bottom")
    for i, filters in reversed(list(enumerate((6, 10)))):
        x = L.Conv2DTranspose(filters, 3, strides=2, padding="same", name=f"up_{i}_transposed")(x)
        x = L.Concatenate(name=f"up_{i}_concat")([skips[i], x])
        x = convolutions(x, filters, f"up_{i}")
    return keras.Model(inputs, L.Conv2D(4, 1, name="logits")(x), name="unet")


def tokens(limit, padded=False):
    return {"kind": "tokens", "limit": limit, "padded": padded}


SMALL_VIT = dict(image=(24, 18, 3), patch=6, width=16, heads=2, layers=2, units=24, classes=5)
IMAGES = [{"kind": "uniform"}]
NETWORKS = {
    "gpt2": dict(
        build=lambda: gpt2(vocabulary=61, length=12, width=24, heads=3, layers=2), size=4, inputs=[tokens(61)]
    ),
    "vit": dict(build=lambda: vit(head=(), **SMALL_VIT), size=4, inputs=IMAGES),
    "vit_head": dict(build=lambda: vit(head=(20, 12), **SMALL_VIT), size=4, inputs=IMAGES),
    "bilstm": dict(build=bilstm, size=6, inputs=[tokens(40, True)]),
    "encoder_decoder": dict(build=encoder_decoder, size=6, inputs=[tokens(30, True), tokens(20, True)]),
    "unet": dict(build=unet, size=3, inputs=IMAGES),
}
WHOLE = {"gpt2_124m": dict(build=gpt2, size=1, inputs=[tokens(50257)])}


def recipe(weight, index):
    shape = weight.shape
    kind, scale = "ones_plus" if weight.name == "gamma" else "uniform", 0.1
    if len(shape) > 1:
        fan = shape[-1] if "embeddings" in weight.name else np.prod(shape[:-1])
        scale = np.sqrt(3.0 / fan)
    entry = {"name": weight.path, "shape": list(shape), "kind": kind, "seed": 1000 + index, "scale": float(np.float32(scale))}
    return entry


def make_input(spec, i, t, shape):
    seed = INPUT_SEED + 1000 * i + t
    if spec["kind"] == "uniform":
        return generate("uniform", seed, 1.0, shape)
    values = (1 + bits(seed, int(np.prod(shape))) % np.uint64(spec["limit"] - 1)).astype("int32").reshape(shape)
    if spec["padded"]:
        row, position = np.indices(shape)
        values[position >= shape[1] - row % 4] = 0
    return values


class Run:
    def __init__(self, build, size, inputs, nudged):
        keras.backend.clear_session()
        self.model = model = build()
        self.recipes = [recipe(w, i) for i, w in enumerate(model.weights)]
        for i, (weight, entry) in enumerate(zip(model.weights, self.recipes)):
            value = generate(entry["kind"], entry["seed"], entry["scale"], entry["shape"])
            weight.assign(nudge(i, value) if nudged else value)
        classes, label_shape = model.output_shape[-1], (size, *model.output_shape[1:-1])
        batches = []
        for t in range(STEPS):
            x = [make_input(s, i, t, (size, *k.shape[1:])) for i, (s, k) in enumerate(zip(inputs, model.inputs))]
            y = (bits(LABEL_SEED + t, int(np.prod(label_shape))) % np.uint64(classes)).astype("int32").reshape(label_shape)
            batches.append((x if len(x) > 1 else x[0], y, None))
        self.output = np.asarray(model(batches[0][0], training=False))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, name="loss")
        self.optimizer = keras.optimizers.AdamW(1e-3, weight_decay=0.01, name="optimizer")
        steps = []
        for step, (value, _, grads) in enumerate(train(model, loss, self.optimizer, batches)):
            steps.append(float(value))
            if step == 0:
                index = {id(w): i for i, w in enumerate(model.weights)}
                pairs = zip(model.trainable_variables, grads)
                self.grads = {index[id(v)]: np.asarray(g) for v, g in pairs}
        self.losses = np.array(steps, "float32")


def make_oracle(name, build, size, inputs):
    run, other = (Run(build, size, inputs, nudged) for nudged in (False, True))
    tensors = {"losses": run.losses, "losses_nudged": other.losses}
    tensors |= sampled("output", 0, run.output)
    if run.output.size > MAX_WHOLE:
        tensors["output_index/0"] = sample_index(0, run.output.size)
    for i, grad in run.grads.items():
        tensors |= sampled("grad", i, grad)
        if grad.size > MAX_WHOLE:
            tensors[f"sample_index/{i}"] = sample_index(i, grad.size)
        tensors[f"grad_norm/{i}"] = norm(grad)
        tensors[f"grad_spread/{i}"] = norm(grad - other.grads[i])
    fixture = Fixture(f"oracle_{name}")
    case = {
        "name": name,
        "batch": size,
        "steps": STEPS,
        "inputs": [spec | {"shape": list(k.shape[1:])} for spec, k in zip(inputs, run.model.inputs)],
        "output_shape": list(run.model.output_shape[1:]),
        "parameters": run.model.count_params(),
        "weights": run.recipes,
        "optimizer": {"class_name": "AdamW", "config": config_of(run.optimizer)},
    }
    fixture.add(case, tensors)
    fixture.save(generator=GENERATOR + "\n" + INPUTS)


def make():
    for name, network in NETWORKS.items():
        make_oracle(name, **network)


if __name__ == "__main__":
    _, name, common.FIXTURES = sys.argv
    make_oracle(name, **(NETWORKS | WHOLE)[name])
