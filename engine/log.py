"""Logs: structured where the application configured structlog, else through the standard library's logging.

The library configures neither. An application that configured nothing sees warnings and errors only.
"""

from __future__ import annotations

import logging
import sys
from types import ModuleType
from typing import Any


class Log:
    """Logs events by name, with fields. A level that nobody listens to costs a look."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._plain = logging.getLogger(name)

    def listens(self, level: int = logging.INFO) -> bool:
        """Whether anybody wants what is logged at `level`: worth asking before the fields are made."""
        return _structlog() is not None or self._plain.isEnabledFor(level)

    def debug(self, event: str, **fields: Any) -> None:
        """Log what only an engineer at work on it wants to know."""
        self._log(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: Any) -> None:
        """Log what happened as it should."""
        self._log(logging.INFO, event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Log what went wrong and was dealt with."""
        self._log(logging.WARNING, event, fields)

    def exception(self, event: str, **fields: Any) -> None:
        """Log an error with the traceback of the exception being handled."""
        self._log(logging.ERROR, event, {**fields, "exc_info": True})

    def _log(self, level: int, event: str, fields: dict[str, Any]) -> None:
        structlog = _structlog()
        if structlog is not None:
            structlog.get_logger(self._name).log(level, event, **fields)
        elif self._plain.isEnabledFor(level):
            exc_info = fields.pop("exc_info", None)
            told = " ".join(f"{name}={value}" for name, value in fields.items())
            self._plain.log(level, "%s %s", event, told, exc_info=exc_info)


def _structlog() -> ModuleType | None:
    """Return structlog if the application configured it. Who has not even imported it is not made to."""
    structlog = sys.modules.get("structlog")
    return structlog if structlog is not None and structlog.is_configured() else None
