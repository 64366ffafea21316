"""The extension module: models on the devices of Phalanx."""

from collections.abc import Sequence
from typing import Any, Protocol, final

import numpy as np

__all__ = [
    "Array",
    "ArrayData",
    "BatchData",
    "Engine",
    "UnsupportedError",
    "__version__",
    "list_devices",
    "run_command",
    "unsupported",
]

__version__: str

class UnsupportedError(NotImplementedError):
    """A model that Phalanx cannot train. `reasons` lists every unsupported part."""

    reasons: list[str]

@final
class Array:
    """An array of the engine. `numpy.asarray` shares its memory."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class ArrayData:
    """Inputs, targets and sample weights as arrays, which the engine reads in place."""

    def __new__(
        cls,
        x: Sequence[np.ndarray],
        y: Sequence[np.ndarray],
        sample_weight: np.ndarray | Sequence[np.ndarray | None] | None,
        batch_size: int,
    ) -> ArrayData: ...

@final
class BatchData:
    """An object that yields batches, read by a thread up to `ahead` batches before the step.

    `start(epoch, batch)` starts a pass, `take()` returns the arrays of the next batches, or an empty list.
    """

    def __new__(cls, source: Any, batches: int | None, batch_size: int, ahead: int) -> BatchData: ...

class _Hooks(Protocol):
    batch_interval: dict[str, tuple[bool, bool, int, float]]

    def call(self, hook: str, index: int, logs: dict[str, float | np.ndarray]) -> dict[str, Any] | None: ...

@final
class Engine:
    """A Keras model on the devices of a strategy."""

    def __new__(
        cls,
        config: str,
        weights: Sequence[tuple[str, np.ndarray]],
        assets: dict[str, bytes],
        optimizer: Sequence[np.ndarray] | None,
        *,
        devices: Sequence[str],
        threads: int | None = None,
        deterministic: bool = False,
        seed: int = 0,
    ) -> Engine: ...
    @property
    def weight_paths(self) -> list[str]: ...
    @property
    def target_outputs(self) -> list[int] | None: ...
    @property
    def iterations(self) -> int: ...
    @property
    def learning_rate(self) -> float: ...
    @learning_rate.setter
    def learning_rate(self, rate: float, /) -> None: ...
    def read_weight(self, index: int, out: np.ndarray) -> None: ...
    def write_weight(self, index: int, value: np.ndarray) -> None: ...
    def read_optimizer(self) -> list[Array]: ...
    def write_optimizer(self, values: Sequence[np.ndarray]) -> None: ...
    def memory_plan(self, batch_size: int) -> list[tuple[str, int]]: ...
    def fit(
        self,
        data: ArrayData | BatchData,
        validation: ArrayData | BatchData | None,
        hooks: _Hooks,
        arguments: dict[str, Any],
    ) -> None: ...
    def evaluate(self, data: ArrayData | BatchData, hooks: _Hooks) -> list[tuple[str, float | np.ndarray]]: ...
    def predict(self, data: ArrayData | BatchData, hooks: _Hooks) -> list[Array]: ...
    def train_on_batch(self, data: ArrayData) -> list[tuple[str, float | np.ndarray]]: ...
    def test_on_batch(self, data: ArrayData) -> list[tuple[str, float | np.ndarray]]: ...
    def metrics_result(self) -> list[tuple[str, float | np.ndarray]]: ...
    def reset_metrics(self) -> None: ...

def list_devices() -> list[str]: ...
def run_command(args: Sequence[str]) -> int: ...
def unsupported(config: str) -> list[str]: ...
