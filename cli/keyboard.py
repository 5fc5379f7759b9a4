"""The keyboard: lines that a person types, and Ctrl-C, which a prompt must not miss."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from typing import Final

from turnwise.cli.style import console

with contextlib.suppress(ImportError):
    import readline  # noqa: F401 - gives `input` its line editing

_GLANCE: Final = 0.1
"""Seconds between two looks for a Ctrl-C that came while `input` was on its way to wait for keys."""


def typed(prompt: str) -> str:
    """Return the next line; where it comes from a pipe, show it, for the terminal did not.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed.
        EOFError: there is no further line.
    """
    if sys.stdin.isatty():
        with _glances():
            return input(prompt).strip()
    line = input(prompt).strip()
    console.print(line, markup=False)
    return line


@contextlib.contextmanager
def _glances() -> Iterator[None]:
    """Interrupt `input` now and then: CPython acts on a signal that came before it waited only at the next signal."""
    if not hasattr(signal, "setitimer"):
        yield
        return
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, _GLANCE, _GLANCE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
