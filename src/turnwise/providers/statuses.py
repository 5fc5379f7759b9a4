"""HTTP statuses of failed model calls, and the header `Retry-After`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

from turnwise.states.errors import CONTEXT_OVERFLOW, ModelErrorKind

_KINDS: Final[Mapping[int, ModelErrorKind]] = {
    401: "authentication",
    402: "quota",
    403: "authentication",
    404: "unknown_model",
    408: "server_error",
    409: "server_error",
    413: CONTEXT_OVERFLOW,
    425: "server_error",
    429: "rate_limit",
    503: "overloaded",
    529: "overloaded",
}
"""408 (timeout), 409 (conflict) and 425 (too early) are temporary."""
_FIRST_ERROR: Final = 400
_FIRST_SERVER_ERROR: Final = 500
_LAST: Final = 599


def kind_of_status(status: int) -> ModelErrorKind:
    """Return the error kind of an HTTP status."""
    return _KINDS.get(status, "bad_request" if status < _FIRST_SERVER_ERROR else "server_error")


def is_error_status(status: object) -> bool:
    """Return whether a value is an HTTP error status, 400 to 599."""
    return isinstance(status, int) and _FIRST_ERROR <= status <= _LAST


def retry_after_in(headers: Any, now: datetime | None = None) -> float | None:
    """Return the value of `Retry-After` in seconds, from a number or a date; `None` if it is missing or invalid."""
    value = headers.get("retry-after") or headers.get("Retry-After")
    if value is None:
        return None
    try:
        return float(value)
    except ValueError:
        pass
    try:
        at = parsedate_to_datetime(value)
    except ValueError:
        return None
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return max((at - (now or datetime.now(UTC))).total_seconds(), 0.0)
