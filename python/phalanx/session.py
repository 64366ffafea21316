"""The state of an attached model: its strategy, its engine and the link between variables and engine."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from phalanx import _keras, _phalanx
from phalanx._warnings import warn
from phalanx.unsupported import config_text, find_unsupported, find_unsupported_state, unsupported_error
from phalanx.variables import Link, as_array

_ATTRIBUTE = "_phalanx_session"
_NO_LOSS = "compile() had no loss and no metrics, and the layers have no penalties: there is nothing to compute"


class Session:
    """Trains one model. Created when the model is compiled in a strategy's scope, and kept with the model."""

    def __init__(self, model: Any, strategy: Any) -> None:
        self.strategy = strategy
        self.engine: Any = None
        self.link: Link | None = None
        self.target_outputs: list[int] | None = None
        """The outputs with a loss or metrics; `None` if there is nothing to train or evaluate."""
        self._reasons: list[str] | None = None
        self._warned = False
        self._structure: tuple[Any, ...] = ()
        self._optimizer_config: Any = None
        self._lacks_optimizer = False
        """Whether the engine has an optimizer without the state of the model's."""
        self._lock = threading.Lock()
        self._thread: int | None = None
        self.note_compiled(model)

    @staticmethod
    def of(model: Any) -> "Session | None":
        """Returns the session of a model, if it is attached."""
        return vars(model).get(_ATTRIBUTE)

    def attach(self, model: Any) -> None:
        """Keeps this session with a model."""
        vars(model)[_ATTRIBUTE] = self

    # Compiling

    def before_compile(self) -> None:
        """Brings the weights back to Python; the engine does not outlive a `compile`.

        The old optimizer's variables stay lazy, so its state costs nothing unless somebody reads it.
        """
        if self.link is not None:
            self.link.release_weights()
        self.engine = self.link = None

    def note_compiled(self, model: Any) -> None:
        """Records that the model was compiled, and checks it if it is built."""
        self._reasons = None
        self._warned = False
        self._trainable = [(layer, layer.trainable) for layer in [model, *_keras.flatten_layers(model)]]

    def check(self, model: Any) -> list[str]:
        """Raises `UnsupportedError` with all reasons if Phalanx cannot train the model, or falls back to Keras.

        Returns the reasons. Those of a model that is not built may be incomplete.
        """
        reasons = self._reasons
        if reasons is None:
            reasons = find_unsupported(model)
            if _keras.is_built(model):
                self._reasons = reasons
        else:
            reasons = list(dict.fromkeys([*reasons, *find_unsupported_state(model)]))
        if reasons:
            self._refuse(model, reasons)
        return reasons

    def falls_back(self, model: Any) -> bool:
        """Whether Keras runs this model."""
        return bool(self.check(model))

    def refuse_data(self, model: Any, error: Exception) -> None:
        """Raises an error about unsupported data unless the strategy falls back to Keras."""
        reasons = getattr(error, "reasons", None) or [str(error)]
        if self.strategy.fallback != "keras":
            raise unsupported_error(model, reasons) from error
        self._warn(model, reasons)
        if self.link is not None:
            # Keras goes on with the current values.
            self.link.release()
            self.engine = self.link = None

    def _refuse(self, model: Any, reasons: list[str]) -> None:
        if self.strategy.fallback != "keras":
            raise unsupported_error(model, reasons)
        self._warn(model, reasons)

    def _warn(self, model: Any, reasons: list[str]) -> None:
        if not self._warned:
            warn(f"Keras trains '{model.name}', since phalanx cannot: {'; '.join(reasons)}")
        self._warned = True

    # Running

    @contextlib.contextmanager
    def running(self, model: Any) -> Iterator[None]:
        """Holds the model while its engine runs."""
        if not self._lock.acquire(blocking=False):
            raise RuntimeError(f"model '{model.name}' is in use: wait until its fit, evaluate or predict has returned")
        self._thread = threading.get_ident()
        try:
            yield
        finally:
            self._thread = None
            self._lock.release()

    def is_nested(self) -> bool:
        """Whether a callback of this model's own run calls."""
        return self._thread == threading.get_ident()

    @contextlib.contextmanager
    def run_keras(self) -> Iterator[None]:
        """Lets Keras evaluate or predict with current weights; what it assigns to variables is not a change."""
        link = self.link
        if link is None:
            yield
            return
        link.write_back()
        previous, link.ignores_assignments = link.ignores_assignments, True
        try:
            yield
        finally:
            link.ignores_assignments = previous

    def prepare(self, model: Any, *, training: bool, compiled: bool = True) -> Link:
        """Creates the engine, or sends it what Python changed since the last run.

        With `compiled` the engine must have something to train or evaluate.
        """
        structure = (*map(id, _keras.flatten_layers(model)), id(getattr(model, "optimizer", None)))
        optimizer_config = _optimizer_config(model)
        if self.link is not None and (structure, optimizer_config) != (self._structure, self._optimizer_config):
            self.link.release()
            self.link = None
        if training and self.link is not None and self._lacks_optimizer:
            self._refuse_optimizer(model)
        if self.link is None:
            self.link = self._create(model, training)
            self._structure, self._optimizer_config = structure, optimizer_config
        else:
            self.link.upload()
        if compiled and self.target_outputs is None:
            raise unsupported_error(model, [_NO_LOSS])
        return self.link

    def check_trainable(self) -> None:
        """Raises an error if `trainable` of a layer changed since `compile`."""
        changed = [layer.name for layer in self._layers_with_changed_trainable()]
        if changed:
            raise ValueError(f"`trainable` of {changed} changed since compile(): call compile() again for it to count")

    @contextlib.contextmanager
    def trainable_as_compiled(self, model: Any) -> Iterator[None]:
        """Sets `trainable` of all layers as of the last `compile`.

        An engine that is created for a prediction may train later, when the layers are again as compiled.
        """
        if not self._layers_with_changed_trainable():
            yield
            return
        layers = [(layer, layer.trainable) for layer in [model, *_keras.flatten_layers(model)]]
        variables = [(variable, variable.trainable) for variable in model.variables]
        # A layer sets those inside it, and comes before them.
        for layer, trainable in self._trainable:
            layer.trainable = trainable
        try:
            yield
        finally:
            for part, trainable in [*layers, *variables]:
                part.trainable = trainable

    def _layers_with_changed_trainable(self) -> list[Any]:
        return [layer for layer, trainable in self._trainable if layer.trainable != trainable]

    def _refuse_optimizer(self, model: Any) -> None:
        raise unsupported_error(model, ["its optimizer was built for other weights: call compile() with a new one"])

    def _create(self, model: Any, training: bool) -> Link:
        saved = _keras.saved_variables(model)
        optimizer = getattr(model, "optimizer", None)
        state = None
        self._lacks_optimizer = False
        if optimizer is not None and optimizer.built:
            trained = model.trainable_variables
            self._lacks_optimizer = not _keras.is_built_for(optimizer, trained)
            if self._lacks_optimizer:
                # As after `model.add(...)`. Predictions need no slots.
                if training:
                    self._refuse_optimizer(model)
                optimizer = _keras.new_optimizer(optimizer, trained)
            state = [as_array(variable._value) for variable in optimizer.variables]
        self.engine = self._new_engine(model, saved, state)
        self.target_outputs = self.engine.target_outputs
        link = Link(self.engine)
        by_path = dict(saved)
        for index, path in enumerate(self.engine.weight_paths):
            if not isinstance(by_path.get(path), _keras.Variable):
                raise unsupported_error(model, [f"weight '{path}' is not a variable of the model"])
            link.add_weight(by_path[path], index)
        if state is not None and not self._lacks_optimizer:
            link.add_optimizer(optimizer)
        return link

    def _new_engine(self, model: Any, saved: list[tuple[str, Any]], optimizer: list[Any] | None) -> Any:
        weights = [(path, _saved_array(value)) for path, value in saved]
        return _phalanx.Engine(
            config_text(model),
            [(path, array) for path, array in weights if array is not None],
            _keras.saved_assets(model),
            optimizer,
            devices=self.strategy.devices,
            threads=self.strategy.threads,
            deterministic=self.strategy.deterministic,
            # A fixed seed, so that a script that sets none can resume its run.
            seed=_keras.random_seed() or 0,
        )


def _saved_array(value: Any) -> Any:
    """Returns a saved value as an array of numbers; `None` for what is not numbers, such as a vocabulary."""
    array = as_array(value._value if isinstance(value, _keras.Variable) else value)
    return array if array.dtype.kind in "iuf" else None


def _optimizer_config(model: Any) -> Any:
    """Returns the optimizer's arguments without the learning rate, whose variable the engine holds."""
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        return None
    config = optimizer.get_config()
    rate = _keras.learning_rate_source(optimizer)
    if isinstance(rate, _keras.Variable):
        config.pop("learning_rate", None)
        config.pop("inner_optimizer", None)
    return config
