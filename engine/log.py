"""Logs: structured where the application configured structlog, else through the standard library's logging.

The library configures neither. An application that configured nothing sees warnings and errors only.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any, Final

from turnwise.states.facts import Facts

_CHAT: Final[ContextVar[Callable[[], Facts] | None]] = ContextVar("turnwise_chat", default=None)


class Log:
    """Logs events by name, with fields. A level that nobody listens to costs a look."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._plain = logging.getLogger(name)

    def listens(self, level: int = logging.INFO) -> bool:
        """Whether anybody wants what is logged at `level`: worth asking before the fields are made."""
        return _structlog() is not None or self._plain.isEnabledFor(level)

    def log(self, level: int, event: str, **fields: Any) -> None:
        """Log at a level that is only known when it comes to it."""
        self._log(level, event, fields)

    def debug(self, event: str, **fields: Any) -> None:
        """Log what only an engineer at work on it wants to know."""
        self._log(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: Any) -> None:
        """Log what happened as it should."""
        self._log(logging.INFO, event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Log what went wrong and was dealt with."""
        self._log(logging.WARNING, event, fields)

    def exception(self, event: str, *, error: BaseException | None = None, **fields: Any) -> None:
        """Log an error with the traceback of `error`, or of the exception being handled."""
        self._log(logging.ERROR, event, {**fields, "exc_info": error or True})

    def _log(self, level: int, event: str, fields: dict[str, Any]) -> None:
        if not self.listens(level):
            return
        chat = _CHAT.get()
        if chat is not None and "chat_id" not in fields:
            fields = {**about(chat()), **fields}
        structlog = _structlog()
        if structlog is not None:
            structlog.get_logger(self._name).log(level, event, **fields)
        else:
            exc_info = fields.pop("exc_info", None)
            told = " ".join(f"{name}={_in_one_line(value)}" for name, value in fields.items())
            self._plain.log(level, "%s %s", event, told, exc_info=exc_info)


def _in_one_line(value: object) -> str:
    """Return a value with what would steer a terminal, or forge a line, spelled out: some of it was said in a chat."""
    text = str(value)
    return text if text.isprintable() else repr(text)[1:-1]


@contextmanager
def concerning(chat: Callable[[], Facts]) -> Iterator[None]:
    """Let every line logged inside, and in tasks begun inside, name the chat as it stands at that moment."""
    token = _CHAT.set(chat)
    try:
        yield
    finally:
        _CHAT.reset(token)


def about(facts: Facts) -> dict[str, Any]:
    """Return the fields by which a line about a chat is found: chat, version, state, and the worker that holds it."""
    fields: dict[str, Any] = {
        "chat_id": facts.chat_id,
        "version": facts.version,
        "state": facts.stored_state or facts.state.value,
    }
    if facts.lease is not None:
        fields["worker"] = facts.lease.worker
    return fields


def _structlog() -> ModuleType | None:
    """Return structlog if the application configured it. Who has not even imported it is not made to."""
    structlog = sys.modules.get("structlog")
    return structlog if structlog is not None and structlog.is_configured() else None
