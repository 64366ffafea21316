"""Device names: those of this machine, and the ways in which users write them."""

import re
from collections.abc import Iterable

from phalanx import _phalanx

_NAME = re.compile(r"(?:.*/)?(?:device:|physical_device:)?(cpu|gpu)(?::(\d+))?", re.IGNORECASE)

_visible: list[str] | None = None


def parse_device(name: str | int) -> str:
    """Returns a device's name as Phalanx writes it, such as `gpu:0`.

    Accepts what TensorFlow users write: `"gpu:0"`, `"/gpu:0"`, `"GPU:0"`, `"/device:GPU:0"`, and `0` for the first GPU.
    """
    if isinstance(name, int) and not isinstance(name, bool):
        return f"gpu:{name}"
    text = str(getattr(name, "name", name))
    match = _NAME.fullmatch(text)
    if match is None:
        raise ValueError(f"device: expected a name such as 'gpu:0' or 'cpu:1', received {name!r}")
    return f"{match[1].lower()}:{int(match[2] or 0)}"


def is_gpu(name: str) -> bool:
    """Returns whether a device name is that of a GPU."""
    return name in _of_kind([name], "GPU")


def list_physical_devices(device_type: str | None = None) -> list[str]:
    """Lists the devices of this machine, such as `["cpu:0", "gpu:0"]`.

    Args:
        device_type: `"CPU"` or `"GPU"` for the devices of one kind.
    """
    return _of_kind(_phalanx.list_devices(), device_type)


def set_visible_devices(devices: str | int | Iterable[str | int], device_type: str | None = None) -> None:
    """Restricts the devices that strategies use by default.

    Args:
        devices: The devices to use, such as `["gpu:0", "gpu:1"]`; an empty list hides all.
        device_type: `"CPU"` or `"GPU"` to leave the devices of the other kind as they are.
    """
    global _visible
    names = [devices] if isinstance(devices, (str, int)) else list(devices)
    chosen = [parse_device(name) for name in names]
    known = _phalanx.list_devices()
    unknown = [name for name in chosen if is_gpu(name) and name not in known]
    if unknown:
        raise ValueError(f"set_visible_devices: expected devices of {known}, received {unknown}")
    kept = (
        [] if device_type is None else [name for name in visible_devices() if name not in _of_kind(known, device_type)]
    )
    _visible = kept + [name for name in chosen if name not in kept]


def visible_devices(device_type: str | None = None) -> list[str]:
    """Lists the devices that strategies may use by default."""
    return _of_kind(_phalanx.list_devices() if _visible is None else _visible, device_type)


def default_devices() -> list[str]:
    """Returns all visible GPUs, or else one CPU device."""
    return visible_devices("GPU") or visible_devices("CPU")[:1] or ["cpu:0"]


def _of_kind(names: list[str], device_type: str | None) -> list[str]:
    if device_type is None:
        return list(names)
    kind = str(device_type).lower()
    if kind not in ("cpu", "gpu"):
        raise ValueError(f"device_type: expected 'CPU' or 'GPU', received {device_type!r}")
    return [name for name in names if name.startswith(kind)]
