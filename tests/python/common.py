"""Shared by all fixture groups: seeded random numbers and the file writer."""

import json
import os
import struct
import zlib

import keras
import numpy as np

FIXTURES = os.path.normpath(
    os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures")
)
DTYPES = {"float32": "F32", "int32": "I32"}


def rng_for(name):
    """A generator that depends on the case name only, so that adding a case does not change the others."""
    return np.random.default_rng(zlib.crc32(name.encode()))


def normal(rng, *shape):
    return rng.standard_normal(shape).astype("float32")


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return (e / e.sum(axis=-1, keepdims=True)).astype("float32")


def one_hot(labels, classes):
    return np.eye(classes, dtype="float32")[labels]


def config_of(thing, **arguments):
    """The config Keras itself would save for a layer, loss, optimizer, ... as plain JSON data.

    Some get_config() methods omit a constructor argument (Huber's delta, Identity's gain); `arguments` adds those.
    """
    return arguments | keras.saving.serialize_keras_object(thing)["config"]


class Fixture:
    """One fixture file: an ordered list of cases, and tensors called "<case name>/<field>"."""

    def __init__(self, group):
        self.group = group
        self.cases = []
        self.tensors = {}

    def add(self, case, tensors):
        name = case["name"]
        if any(name == other["name"] for other in self.cases):
            raise ValueError(f"{self.group}: duplicate case {name}")
        self.cases.append(case)
        for field, value in tensors.items():
            array = np.asarray(value)
            if array.dtype.name not in DTYPES:
                raise TypeError(f"{name}/{field} has dtype {array.dtype}")
            if not np.isfinite(array).all():
                raise ValueError(f"{name}/{field} is not finite")
            # np.ascontiguousarray would turn a scalar into shape (1,).
            self.tensors[f"{name}/{field}"] = array.copy(order="C")

    @classmethod
    def load(cls, group):
        """Reads a file that `save` wrote."""
        fixture = cls(group)
        with open(os.path.join(FIXTURES, f"{group}.safetensors"), "rb") as file:
            data = file.read()
        start = 8 + struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8:start])
        fixture.cases = json.loads(header.pop("__metadata__")["cases"])
        names = {short: name for name, short in DTYPES.items()}
        for name, entry in header.items():
            first, last = entry["data_offsets"]
            array = np.frombuffer(data[start + first : start + last], names[entry["dtype"]])
            fixture.tensors[name] = array.reshape(entry["shape"])
        return fixture

    def copy_case(self, other, name):
        """Takes a case from another fixture."""
        case = next((case for case in other.cases if case["name"] == name), None)
        if case is None:
            raise ValueError(f"{self.group}: no case {name} to keep; make it too")
        prefix = f"{name}/"
        tensors = {key[len(prefix) :]: x for key, x in other.tensors.items() if key.startswith(prefix)}
        self.add(case, tensors)

    def save(self, **metadata):
        """Writes the safetensors format by hand: the library does not preserve the order of the metadata keys."""
        metadata = {
            "cases": json.dumps(self.cases, allow_nan=False),
            "keras": keras.__version__,
            "script": "tests/python/make_fixtures.py",
            **metadata,
        }
        header, offset = {"__metadata__": metadata}, 0
        for name, array in self.tensors.items():
            header[name] = {
                "dtype": DTYPES[array.dtype.name],
                "shape": list(array.shape),
                "data_offsets": [offset, offset + array.nbytes],
            }
            offset += array.nbytes
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        os.makedirs(FIXTURES, exist_ok=True)
        path = os.path.join(FIXTURES, f"{self.group}.safetensors")
        with open(path, "wb") as file:
            file.write(struct.pack("<Q", len(text)))
            file.write(text)
            for array in self.tensors.values():
                file.write(array.tobytes())
        print(
            f"{self.group}: {len(self.cases)} cases, {len(self.tensors)} tensors, {os.path.getsize(path)} bytes",
            flush=True,
        )
