"""The keyboard: lines that a person types, and Ctrl-C, which a prompt must not miss."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from typing import Final

from turnwise.cli.style import clean, console
from turnwise.states.calls import ToolCall, ToolResult

with contextlib.suppress(ImportError):
    import readline  # noqa: F401 - gives `input` its line editing

PROMPT: Final = "» "
COMMANDS: Final = ("/help", "/state", "/resume", "/compact", "/clear", "/quit")
_GLANCE: Final = 0.1
"""Seconds between two checks for a Ctrl-C that came just before `input` began to wait for keys."""


def typed(prompt: str) -> str:
    """Return the next line; where it comes from a pipe, print it, as no terminal has shown it.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed.
        EOFError: there is no further line.
    """
    if sys.stdin.isatty():
        with _glances():
            return input(prompt).strip()
    line = input(prompt).strip()
    console.print(clean(line))
    return line


def question_of(call: ToolCall) -> str:
    """Return the prompt for a person's answer to a client's call."""
    return f"  allow {clean(call.name)}? (y/n) " if call.approval == "asked" else f"  {clean(call.name)}: "


def answer_to(call: ToolCall, line: str) -> ToolResult:
    """Return a typed line as the result of a client's call; "y" and "yes" approve it."""
    return ToolResult(call.call_id, line.lower() in ("y", "yes") if call.approval == "asked" else line)


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
