"""Phalanx for Keras: train a Keras 3 model in lockstep on every device of this machine.

```python
import phalanx

strategy = phalanx.MirroredStrategy()
with strategy.scope():
    model.compile("adam", loss="mse")
model.fit(x, y)                         # trained by Phalanx
```

Importing this package imports neither Keras nor NumPy; the first use of a name does.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phalanx._phalanx import UnsupportedError, __version__
    from phalanx.devices import list_physical_devices, set_visible_devices
    from phalanx.strategy import MirroredStrategy, explain, multi_gpu_model

__all__ = [
    "MirroredStrategy",
    "UnsupportedError",
    "__version__",
    "explain",
    "list_physical_devices",
    "multi_gpu_model",
    "set_visible_devices",
]

_MODULES = {
    "MirroredStrategy": "phalanx.strategy",
    "UnsupportedError": "phalanx._phalanx",
    "__version__": "phalanx._phalanx",
    "explain": "phalanx.strategy",
    "list_physical_devices": "phalanx.devices",
    "multi_gpu_model": "phalanx.strategy",
    "set_visible_devices": "phalanx.devices",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'phalanx' has no attribute '{name}'")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
