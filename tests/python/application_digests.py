"""applications.json: the networks of keras.applications that Phalanx builds by name.

    python tests/python/application_digests.py              # writes tests/fixtures/applications.json, three minutes
    python tests/python/application_digests.py NAME CASE    # prints the text behind a digest, to compare with Phalanx'

For every network the file has the cases `imagenet` (with top, 1000 classes, the network's own size), `imagenet_notop` (64x64
images and a pooling) and, for one member of each family, `own` (other sizes, channels and classes). A case has the number of
parameters, a digest of the config, a digest of the weights' shapes in order, and for ImageNet the official file that Keras
would download. Weights are never loaded. One member of each family has the logits of two images, with weights and images
from the generator of networks.py.
"""

import hashlib
import json
import os
import sys
from unittest import mock

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np
from common import FIXTURES
from keras.src.initializers.random_initializers import VarianceScaling
from keras.src.utils import file_utils
from networks import generate

NAMES = (
    [f"ResNet{depth}{version}" for version in ("", "V2") for depth in (50, 101, 152)]
    + ["VGG16", "VGG19", "DenseNet121", "DenseNet169", "DenseNet201"]
    + ["MobileNetV2", "MobileNetV3Small", "MobileNetV3Large"]
    + [f"EfficientNetB{i}" for i in range(8)]
    + [f"EfficientNetV2{size}" for size in ("B0", "B1", "B2", "B3", "S", "M", "L")]
    + [f"ConvNeXt{size}" for size in ("Tiny", "Small", "Base", "Large", "XLarge")]
)
# The smallest member of each family.
SMALLEST = (
    "ResNet50 ResNet50V2 VGG16 DenseNet121 MobileNetV2 MobileNetV3Small EfficientNetB0 EfficientNetV2B0 EfficientNetV2S "
    "ConvNeXtTiny"
).split()
POOLINGS = (None, "avg", "max")
# Of the logits.
SHAPE, CLASSES, SEED = (64, 64, 3), 10, 5_000


def gain(name):
    """Of the kernels. Swish halves small numbers, so that networks of it fade with less."""
    return 10.0 if name.startswith("EfficientNet") else 6.0


def canonical(value):
    """A text of a JSON value that does not depend on how numbers are written."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(k)}:{canonical(v)}" for k, v in sorted(value.items())) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(canonical, value)) + "]"
    if isinstance(value, float) and value != int(value):
        mantissa, exponent = f"{value:.6e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    return json.dumps(int(value) if isinstance(value, float) else value)


# What Keras adds when it saves, and options at their defaults that Phalanx reads but does not write.
DROPPED = (
    "kwargs build_config compile_config optional ragged sparse input_axes output_axes renorm renorm_clipping renorm_momentum "
    "quantization_config"
).split()


def stripped(value):
    if isinstance(value, dict):
        return {k: stripped(v) for k, v in value.items() if k not in DROPPED}
    return [stripped(v) for v in value] if isinstance(value, list) else value


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def built(name, case):
    """The network of a case, and the arguments with which Keras would fetch its weights."""
    build = getattr(keras.applications, name)
    files = []

    def get_file(file, url, cache_subdir=None, file_hash=None):
        files.append({"file": file, "url": url, "checksum": file_hash})

    keras.backend.clear_session()
    with (
        mock.patch.object(file_utils, "get_file", get_file),
        mock.patch.object(keras.Model, "load_weights"),
        # Drawing the weights of large networks would take minutes; their values do not matter here.
        mock.patch.object(VarianceScaling, "__call__", lambda self, shape, dtype=None: keras.ops.zeros(shape, dtype)),
    ):
        model = build(**case)
    return model, files[0] if files else None


def cases(name):
    index = NAMES.index(name)
    # MobileNetV3 leaves the size open unless it is given.
    yield "imagenet", {"weights": "imagenet"} | ({"input_shape": (224, 224, 3)} if "V3" in name else {})
    notop = {"weights": "imagenet", "include_top": False, "input_shape": (64, 64, 3), "pooling": POOLINGS[index % 3]}
    yield "imagenet_notop", notop
    if name in SMALLEST:
        own = {"weights": None, "input_shape": (75, 48, 1), "classes": 7, "classifier_activation": None}
        yield "own", own


def recipe(weight, index, gain):
    """Kind, seed and scale of a weight; the Rust test has the same rule."""
    kind, shape = "uniform", weight.shape
    if weight.name in ("gamma", "moving_variance", "variance"):
        kind = "ones_plus"
    scale = 0.1
    if len(shape) > 1:
        scale = np.sqrt(np.float32(gain / np.prod(shape[:-2] if shape[-1] == 1 else shape[:-1])))
    return kind, SEED + index, np.float32(scale)


def logits(name):
    keras.backend.clear_session()
    build = getattr(keras.applications, name)
    model = build(weights=None, input_shape=SHAPE, classes=CLASSES, classifier_activation=None)
    for index, weight in enumerate(model.weights):
        weight.assign(generate(*recipe(weight, index, gain(name)), weight.shape))
    for layer in model.layers:
        if isinstance(layer, keras.layers.Normalization):
            layer.finalize_state()
    x = generate("uniform", SEED - 1, 127.5, (2, *SHAPE)) + np.float32(127.5)
    y = np.asarray(model(x, training=False))
    assert np.isfinite(y).all() and np.abs(y[0] - y[1]).max() > 1e-3 * np.abs(y).max(), (name, y)
    return [[float(v) for v in row] for row in y]


def text_of(name, case):
    model, _ = built(name, dict(cases(name))[case])
    return canonical(stripped(json.loads(json.dumps(keras.saving.serialize_keras_object(model)))))


def main():
    if len(sys.argv) == 3:
        print(text_of(*sys.argv[1:]).replace('{"class_name"', '\n{"class_name"'))
        return
    networks, predicted = [], {name: logits(name) for name in SMALLEST}
    for name in NAMES:
        entry = {"name": name, "cases": {}}
        for case, arguments in cases(name):
            model, file = built(name, arguments)
            config = canonical(stripped(json.loads(json.dumps(keras.saving.serialize_keras_object(model)))))
            shapes = json.dumps([list(w.shape) for w in model.weights], separators=(",", ":"))
            entry["cases"][case] = {
                "arguments": {k: v for k, v in arguments.items() if k != "weights"},
                "model_name": model.name,
                "parameters": model.count_params(),
                "config": digest(config),
                "shapes": digest(shapes),
            } | ({"file": file} if file else {})
            del model
        if name in SMALLEST:
            entry |= {"gain": gain(name), "logits": predicted[name]}
        networks.append(entry)
        print(name, flush=True)
    with open(os.path.join(FIXTURES, "applications.json"), "w") as file:
        script = "tests/python/application_digests.py"
        lines = ",\n".join(json.dumps(entry) for entry in networks)
        file.write(f'{{"keras": "{keras.__version__}", "script": "{script}", "networks": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
