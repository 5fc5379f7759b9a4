"""Reports an error as one sentence on the screen and an exit code, without a traceback."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from typing import Final

from rich.text import Text

from turnwise.cli.connect import AmbiguousChat
from turnwise.cli.style import clean, errors
from turnwise.foreign import described
from turnwise.states.errors import ChatNotFound, SettingsError, TurnwiseError

DONE: Final = 0
PROBLEM: Final = 1
MISUSE: Final = 2
STOPPED: Final = 130
"""What a shell expects of a program that Ctrl-C ended."""
DEBUG: Final = "TURNWISE_DEBUG"
"""The variable that asks for a traceback."""

_MISUSES: Final = (SettingsError, ChatNotFound, AmbiguousChat)


def exit_code_of(failure: BaseException) -> int:
    """Print what ended a command, and return the exit code for it."""
    if os.environ.get(DEBUG):
        raise failure
    causes = [*_causes(failure)]
    if any(isinstance(one, OSError) and one.errno == errno.EPIPE and one.filename is None for one in causes):
        forget_output()  # the reader has closed the output, as `head` does
        return PROBLEM
    if any(isinstance(cause, KeyboardInterrupt) for cause in causes):
        return STOPPED
    cause = next((cause for cause in causes if isinstance(cause, TurnwiseError)), causes[0])
    _say(_to_sentence(cause))
    return MISUSE if isinstance(cause, _MISUSES) else PROBLEM


def flush_output() -> int:
    """Write out what is still in memory. If that fails, print why, and return the exit code for it."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError) as error:
        code = exit_code_of(error)
        forget_output()
        return code
    return DONE


def forget_output() -> None:
    """Discard unwritten output: Python would print an error at its exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


def _causes(failure: BaseException) -> Iterator[BaseException]:
    if isinstance(failure, BaseExceptionGroup):
        for inner in failure.exceptions:
            yield from _causes(inner)
    else:
        yield failure


def _to_sentence(error: BaseException) -> str:
    if isinstance(error, TurnwiseError):
        return str(error)
    if isinstance(error, OSError):
        where = f"{error.filename!r}: " if error.filename is not None else ""
        return f"{where}{error.strerror or error}"
    return f"this should not have happened: {described(error)}. With {DEBUG}=1 it shows where"


def _say(text: str) -> None:
    sentence = text if text.endswith((".", "?", "!")) else f"{text}."
    try:
        errors.print(Text.assemble(("turnwise: ", "bold red"), (clean(sentence), "red")), soft_wrap=True)
    except OSError:
        forget_output()
