"""User code: which of its exceptions leave the call, and how errors are put into words."""

from __future__ import annotations

import signal
import threading
import traceback
from collections.abc import Callable
from types import CodeType, TracebackType
from typing import Any, Final, TypeVar

from turnwise.states.errors import FatalToolError, SettingsError, ToolFailed, ToolOutcomeUnknown, TurnwiseError
from turnwise.states.model_errors import ModelError
from turnwise.states.values.plain import type_name, well_formed

_T = TypeVar("_T")

RAISED_BY_USER_CODE: Final = (ModelError, ToolFailed, ToolOutcomeUnknown, FatalToolError, SettingsError)
"""The errors of turnwise that user code may raise."""


class UserCodeError(Exception):
    """Wraps `raised`, an exception of user code that would end more than its call, such as `SystemExit`."""

    def __init__(self, raised: BaseException) -> None:
        self.raised = raised
        super().__init__(described(raised))


class guarded:  # noqa: N801 - reads like `contextlib.suppress`
    """Replace exceptions of user code that are not ordinary by `UserCodeError`.

    Exceptions that end the program, as of Ctrl-C, pass unchanged.

    Use it around synchronous code or inside a task of `UserCalls`. Elsewhere a `CancelledError` may be the engine's.
    """

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None and not _is_ordinary(error) and not is_the_programs(error):
            raise UserCodeError(error) from error


def qualified_type_name(value: object) -> str:
    """Return the name of a value's type, with its module unless that is `builtins`."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def described(error: BaseException) -> str:
    """Return type and text of an error, also if its `__str__` raises."""
    if isinstance(error, UserCodeError):
        error = error.raised
    text = text_of(error, otherwise="its text cannot be had")
    return f"{type_name(error)}: {text}" if text else type_name(error)


def text_of(value: object, *, otherwise: str) -> str:
    """Return the well-formed text of a value, or `otherwise` if its `__str__` raises."""
    return or_else(lambda: well_formed(str(value)), otherwise)


def traceback_of(error: BaseException) -> str:
    """Return the traceback of an error, also if its `__str__` raises."""
    return or_else(lambda: "".join(traceback.format_exception(error)).rstrip(), described(error))


def only_error_in(error: BaseException) -> BaseException:
    """Return an error without the groups around it that hold nothing else, such as that of a task group."""
    if isinstance(error, UserCodeError):
        error = error.raised
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        (error,) = error.exceptions
    return error


def first_error_in(error: BaseException) -> BaseException:
    """Return the first error inside a group and the groups in it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def or_else(code: Callable[[], _T], otherwise: _T) -> _T:
    """Return the result of user code, or `otherwise` if it raises. Exceptions of signals pass."""
    try:
        return code()
    except BaseException as error:
        if is_the_programs(error):
            raise
        return otherwise


def is_the_programs(error: BaseException) -> bool:
    """Return whether the error comes from a signal (Ctrl-C, or a handler that exits) and has to end the program.

    A handler runs on top of other code, so its frame is in the traceback. Python's own handler of SIGINT has no frame:
    where it is installed, every `KeyboardInterrupt` of the main thread may be Ctrl-C. `asyncio.run` and servers install
    another one.
    """
    if isinstance(error, Exception):
        return False
    if (
        isinstance(error, KeyboardInterrupt)
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        and threading.current_thread() is threading.main_thread()
    ):
        return True
    handlers = {_code_of(signal.getsignal(number)) for number in range(1, signal.NSIG)}
    return any(frame.f_code in handlers for frame, _ in traceback.walk_tb(error.__traceback__))


def _is_ordinary(error: BaseException) -> bool:
    """Return whether the error can leave user code: generators, futures, tasks and callers handle it like any other."""
    if isinstance(error, TurnwiseError):
        return isinstance(error, RAISED_BY_USER_CODE)
    return isinstance(error, Exception) and not isinstance(error, StopIteration | StopAsyncIteration)


def _code_of(handler: Any) -> CodeType | None:
    """Return the code of a signal handler: a function, a method or a partial."""
    function = getattr(handler, "func", handler)
    return getattr(getattr(function, "__func__", function), "__code__", None)
