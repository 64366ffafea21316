"""`evaluate` and `predict`, as an attached model has them."""

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from phalanx import _keras
from phalanx._keras import tree
from phalanx.arrays import as_buffer, flatten_inputs
from phalanx.data import ArraySource, BatchSource, Source
from phalanx.hooks import PREDICT, TEST, Hooks, callback_list
from phalanx.running import (
    RunByKeras,
    check_batch_sizes,
    check_integers,
    engine_data,
    naming,
    open_data,
    pack_outputs,
    predict_arrays,
    prepare,
    session_of,
)
from phalanx.variables import Link


def evaluate(
    self: Any,
    x: Any = None,
    y: Any = None,
    batch_size: int | None = None,
    verbose: Any = "auto",
    sample_weight: Any = None,
    steps: int | None = None,
    callbacks: Any = None,
    return_dict: bool = False,
    **kwargs: Any,
) -> Any:
    """Evaluates the model on Phalanx. The arguments and the result are those of `keras.Model.evaluate`."""
    session = session_of(self)
    _keras.assert_compiled(self, "evaluate")
    check_integers("evaluate", {"steps": steps}, ("steps",))
    check_batch_sizes("evaluate", {"batch_size": batch_size}, ("batch_size",))

    def by_keras() -> Any:
        return _keras.own_method(self, "evaluate")(
            x=x,
            y=y,
            batch_size=batch_size,
            verbose=verbose,
            sample_weight=sample_weight,
            steps=steps,
            callbacks=callbacks,
            return_dict=return_dict,
            **kwargs,
        )

    if session.is_nested() or kwargs:
        with session.run_keras():
            return by_keras()
    data = {"x": x, "y": y, "sample_weight": sample_weight, "batch_size": batch_size}
    try:
        with session.running(self), contextlib.ExitStack() as stack:
            source = open_data(self, session, stack, **data, steps_per_epoch=steps, shuffle=False)
            source.resets_first = True
            link = prepare(self, session, source, training=False)
            batches = engine_data(self, session, source)
            listed = callback_list(self, callbacks, history=False, verbose=verbose, epochs=1, steps=source.num_batches)
            hooks = Hooks(self, session, link, TEST, listed, source.num_batches)
            self.stop_evaluating = False
            with naming(self):
                logs = dict(sorted(link.engine.evaluate(batches, hooks)))
    except RunByKeras as unsupported:
        x = x if unsupported.x is None else unsupported.x
        return by_keras()
    return logs if return_dict else _keras.flatten_metrics(self, logs)


def predict(
    self: Any,
    x: Any,
    batch_size: int | None = None,
    verbose: Any = "auto",
    steps: int | None = None,
    callbacks: Any = None,
) -> Any:
    """Predicts on Phalanx. The arguments and the result are those of `keras.Model.predict`."""
    session = session_of(self)
    check_integers("predict", {"steps": steps}, ("steps",))
    check_batch_sizes("predict", {"batch_size": batch_size}, ("batch_size",))

    def by_keras() -> Any:
        arguments = {"batch_size": batch_size, "verbose": verbose, "steps": steps, "callbacks": callbacks}
        return _keras.own_method(self, "predict")(x, **arguments)

    if session.is_nested():
        with session.run_keras():
            return by_keras()
    try:
        with session.running(self), contextlib.ExitStack() as stack:
            source = open_data(self, session, stack, x=x, batch_size=batch_size, steps_per_epoch=steps, shuffle=False)
            link = prepare(self, session, source, training=False, compiled=False)
            batches = engine_data(self, session, source)
            listed = callback_list(self, callbacks, history=False, verbose=verbose, epochs=1, steps=source.num_batches)
            hooks = Hooks(self, session, link, PREDICT, listed, source.num_batches)
            self.stop_predicting = False
            with naming(self):
                if hooks.sees_batches(PREDICT):
                    return _predict_by_batch(self, link, source, listed)
                return pack_outputs(self, link.engine.predict(batches, hooks))
    except RunByKeras as unsupported:
        x = x if unsupported.x is None else unsupported.x
        return by_keras()


def _predict_by_batch(model: Any, link: Link, source: Source, callbacks: Any) -> Any:
    """Predicts batch by batch, since callbacks see the outputs of each."""
    outputs = []
    callbacks.on_predict_begin()
    batches, size, begin = _input_batches(model, source), model.steps_per_execution, 0
    while execution := list(itertools.islice(batches, size)):
        callbacks.on_predict_batch_begin(begin)
        link.upload()
        outputs.append(_join([pack_outputs(model, predict_arrays(link, x)) for x in execution]))
        callbacks.on_predict_batch_end(begin + size - 1, {"outputs": outputs[-1]})
        begin += size
        if model.stop_predicting:
            break
    callbacks.on_predict_end()
    return _join(outputs)


def _join(outputs: list[Any]) -> Any:
    """Joins the outputs of several batches."""
    return tree.map_structure(lambda *parts: np.concatenate(parts), *outputs)


def _input_batches(model: Any, source: Source) -> Iterator[list[np.ndarray]]:
    """Yields the inputs of each batch."""
    if isinstance(source, BatchSource):
        source.begin(0, 0)
        while (batch := source.next()) is not None:
            yield batch[0]
        return
    assert isinstance(source, ArraySource)
    arrays = [as_buffer(value) for value in flatten_inputs(model, source.x)]
    for start in range(0, len(arrays[0]), source.batch_size):
        yield [array[start : start + source.batch_size] for array in arrays]
