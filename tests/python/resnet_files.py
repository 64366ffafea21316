"""Weight files of ResNet50 in the layouts of the official files, current and old, with and without top.

The official files with their ImageNet weights are not needed: the check covers the names, order and storage of the layers,
and the predictions of the network.
"""

import os

import h5py
import keras
import numpy as np
from keras.src.legacy.saving import legacy_h5_format

from check_files import save_tensors

SHAPE, CLASSES = (32, 32, 3), 10
STAGES = ((2, "abc"), (3, "abcd"), (4, "abcdef"), (5, "abc"))


def old_order():
    """Yields old and current names in the order of the old file, which differs from the current one where branches merge."""
    yield "conv1", "conv1_conv"
    yield "bn_conv1", "conv1_bn"
    for stage, blocks in STAGES:
        for i, block in enumerate(blocks, 1):
            at, new = f"{stage}{block}_branch", f"conv{stage}_block{i}_"
            for part, number in (("2a", 1), ("2b", 2)):
                yield f"res{at}{part}", f"{new}{number}_conv"
                yield f"bn{at}{part}", f"{new}{number}_bn"
            ends = [("2c", 3), ("1", 0)] if i == 1 else [("2c", 3)]
            for prefix, kind in (("res", "conv"), ("bn", "bn")):
                for part, number in ends:
                    yield f"{prefix}{at}{part}", f"{new}{number}_{kind}"
    yield "fc1000", "predictions"


def build(epsilon):
    model = keras.applications.ResNet50(weights=None, input_shape=SHAPE, classes=CLASSES)
    config = model.get_config()
    for layer in config["layers"]:
        if layer["class_name"] == "BatchNormalization":
            layer["config"]["epsilon"] = epsilon
    model = keras.Model.from_config(config)
    rng = np.random.default_rng(50)
    for w in model.weights:
        noise = 0.05 * rng.standard_normal(w.shape).astype("float32")
        w.assign(np.abs(w.numpy() + noise) if "variance" in w.name else w.numpy() + noise)
    return model


def write_old(path, model, top):
    names = [(old, new) for old, new in old_order() if top or new != "predictions"]
    with h5py.File(path, "w") as file:
        file.attrs["layer_names"] = np.array([old.encode() for old, _ in names])
        for old, new in names:
            group = file.create_group(old)
            weights = {f"{old}_{w.name}:0": w.numpy() for w in model.get_layer(new).weights}
            group.attrs["weight_names"] = np.array([name.encode() for name in weights])
            for name, value in weights.items():
                group.create_dataset(name, data=value, compression="gzip" if "bn" in old else None, shuffle="bn" in old)


def write_new(path, model, top):
    part = model if top else keras.Model(model.inputs, model.get_layer("conv5_block3_out").output)
    with h5py.File(path, "w") as file:
        legacy_h5_format.save_weights_to_hdf5_group(file, part)


def write(directory):
    images = np.random.default_rng(51).uniform(0, 255, (4, *SHAPE)).astype("float32")
    for version, epsilon, save in (("old", 1e-3, write_old), ("new", 1.001e-5, write_new)):
        model = build(epsilon)
        both = keras.Model(model.inputs, [model.get_layer("conv5_block3_out").output, model.output])
        ready = keras.applications.resnet50.preprocess_input(images.copy())
        features, classes = (np.asarray(y) for y in both.predict_on_batch(ready))
        for top, result in ((True, classes), (False, features)):
            path = os.path.join(directory, f"resnet50_{version}_{'top' if top else 'notop'}")
            save(f"{path}.h5", model, top)
            save_tensors(f"{path}.safetensors", {"x0": images, "p0": result})
