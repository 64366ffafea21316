"""Arrays of any kind as buffers that the engine reads, in the order of a model's inputs and outputs."""

import math
import sys
from typing import Any

import numpy as np

from phalanx import _keras, _phalanx
from phalanx._keras import KerasTensor, tree
from phalanx._warnings import warn

_NUMBERS = "iuf"


def as_buffer(value: Any) -> np.ndarray:
    """Returns a C-contiguous array of a type that the engine reads, without a copy if possible."""
    array = to_numpy(value)
    if array.dtype == bool:
        array = np.ascontiguousarray(array).view(np.uint8)
    elif array.dtype.kind == "O":
        array = _from_objects(array)
    elif array.dtype.kind not in _NUMBERS or array.dtype.itemsize not in (1, 2, 4, 8):
        array = _from_other(array)
    if array.dtype == np.float16:
        array = array.astype(np.float32)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return np.asarray(array, order="C")


def unsupported_data(reason: str) -> _phalanx.UnsupportedError:
    """Returns the error about data that is not supported."""
    error = _phalanx.UnsupportedError(reason)
    error.reasons = [reason]
    return error


def to_numpy(value: Any) -> np.ndarray:
    """Returns an array, tensor, `DataFrame` or `Series` as a NumPy array."""
    if isinstance(value, np.ndarray):
        return value
    if _keras.is_sparse_or_ragged(value):
        raise unsupported_data(f"sparse or ragged data is not supported: {type(value).__name__}")
    if _keras.is_torch_tensor(value):
        value = value.detach().cpu()
        return value.float().numpy() if str(value.dtype) == "torch.bfloat16" else value.numpy()
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(value, pandas.Series):
        return np.expand_dims(value.to_numpy(), axis=-1)
    if pandas is not None and isinstance(value, pandas.DataFrame):
        return value.to_numpy()
    return np.asarray(value)


def shape_of(value: Any) -> tuple[int, ...]:
    """Returns the shape that a value has as a NumPy array."""
    shape = tuple(int(size) for size in value.shape) if hasattr(value, "shape") else np.shape(value)
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(value, pandas.Series):
        return (*shape, 1)
    return shape


def type_of(value: Any) -> str:
    """Returns Keras' name of a value's element type."""
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        dtype = to_numpy(value).dtype
    if isinstance(dtype, np.dtype) and dtype.kind in "OUS":
        return "string" if dtype.kind != "O" or isinstance(value.flat[0], str) else "float32"
    try:
        return _keras.standardize_dtype(dtype)
    except ValueError:
        return "float32"


def flatten_inputs(model: Any, x: Any) -> list[Any]:
    """Returns inputs in the order of the model's, given as a tensor, list, or dict by name."""
    struct = _keras.inputs_struct(model)
    references = tree.flatten(struct)
    if isinstance(x, dict) and not isinstance(struct, dict):
        names = [reference.name for reference in references]
        missing = [name for name in names if name not in x]
        if missing:
            raise ValueError(
                f"The structure of `inputs` doesn't match the expected structure.\nExpected: {names}\n"
                f"Received: inputs={list(x)}"
            )
        values = [x[name] for name in names]
    elif isinstance(x, dict) and isinstance(struct, dict):
        values = [x[key] for key in _sorted_keys(struct)] if set(struct) <= set(x) else tree.flatten(x)
    else:
        _check_structure(x, struct)
        values = tree.flatten(x)
    if len(values) != len(references):
        raise ValueError(f"model '{model.name}': expected {len(references)} inputs, received {len(values)}")
    return [_match_rank(value, reference) for value, reference in zip(values, references, strict=True)]


def _check_structure(x: Any, struct: Any) -> None:
    """Raises or warns, as Keras does, if inputs without keys are given to a model whose inputs have keys."""
    if not isinstance(struct, dict) or isinstance(x, dict):
        return
    keys = list(struct)
    message = (
        "The structure of `inputs` doesn't match the expected structure.\n"
        f"Expected: { ({key: reference.name for key, reference in struct.items()}) }\n"
        f"Received: inputs={tree.map_structure(lambda value: f'Tensor(shape={shape_of(value)})', x)}"
    )
    if keys != sorted(keys):
        raise ValueError(message)
    warn(message)


def flatten_targets(model: Any, y: Any, outputs: list[int] | None) -> list[Any]:
    """Returns the targets that a step takes, given as a tensor, list, or dict by name.

    `outputs` are the numbers of the model's outputs with a loss or metrics. Other targets are left out.
    """
    if y is None or not outputs:
        return []
    targets = _by_output(model, y, outputs, "targets")
    for output, value in zip(outputs, targets, strict=True):
        if value is None:
            name = model.output_names[output]
            raise ValueError(f"model '{model.name}', output '{name}': expected targets, received None")
    return targets


def target_weights(model: Any, sample_weight: Any, outputs: list[int] | None) -> Any:
    """Returns sample weights as the engine takes them.

    These are an array with a number for each sample, a list with an array or `None` for each target that a step takes,
    or `None`.
    """
    if sample_weight is None or not outputs:
        return None
    if tree.is_nested(sample_weight):
        values = _by_output(model, sample_weight, outputs, "sample weights")
    else:
        values = [sample_weight] * len(outputs)
    first = values[0]
    if any(value is not first for value in values):
        return [None if value is None else _weights(value) for value in values]
    if first is None:
        return None
    weights = _weights(first)
    return weights if weights.ndim == 1 else [weights] * len(outputs)


def _weights(value: Any) -> np.ndarray:
    """Returns weights of samples, which have one dimension, or of their positions."""
    array = as_buffer(value)
    return array.reshape(-1) if math.prod(array.shape[1:]) == 1 else array


def _by_output(model: Any, values: Any, outputs: list[int], what: str) -> list[Any]:
    """Returns the values of some outputs, given for all or for these, in the order of the outputs."""
    struct = _keras.outputs_struct(model)
    count = len(tree.flatten(struct))
    if isinstance(values, dict):
        keys = _sorted_keys(struct) if isinstance(struct, dict) else list(model.output_names)
        unknown = [key for key in values if key not in keys]
        if unknown:
            raise ValueError(f"model '{model.name}': expected {what} for {keys}, received {list(values)}")
        given = [value for key in keys if key in values for value in tree.flatten(values[key])]
        if len(given) < count and len(keys) == count:
            given = [values.get(key) for key in keys]
    else:
        given = tree.flatten(values)
    if len(given) == count:
        return [given[output] for output in outputs]
    if len(given) != len(outputs):
        raise ValueError(f"model '{model.name}': expected {what} for {count} outputs, received {len(given)}")
    return given


def _sorted_keys(struct: dict[str, Any]) -> list[str]:
    """Returns the keys of a dict of tensors in the order in which Keras flattens it."""
    positions = tree.pack_sequence_as(struct, list(range(len(struct))))
    return sorted(positions, key=lambda key: positions[key])


def _match_rank(value: Any, reference: KerasTensor) -> Any:
    """Adds or removes a last dimension of size 1, as Keras does for inputs."""
    if value is None:
        if _keras.is_optional(reference):
            raise unsupported_data(f"input '{reference.name}' is missing, which is not supported")
        raise ValueError(f"The input '{reference.name}' is not optional, but None was passed: give it a tensor")
    shape, expected = shape_of(value), reference.shape
    if len(shape) == len(expected) + 1 and shape[-1] == 1:
        return np.squeeze(to_numpy(value), axis=-1)
    if len(shape) == len(expected) - 1 and expected[-1] == 1:
        return np.expand_dims(to_numpy(value), axis=-1)
    matches = len(shape) == len(expected) and all(
        b is None or a == b for a, b in zip(shape[1:], expected[1:], strict=True)
    )
    if not matches:
        raise ValueError(
            f"Invalid input shape for input with name '{reference.name}'. Expected shape {tuple(expected)}, but input "
            f"has incompatible shape {shape}"
        )
    return value


def _from_objects(array: np.ndarray) -> np.ndarray:
    if any(isinstance(value, (str, bytes)) for value in array.flat):
        raise unsupported_data("strings are not supported as data; convert them to integers first")
    try:
        return array.astype(np.float32)
    except (TypeError, ValueError) as error:
        raise ValueError(f"data: expected numbers, received objects: {error}") from None


def _from_other(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind in "US":
        raise unsupported_data("strings are not supported as data; convert them to integers first")
    if array.dtype.kind == "c":
        raise unsupported_data("complex numbers are not supported as data")
    return array.astype(np.float32)
