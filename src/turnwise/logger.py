"""The log of all floors: structlog as the application configured it, else readable lines of the standard library.

turnwise configures neither. An application that configured nothing sees warnings and errors only. structlog is imported
with the first event that is logged.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import structlog

    from turnwise.states.facts import Facts

_chat: Final[ContextVar[Callable[[], Facts] | None]] = ContextVar("turnwise_chat", default=None)
_standard: Final = logging.getLogger("turnwise")
_END: Final = 8000
"""How many characters a log shows of the beginning of a traceback, and of its end."""


class Logger:
    """Logs events by name, with fields. A level that nobody listens to costs a look."""

    def listens(self, level: int = logging.INFO) -> bool:
        """Whether anybody wants what is logged at `level`: worth asking before the fields are made."""
        return _is_configured() or _standard.isEnabledFor(level)

    def log(self, level: int, event: str, **fields: Any) -> None:
        """Log at a level that is only known when it comes to it.

        What the application's own handlers or processors raise is printed, as the standard library does it where a
        handler cannot write: a full disk of logs must not stop a chat.
        """
        if not self.listens(level):
            return
        chat = _chat.get()
        if chat is not None and "version" not in fields:
            stands = about(chat())
            if fields.get("chat_id", stands["chat_id"]) == stands["chat_id"]:
                fields = {**stands, **fields}
        try:
            _logger().bind(**fields).log(level, event)
        except Exception:  # noqa: BLE001 - whatever they raise
            if logging.raiseExceptions and sys.stderr is not None:
                with suppress(Exception):
                    traceback.print_exc()

    def debug(self, event: str, **fields: Any) -> None:
        """Log what only an engineer at work on it wants to know."""
        self.log(logging.DEBUG, event, **fields)

    def info(self, event: str, **fields: Any) -> None:
        """Log what happened as it should."""
        self.log(logging.INFO, event, **fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Log what went wrong and was dealt with."""
        self.log(logging.WARNING, event, **fields)

    def error(self, event: str, **fields: Any) -> None:
        """Log what went wrong and somebody has to look at."""
        self.log(logging.ERROR, event, **fields)

    def exception(self, event: str, *, error: BaseException | None = None, **fields: Any) -> None:
        """Log an error with the traceback of `error`, or of the exception being handled.

        A very long one is cut and becomes the field `exception`: formatting it for people can take minutes, for which
        every chat of the process would wait.
        """
        raised = error or sys.exception()
        text = "".join(traceback.format_exception(raised)).rstrip()
        if len(text) <= 2 * _END:
            self.log(logging.ERROR, event, **fields, exc_info=raised)
        else:
            cut = f"[cut: {len(text) - 2 * _END} characters are not shown]"
            self.log(logging.ERROR, event, **fields, exception=f"{text[:_END]}\n{cut}\n{text[-_END:]}")


logger: Final = Logger()
"""Where everything in turnwise logs."""


@contextmanager
def concerning(chat: Callable[[], Facts]) -> Iterator[None]:
    """Let every line logged inside, and in tasks begun inside, name the chat as it stands at that moment."""
    token = _chat.set(chat)
    try:
        yield
    finally:
        _chat.reset(token)


def about(facts: Facts) -> dict[str, Any]:
    """Return the fields by which a line about a chat is found: chat, version, state, and the worker that holds it."""
    fields: dict[str, Any] = {
        "chat_id": facts.chat_id,
        "version": facts.version,
        "state": facts.state_as_stored,
    }
    if facts.lease is not None:
        fields["worker"] = facts.lease.worker
    return fields


def _is_configured() -> bool:
    """Return whether the application configured structlog. Who has not even imported it is not made to."""
    module = sys.modules.get("structlog")
    return module is not None and module.is_configured()


def _logger() -> structlog.stdlib.BoundLogger:
    import structlog  # noqa: PLC0415 - the first event pays for it, and not the import of turnwise

    if structlog.is_configured():
        configured: structlog.stdlib.BoundLogger = structlog.get_logger("turnwise")
        return configured
    return structlog.stdlib.BoundLogger(_standard, processors=[_in_one_line], context={})


def _in_one_line(_logger: object, _method: str, event: MutableMapping[str, Any]) -> tuple[tuple[str], dict[str, Any]]:
    """Spell an event as one line for the standard library: structlog's last processor."""
    options = {"exc_info": event.pop("exc_info")} if "exc_info" in event else {}
    words = [event.pop("event"), *(f"{name}={_printable(value)}" for name, value in event.items())]
    return (" ".join(words),), options


def _spell_traceback(record: logging.LogRecord) -> bool:
    """Spell the traceback of a record, whose errors may quote a chat: no line of it looks like a record's first."""
    if record.exc_info and record.exc_info[1] is not None:
        lines = "".join(traceback.format_exception(record.exc_info[1])).rstrip("\n").split("\n")
        record.exc_text = "\n".join(f"  {_printable(line)}" for line in lines)
    return True


_standard.addFilter(_spell_traceback)


def _printable(value: object) -> str:
    """Return a value with what would steer a terminal, or forge a line, spelled out: some of it was said in a chat."""
    text = str(value)
    return text if text.isprintable() else repr(text)[1:-1]
