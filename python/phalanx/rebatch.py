"""Reading several batches of a `tf.data.Dataset` at once.

A batch costs TensorFlow some 200 µs, whatever its size. If a dataset ends in `batch(B)`, possibly followed by
`prefetch` or `cache`, then all batches but the last have B elements, and `rebatch(k * B)` can be cut into the very
same batches.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from phalanx import _keras
from phalanx._keras import tree

MAX_BATCHES = 32
MAX_BYTES = 4 << 20

_PASSED_THROUGH = ("PrefetchDataset", "CacheDataset", "OptionsDataset")
_BATCHING = ("BatchDataset", "ParallelBatchDataset")


def rebatched(adapter: _keras.TFDatasetAdapter) -> _keras.TFDatasetAdapter | None:
    """Returns an adapter that reads several batches at once, if the batches stay the same."""
    dataset = _keras.adapter_dataset(adapter)
    size = batch_size_of(dataset)
    if size is None or not hasattr(dataset, "rebatch"):
        return None
    count = _batches_at_once(dataset, size)
    return RebatchedAdapter(dataset, size, count) if count > 1 else None


class RebatchedAdapter(_keras.TFDatasetAdapter):
    """An adapter that reads `count` batches of `size` elements at once."""

    def __init__(self, dataset: Any, size: int, count: int) -> None:
        super().__init__(dataset)
        self._size = size
        self._large = dataset.rebatch(size * count)

    @property
    def batch_size(self) -> int:
        return self._size

    def get_numpy_iterator(self) -> Iterator[Any]:
        for chunk in self._large:
            arrays = tree.map_structure(_view, chunk)
            rows = len(tree.flatten(arrays)[0])
            for start in range(0, rows, self._size):
                yield tree.map_structure(lambda array, at=start: array[at : at + self._size], arrays)


def _view(tensor: Any) -> np.ndarray:
    """Returns a tensor as an array without a copy, if its type has one in Python's buffers."""
    try:
        return np.asarray(memoryview(tensor))
    except (BufferError, TypeError, ValueError):
        return tensor.numpy()


def batch_size_of(dataset: Any) -> int | None:
    """Returns the size of all batches but the last, if the dataset's definition tells."""
    while True:
        name = type(dataset).__name__.lstrip("_")
        if name in _BATCHING:
            size = getattr(dataset, "_batch_size", None)
            return None if size is None else int(size)
        if name not in _PASSED_THROUGH:
            return None
        dataset = getattr(dataset, "_input_dataset", None)


def is_fixed(spec: Any) -> bool:
    """Whether a part of a dataset's elements is a dense tensor with known sizes, except that of the batch."""
    shape = getattr(spec, "shape", None)
    dense = type(spec).__name__ == "TensorSpec"
    return (
        dense and shape is not None and shape.rank is not None and shape.rank >= 1 and None not in shape.as_list()[1:]
    )


def _batches_at_once(dataset: Any, size: int) -> int:
    """Returns how many batches fit into the limits; 1 if elements have open or unknown sizes."""
    total = 0
    for spec in tree.flatten(dataset.element_spec):
        if not is_fixed(spec):
            return 1
        elements = 1
        for dimension in spec.shape.as_list()[1:]:
            elements *= dimension
        total += size * elements * max(spec.dtype.size, 1)
    return max(1, min(MAX_BATCHES, MAX_BYTES // max(total, 1)))
