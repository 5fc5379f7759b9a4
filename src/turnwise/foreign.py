"""Foreign objects: what code of others raised or returned, described without trusting it.

To look at an attribute of such an object, at its truth or its text, may run code of others, which may raise. So the
engine, the log and the observers describe foreign objects by the functions of this module alone. None of them raises.
"""

from __future__ import annotations

import dis
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from types import CodeType, TracebackType
from typing import Any, Final, NamedTuple, TypeVar, cast

from turnwise.states.errors import (
    FatalToolError,
    ModelError,
    SettingsError,
    ToolFailed,
    ToolOutcomeUnknown,
    TurnwiseError,
)
from turnwise.states.plain import of_kind, type_name
from turnwise.states.unicode import well_formed

_T = TypeVar("_T")

SAID_BY_USER_CODE: Final = (ModelError, ToolFailed, ToolOutcomeUnknown, FatalToolError, SettingsError)
"""The errors of turnwise by which user code speaks of itself, or refuses a value."""
_READ: Final[dict[type[TurnwiseError], tuple[str, ...]]] = {
    ModelError: ("kind", "retryable", "retry_after", "status", "message"),
    SettingsError: ("field", "problem"),
}
"""The fields that the engine reads of these. A subclass need not have them: its `__init__` may call no other."""
_PLAIN: Final = (str, int, float, bool, type(None))
_qualified_name_of: Final = type.__dict__["__qualname__"].__get__
_traceback_of: Final = BaseException.__dict__["__traceback__"].__get__
_exceptions_of: Final = BaseExceptionGroup.__dict__["exceptions"].__get__
"""Python's own descriptors: they pass over what a class, or its metaclass, has in their place."""


class UserCodeError(Exception):
    """User code raised something that is no ordinary exception: `raised`, which would have ended more than its call.

    Or an error of turnwise that the engine would take for its own, or one that cannot be looked at.
    """

    def __init__(self, raised: BaseException) -> None:
        self.raised = raised
        super().__init__(described(raised))


class Traceback(NamedTuple):
    """The traceback of an error, as text."""

    text: str
    is_whole: bool
    """Whether Python could format it. Otherwise the text holds the frames and what `described` says."""


class guarded:  # noqa: N801 - reads like `contextlib.suppress`
    """Let only ordinary exceptions out of user code: any other becomes a `UserCodeError`.

    Of those of turnwise only the ones that `SAID_BY_USER_CODE` names are ordinary here.

    Use it around synchronous code, or inside a task of `UserCalls`: only there is a `CancelledError` user code's own.
    Exceptions that end the program, such as Ctrl-C, pass.
    """

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None and not _is_ordinary(error) and not is_the_programs(error):
            raise UserCodeError(error) from error


def qualified_type_name(value: object) -> str:
    """Return the name of a value's real type with its module, unless that is `builtins`."""
    module = or_else(lambda: type(value).__module__, "builtins")
    name = str(_qualified_name_of(type(value)))
    return f"{module}.{name}" if type(module) is str and module != "builtins" else name


def described(error: BaseException) -> str:
    """Return type and text of an error, whatever its `__str__` does."""
    if of_kind(error, UserCodeError):
        return described(cast("UserCodeError", error).raised)
    text = text_of(error, otherwise="its text cannot be had")
    return f"{type_name(error)}: {text}" if text else type_name(error)


def text_of(value: object, *, otherwise: str) -> str:
    """Return the text of a value, well-formed; what stands `otherwise` if its own code fails at that."""
    return or_else(lambda: well_formed(str.__str__(str(value))), otherwise)


def traceback_of(error: BaseException) -> Traceback:
    """Return the traceback of an error; what cannot be had of it is left out."""
    whole = or_else(lambda: "".join(traceback.format_exception(error)).rstrip(), None)
    if whole is not None:
        return Traceback(whole, is_whole=True)
    if of_kind(error, UserCodeError):
        error = cast("UserCodeError", error).raised
    frames = or_else(lambda: "".join(traceback.format_tb(_traceback_of(error))), "")
    return Traceback(f"Traceback (most recent call last):\n{frames}{described(error)}", is_whole=False)


def only_error_in(error: BaseException) -> BaseException:
    """Return what was raised: of a group that holds one exception, as that of a task group may, this one."""
    if of_kind(error, UserCodeError):
        error = cast("UserCodeError", error).raised
    while len(inner := _errors_in(error)) == 1:
        (error,) = inner
    return error


def first_error_in(error: BaseException) -> BaseException:
    """Return the first error of a group, however deep it is in groups."""
    while inner := _errors_in(error):
        error = inner[0]
    return error


def or_else(code: Callable[[], _T], otherwise: _T) -> _T:
    """Return what code of others gives, or `otherwise` if it raises: only a signal ends more than that."""
    try:
        return code()
    except BaseException as error:
        if is_the_programs(error):
            raise
        return otherwise


def is_the_programs(error: BaseException) -> bool:
    """Return whether a signal made the error: Ctrl-C, or a handler that exits. It then ends the program.

    A handler runs on top of whatever is under way, so the traceback leads through it. Python's own handler of SIGINT
    leaves no frame: but what it raises does not come from a `raise`.
    """
    if of_kind(error, Exception):
        return False
    frames = [*_frames(_traceback_of(error))]
    handlers = {_code_of(signal.getsignal(number)) for number in range(1, signal.NSIG)}
    if any(frame.tb_frame.f_code in handlers for frame in frames):
        return True
    return (
        of_kind(error, KeyboardInterrupt)
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        and threading.current_thread() is threading.main_thread()
        and bool(frames)
        and not _is_a_raise(frames[-1])
    )


def _is_ordinary(error: BaseException) -> bool:
    """Return whether the error may pass: through generators, futures and tasks, and to those who know turnwise's."""
    kind = type(error)
    if issubclass(kind, TurnwiseError):
        return issubclass(kind, SAID_BY_USER_CODE) and or_else(lambda: _can_be_read(error), otherwise=False)
    return (
        issubclass(kind, Exception)
        and not issubclass(kind, StopIteration | StopAsyncIteration)
        and or_else(lambda: _can_be_handled(error), otherwise=False)
    )


def _can_be_read(error: BaseException) -> bool:
    """Return whether the engine can read what it wants to know of an error of turnwise."""
    fields = [name for known, names in _READ.items() if of_kind(error, known) for name in names]
    return _can_be_handled(error) and all(of_kind(getattr(error, name), *_PLAIN) for name in fields)


def _can_be_handled(error: BaseException) -> bool:
    """Return whether `isinstance`, `contextlib` and the like can do with an error what they do with any."""
    error.__traceback__ = error.__traceback__
    return error.__class__ is type(error) and (error.__cause__, error.__context__) is not None


def _errors_in(error: BaseException) -> tuple[BaseException, ...]:
    return _exceptions_of(error) if of_kind(error, BaseExceptionGroup) else ()


def _frames(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _code_of(handler: Any) -> CodeType | None:
    """Return the code of a signal handler: a function, a method, or a partial of one."""
    function = getattr(handler, "func", handler)
    return getattr(getattr(function, "__func__", function), "__code__", None)


def _is_a_raise(place: TracebackType) -> bool:
    return dis.opname[place.tb_frame.f_code.co_code[place.tb_lasti]] in {"RAISE_VARARGS", "RERAISE"}
