"""Writes malicious HDF5 files for the test `malicious`: tests/fixtures/bad/*.h5.

The weights are those of `Dense(3)` on four inputs, a kernel [4, 3] and a bias [3], with one defect each.
"""

import json
import os

import h5py
import numpy as np

DIRECTORY = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures", "bad"))
KERNEL = np.arange(12, dtype="float32").reshape(4, 3)


def soft_link(file, vars):
    vars["0"] = h5py.SoftLink("/kernel")
    file["kernel"] = KERNEL


def external_link(file, vars):
    vars["0"] = h5py.ExternalLink("/etc/passwd", "/kernel")


def external_data(file, vars):
    vars.create_dataset("0", (4, 3), "float32", external=[("/etc/passwd", 0, 48)])


def virtual_data(file, vars):
    layout = h5py.VirtualLayout((4, 3), "float32")
    layout[:] = h5py.VirtualSource("/etc/passwd", "kernel", (4, 3))
    vars.create_virtual_dataset("0", layout)


def huge_shape(file, vars):
    vars.create_dataset("0", (2**40, 2**20), "float32", chunks=(4, 3))


def huge_slot(file, vars):
    vars["0"] = KERNEL
    slots = file.create_group("optimizer/vars")
    slots["0"] = np.int32(1)
    slots.create_dataset("1", (2**33,), "float32", chunks=(1024,))


def never_written(file, vars):
    vars.create_dataset("0", (4, 3), "float32")


def strings(file, vars):
    vars["0"] = np.full((4, 3), b"a")


def records(file, vars):
    vars["0"] = np.zeros((4, 3), [("a", "float32")])


def group_for_dataset(file, vars):
    vars.create_group("0")


def cycle(file, vars):
    vars["0"] = file["layers"]


def unknown_filter(file, vars):
    vars.create_dataset("0", data=KERNEL, compression="lzf")


def named_type(file, vars):
    file["kind"] = np.dtype("float32")
    vars.create_dataset("0", data=KERNEL, dtype=file["kind"])


def other_numbers(file, vars):
    """Valid: a kernel of half floats, and a bias of big-endian doubles."""
    vars["0"] = KERNEL.astype("float16")
    del vars["1"]
    vars["1"] = np.array([1.5, -2, 0.25], ">f8")


CASES = [soft_link, external_link, external_data, virtual_data, huge_shape, huge_slot, never_written, strings, records]
CASES += [group_for_dataset, cycle, unknown_filter, named_type, other_numbers]


def legacy(name, layer, layer_names, weight_names):
    """Writes a whole model with one layer after its input."""
    shape = {"name": "x", "batch_shape": [None, 4]}
    layers = [{"class_name": "InputLayer", "config": shape}, layer]
    config = {"class_name": "Sequential", "config": {"name": "bad", "layers": layers}}
    with h5py.File(os.path.join(DIRECTORY, f"{name}.h5"), "w") as file:
        file.attrs["model_config"] = json.dumps(config)
        weights = file.create_group("model_weights")
        weights.attrs["layer_names"] = layer_names
        group = weights.create_group("dense")
        group.attrs["weight_names"] = weight_names
        group["kernel"], group["bias"] = KERNEL, np.zeros(3, "float32")
        slots = file.create_group("optimizer_weights")
        slots.attrs["weight_names"] = [b"a", b"a", b"a"]
        slots["a"] = np.zeros(3, "float32")


def main():
    os.makedirs(DIRECTORY, exist_ok=True)
    for case in CASES:
        with h5py.File(os.path.join(DIRECTORY, f"{case.__name__}.weights.h5"), "w") as file:
            vars = file.create_group("layers/dense/vars")
            vars["1"] = np.zeros(3, "float32")
            case(file, vars)
    dense = {"class_name": "Dense", "config": {"name": "dense", "units": 3}}
    code = {"class_name": "__lambda__", "config": {"code": "4wEAAAAAAAAAAAAAAAEAAAACAAAAQw==", "defaults": None}}
    call = {"class_name": "Lambda", "config": {"name": "dense", "function": code}}
    legacy("legacy_lambda", call, [b"dense"], [b"kernel", b"bias"])
    legacy("legacy_path", dense, [b"../../etc/passwd"], [b"kernel", b"bias"])
    legacy("legacy_twice", dense, [b"dense", b"dense"], [b"kernel", b"bias"])
    legacy("legacy_slots", dense, [b"dense"], [b"kernel", b"bias"])


if __name__ == "__main__":
    main()
