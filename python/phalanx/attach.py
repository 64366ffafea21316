"""Attaching: how a Keras model comes to be trained by Phalanx.

`compile` is wrapped once, in the class that defines it. The wrapper asks for the strategy whose scope is open. An
attached model gets its own `fit`, `evaluate`, `predict` and `*_on_batch`, which shadow those of its class; the class
stays as it is, so files, pickles and clones are those of a plain model.
"""

import functools
import types
from collections.abc import Callable
from typing import Any

from phalanx import _keras, fit, inference, on_batch
from phalanx.session import Session
from phalanx.strategy import MirroredStrategy, current_strategy
from phalanx.unsupported import find_unsupported
from phalanx.variables import note_assignments

_METHODS: dict[str, Callable[..., Any]] = {
    "fit": fit.fit,
    "evaluate": inference.evaluate,
    "predict": inference.predict,
    "train_on_batch": on_batch.train_on_batch,
    "test_on_batch": on_batch.test_on_batch,
    "predict_on_batch": on_batch.predict_on_batch,
    "reset_metrics": on_batch.reset_metrics,
}
_WRAPPED = "_phalanx_wrapped"


def install() -> None:
    """Wraps `compile`, unless that is done."""
    trainer: Any = _keras.trainer_class()
    if not hasattr(trainer.compile, _WRAPPED):
        trainer.compile = _wrap(trainer.compile)
        _keras.note_optimizer_steps(note_assignments)


def _wrap(compile_method: Any) -> Any:
    @functools.wraps(compile_method)
    def compile(self: Any, *args: Any, **kwargs: Any) -> Any:
        session = Session.of(self)
        if session is not None:
            session.before_compile()
        result = compile_method(self, *args, **kwargs)
        strategy = current_strategy()
        if session is not None:
            session.note_compiled(self)
            session.strategy = strategy or session.strategy
        elif strategy is not None:
            session = attach(self, strategy)
        if session is not None:
            _check_early(session, self)
        return result

    setattr(compile, _WRAPPED, True)
    return compile


def attach(model: Any, strategy: MirroredStrategy) -> Session:
    """Gives a model to Phalanx."""
    session = Session.of(model)
    if session is not None:
        session.before_compile()
        session.strategy = strategy
        return session
    session = Session(model, strategy)
    session.attach(model)
    for name, method in _METHODS.items():
        vars(model)[name] = types.MethodType(method, model)
    return session


def detach(model: Any) -> None:
    """Takes a model back from Phalanx."""
    session = vars(model).pop("_phalanx_session", None)
    if session is not None and session.link is not None:
        session.link.release()
    for name in _METHODS:
        vars(model).pop(name, None)


def _check_early(session: Session, model: Any) -> None:
    """Checks a model when it is compiled if its layers are known by then."""
    if _keras.is_built(model) or not isinstance(model, _keras.Sequential):
        try:
            session.check(model)
        except Exception:
            detach(model)
            raise


def explain(model: Any, strategy: MirroredStrategy, batch_size: int) -> str:
    """Describes devices and memory of a model, or all that is unsupported."""
    session = Session.of(model) or Session(model, strategy)
    reasons = find_unsupported(model)
    if reasons:
        return f"phalanx cannot train '{model.name}':\n" + "".join(f"  {reason}\n" for reason in reasons)
    if not _keras.is_built(model):
        raise ValueError(
            f"explain: expected a built model, received '{model.name}': call its build() or give it an Input"
        )
    with session.trainable_as_compiled(model):
        _keras.build_optimizer(model)
        link = session.prepare(model, training=model.compiled)
    plan = link.engine.memory_plan(batch_size)
    if Session.of(model) is None:
        link.release()
    return _describe(model, session.strategy, batch_size, plan)


def _describe(model: Any, strategy: MirroredStrategy, batch_size: int, plan: list[tuple[str, int]]) -> str:
    replicas = strategy.num_replicas_in_sync
    lines = [
        f"phalanx trains '{model.name}' on {', '.join(strategy.devices)} ({replicas} replica{'s' * (replicas > 1)})",
        f"batch: {batch_size} global, {-(-batch_size // replicas)} per replica",
        "memory of each replica:",
    ]
    entries = [*plan, ("total", sum(size for _, size in plan))]
    lines += [f"  {purpose:<22}{size / 2**20:>10.2f} MiB" for purpose, size in entries]
    return "\n".join(lines)
