"""The log of all floors: structlog as the application configured it, else readable lines of the standard library.

turnwise configures neither. An application that configured nothing sees warnings and errors only.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

import structlog  # with this module: at the first event another thread's import may be half done

from turnwise.foreign import or_else, text_of, traceback_of

if TYPE_CHECKING:
    from turnwise.states.facts import Facts

_chat: Final[ContextVar[Callable[[], Facts] | None]] = ContextVar("turnwise_chat", default=None)
_standard: Final = logging.getLogger("turnwise")
_END: Final = 8000
"""Characters of a traceback's beginning, and of its end, in the log."""


class Logger:
    """Logs events by name, with fields. A disabled level costs one check."""

    def listens(self, level: int = logging.INFO) -> bool:
        """Whether `level` is enabled: ask before computing costly fields."""
        return structlog.is_configured() or _standard.isEnabledFor(level)

    def log(self, level: int, event: str, **fields: Any) -> None:
        """Log at a level. Errors of the application's handlers or processors are printed: they must not stop a chat."""
        or_else(lambda: self._log(level, event, fields), None)

    def _log(self, level: int, event: str, fields: dict[str, Any]) -> None:
        if not self.listens(level):
            return
        chat = _chat.get()
        if chat is not None and "version" not in fields:
            stands = about(chat())
            if fields.get("chat_id", stands["chat_id"]) == stands["chat_id"]:
                fields = {**stands, **fields}
        try:
            _emit(level, event, fields)
        except BaseException as error:
            if logging.raiseExceptions and sys.stderr is not None:
                sys.stderr.write(f"{traceback_of(error)}\n")
            if not isinstance(error, Exception):
                raise  # `or_else` handles what a signal has raised

    def debug(self, event: str, **fields: Any) -> None:
        """Log a detail for debugging."""
        self.log(logging.DEBUG, event, **fields)

    def info(self, event: str, **fields: Any) -> None:
        """Log a normal event."""
        self.log(logging.INFO, event, **fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Log a handled problem."""
        self.log(logging.WARNING, event, **fields)

    def error(self, event: str, **fields: Any) -> None:
        """Log a problem that needs attention."""
        self.log(logging.ERROR, event, **fields)

    def exception(self, event: str, *, error: BaseException | None = None, **fields: Any) -> None:
        """Log an error with the traceback of `error`, or of the exception being handled.

        A very long one is cut and becomes the field `exception`: formatting it for people can take minutes, for which
        every chat of the process would wait.
        """
        raised = sys.exception() if error is None else error
        if raised is None:
            self.log(logging.ERROR, event, **fields)
            return
        text = traceback_of(raised)
        if len(text) <= 2 * _END:
            self.log(logging.ERROR, event, **fields, exc_info=raised)
            return
        text = f"{text[:_END]}\n[cut: {len(text) - 2 * _END} characters are not shown]\n{text[-_END:]}"
        self.log(logging.ERROR, event, **fields, exception=text)


logger: Final = Logger()
"""Where everything in turnwise logs."""


@contextmanager
def concerning(chat: Callable[[], Facts]) -> Iterator[None]:
    """Add the present fields of a chat to every line logged inside, and in tasks started inside."""
    token = _chat.set(chat)
    try:
        yield
    finally:
        _chat.reset(token)


def about(facts: Facts) -> dict[str, Any]:
    """Return the fields of log lines about a chat."""
    fields: dict[str, Any] = {
        "chat_id": facts.chat_id,
        "version": facts.version,
        "state": facts.state_as_stored,
    }
    if facts.lease is not None:
        fields["worker"] = facts.lease.worker
    return fields


def _emit(level: int, event: str, fields: Mapping[str, Any]) -> None:
    if structlog.is_configured():
        structlog.get_logger("turnwise").bind(**fields).log(level, event)
    else:
        spelled = (f"{name}={_printable(value)}" for name, value in fields.items() if name != "exc_info")
        _standard.log(level, " ".join((event, *spelled)), exc_info=fields.get("exc_info"))


def _spell_traceback(record: logging.LogRecord) -> bool:
    """Spell the traceback of a record, whose errors may quote a chat: no line of it looks like a record's first."""
    if record.exc_info and record.exc_info[1] is not None:
        lines = traceback_of(record.exc_info[1]).split("\n")
        record.exc_text = "\n".join(f"  {_printable(line)}" for line in lines)
    return True


_standard.addFilter(_spell_traceback)


def _printable(value: object) -> str:
    """Return a value with characters escaped that control a terminal, or forge a line: it may quote a chat."""
    text = text_of(value, otherwise="[its text cannot be had]")
    return text if text.isprintable() else repr(text)[1:-1]
