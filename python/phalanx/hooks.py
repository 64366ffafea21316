"""Calls of Keras callbacks from the engine's training loop."""

import math
from collections.abc import Callable
from typing import Any

from phalanx import _keras, callback_state
from phalanx._keras import keras
from phalanx.session import Session
from phalanx.variables import Link

BAR_INTERVAL = 0.05
"""Seconds between two updates of a progress bar."""

TRAIN, TEST, PREDICT = "train", "test", "predict"

_STOP_FLAGS = {TRAIN: "stop_training", TEST: "stop_evaluating", PREDICT: "stop_predicting"}
# Hooks before which the engine may have changed the weights.
_AFTER_STEPS = frozenset(
    ("on_train_batch_begin", "on_train_batch_end", "on_test_begin", "on_epoch_end", "on_train_end")
)


class _BatchHook:
    """A callback's hook of batches, and the batches for which it is called."""

    __slots__ = ("every", "function", "timed", "users")

    def __init__(self, function: Callable[..., None], every: int, timed: bool, users: bool) -> None:
        self.function = function
        self.every = every
        self.timed = timed
        self.users = users
        """Whether this is a user's code."""


class Hooks:
    """The callbacks of one call of `fit`, `evaluate` or `predict`. The engine calls `call` for every event.

    Hooks of batches are called for those callbacks that have them, and as often as these need. A progress bar is called
    every 50 ms.
    """

    def __init__(self, model: Any, session: Session, link: Link, kind: str, callbacks: Any, steps: int | None) -> None:
        self._model = model
        self._session = session
        self._link = link
        self._kind = kind
        self._list = callbacks
        self._last_logs: dict[str, Any] = {}
        self._resumed_epoch: int | None = None
        self._saved_state = ""
        self._waiting: list[tuple[Callable[..., None], int, dict[str, Any]]] = []
        for callback in _keras.callbacks_of(callbacks):
            _keras.keep_to_keras(callback)
        self._runs_users_code = any(map(_is_users, _keras.callbacks_of(callbacks)))
        self._batch_hooks = {
            hook: _batch_hooks(_keras.callbacks_of(callbacks), hook, model.steps_per_execution, steps)
            for phase in (TRAIN, TEST, PREDICT)
            for hook in (f"on_{phase}_batch_begin", f"on_{phase}_batch_end")
        }
        self.batch_interval = {phase: self._interval(phase) for phase in (TRAIN, TEST, PREDICT)}
        self.on_resume: Callable[[int, int], None] | None = None
        self.end_data_epoch: Callable[[], None] | None = None

    def sees_batches(self, phase: str) -> bool:
        """Whether a callback other than a progress bar sees the batches of a phase."""
        hooks = self._batch_hooks[f"on_{phase}_batch_begin"] + self._batch_hooks[f"on_{phase}_batch_end"]
        return any(hook.every for hook in hooks)

    def _interval(self, phase: str) -> tuple[bool, bool, int, float]:
        """Returns whether hooks before and after batches are called, after how many batches and after which time."""
        before, after = self._batch_hooks[f"on_{phase}_batch_begin"], self._batch_hooks[f"on_{phase}_batch_end"]
        every = math.gcd(*(hook.every for hook in after))
        seconds = BAR_INTERVAL if any(hook.timed for hook in after) else 0.0
        return bool(before), bool(after), every, seconds

    # Called by the engine

    def call(self, hook: str, index: int, logs: dict[str, Any]) -> dict[str, Any] | None:
        """Calls a hook of all callbacks and returns what they changed."""
        link = self._link
        if self._kind == TRAIN and hook in _AFTER_STEPS:
            link.advance()
        try:
            if "_batch_" in hook:
                self._call_batch_hooks(hook, index, dict(sorted(logs.items())))
            else:
                self._write_back()
                self._end_execution()
                if self.end_data_epoch is not None and hook in ("on_test_begin", "on_epoch_end"):
                    self.end_data_epoch()
                self._call_list(hook, index, logs)
        except BaseException:
            # What was assigned until then is sent later: `Link.advance` keeps it.
            link.note_written_in_graph()
            raise
        return self._changes(hook)

    def _call_batch_hooks(self, hook: str, index: int, logs: dict[str, Any]) -> None:
        number = index if hook.endswith("begin") else index + 1
        self._waiting = []
        for entry in self._batch_hooks[hook]:
            if entry.timed or number % entry.every == 0:
                if entry.users:
                    self._write_back()
                entry.function(index, logs)
            elif hook.endswith("end"):
                self._waiting.append((entry.function, index, logs))

    def _end_execution(self) -> None:
        """Ends a last execution of fewer than `steps_per_execution` batches, with a whole one's number as in Keras."""
        waiting, self._waiting = self._waiting, []
        size = self._model.steps_per_execution
        for function, index, logs in waiting:
            function(index // size * size + size - 1, logs)

    def _call_list(self, hook: str, index: int, logs: dict[str, Any]) -> None:
        callbacks = self._list
        if hook == "on_epoch_begin":
            if self._resumed_epoch is None:
                self._model.reset_metrics()
            callbacks.on_epoch_begin(index)
        elif hook == "on_epoch_end":
            self._last_logs = dict(sorted(logs.items(), key=lambda entry: (entry[0].startswith("val_"), entry[0])))
            callbacks.on_epoch_end(index, self._last_logs)
        elif hook == "on_train_begin":
            callbacks.on_train_begin()
            self._check_initial_epoch()
        elif hook == "on_train_end":
            callbacks.on_train_end(logs=self._last_logs)
        elif hook == "on_test_end":
            callbacks.on_test_end(dict(sorted(logs.items())))
        else:
            getattr(callbacks, hook)()

    def _check_initial_epoch(self) -> None:
        if _keras.initial_epoch(self._model):
            raise ValueError(
                "a callback changed the first epoch of `fit`: use `initial_epoch`, or Keras' BackupAndRestore, which "
                "phalanx recognises"
            )

    def _write_back(self) -> None:
        """Updates the weights in Python for callbacks that may read them past Keras."""
        if _keras.reads_past_keras():
            self._link.write_back(captured_only=not self._runs_users_code)

    def _changes(self, hook: str) -> dict[str, Any] | None:
        changes = self._link.changes()
        # When training is to stop, its epoch is still validated. Later hooks stop it.
        validates = self._kind == TRAIN and hook.startswith("on_test_")
        if not validates and getattr(self._model, _STOP_FLAGS[self._kind], False):
            changes["stop"] = True
        return changes or None

    def state(self) -> str | None:
        """Returns the state of the callbacks, to resume the run."""
        return callback_state.save(_keras.callbacks_of(self._list))

    def set_state(self, text: str) -> None:
        """Keeps the saved state of the callbacks, which is set after `on_train_begin` has reset it."""
        self._saved_state = text

    def resumed(self, epoch: int, batch: int) -> None:
        """Called instead of `on_train_begin` when a run is resumed at a batch of an epoch.

        The engine has the restored state by then, and keeps it whatever the callbacks assign before theirs is set. It
        calls `on_epoch_begin` only if it resumes at the first batch.
        """
        self._resumed_epoch = epoch
        self._restore()
        if self.on_resume is not None:
            self.on_resume(epoch, batch)
        callbacks = _keras.callbacks_of(self._list)
        with callback_state.continued_files(callbacks, epoch):
            self._list.on_train_begin()
        self._restore()
        if batch > 0:
            self._list.on_epoch_begin(epoch)
            self._restore()
        callback_state.load(callbacks, self._saved_state)

    def _restore(self) -> None:
        """Lets Python read the engine's values, whatever callbacks assigned."""
        self._link.discard_changes()
        self._link.advance()
        self._write_back()


def callback_list(model: Any, callbacks: Any, *, history: bool, **params: Any) -> Any:
    """Returns Keras' list of callbacks, with its progress bar unless `verbose` is 0."""
    if isinstance(callbacks, _keras.CallbackList):
        return callbacks
    return _keras.CallbackList(
        callbacks, add_history=history, add_progbar=params["verbose"] != 0, model=model, **params
    )


def _batch_hooks(callbacks: list[Any], hook: str, steps_per_execution: int, steps: int | None) -> list[_BatchHook]:
    hooks = []
    for callback in callbacks:
        if _is_overridden(callback, hook):
            every = _interest(callback, hook, steps)
            if every is not None:
                function = getattr(callback, hook)
                multiple = every if every == 0 else math.lcm(every, steps_per_execution)
                hooks.append(_BatchHook(function, multiple, every == 0, _is_users(callback)))
    return hooks


def _is_overridden(callback: Any, hook: str) -> bool:
    if not _keras.is_default(getattr(callback, hook)):
        return True
    short = hook.replace("_train", "")
    return "_train_" in hook and not _keras.is_default(getattr(callback, short))


def _interest(callback: Any, hook: str, steps: int | None) -> int | None:
    """Returns after how many batches a callback needs a hook; 0 for a progress bar, `None` for never."""
    kind = type(callback)
    if kind is keras.callbacks.ProgbarLogger:
        return 0
    if kind is keras.callbacks.ModelCheckpoint:
        frequency = callback.save_freq
        if frequency == "epoch":
            return None
        # Keras counts batches across epochs, so the end of an epoch must be among those it sees.
        return math.gcd(frequency, steps) if steps else 1
    if kind is keras.callbacks.TensorBoard and _writes_by_epoch(callback):
        return None
    return 1


def _writes_by_epoch(callback: Any) -> bool:
    """Whether a `TensorBoard` callback needs no batches."""
    profiles = bool(getattr(callback, "_start_batch", 0) or getattr(callback, "_stop_batch", 0))
    steps_per_second = getattr(callback, "write_steps_per_second", False)
    return callback.update_freq == "epoch" and not profiles and not steps_per_second


def _is_users(callback: Any) -> bool:
    """Whether a callback runs a user's code."""
    kind = type(callback)
    return kind.__module__.split(".")[0] != "keras" or kind is keras.callbacks.LambdaCallback
