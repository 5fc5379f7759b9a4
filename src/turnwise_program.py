"""The script `turnwise`. It stands beside the library, which takes a while to import: Ctrl-C may come meanwhile."""

from __future__ import annotations

import os
import signal
import sys

_STOPPED = 130
"""What a shell expects of a program that Ctrl-C ended."""
_MISUSE = 2
"""As `turnwise.cli.failures`, which cannot be imported without the extra."""


def main() -> None:
    """Import the command line and run it. Ctrl-C ends both with 130 and without a traceback.

    Without the extra `cli` it exits with 2, and one line says what to install.
    """
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_default:
        signal.signal(signal.SIGINT, _leave)
    try:
        from turnwise.cli.app import main as run  # noqa: PLC0415 - see above
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "turnwise":
            raise
        sys.stderr.write(f"turnwise: the command line needs the extra `cli`: pip install 'turnwise[cli]' ({error}).\n")
        sys.exit(_MISUSE)

    if is_default:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


def _leave(*_: object) -> None:
    """Leave at once: nothing is under way, and parts of an import swallow exceptions."""
    os._exit(_STOPPED)
