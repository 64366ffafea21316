"""The state of Keras' callbacks, saved and set when a run is resumed."""

import base64
import contextlib
import csv
import io
import json
import os
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from phalanx._keras import keras
from phalanx._warnings import warn

_ATTRIBUTES: dict[type, tuple[str, ...]] = {
    keras.callbacks.EarlyStopping: ("wait", "best", "stopped_epoch", "best_epoch", "best_weights"),
    keras.callbacks.History: ("epoch", "history"),
    keras.callbacks.ModelCheckpoint: ("best", "_batches_seen_since_last_saving", "_last_batch_seen", "_current_epoch"),
    keras.callbacks.ReduceLROnPlateau: ("wait", "best", "cooldown_counter"),
    keras.callbacks.SwapEMAWeights: ("_ema_weights_in_model",),
    keras.callbacks.TensorBoard: ("_global_train_batch", "_global_test_batch", "_previous_epoch_iterations"),
}
_STATELESS = (
    keras.callbacks.CSVLogger,
    keras.callbacks.LambdaCallback,
    keras.callbacks.LearningRateScheduler,
    keras.callbacks.ProgbarLogger,
    keras.callbacks.RemoteMonitor,
    keras.callbacks.TerminateOnNaN,
)


_TAGS = ({"npy"}, {"tuple"}, {"dict"})


def save(callbacks: list[Any]) -> str:
    """Returns the state of callbacks as text."""
    return json.dumps([_encode(_state_of(callback)) for callback in callbacks])


def load(callbacks: list[Any], text: str) -> None:
    """Sets the state of callbacks. One that was not there when the state was saved keeps its initial state."""
    saved = json.loads(text, object_hook=_decode) if text else []
    for callback in callbacks:
        name = _name(callback)
        at = next((at for at, entry in enumerate(saved) if entry["name"] == name), None)
        entry = None if at is None else saved.pop(at)
        if entry is None or entry["state"] is None:
            _warn_without_state(callback)
        elif hasattr(callback, "set_state"):
            callback.set_state(entry["state"])
        else:
            for attribute, value in entry["state"].items():
                setattr(callback, attribute, value)


@contextlib.contextmanager
def continued_files(callbacks: list[Any], epoch: int) -> Iterator[None]:
    """Lets `CSVLogger` go on with its file, from which rows of epochs that are repeated are removed."""
    loggers = [callback for callback in callbacks if isinstance(callback, keras.callbacks.CSVLogger)]
    before = [(logger, logger.append) for logger in loggers]
    for logger in loggers:
        if os.path.exists(logger.filename):
            _remove_rows(logger.filename, logger.sep, epoch)
            logger.append = True
    try:
        yield
    finally:
        for logger, append in before:
            logger.append = append


def _state_of(callback: Any) -> dict[str, Any]:
    state = None
    if hasattr(callback, "get_state"):
        state = callback.get_state()
    else:
        names = next((names for kind, names in _ATTRIBUTES.items() if isinstance(callback, kind)), ())
        state = {name: getattr(callback, name) for name in names if hasattr(callback, name)} or None
    return {"name": _name(callback), "state": state}


def _name(callback: Any) -> str:
    return f"{type(callback).__module__}.{type(callback).__qualname__}"


def _warn_without_state(callback: Any) -> None:
    known = (*_ATTRIBUTES, *_STATELESS)
    if type(callback) not in known and not hasattr(callback, "set_state"):
        name = type(callback).__name__
        warn(f"the state of callback '{name}' is not restored: give it get_state() and set_state()")


def _remove_rows(filename: str, separator: str, epoch: int) -> None:
    """Removes the rows of an epoch and later ones. The file is replaced as a whole."""
    with open(filename, newline="") as file:
        rows = list(csv.reader(file, delimiter=separator))
    kept = rows[:1] + [row for row in rows[1:] if row and row[0].isdigit() and int(row[0]) < epoch]
    if kept == rows:
        return
    folder = os.path.dirname(os.path.abspath(filename))
    with tempfile.NamedTemporaryFile("w", newline="", dir=folder, delete=False) as replacement:
        csv.writer(replacement, delimiter=separator).writerows(kept)
        replacement.flush()
        os.fsync(replacement.fileno())
    os.replace(replacement.name, filename)


def _encode(value: Any) -> Any:
    """Returns a value as JSON has it. A dict with the one key "npy", "tuple" or "dict" stands for another type."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        if all(type(key) is str for key in value) and value.keys() not in _TAGS:
            return {key: _encode(entry) for key, entry in value.items()}
        return {"dict": [[_encode(key), _encode(entry)] for key, entry in value.items()]}
    if isinstance(value, tuple):
        return {"tuple": [_encode(entry) for entry in value]}
    if isinstance(value, list):
        return [_encode(entry) for entry in value]
    if isinstance(value, (bool, int, float, str)):
        # Of a class of its own, such as an `IntEnum`.
        return next(kind(value) for kind in (bool, int, float, str) if isinstance(value, kind))
    if hasattr(value, "__array__"):
        buffer = io.BytesIO()
        np.save(buffer, np.asarray(value), allow_pickle=False)
        return {"npy": base64.b64encode(buffer.getvalue()).decode()}
    raise TypeError(
        f"get_state(): expected numbers, strings, arrays, lists, tuples and dicts, received {type(value).__name__}"
    )


def _decode(value: dict[str, Any]) -> Any:
    if value.keys() == {"npy"}:
        return np.load(io.BytesIO(base64.b64decode(value["npy"])), allow_pickle=False)
    if value.keys() == {"tuple"}:
        return tuple(value["tuple"])
    if value.keys() == {"dict"}:
        return {key: entry for key, entry in value["dict"]}
    return value
