"""What Phalanx cannot train, found before a run starts and reported all at once."""

import inspect
import json
from typing import Any

from phalanx import _keras, _phalanx
from phalanx._keras import keras

_STEP_METHODS = (
    "train_step",
    "test_step",
    "predict_step",
    "compute_loss",
    "compute_metrics",
    "compute_own_loss",
    "call",
)
_EPSILON = 1e-7
_HINT = '(compile it outside the scope to train with Keras, or use MirroredStrategy(fallback="keras"))'


def unsupported_error(model: Any, reasons: list[str]) -> _phalanx.UnsupportedError:
    """Returns the error that names every unsupported part."""
    error = _phalanx.UnsupportedError(f"phalanx cannot train '{model.name}': {'; '.join(reasons)}\n{_HINT}")
    error.reasons = list(reasons)
    return error


def find_unsupported(model: Any) -> list[str]:
    """Lists every part of a compiled model that Phalanx cannot train; empty if it can train the model."""
    reasons = _model_reasons(model)
    subclassed = bool(reasons)
    reasons += _environment_reasons(model) + find_unsupported_state(model)
    compile_reasons = _compile_reasons(model)
    layer_reasons = [] if subclassed else _layer_reasons(model)
    reasons += layer_reasons + compile_reasons
    if not subclassed:
        reasons += _config_reasons(model, reasons)
    return list(dict.fromkeys(reasons))


def find_unsupported_state(model: Any) -> list[str]:
    """Lists what no config holds and what may change after `compile`."""
    reasons = []
    epsilon = keras.config.epsilon()
    if epsilon != _EPSILON:
        reasons.append(f"keras.config.set_epsilon({epsilon})")
    optimizer = getattr(model, "optimizer", None)
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if _keras.excludes_from_weight_decay(inner):
        reasons.append(f"optimizer '{type(inner).__name__}': exclude_from_weight_decay")
    return reasons


def _is_keras(value: Any) -> bool:
    """Whether a class, function or object is part of Keras."""
    module = getattr(value, "__module__", None) or type(value).__module__
    return module.split(".")[0] == "keras"


def _model_reasons(model: Any) -> list[str]:
    reasons = []
    if type(model) not in (_keras.Sequential, _keras.Functional):
        reasons.append(f"model class '{type(model).__name__}' is not Sequential or functional")
    base = _keras.Functional if isinstance(model, _keras.Functional) else keras.Model
    base = _keras.Sequential if isinstance(model, _keras.Sequential) else base
    for name in _STEP_METHODS:
        overridden = name in vars(model) or getattr(type(model), name, None) is not getattr(base, name, None)
        if overridden:
            reasons.append(f"its method '{name}' is overridden")
    return reasons


def _environment_reasons(model: Any) -> list[str]:
    reasons = []
    if model.run_eagerly:
        reasons.append("run_eagerly=True")
    if _keras.distribution() is not None:
        reasons.append("a keras.distribution is set")
    if _keras.backend_name() == "tensorflow":
        import tensorflow as tf

        strategy = getattr(model, "_distribute_strategy", None) or tf.distribute.get_strategy()
        if strategy.num_replicas_in_sync > 1:
            reasons.append(f"a tf.distribute strategy with {strategy.num_replicas_in_sync} replicas")
    return reasons


def _layer_reasons(model: Any) -> list[str]:
    reasons = []
    for layer in _keras.flatten_layers(model):
        if not _is_keras(type(layer)):
            reasons.append(f"layer '{layer.name}' ({type(layer).__name__}) is unknown")
        elif "call" in vars(layer):
            reasons.append(f"layer '{layer.name}': its method 'call' is overridden")
        elif getattr(layer, "sparse", False) and isinstance(layer, keras.layers.InputLayer):
            reasons.append(f"input '{layer.name}' is sparse")
        elif getattr(layer, "ragged", False) and isinstance(layer, keras.layers.InputLayer):
            reasons.append(f"input '{layer.name}' is ragged")
        elif getattr(layer, "stateful", False) is True and hasattr(layer, "reset_state"):
            reasons.append(f"layer '{layer.name}': stateful=True")
        elif getattr(layer, "lora_enabled", False):
            reasons.append(f"layer '{layer.name}': LoRA is enabled")
    return reasons


def _compile_reasons(model: Any) -> list[str]:
    arguments = _keras.compile_arguments(model)
    reasons = _optimizer_reasons(getattr(model, "optimizer", None))
    for kind, argument in (("loss", "loss"), ("metric", "metrics"), ("metric", "weighted_metrics")):
        for value in _keras.tree.flatten(arguments.get(argument)):
            reason = _objective_reason(kind, value)
            if reason:
                reasons.append(reason)
    return reasons


def _objective_reason(kind: str, value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return None
    function = getattr(value, "fn", None) or getattr(value, "_fn", None)
    if inspect.isfunction(value) or inspect.isbuiltin(value) or isinstance(value, type(min)):
        function = value
    if function is not None and not _is_keras(function):
        return f"{kind} '{getattr(function, '__name__', 'function')}' is a Python function"
    if function is None and not _is_keras(type(value)):
        return f"{kind} '{type(value).__name__}' is unknown"
    return None


def _optimizer_reasons(optimizer: Any) -> list[str]:
    if optimizer is None:
        return []
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if not _is_keras(type(inner)):
        return [f"optimizer '{type(inner).__name__}' is unknown"]
    rate = _keras.learning_rate_source(inner)
    if isinstance(rate, _keras.Variable):
        return []
    if not _is_keras(type(rate)) or inspect.isfunction(rate):
        name = getattr(rate, "__name__", type(rate).__name__)
        return [f"learning rate '{name}' is not a number or a schedule of Keras"]
    return []


def _config_reasons(model: Any, known: list[str]) -> list[str]:
    """Lists what the reader of configs does not know, without the parts that `known` names."""
    try:
        config = _keras.serialize(model)
    except Exception as error:
        if known:
            return []
        return [f"Keras cannot serialize it: {error}"]
    named = {_subject(reason) for reason in known}
    return [reason for reason in _phalanx.unsupported(config) if _subject(reason) not in named]


def _subject(reason: str) -> str:
    """Returns the quoted name that a reason starts with."""
    parts = reason.split("'")
    return parts[1] if len(parts) > 2 else reason


def config_text(model: Any) -> str:
    """Returns the config that the engine reads; a model that is not compiled has no compile arguments."""
    text = _keras.serialize(model)
    losses = _keras.tree.flatten(_keras.compile_arguments(model).get("loss"))
    if model.compiled and any(loss is not None for loss in losses):
        return text
    config = json.loads(text)
    if model.compiled:
        # A list without any loss means the same as no list.
        config["compile_config"]["loss"] = None
    else:
        config["compile_config"] = {}
    return json.dumps(config)
