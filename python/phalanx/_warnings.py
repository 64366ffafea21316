"""Warnings of the engine."""

import os
import sys
import types
import warnings

_FOLDER = os.path.dirname(__file__) + os.sep


def warn(text: str) -> None:
    """Gives a warning at the line that called Phalanx."""
    level = 1
    frame: types.FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_filename.startswith(_FOLDER):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, stacklevel=level)
