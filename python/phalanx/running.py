"""What every call of an attached model does: open its data, build the model and put it on the devices."""

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from phalanx import _keras, _phalanx
from phalanx._keras import tree
from phalanx.data import Source, open_source
from phalanx.hooks import PREDICT, TEST, TRAIN
from phalanx.session import Session
from phalanx.unsupported import unsupported_error
from phalanx.variables import Link


class RunByKeras(Exception):
    """Keras is to run a model in place of the engine."""

    def __init__(self, source: Source | None = None) -> None:
        super().__init__()
        self.x = getattr(source, "x_for_keras", None)
        """The data as Keras may read it; `None` if it can read what it was given."""
        self.arguments: dict[str, Any] = {}


def session_of(model: Any) -> Session:
    session = Session.of(model)
    if session is None:
        raise RuntimeError(f"model '{model.name}' is not attached to phalanx: compile it in a strategy's scope")
    return session


def check_integers(method: str, arguments: dict[str, Any], names: tuple[str, ...]) -> None:
    for name in names:
        value = arguments[name]
        if value is not None and not hasattr(value, "__index__"):
            raise TypeError(f"{method}: {name}: expected an integer, received {value!r}")


def check_batch_sizes(method: str, arguments: dict[str, Any], names: tuple[str, ...]) -> None:
    check_integers(method, arguments, names)
    for name in names:
        value = arguments[name]
        if value is not None and value < 0:
            raise ValueError(f"{method}: {name}: expected 1 or more, received {value}")


def open_data(model: Any, session: Session, stack: contextlib.ExitStack, **arguments: Any) -> Source:
    """Opens the data of a run, and closes it when the run ends."""
    # Before the data is opened, since a generator would lose batches.
    if session.falls_back(model):
        raise RunByKeras
    arguments = {"y": None, "sample_weight": None, "class_weight": None, **arguments}
    try:
        source = open_source(**arguments)
    except _phalanx.UnsupportedError as error:
        session.refuse_data(model, error)
        raise RunByKeras from error
    stack.callback(source.close)
    return source


def prepare(model: Any, session: Session, source: Source, *, training: bool, compiled: bool = True) -> Link:
    """Builds the model for the data, and puts it on the devices."""
    try:
        example = source.example(discard=_keras.builds_from_data(model, compiled))
    except _phalanx.UnsupportedError as error:
        session.refuse_data(model, error)
        raise RunByKeras(source) from error
    return build(model, session, example, source, training=training, compiled=compiled)


def engine_data(model: Any, session: Session, source: Source) -> Any:
    """Returns the data as the engine takes it."""
    try:
        return source.data(model, session.target_outputs)
    except _phalanx.UnsupportedError as error:
        session.refuse_data(model, error)
        raise RunByKeras(source) from error


@contextlib.contextmanager
def naming(model: Any) -> Iterator[None]:
    """Lets errors about data that was found in a run name the model: Keras cannot take over by then."""
    try:
        yield
    except _phalanx.UnsupportedError as error:
        raise unsupported_error(model, getattr(error, "reasons", None) or [str(error)]) from error


def build(
    model: Any,
    session: Session,
    example: tuple[Any, Any, Any],
    source: Source | None = None,
    *,
    training: bool,
    compiled: bool = True,
) -> Link:
    """Builds the model for data like `example`, and puts it on the devices."""
    if session.falls_back(model):
        raise RunByKeras(source)
    if training:
        session.check_trainable()
    with session.trainable_as_compiled(model):
        _keras.build(model, *example)
        if session.falls_back(model):
            raise RunByKeras(source)
        try:
            return session.prepare(model, training=training, compiled=compiled)
        except _phalanx.UnsupportedError as error:
            session.refuse_data(model, error)
            raise RunByKeras(source) from error


def pack_outputs(model: Any, outputs: list[Any]) -> Any:
    """Returns the engine's outputs in the model's structure and types."""
    struct = _keras.outputs_struct(model)
    arrays = [
        np.asarray(output).astype(_keras.numpy_type(reference.dtype), copy=False)
        for output, reference in zip(outputs, tree.flatten(struct), strict=True)
    ]
    return _keras.order_outputs(tree.pack_sequence_as(struct, arrays))


def end_training(link: Link) -> None:
    """Records that the engine has trained. Where code reads variables past Keras, they are updated now."""
    link.advance()
    if _keras.reads_past_keras():
        link.write_back()


class _NoHooks:
    """Calls of the engine without callbacks."""

    batch_interval = {phase: (False, False, 0, 0.0) for phase in (TRAIN, TEST, PREDICT)}

    def call(self, hook: str, index: int, logs: dict[str, Any]) -> None:
        """Does nothing."""


def predict_arrays(link: Link, inputs: list[np.ndarray]) -> list[Any]:
    """Returns the engine's outputs for one batch."""
    data = _phalanx.ArrayData(inputs, [], None, max(len(inputs[0]), 1))
    return link.engine.predict(data, _NoHooks())
