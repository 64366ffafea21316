"""Writes small HDF5 files with features that Keras does not use, for the tests of the reader:
crates/phalanx-hdf5/tests/fixtures/h5py_*.h5."""

import os

import h5py
import numpy as np

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
FIXTURES = os.path.join(ROOT, "crates", "phalanx-hdf5", "tests", "fixtures")


def main():
    with h5py.File(os.path.join(FIXTURES, "h5py_latest.h5"), "w", libver="latest") as file:
        many = file.create_group("many")
        for i in range(12):
            many[str(i)] = np.full(2, i, "float32")
            many.attrs[f"text_{i}"] = f"value {i}"
        file["elsewhere"] = h5py.ExternalLink("/etc/passwd", "/x")
    with h5py.File(os.path.join(FIXTURES, "h5py_v108.h5"), "w", libver=("earliest", "v108")) as file:
        data = np.arange(70, dtype="int16").reshape(10, 7)
        file.create_dataset("chunked", data=data, chunks=(3, 4), compression="gzip", shuffle=True, fletcher32=True)
        file["half"] = np.array([0.5, -2, np.inf], "float16")
        file["big_endian"] = np.array([1.5, -3], ">f8")


if __name__ == "__main__":
    main()
