"""Strategies: which devices train a model, and how a model is put on them."""

import contextlib
import contextvars
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from phalanx.devices import default_devices, is_gpu, parse_device, visible_devices

_current: contextvars.ContextVar["MirroredStrategy | None"] = contextvars.ContextVar("phalanx_strategy", default=None)


def current_strategy() -> "MirroredStrategy | None":
    """Returns the strategy whose scope is open, if any."""
    return _current.get()


class MirroredStrategy:
    """Synchronous training on several devices of one machine.

    A model that is compiled in the strategy's `scope` is trained, evaluated and run by Phalanx from then on:

    ```python
    strategy = phalanx.MirroredStrategy()
    with strategy.scope():
        model.compile("adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(x, y, batch_size=64 * strategy.num_replicas_in_sync)
    ```

    Every replica computes its share of each batch, so the results are those of one device, up to rounding.

    Args:
        devices: Device names such as `["gpu:0", "gpu:1"]` or `["cpu:0", "cpu:1"]`; by default all visible GPUs, or else
            one CPU device.
        threads: Worker threads of each CPU device; by default the cores are divided among the devices.
        deterministic: Whether 1, 2, 4 or 8 CPU devices give the same bits, at some cost in speed.
        fallback: What happens to a model that Phalanx cannot train: `"error"` raises `UnsupportedError`, `"keras"`
            warns and lets Keras train it.
        on_nan: What happens if the loss is not finite: `"warn"` goes on as Keras does, `"stop"` ends training,
            `"raise"` raises an error.
    """

    def __init__(
        self,
        devices: str | int | Sequence[str | int] | None = None,
        *,
        threads: int | None = None,
        deterministic: bool = False,
        fallback: str = "error",
        on_nan: str = "warn",
    ) -> None:
        self._devices = _device_list(devices)
        self.threads = _check_threads(threads)
        self.deterministic = bool(deterministic)
        self.fallback = _check_choice("fallback", fallback, ("error", "keras"))
        self.on_nan = _check_choice("on_nan", on_nan, ("warn", "stop", "raise"))

    @property
    def devices(self) -> list[str]:
        """The devices, one for each replica."""
        return list(self._devices)

    @property
    def num_replicas_in_sync(self) -> int:
        """The number of replicas: the factor between a replica's batch and the whole one."""
        return len(self._devices)

    @contextlib.contextmanager
    def scope(self) -> Iterator["MirroredStrategy"]:
        """Models that are compiled or loaded in this scope are trained by Phalanx."""
        from phalanx import attach

        attach.install()
        _warn_if_backend_holds_gpu(self._devices)
        token = _current.set(self)
        try:
            yield self
        finally:
            _current.reset(token)

    def __repr__(self) -> str:
        return f"MirroredStrategy({self._devices})"


def multi_gpu_model(model: Any, gpus: int | Sequence[str | int] | None = None) -> Any:
    """Trains a model on several GPUs from its next `compile` on, and returns the very same model.

    Args:
        model: A Keras model.
        gpus: How many GPUs, or which; by default all.
    """
    from phalanx import attach

    strategy = MirroredStrategy(_gpu_list(gpus))
    attach.install()
    _warn_if_backend_holds_gpu(strategy.devices)
    attach.attach(model, strategy)
    return model


def explain(model: Any, batch_size: int = 32) -> str:
    """Describes how Phalanx trains a model: devices and memory, or all that is unsupported.

    Args:
        model: A built Keras model. If it is not attached, the strategy whose scope is open is used, or the default.
        batch_size: The samples of a batch over all replicas.
    """
    from phalanx import attach

    return attach.explain(model, current_strategy() or MirroredStrategy(), batch_size)


def _device_list(devices: str | int | Sequence[str | int] | None) -> list[str]:
    if devices is None:
        return default_devices()
    names = [devices] if isinstance(devices, (str, int)) else list(devices)
    if not names:
        raise ValueError("MirroredStrategy: devices: expected at least one device, received none")
    parsed = [parse_device(name) for name in names]
    repeated = sorted({name for name in parsed if parsed.count(name) > 1})
    if repeated:
        raise ValueError(f"MirroredStrategy: devices: expected each device once, received {repeated} several times")
    _check_gpus(parsed, "MirroredStrategy: devices")
    return parsed


def _gpu_list(gpus: int | Sequence[str | int] | None) -> list[str]:
    found = visible_devices("GPU")
    if gpus is None:
        gpus = max(len(found), 1)
    if not isinstance(gpus, int):
        return [parse_device(name) for name in gpus]
    if gpus < 1:
        raise ValueError(f"multi_gpu_model: gpus: expected 1 or more, received {gpus}")
    if gpus > len(found):
        raise ValueError(_missing_gpus("multi_gpu_model: gpus", f"{gpus}"))
    return found[:gpus]


def _check_gpus(names: list[str], argument: str) -> None:
    found = visible_devices("GPU")
    missing = [name for name in names if is_gpu(name) and name not in found]
    if missing:
        raise ValueError(_missing_gpus(argument, ", ".join(missing)))


def _missing_gpus(argument: str, received: str) -> str:
    found = visible_devices("GPU")
    hint = 'MirroredStrategy(["cpu:0", "cpu:1"]) trains on two CPU devices'
    if not found:
        return f"{argument}: no GPU was found, received {received}. The devices are {visible_devices()}; {hint}"
    expected = f"up to {len(found)} GPUs, which are {found}"
    return f"{argument}: expected {expected}; received {received}. The devices are {visible_devices()}; {hint}"


def _check_threads(threads: int | None) -> int | None:
    if threads is not None and threads < 1:
        raise ValueError(f"MirroredStrategy: threads: expected 1 or more, received {threads}")
    return threads


def _check_choice(argument: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise ValueError(f"MirroredStrategy: {argument}: expected one of {list(choices)}, received {value!r}")
    return value


def _warn_if_backend_holds_gpu(devices: list[str]) -> None:
    """Warns that Keras' backend takes memory of a GPU that trains, with the line that prevents it."""
    if not any(name.startswith("gpu") for name in devices):
        return
    from phalanx import _keras

    backend = _keras.backend_name()
    remedy = None
    if backend == "tensorflow":
        import tensorflow as tf

        if tf.config.get_visible_devices("GPU"):
            remedy = 'call tf.config.set_visible_devices([], "GPU") after importing tensorflow'
    elif backend == "jax":
        import jax

        if any(device.platform != "cpu" for device in jax.devices()):
            remedy = "set the environment variable JAX_PLATFORMS=cpu"
    elif backend == "torch":
        import torch

        if torch.cuda.is_available():
            remedy = "set the environment variable KERAS_TORCH_DEVICE=cpu"
    if remedy:
        warnings.warn(f"Keras' backend '{backend}' holds memory of a GPU that trains; {remedy}", stacklevel=4)
