"""`train_on_batch`, `test_on_batch`, `predict_on_batch` and `reset_metrics`, as an attached model has them."""

from typing import Any

import numpy as np

from phalanx import _keras, _phalanx
from phalanx._keras import tree
from phalanx.arrays import as_buffer, flatten_inputs, flatten_targets, target_weights
from phalanx.data import class_weights, open_batch
from phalanx.running import RunByKeras, build, end_training, pack_outputs, predict_arrays, session_of


def train_on_batch(
    self: Any,
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    class_weight: dict[int, float] | None = None,
    return_dict: bool = False,
) -> Any:
    """Trains on one batch. The arguments and the result are those of `keras.Model.train_on_batch`."""
    if class_weight is not None:
        if sample_weight is not None:
            raise ValueError(
                "Arguments `sample_weight` and `class_weight` cannot be specified at the same time. "
                f"Received: sample_weight={sample_weight}, class_weight={class_weight}"
            )
        sample_weight = class_weights(np.asarray(y), class_weight)
    return _on_batch(self, "train_on_batch", x, y, sample_weight, return_dict)


def test_on_batch(self: Any, x: Any, y: Any = None, sample_weight: Any = None, return_dict: bool = False) -> Any:
    """Evaluates one batch. The arguments and the result are those of `keras.Model.test_on_batch`."""
    return _on_batch(self, "test_on_batch", x, y, sample_weight, return_dict)


def _on_batch(model: Any, method: str, x: Any, y: Any, sample_weight: Any, return_dict: bool) -> Any:
    session = session_of(model)
    _keras.assert_compiled(model, method)

    def by_keras() -> Any:
        return _keras.own_method(model, method)(x, y, sample_weight=sample_weight, return_dict=return_dict)

    if session.is_nested():
        if method == "train_on_batch":
            raise RuntimeError(f"model '{model.name}': `train_on_batch` was called by a callback of its own run")
        with session.run_keras():
            return by_keras()
    try:
        with session.running(model):
            example = tuple(tree.map_structure(open_batch, part) for part in (x, y, sample_weight))
            link = build(model, session, example, training=method == "train_on_batch")
            if _keras.resets_metrics_on_batch(model):
                link.engine.reset_metrics()
            try:
                data = _one_batch(model, session.target_outputs, x, y, sample_weight)
            except _phalanx.UnsupportedError as error:
                session.refuse_data(model, error)
                raise RunByKeras from error
            getattr(link.engine, method)(data)
            if method == "train_on_batch":
                end_training(link)
            logs = dict(sorted(link.engine.metrics_result()))
    except RunByKeras:
        return by_keras()
    return logs if return_dict else _keras.flatten_metrics(model, logs)


def _one_batch(model: Any, outputs: list[int] | None, x: Any, y: Any, sample_weight: Any) -> Any:
    inputs = [as_buffer(value) for value in flatten_inputs(model, x)]
    targets = [as_buffer(value) for value in flatten_targets(model, y, outputs)]
    weights = target_weights(model, sample_weight, outputs)
    return _phalanx.ArrayData(inputs, targets, weights, max(len(inputs[0]), 1))


def predict_on_batch(self: Any, x: Any) -> Any:
    """Predicts one batch. The arguments and the result are those of `keras.Model.predict_on_batch`."""
    session = session_of(self)
    if session.is_nested():
        with session.run_keras():
            return _keras.own_method(self, "predict_on_batch")(x)
    try:
        with session.running(self):
            link = build(self, session, (tree.map_structure(open_batch, x), None, None), training=False, compiled=False)
            inputs = [as_buffer(value) for value in flatten_inputs(self, x)]
            return pack_outputs(self, predict_arrays(link, inputs))
    except RunByKeras:
        return _keras.own_method(self, "predict_on_batch")(x)


def reset_metrics(self: Any) -> None:
    """Resets the results of `train_on_batch` and `test_on_batch`, as `keras.Model.reset_metrics` does."""
    _keras.own_method(self, "reset_metrics")()
    session = session_of(self)
    if session.link is not None and self.compiled and not session.is_nested():
        session.link.engine.reset_metrics()
