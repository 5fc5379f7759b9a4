"""Classifies exceptions of SDKs and of the network, raised by custom models, as `ModelError`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import inf
from ssl import SSLError
from typing import Any, Final

from turnwise.foreign import described, or_else
from turnwise.states.errors import SettingsError, TurnwiseError
from turnwise.states.model_errors import CONTEXT_OVERFLOW, ModelError, ModelErrorKind

_NETWORK: Final = (ConnectionError, TimeoutError, SSLError)
_NETWORK_OF_CLIENTS: Final = frozenset(
    {
        ("httpx", "TransportError"),
        ("httpx", "DecodingError"),
        ("httpx2", "TransportError"),
        ("httpx2", "DecodingError"),
        ("httpcore", "NetworkError"),
        ("httpcore", "TimeoutException"),
        ("aiohttp", "ClientConnectionError"),
        ("aiohttp", "ClientPayloadError"),
        ("requests", "ConnectionError"),
        ("requests", "Timeout"),
        ("requests", "ChunkedEncodingError"),
        ("urllib3", "ProtocolError"),
        ("urllib3", "TimeoutError"),
        ("urllib", "URLError"),
        ("socket", "gaierror"),
        ("openai", "APIConnectionError"),
        ("anthropic", "APIConnectionError"),
        ("botocore", "HTTPClientError"),
        ("botocore", "ConnectionError"),
    }
)
"""Exceptions for network failures: the package and the name of the class."""
_WRONG_REQUEST: Final = frozenset({"UnsupportedProtocol", "LocalProtocolError", "InvalidURL", "TooManyRedirects"})
"""Subclasses of these exceptions for invalid requests."""
_STATUSES: Final = ("status_code", "status", "code")
_MOST_CAUSES: Final = 8
_LONGEST_MESSAGE: Final = 500


@contextmanager
def classified() -> Iterator[None]:
    """Raise exceptions of a custom model as `ModelError`, if they come from its provider or the network.

    Other exceptions are defects of the model's code, and pass unchanged.
    """
    try:
        yield
    except TurnwiseError:
        raise
    except Exception as error:
        if (failure := failure_of(error)) is not None:
            raise failure from error
        raise


def failure_of(raised: BaseException) -> ModelError | None:
    """Classify an exception or its causes; `None` if none of them is a failure of the provider or the network.

    Exceptions are foreign objects. If an attribute raises, the result is `None`, too.
    """
    return or_else(lambda: _classify(raised), None)


def _classify(raised: BaseException) -> ModelError | None:
    error: BaseException | None = raised
    for _ in range(_MOST_CAUSES):
        if error is None:
            return None
        if isinstance(error, ModelError):
            return error
        if isinstance(error, ExceptionGroup):  # most likely of a task group, with one member
            members = [failure_of(one) for one in error.exceptions]
            return None if None in members else members[0]
        response = getattr(error, "response", None)
        for source in (error, response):
            status = next((it for name in _STATUSES if _is_error_status(it := getattr(source, name, None))), None)
            if status is not None:
                wait = getattr(error, "retry_after", None) or _find_delay(source) or _find_delay(response)
                return ModelError(kind_of_status(status), retry_after=wait, status=status, message=_text(raised))
        if _is_of_the_network(error):
            return ModelError("network", message=_text(raised))
        error = error.__cause__
    return None


def _is_of_the_network(error: BaseException) -> bool:
    names = [(base.__module__.partition(".")[0], base.__name__) for base in type(error).__mro__]
    if any(name in _WRONG_REQUEST for _, name in names):
        return False
    return isinstance(error, _NETWORK) or any(name in _NETWORK_OF_CLIENTS for name in names)


def _find_delay(source: object) -> float | None:
    headers = getattr(source, "headers", None)
    return None if headers is None else retry_after_in(headers)


def _text(raised: BaseException) -> str:
    return described(raised)[:_LONGEST_MESSAGE]


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


def _is_error_status(status: object) -> bool:
    return isinstance(status, int) and _FIRST_ERROR <= status <= _LAST


def retry_after_in(headers: Any) -> float | None:
    """Return the seconds of the header `Retry-After`, which holds them or a time; `None` without a sensible one."""
    value = headers.get("retry-after") or headers.get("Retry-After") or ""
    try:
        seconds = float(value)
    except ValueError:
        try:
            at = parsedate_to_datetime(value)
        except ValueError:
            return None
        seconds = max((at.replace(tzinfo=at.tzinfo or UTC) - datetime.now(UTC)).total_seconds(), 0.0)
    return seconds if 0 <= seconds < inf else None


class CannotAsk(SettingsError):
    """A named model needs a library or a key that this process lacks. Nothing was stored.

    The name may be right, so a process that runs no chats accepts it.
    """
