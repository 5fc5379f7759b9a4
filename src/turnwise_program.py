"""The script `turnwise`. It stands beside the library, which takes a while to import: Ctrl-C may come meanwhile."""

from __future__ import annotations

import os
import signal

_STOPPED = 130
"""What a shell expects of a program that Ctrl-C ended."""


def main() -> None:
    """Import the command line and run it. Ctrl-C ends both with 130 and without a traceback."""
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_default:
        signal.signal(signal.SIGINT, _leave)
    from turnwise.cli.app import main as run  # noqa: PLC0415 - see above

    if is_default:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


def _leave(*_: object) -> None:
    """Leave at once: nothing is under way, and parts of an import swallow exceptions."""
    os._exit(_STOPPED)
