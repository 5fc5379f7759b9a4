"""Failures that own models raise: what an exception of an SDK or of the network says, as a classified `ModelError`."""

from __future__ import annotations

from ssl import SSLError
from types import TracebackType
from typing import Final

from turnwise.foreign import described, or_else
from turnwise.providers.statuses import is_error_status, kind_of_status, retry_after_in
from turnwise.states.errors import ModelError, TurnwiseError
from turnwise.states.plain import of_kind

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
"""Packages and classes of theirs by which they report that the network failed."""
_NEVER: Final = frozenset({"UnsupportedProtocol", "LocalProtocolError", "InvalidURL", "TooManyRedirects"})
"""Classes that derive from one of those and tell of a wrong request."""
_STATUSES: Final = ("status_code", "status", "code")
_MOST_CAUSES: Final = 8
_LONGEST_MESSAGE: Final = 500


class classified:  # noqa: N801 - reads like `contextlib.suppress`
    """Raise what an own model raises as a `ModelError`, if it tells of its provider or the network.

    Anything else passes: it is a defect of the model's code.
    """

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None and of_kind(error, Exception) and not of_kind(error, TurnwiseError):
            failure = failure_of(error)
            if failure is not None:
                raise failure from error


def failure_of(raised: BaseException) -> ModelError | None:
    """Return the failure of a model call that an exception tells of; `None` if it tells of none.

    Exceptions are foreign objects: an attribute that raises tells nothing.
    """
    return or_else(lambda: _failure_of(raised), None)


def _failure_of(raised: BaseException) -> ModelError | None:
    error: BaseException | None = raised
    for _ in range(_MOST_CAUSES):
        if error is None:
            return None
        if isinstance(error, ModelError):
            return error
        if isinstance(error, ExceptionGroup):  # a task group's, most likely with one member
            members = [failure_of(one) for one in error.exceptions]
            return None if None in members else members[0]
        response = getattr(error, "response", None)
        for source in (error, response):
            status = next((it for name in _STATUSES if is_error_status(it := getattr(source, name, None))), None)
            if status is not None:
                wait = getattr(error, "retry_after", None) or _wait_in(source) or _wait_in(response)
                return ModelError(kind_of_status(status), retry_after=wait, status=status, message=_text(raised))
        if _is_of_the_network(error):
            return ModelError("network", message=_text(raised))
        error = error.__cause__
    return None


def _is_of_the_network(error: BaseException) -> bool:
    names = [(base.__module__.partition(".")[0], base.__name__) for base in type(error).__mro__]
    if any(name in _NEVER for _, name in names):
        return False
    return isinstance(error, _NETWORK) or any(name in _NETWORK_OF_CLIENTS for name in names)


def _wait_in(source: object) -> float | None:
    headers = getattr(source, "headers", None)
    return None if headers is None else retry_after_in(headers)


def _text(raised: BaseException) -> str:
    return described(raised)[:_LONGEST_MESSAGE]
