"""Reading a PyTorch `DataLoader`."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from phalanx import _keras
from phalanx._keras import tree


class LoaderAdapter(_keras.TorchDataLoaderAdapter):
    """Keras' adapter, without its walk through the structure of batches that are plain lists of tensors."""

    def get_numpy_iterator(self) -> Iterator[Any]:
        return map(_arrays, self.get_torch_dataloader())


def _arrays(batch: Any) -> tuple[Any, ...]:
    """Returns a batch as arrays that share the memory of its tensors."""
    if type(batch) in (list, tuple) and all(map(_keras.is_torch_tensor, batch)):
        return tuple([np.asarray(tensor.cpu()) for tensor in batch])
    return tuple(tree.map_structure(lambda tensor: np.asarray(tensor.cpu()), batch, none_is_leaf=False))
