"""The values of variables on each backend: how they become NumPy arrays and are replaced."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from phalanx import _keras


class Values:
    """Values of JAX: immutable arrays, replaced as a whole."""

    @staticmethod
    def to_numpy(value: Any) -> np.ndarray:
        """Returns a value as a NumPy array, without a copy if possible."""
        return np.asarray(value)

    @staticmethod
    def fetch(state: Any, read: Callable[[np.ndarray], None]) -> None:
        """Replaces a float value by what `read` writes into a buffer."""
        # One axis: arrays without axes have no shape in the buffer protocol.
        buffer = np.empty(math.prod(state.variable.shape), np.float32)
        read(buffer)
        VALUES.store(state, buffer)

    @staticmethod
    def store(state: Any, value: Any) -> None:
        """Replaces a value. The new one may share the memory of `value`."""
        import jax

        array = np.asarray(value, dtype=_numpy_type(state.variable)).reshape(tuple(state.variable.shape))
        old = state.value
        place = old.sharding if old is not None and not isinstance(old, jax.core.Tracer) else None
        with jax.ensure_compile_time_eval():
            state.value = jax.device_put(array, place)

    @staticmethod
    def in_place_version(value: Any) -> int:
        """Returns a number that grows when code changes a value without assigning the variable."""
        return 0

    @staticmethod
    def note_read(state: Any) -> None:
        """Called at each read."""

    @staticmethod
    def before_assign(state: Any) -> None:
        """Called before an assignment: the value need not be fetched, since it is replaced as a whole."""
        state.mark_fresh()


class TensorflowValues(Values):
    """Values of TensorFlow: a `tf.Variable` for each variable, which traced functions read directly."""

    @staticmethod
    def to_numpy(value: Any) -> np.ndarray:
        return np.asarray(value.numpy() if hasattr(value, "numpy") else value)

    @staticmethod
    def store(state: Any, value: Any) -> None:
        import tensorflow as tf

        array = np.asarray(value, dtype=_numpy_type(state.variable)).reshape(tuple(state.variable.shape))
        with tf.init_scope():
            state.value.assign(array)

    @staticmethod
    def note_read(state: Any) -> None:
        import tensorflow as tf

        if not state.captured and not tf.executing_eagerly():
            state.captured = True

    @staticmethod
    def before_assign(state: Any) -> None:
        import tensorflow as tf

        if tf.executing_eagerly():
            state.mark_fresh()
        else:
            state.refresh()
            state.captured = state.written_in_graph = True


class TorchValues(Values):
    """Values of PyTorch: parameters, which are changed in place."""

    @staticmethod
    def to_numpy(value: Any) -> np.ndarray:
        import torch

        if isinstance(value, np.ndarray):
            return value
        value = value.detach().cpu()
        return value.float().numpy() if value.dtype == torch.bfloat16 else value.numpy()

    @staticmethod
    def fetch(state: Any, read: Callable[[np.ndarray], None]) -> None:
        import torch

        value = state.value.detach()
        if value.dtype == torch.float32 and value.device.type == "cpu" and value.is_contiguous():
            read(value.numpy().reshape(-1))
        else:
            Values.fetch(state, read)

    @staticmethod
    def store(state: Any, value: Any) -> None:
        import torch

        array = np.array(value, dtype=_numpy_type(state.variable)).reshape(tuple(state.variable.shape))
        with torch.no_grad():
            state.value.copy_(torch.from_numpy(array))

    @staticmethod
    def in_place_version(value: Any) -> int:
        return value._version if hasattr(value, "_version") else 0


def _numpy_type(variable: Any) -> Any:
    name = _keras.standardize_dtype(variable._dtype)
    if name == "bfloat16":
        import ml_dtypes

        return np.float32 if _keras.backend_name() == "torch" else ml_dtypes.bfloat16
    return np.dtype(name)


VALUES: type[Values] = {"tensorflow": TensorflowValues, "torch": TorchValues}.get(_keras.backend_name(), Values)
