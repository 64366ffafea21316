"""The command `phalanx`, for the entry point of the package."""

import signal
import sys

from phalanx import _phalanx


def main() -> int:
    """Runs the command and returns its exit code."""
    # The command handles signals itself, as a program without Python does.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    return _phalanx.run_command(sys.argv)
