"""Lazily read variables: Keras variables whose values live in an engine.

While a model is attached, the class of its variables is replaced by a subclass whose `_value` is a property. After a
training step all variables are stale. A stale variable fetches its value from the engine at the first read; an
assigned one is sent to the engine before the next step. A variable that nobody reads costs nothing.
"""

import contextlib
import copyreg
from collections.abc import Iterator
from typing import Any

import numpy as np

from phalanx import _keras
from phalanx._values import VALUES, Values

_STATE = "_phalanx_state"

WEIGHT, OPTIMIZER = "weight", "optimizer"


class VariableState:
    """What is known about one variable: its place in the engine, its value in Python and how recent that is."""

    __slots__ = (
        "captured",
        "index",
        "in_place_version",
        "kind",
        "link",
        "value",
        "variable",
        "version",
        "written_in_graph",
    )

    def __init__(self, variable: Any, link: "Link", kind: str, index: int) -> None:
        self.variable = variable
        self.link = link
        self.kind = kind
        self.index = index
        self.value: Any = None
        self.version = link.version
        self.in_place_version = 0
        self.captured = False
        self.written_in_graph = False

    def is_stale(self) -> bool:
        """Whether the engine has a newer value."""
        return self.version != self.link.version

    def refresh(self) -> None:
        """Fetches the value from the engine if it is stale."""
        if self.version == self.link.version:
            return
        link = self.link
        if self.kind == WEIGHT:
            VALUES.fetch(self, lambda out: link.engine.read_weight(self.index, out))
        else:
            VALUES.store(self, link.read_optimizer(self.index))
        self.mark_fresh()

    def mark_fresh(self) -> None:
        """Records that the value in Python is that of the engine's last step."""
        self.version = self.link.version
        self.in_place_version = VALUES.in_place_version(self.value)
        self.link.fresh.append(self)

    def current(self) -> Any:
        """Returns the current value."""
        self.refresh()
        return self.value


class Link:
    """Connects the variables of a model and its optimizer with the engine that trains them."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.version = 0
        self.weights: list[VariableState] = []
        self.optimizer: list[VariableState] = []
        self.changed: dict[int, VariableState] = {}
        """What Python assigned and the engine does not have yet."""
        self.written_in_graph: dict[int, VariableState] = {}
        """What functions traced by TensorFlow may assign at any time."""
        self.fresh: list[VariableState] = []
        self.ignores_assignments = False
        self.learning_rate: Any = None
        self.iterations: Any = None
        self._optimizer_values: list[Any] | None = None

    def add_weight(self, variable: Any, index: int) -> None:
        """Makes a weight of the model lazy; `index` is its position in the engine."""
        self.weights.append(_make_lazy(variable, self, WEIGHT, index))

    def add_optimizer(self, optimizer: Any) -> None:
        """Makes the variables of an optimizer lazy."""
        for index, variable in enumerate(optimizer.variables):
            self.optimizer.append(_make_lazy(variable, self, OPTIMIZER, index))
        if not hasattr(optimizer, "inner_optimizer"):
            self.learning_rate = _keras.learning_rate_variable(optimizer)
            self.iterations = _keras.iterations_variable(optimizer)

    def advance(self) -> None:
        """Records that the engine has trained: values in Python are stale, except those that it is yet to receive."""
        self._note_in_place_changes()
        self.version += 1
        self.fresh = []
        self._optimizer_values = None
        for state in list(self.changed.values()):
            state.mark_fresh()

    def read_optimizer(self, index: int) -> Any:
        """Returns the engine's value of one of the optimizer's variables."""
        variable = self.optimizer[index].variable
        if variable is self.iterations:
            return self.engine.iterations
        if variable is self.learning_rate:
            return self.engine.learning_rate
        if self._optimizer_values is None:
            self._optimizer_values = self.engine.read_optimizer()
        return self._optimizer_values[index]

    def note_change(self, state: VariableState) -> None:
        """Records that Python assigned a variable."""
        if not self.ignores_assignments:
            # The thread that reads data may assign while a step ends on another thread.
            state.version = self.version
            self.changed[id(state)] = state

    def _note_in_place_changes(self) -> None:
        for state in self.fresh:
            if VALUES.in_place_version(state.value) != state.in_place_version:
                self.changed[id(state)] = state
                state.in_place_version = VALUES.in_place_version(state.value)

    def discard_changes(self) -> None:
        """Forgets what Python changed since the last call of `take_changes`."""
        self._note_in_place_changes()
        self.changed = {}

    def note_written_in_graph(self) -> None:
        """Records as changed what traced functions may have assigned since the engine's last step."""
        for state in list(self.written_in_graph.values()):
            if not state.is_stale():
                self.note_change(state)

    def write_back(self, captured_only: bool = False) -> None:
        """Updates weights in Python for code that reads them past Keras, such as a traced TensorFlow function."""
        for state in self.weights:
            if state.link is self and (state.captured or not captured_only):
                state.refresh()
        for state in self.optimizer:
            if state.captured and state.link is self:
                state.refresh()

    def take_changes(self) -> tuple[list[VariableState], list[VariableState]]:
        """Returns the weights and optimizer variables that Python changed since the last call."""
        self._note_in_place_changes()
        changed, self.changed = self.changed, {}
        noted = [*self.written_in_graph.values(), *changed.values()]
        states = list({id(own): own for own in map(self._own, noted)}.values())
        self.written_in_graph = {id(state): state for state in states if state.written_in_graph}
        weights = [state for state in states if state.kind == WEIGHT]
        return weights, [state for state in states if state.kind == OPTIMIZER]

    def changes(self) -> dict[str, Any]:
        """Returns what Python changed since the last call, as the engine takes it from a hook."""
        weights, optimizer = self.take_changes()
        result: dict[str, Any] = {}
        if weights:
            result["weights"] = [(state.index, self._send(state)) for state in weights]
        if len(optimizer) == 1 and optimizer[0].variable is self.learning_rate:
            result["learning_rate"] = float(self._send(optimizer[0], np.float32))
        elif optimizer:
            result["optimizer"] = [self._send(state, None) for state in self.optimizer]
        return result

    def upload(self) -> None:
        """Sends to the engine what Python changed, between trainings."""
        self._adopt()
        changes = self.changes()
        for index, value in changes.get("weights", ()):
            self.engine.write_weight(index, value)
        if "optimizer" in changes:
            self.engine.write_optimizer(changes["optimizer"])
        if "learning_rate" in changes:
            self.engine.learning_rate = changes["learning_rate"]

    def release_weights(self) -> None:
        """Fetches all weights and makes them plain variables again."""
        for state in self.weights:
            if state.link is self:
                _make_plain(state)
        self.weights = []

    def release(self) -> None:
        """Fetches all values and makes all variables plain again."""
        self.release_weights()
        for state in self.optimizer:
            if state.link is self:
                _make_plain(state)
        self.optimizer = []

    def _adopt(self) -> None:
        """Takes back variables that another engine has used since, as in models that share layers."""
        for state in [*self.weights, *self.optimizer]:
            if _state_of(state.variable) is not state:
                self.note_change(self._own(state))

    def _own(self, state: VariableState) -> VariableState:
        """Returns the state of a variable after taking it back from another engine, if necessary."""
        current = _state_of(state.variable)
        if current is state or (current is not None and current.link is self):
            return current
        states = self.weights if state.kind == WEIGHT else self.optimizer
        at = states.index(state)
        states[at] = _make_lazy(state.variable, self, state.kind, state.index)
        return states[at]

    def _send(self, state: VariableState, dtype: Any = np.float32) -> np.ndarray:
        return as_array(state.current(), dtype)


def as_array(value: Any, dtype: Any = None) -> np.ndarray:
    """Returns a value of the backend as a C-contiguous array."""
    if value is None:
        raise RuntimeError("a variable of the model has no value; an earlier failed fit of Keras may have removed it")
    array = VALUES.to_numpy(value)
    if array.dtype.kind not in "iuf" or array.dtype.itemsize == 2 and array.dtype.kind == "f":
        dtype = dtype or np.float32
    return np.asarray(array, dtype=dtype, order="C")


@contextlib.contextmanager
def note_assignments(variables: list[Any]) -> Iterator[None]:
    """Records that code assigns the values of variables without Keras."""
    states = [state for state in map(_state_of, variables) if state is not None]
    for state in states:
        state.refresh()
        VALUES.before_assign(state)
    yield
    for state in states:
        state.link.note_change(state)


def _state_of(variable: Any) -> VariableState | None:
    return vars(variable).get(_STATE)


def _make_lazy(variable: Any, link: Link, kind: str, index: int) -> VariableState:
    previous = _state_of(variable)
    value = variable._value
    state = VariableState(variable, link, kind, index)
    state.value = value
    if previous is None:
        vars(variable).pop("_value", None)
        variable.__class__ = _lazy_class(type(variable))
    else:
        previous.link.note_change(previous)
        state.captured = previous.captured
        state.written_in_graph = previous.written_in_graph
        if state.written_in_graph:
            link.written_in_graph[id(state)] = state
    vars(variable)[_STATE] = state
    state.mark_fresh()
    return state


def _make_plain(state: VariableState) -> None:
    variable = state.variable
    if _state_of(variable) is not state:
        return
    state.refresh()
    variable.__class__ = type(variable).__base__
    del vars(variable)[_STATE]
    variable._value = state.value


_lazy_classes: dict[type, type] = {}


def _lazy_class(base: type) -> type:
    """Returns the subclass of a variable's class whose values are fetched when they are read."""
    if base not in _lazy_classes:
        _lazy_classes[base] = _new_lazy_class(base, VALUES)
    return _lazy_classes[base]


def _new_lazy_class(base: type, values: type[Values]) -> type:
    class LazyVariable(base):  # type: ignore[misc, valid-type]
        @property
        def _value(self) -> Any:
            state = vars(self)[_STATE]
            if state.version != state.link.version:
                state.refresh()
            values.note_read(state)
            return state.value

        @_value.setter
        def _value(self, value: Any) -> None:
            state = vars(self)[_STATE]
            state.value = value
            state.version = state.link.version
            if value is not None:
                state.link.note_change(state)

        def _direct_assign(self, value: Any) -> None:
            state = vars(self)[_STATE]
            values.before_assign(state)
            super()._direct_assign(value)
            state.link.note_change(state)

        def __reduce_ex__(self, protocol: Any) -> Any:
            attributes = {name: value for name, value in vars(self).items() if name != _STATE}
            attributes["_value"] = self._value
            return copyreg.__newobj__, (base,), attributes  # type: ignore[attr-defined]

    LazyVariable.__name__ = base.__name__
    LazyVariable.__qualname__ = base.__qualname__
    LazyVariable.__module__ = base.__module__
    return LazyVariable
