"""`fit`, `evaluate`, `predict` and their relatives, as an attached model has them.

They take Keras' arguments and call Keras' callbacks. The engine computes. A model that Phalanx cannot train is run by
Keras if the strategy says so.
"""

import contextlib
import itertools
import os
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from phalanx import _keras, _phalanx
from phalanx._keras import keras, tree
from phalanx.arrays import as_buffer, common_weight, flatten_inputs, flatten_targets
from phalanx.data import ArraySource, BatchSource, Source, class_weights, open_batch, open_source
from phalanx.hooks import PREDICT, TEST, TRAIN, Hooks, callback_list
from phalanx.session import Session
from phalanx.unsupported import unsupported_error
from phalanx.variables import Link


class _Unsupported(Exception):
    """Keras is to run a model in place of the engine."""

    def __init__(self, source: Source | None = None) -> None:
        super().__init__()
        self.x = getattr(source, "x_for_keras", None)
        """The data as Keras may read it; `None` if it can read what it was given."""
        self.arguments: dict[str, Any] = {}


def fit(
    self: Any,
    x: Any = None,
    y: Any = None,
    batch_size: int | None = None,
    epochs: int = 1,
    verbose: Any = "auto",
    callbacks: Any = None,
    validation_split: float = 0.0,
    validation_data: Any = None,
    shuffle: Any = True,
    class_weight: dict[int, float] | None = None,
    sample_weight: Any = None,
    initial_epoch: int = 0,
    steps_per_epoch: int | None = None,
    validation_steps: int | None = None,
    validation_batch_size: int | None = None,
    validation_freq: Any = 1,
) -> Any:
    """Trains the model on Phalanx. The arguments and the result are those of `keras.Model.fit`."""
    arguments = {name: value for name, value in locals().items() if name != "self"}
    session = _session(self)
    _keras.assert_compiled(self, "fit")
    _check_integers("fit", arguments, ("epochs", "initial_epoch", "steps_per_epoch", "validation_steps"))
    _check_batch_sizes("fit", arguments, ("batch_size", "validation_batch_size"))
    if initial_epoch < 0:
        raise ValueError(f"fit: initial_epoch: expected 0 or more, received {initial_epoch}")
    if session.is_nested():
        raise RuntimeError(f"model '{self.name}': `fit` was called by a callback of its own run")
    with session.running(self), contextlib.ExitStack() as stack:
        try:
            run = _FitRun(self, session, arguments, stack)
        except _Unsupported as unsupported:
            run, arguments = None, {**arguments, **unsupported.arguments}
        if run is not None:
            with _naming(self):
                return run.run()
    return _keras.own_method(self, "fit")(**arguments)


class _FitRun:
    """One call of `fit`: its data, its callbacks and the engine."""

    def __init__(self, model: Any, session: Session, arguments: dict[str, Any], stack: contextlib.ExitStack) -> None:
        self._model = model
        self._session = session
        self._arguments = arguments
        max_epochs, max_steps = _keras.limits()
        epochs, steps = arguments["epochs"], arguments["steps_per_epoch"]
        if max_epochs and max_epochs < epochs:
            warnings.warn(f"Limiting epochs to {max_epochs}", stacklevel=4)
            epochs = max_epochs
        if max_steps and (not steps or max_steps < steps):
            warnings.warn(f"Limiting steps_per_epoch to {max_steps}", stacklevel=4)
            steps = max_steps
        self._epochs = max(epochs, 0)
        self._source: Any = None
        self._validation: Any = None
        try:
            self._open(stack, steps)
        except _Unsupported as unsupported:
            sources = {"x": self._source, "validation_data": self._validation}
            opened = {name: getattr(source, "x_for_keras", None) for name, source in sources.items()}
            unsupported.arguments = {name: x for name, x in opened.items() if x is not None}
            raise

    def _open(self, stack: contextlib.ExitStack, steps: int | None) -> None:
        """Opens the data and builds the model."""
        model, session, arguments = self._model, self._session, self._arguments
        train, held_out = _split(arguments)
        self._source = _open(model, session, stack, **train, steps_per_epoch=steps, shuffle=arguments["shuffle"])
        self._source.resets_first = True
        if held_out is not None:
            x, y, sample_weight = _keras.unpack(held_out)
            self._validation = _open(
                model,
                session,
                stack,
                x=x,
                y=y,
                sample_weight=sample_weight,
                batch_size=arguments["validation_batch_size"] or arguments["batch_size"],
                steps_per_epoch=arguments["validation_steps"],
                shuffle=False,
            )
            self._validation.restarts = True
        self._link = _prepare(model, session, self._source, training=True)
        self._data = _engine_data(model, session, self._source)
        self._validation_data = None
        if self._validation is not None:
            self._validation_data = _engine_data(model, session, self._validation)

    def run(self) -> Any:
        """Trains and returns the history."""
        model, arguments, source, link = self._model, self._arguments, self._source, self._link
        backups, others = _take_backups(arguments["callbacks"])
        callbacks = callback_list(
            model, others, history=True, verbose=arguments["verbose"], epochs=self._epochs, steps=source.num_batches
        )
        for backup in backups:
            backup.set_params(callbacks.params)
            backup.set_model(model)
        hooks = Hooks(model, self._session, link, TRAIN, callbacks, source.num_batches)
        hooks.on_resume = lambda epoch, _batch: source.skip_epochs(epoch)
        hooks.end_data_epoch = source.end_epoch
        source.ends_epochs = True
        model.stop_training = False
        if arguments["initial_epoch"] < self._epochs or backups:
            self._train(hooks, backups)
        else:
            callbacks.on_train_begin()
            callbacks.on_train_end(logs={})
        return model.history

    def _train(self, hooks: Hooks, backups: list[Any]) -> None:
        arguments, link = self._arguments, self._link
        if backups:
            # While a run is resumed, callbacks cannot ask the engine.
            link.fetch_all()
        try:
            link.engine.fit(
                self._data,
                self._validation_data,
                hooks,
                {
                    "epochs": self._epochs,
                    "initial_epoch": arguments["initial_epoch"],
                    "shuffle": bool(arguments["shuffle"]),
                    "validation_freq": arguments["validation_freq"],
                    "on_nan": self._session.strategy.on_nan,
                    "backup": _backup_arguments(backups),
                },
            )
        finally:
            _end_training(link)


def _end_training(link: Link) -> None:
    """Records that the engine has trained. Where code reads variables past Keras, they are updated now."""
    link.advance()
    if _keras.reads_past_keras():
        link.write_back()


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
    session = _session(self)
    _keras.assert_compiled(self, "evaluate")
    _check_integers("evaluate", {"steps": steps}, ("steps",))
    _check_batch_sizes("evaluate", {"batch_size": batch_size}, ("batch_size",))

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
            source = _open(self, session, stack, **data, steps_per_epoch=steps, shuffle=False)
            source.resets_first = True
            link = _prepare(self, session, source, training=False)
            engine_data = _engine_data(self, session, source)
            listed = callback_list(self, callbacks, history=False, verbose=verbose, epochs=1, steps=source.num_batches)
            hooks = Hooks(self, session, link, TEST, listed, source.num_batches)
            self.stop_evaluating = False
            with _naming(self):
                logs = dict(sorted(link.engine.evaluate(engine_data, hooks)))
    except _Unsupported as unsupported:
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
    session = _session(self)
    _check_integers("predict", {"steps": steps}, ("steps",))
    _check_batch_sizes("predict", {"batch_size": batch_size}, ("batch_size",))

    def by_keras() -> Any:
        arguments = {"batch_size": batch_size, "verbose": verbose, "steps": steps, "callbacks": callbacks}
        return _keras.own_method(self, "predict")(x, **arguments)

    if session.is_nested():
        with session.run_keras():
            return by_keras()
    try:
        with session.running(self), contextlib.ExitStack() as stack:
            source = _open(self, session, stack, x=x, batch_size=batch_size, steps_per_epoch=steps, shuffle=False)
            link = _prepare(self, session, source, training=False, compiled=False)
            engine_data = _engine_data(self, session, source)
            listed = callback_list(self, callbacks, history=False, verbose=verbose, epochs=1, steps=source.num_batches)
            hooks = Hooks(self, session, link, PREDICT, listed, source.num_batches)
            self.stop_predicting = False
            with _naming(self):
                if hooks.sees_batches(PREDICT):
                    return _predict_by_batch(self, link, source, listed)
                return _pack_outputs(self, link.engine.predict(engine_data, hooks))
    except _Unsupported as unsupported:
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
        outputs.append(_join([_pack_outputs(model, _predict_arrays(link, x)) for x in execution]))
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


class _NoHooks:
    """Calls of the engine without callbacks."""

    batch_interval = {phase: (False, False, 0, 0.0) for phase in (TRAIN, TEST, PREDICT)}

    def call(self, hook: str, index: int, logs: dict[str, Any]) -> None:
        """Does nothing."""


def _predict_arrays(link: Link, inputs: list[np.ndarray]) -> list[Any]:
    """Returns the engine's outputs for one batch."""
    data = _phalanx.ArrayData(inputs, [], None, max(len(inputs[0]), 1))
    return link.engine.predict(data, _NoHooks())


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
    session = _session(model)
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
            link = _build(model, session, example, training=method == "train_on_batch")
            if _keras.resets_metrics_on_batch(model):
                link.engine.reset_metrics()
            try:
                data = _one_batch(model, x, y, sample_weight)
            except _phalanx.UnsupportedError as error:
                session.refuse_data(model, error)
                raise _Unsupported from error
            getattr(link.engine, method)(data)
            if method == "train_on_batch":
                _end_training(link)
            logs = dict(sorted(link.engine.metrics_result()))
    except _Unsupported:
        return by_keras()
    return logs if return_dict else _keras.flatten_metrics(model, logs)


def _one_batch(model: Any, x: Any, y: Any, sample_weight: Any) -> Any:
    inputs = [as_buffer(value) for value in flatten_inputs(model, x)]
    targets = [as_buffer(value) for value in flatten_targets(model, y)]
    weight = common_weight(model, sample_weight)
    return _phalanx.ArrayData(inputs, targets, None if weight is None else as_buffer(weight), max(len(inputs[0]), 1))


def predict_on_batch(self: Any, x: Any) -> Any:
    """Predicts one batch. The arguments and the result are those of `keras.Model.predict_on_batch`."""
    session = _session(self)
    if session.is_nested():
        with session.run_keras():
            return _keras.own_method(self, "predict_on_batch")(x)
    try:
        with session.running(self):
            link = _build(self, session, (tree.map_structure(open_batch, x), None, None), training=False)
            inputs = [as_buffer(value) for value in flatten_inputs(self, x)]
            return _pack_outputs(self, _predict_arrays(link, inputs))
    except _Unsupported:
        return _keras.own_method(self, "predict_on_batch")(x)


def reset_metrics(self: Any) -> None:
    """Resets the results of `train_on_batch` and `test_on_batch`, as `keras.Model.reset_metrics` does."""
    _keras.own_method(self, "reset_metrics")()
    session = _session(self)
    if session.link is not None and self.compiled and not session.is_nested():
        session.link.engine.reset_metrics()


def _session(model: Any) -> Session:
    session = Session.of(model)
    if session is None:
        raise RuntimeError(f"model '{model.name}' is not attached to phalanx: compile it in a strategy's scope")
    return session


def _check_integers(method: str, arguments: dict[str, Any], names: tuple[str, ...]) -> None:
    for name in names:
        value = arguments[name]
        if value is not None and not hasattr(value, "__index__"):
            raise TypeError(f"{method}: {name}: expected an integer, received {value!r}")


def _check_batch_sizes(method: str, arguments: dict[str, Any], names: tuple[str, ...]) -> None:
    _check_integers(method, arguments, names)
    for name in names:
        value = arguments[name]
        if value is not None and value < 0:
            raise ValueError(f"{method}: {name}: expected 1 or more, received {value}")


def _split(arguments: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """Returns the data to train on and the data to validate on, if any."""
    names = ("x", "y", "sample_weight", "batch_size", "class_weight")
    train = {name: arguments[name] for name in names}
    fraction, held_out = arguments["validation_split"], arguments["validation_data"]
    if fraction and held_out is None:
        arrays = (train["x"], train["y"], train["sample_weight"])
        (train["x"], train["y"], train["sample_weight"]), held_out = _keras.split_for_validation(arrays, fraction)
    return train, held_out


def _open(model: Any, session: Session, stack: contextlib.ExitStack, **arguments: Any) -> Source:
    """Opens the data of a run, and closes it when the run ends."""
    # Before the data is opened, since a generator would lose batches.
    if session.falls_back(model):
        raise _Unsupported
    arguments = {"y": None, "sample_weight": None, "class_weight": None, **arguments}
    try:
        source = open_source(**arguments)
    except _phalanx.UnsupportedError as error:
        session.refuse_data(model, error)
        raise _Unsupported from error
    stack.callback(source.close)
    return source


def _prepare(model: Any, session: Session, source: Source, *, training: bool, compiled: bool = True) -> Link:
    """Builds the model for the data, and puts it on the devices."""
    try:
        example = source.example(discard=_keras.builds_from_data(model, compiled))
    except _phalanx.UnsupportedError as error:
        session.refuse_data(model, error)
        raise _Unsupported(source) from error
    return _build(model, session, example, source, training=training)


def _engine_data(model: Any, session: Session, source: Source) -> Any:
    """Returns the data as the engine takes it."""
    try:
        return source.data(model)
    except _phalanx.UnsupportedError as error:
        session.refuse_data(model, error)
        raise _Unsupported(source) from error


@contextlib.contextmanager
def _naming(model: Any) -> Iterator[None]:
    """Lets errors about data that was found in a run name the model: Keras cannot take over by then."""
    try:
        yield
    except _phalanx.UnsupportedError as error:
        raise unsupported_error(model, getattr(error, "reasons", None) or [str(error)]) from error


def _build(
    model: Any, session: Session, example: tuple[Any, Any, Any], source: Source | None = None, *, training: bool
) -> Link:
    """Builds the model for data like `example`, and puts it on the devices."""
    if session.falls_back(model):
        raise _Unsupported(source)
    if training:
        session.check_trainable()
    with session.trainable_as_compiled(model):
        _keras.build(model, *example)
        if session.falls_back(model):
            raise _Unsupported(source)
        try:
            return session.prepare(model, training=training)
        except _phalanx.UnsupportedError as error:
            session.refuse_data(model, error)
            raise _Unsupported(source) from error


def _pack_outputs(model: Any, outputs: list[Any]) -> Any:
    """Returns the engine's outputs in the model's structure and types."""
    struct = _keras.outputs_struct(model)
    arrays = [
        np.asarray(output).astype(_keras.numpy_type(reference.dtype), copy=False)
        for output, reference in zip(outputs, tree.flatten(struct), strict=True)
    ]
    return _keras.order_outputs(tree.pack_sequence_as(struct, arrays))


def _take_backups(callbacks: Any) -> tuple[list[Any], Any]:
    """Splits Keras' `BackupAndRestore`, which Phalanx does itself, from the other callbacks."""
    if isinstance(callbacks, _keras.CallbackList):
        return [], callbacks
    flat = tree.flatten(callbacks) if callbacks else []
    backups = [callback for callback in flat if type(callback) is keras.callbacks.BackupAndRestore]
    if len(backups) > 1:
        raise ValueError(f"fit: callbacks: expected one BackupAndRestore, received {len(backups)}")
    return backups, [callback for callback in flat if callback not in backups]


def _backup_arguments(backups: list[Any]) -> dict[str, Any] | None:
    if not backups:
        return None
    backup = backups[0]
    _check_backup_dir(str(backup.backup_dir))
    return {
        "backup_dir": str(backup.backup_dir),
        "save_freq": backup.save_freq,
        "delete_checkpoint": bool(backup.delete_checkpoint),
    }


def _check_backup_dir(folder: str) -> None:
    """Refuses a folder with a backup of Keras, which would be lost if the run began again."""
    names = os.listdir(folder) if os.path.isdir(folder) else []
    if "latest.weights.h5" in names and not any(name.endswith(".safetensors") for name in names):
        raise ValueError(
            f"BackupAndRestore: the folder {folder!r} holds a backup that Keras wrote without phalanx, which phalanx "
            "cannot resume: finish that run with Keras, name another folder, or delete this one to begin again"
        )
