"""Foreign objects: values and exceptions of user code, described without trusting them.

An attribute, the truth value or the text of such an object may run user code, which may raise. The engine, the log and
the observers therefore describe foreign objects only with the functions of this module, none of which raises.
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
from turnwise.states.unicode import well_formed
from turnwise.states.values.plain import of_kind, type_name

_T = TypeVar("_T")

RAISED_BY_USER_CODE: Final = (ModelError, ToolFailed, ToolOutcomeUnknown, FatalToolError, SettingsError)
"""The errors of turnwise that user code may raise."""
_READ: Final[dict[type[TurnwiseError], tuple[str, ...]]] = {
    ModelError: ("kind", "retryable", "retry_after", "status", "message"),
    SettingsError: ("field", "problem"),
}
"""The fields that the engine reads. A subclass that does not call `super().__init__()` may lack them."""
_PLAIN: Final = (str, int, float, bool, type(None))
_qualified_name_of: Final = type.__dict__["__qualname__"].__get__
_traceback_of: Final = BaseException.__dict__["__traceback__"].__get__
_exceptions_of: Final = BaseExceptionGroup.__dict__["exceptions"].__get__
"""Python's own descriptors, which a class or metaclass cannot override."""


class UserCodeError(Exception):
    """Stands for `raised`, an exception of user code that would have ended more than its call.

    Examples are `SystemExit`, a `StaleLease` that the engine would take for its own, and an exception whose attributes
    raise.
    """

    def __init__(self, raised: BaseException) -> None:
        self.raised = raised
        super().__init__(described(raised))


class Traceback(NamedTuple):
    """The traceback of an error, as text."""

    text: str
    is_whole: bool
    """Whether Python could format the traceback. Otherwise `text` has the frames and the result of `described`."""


class guarded:  # noqa: N801 - reads like `contextlib.suppress`
    """Replace exceptions of user code that are not ordinary by `UserCodeError`.

    Of the errors of turnwise, those in `RAISED_BY_USER_CODE` are ordinary. Exceptions that end the program pass
    unchanged: that of Ctrl-C, for example.

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
    """Return the name of a value's real type, with its module unless that is `builtins`."""
    module = or_else(lambda: type(value).__module__, "builtins")
    name = str(_qualified_name_of(type(value)))
    return f"{module}.{name}" if type(module) is str and module != "builtins" else name


def described(error: BaseException) -> str:
    """Return type and text of an error, also if its `__str__` raises."""
    if of_kind(error, UserCodeError):
        return described(cast("UserCodeError", error).raised)
    text = text_of(error, otherwise="its text cannot be had")
    return f"{type_name(error)}: {text}" if text else type_name(error)


def text_of(value: object, *, otherwise: str) -> str:
    """Return the well-formed text of a value, or `otherwise` if its `__str__` raises."""
    return or_else(lambda: well_formed(str.__str__(str(value))), otherwise)


def traceback_of(error: BaseException) -> Traceback:
    """Return the traceback of an error, without the parts that raise when they are read."""
    whole = or_else(lambda: "".join(traceback.format_exception(error)).rstrip(), None)
    if whole is not None:
        return Traceback(whole, is_whole=True)
    if of_kind(error, UserCodeError):
        error = cast("UserCodeError", error).raised
    frames = or_else(lambda: "".join(traceback.format_tb(_traceback_of(error))), "")
    return Traceback(f"Traceback (most recent call last):\n{frames}{described(error)}", is_whole=False)


def only_error_in(error: BaseException) -> BaseException:
    """Return an error without the groups around it that hold nothing else, such as that of a task group."""
    if of_kind(error, UserCodeError):
        error = cast("UserCodeError", error).raised
    while len(inner := _errors_in(error)) == 1:
        (error,) = inner
    return error


def first_error_in(error: BaseException) -> BaseException:
    """Return the first error inside a group and the groups in it."""
    while inner := _errors_in(error):
        error = inner[0]
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

    A handler runs on top of other code, so its frame is in the traceback. Python's own handler of SIGINT has no frame;
    its `KeyboardInterrupt` is known by a last frame without a `raise`.
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
    """Return whether the error can leave user code: generators, futures, tasks and callers handle it like any other."""
    kind = type(error)
    if issubclass(kind, TurnwiseError):
        return issubclass(kind, RAISED_BY_USER_CODE) and or_else(lambda: _can_be_read(error), otherwise=False)
    return (
        issubclass(kind, Exception)
        and not issubclass(kind, StopIteration | StopAsyncIteration)
        and or_else(lambda: _can_be_handled(error), otherwise=False)
    )


def _can_be_read(error: BaseException) -> bool:
    """Return whether the engine can read the fields in `_READ`."""
    fields = [name for known, names in _READ.items() if of_kind(error, known) for name in names]
    return _can_be_handled(error) and all(of_kind(getattr(error, name), *_PLAIN) for name in fields)


def _can_be_handled(error: BaseException) -> bool:
    """Return whether `isinstance`, `contextlib` and the like work with the error."""
    error.__traceback__ = error.__traceback__
    return error.__class__ is type(error) and (error.__cause__, error.__context__) is not None


def _errors_in(error: BaseException) -> tuple[BaseException, ...]:
    return _exceptions_of(error) if of_kind(error, BaseExceptionGroup) else ()


def _frames(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _code_of(handler: Any) -> CodeType | None:
    """Return the code of a signal handler: a function, a method or a partial."""
    function = getattr(handler, "func", handler)
    return getattr(getattr(function, "__func__", function), "__code__", None)


def _is_a_raise(place: TracebackType) -> bool:
    return dis.opname[place.tb_frame.f_code.co_code[place.tb_lasti]] in {"RAISE_VARARGS", "RERAISE"}
