"""`fit`, as an attached model has it.

It takes Keras' arguments and calls Keras' callbacks. The engine computes. A model that Phalanx cannot train is run by
Keras if the strategy says so.
"""

import contextlib
import os
import warnings
from typing import Any

from phalanx import _keras
from phalanx._keras import keras, tree
from phalanx.hooks import TRAIN, Hooks, callback_list
from phalanx.running import (
    RunByKeras,
    check_batch_sizes,
    check_integers,
    end_training,
    engine_data,
    naming,
    open_data,
    prepare,
    session_of,
)
from phalanx.session import Session


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
    session = session_of(self)
    _keras.assert_compiled(self, "fit")
    check_integers("fit", arguments, ("epochs", "initial_epoch", "steps_per_epoch", "validation_steps"))
    check_batch_sizes("fit", arguments, ("batch_size", "validation_batch_size"))
    if initial_epoch < 0:
        raise ValueError(f"fit: initial_epoch: expected 0 or more, received {initial_epoch}")
    if session.is_nested():
        raise RuntimeError(f"model '{self.name}': `fit` was called by a callback of its own run")
    with session.running(self), contextlib.ExitStack() as stack:
        try:
            run = _FitRun(self, session, arguments, stack)
        except RunByKeras as unsupported:
            run, arguments = None, {**arguments, **unsupported.arguments}
        if run is not None:
            with naming(self):
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
        except RunByKeras as unsupported:
            sources = {"x": self._source, "validation_data": self._validation}
            opened = {name: getattr(source, "x_for_keras", None) for name, source in sources.items()}
            unsupported.arguments = {name: x for name, x in opened.items() if x is not None}
            raise

    def _open(self, stack: contextlib.ExitStack, steps: int | None) -> None:
        """Opens the data and builds the model."""
        model, session, arguments = self._model, self._session, self._arguments
        train, held_out = _split(arguments)
        self._source = open_data(model, session, stack, **train, steps_per_epoch=steps, shuffle=arguments["shuffle"])
        self._source.resets_first = True
        if held_out is not None:
            x, y, sample_weight = _keras.unpack(held_out)
            self._validation = open_data(
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
        self._link = prepare(model, session, self._source, training=True)
        self._data = engine_data(model, session, self._source)
        self._validation_data = None
        if self._validation is not None:
            self._validation_data = engine_data(model, session, self._validation)

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
            end_training(link)


def _split(arguments: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """Returns the data to train on and the data to validate on, if any."""
    names = ("x", "y", "sample_weight", "batch_size", "class_weight")
    train = {name: arguments[name] for name in names}
    fraction, held_out = arguments["validation_split"], arguments["validation_data"]
    if fraction and held_out is None:
        arrays = (train["x"], train["y"], train["sample_weight"])
        (train["x"], train["y"], train["sample_weight"]), held_out = _keras.split_for_validation(arrays, fraction)
    return train, held_out


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
