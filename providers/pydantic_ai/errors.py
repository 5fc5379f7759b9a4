"""Classifies a provider's failures into the kinds by which the engine decides."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import httpx2
from pydantic_ai import exceptions as theirs

from turnwise.states.errors import ModelError

_KINDS: Final[tuple[tuple[type[Exception], str], ...]] = (
    (theirs.ModelContextWindowExceededError, "context_overflow"),
    (theirs.ModelAuthenticationError, "authentication"),
    (theirs.ModelNotFoundError, "unknown_model"),
    (theirs.ModelQuotaExceededError, "quota"),
    (theirs.ModelRateLimitError, "rate_limit"),
    (theirs.ModelUnavailableError, "overloaded"),
    (theirs.ModelServerError, "server_error"),
    (theirs.ModelConnectionError, "network"),
    (theirs.ModelRequestTimeout, "network"),
    (theirs.ModelRequestRejectedError, "bad_request"),
    (theirs.ContentFilterError, "content_filter"),
    (theirs.UnexpectedModelBehavior, "network"),  # what came is no reply: cut before it began, or of something between
    (httpx2.HTTPError, "network"),
)
"""The first that fits counts: a class stands before those it derives from."""

_FILTERS: Final = frozenset({"content_filter", "content_policy_violation"})
_MAY_PASS: Final = frozenset({408, 409, 425})
"""Statuses that say "not now": a time-out, a lock that is held, an early replay."""
_LONGEST_MESSAGE: Final = 500


@contextmanager
def classified() -> Iterator[None]:
    """Raise the failure of a provider, or of what leads to it, as a `ModelError`."""
    try:
        yield
    except (RuntimeError, ValueError, httpx2.HTTPError) as failure:
        # All of pydantic-ai's errors are RuntimeErrors; it refuses what a provider cannot take with bare ones.
        raise model_error(failure) from failure


def model_error(failure: Exception) -> ModelError:
    """Return the failure as the engine knows it: its kind, whether to try again, when, and the HTTP status."""
    if isinstance(failure, ModelError):
        return failure
    status = failure.status_code if isinstance(failure, theirs.ModelHTTPError) else None
    retry_after = failure.retry_after if isinstance(failure, theirs.ModelAPIError) else None
    return ModelError(_kind(failure, status), retry_after=retry_after, status=status, message=_message(failure))


def _kind(failure: Exception, status: int | None) -> str:
    if isinstance(failure, theirs.ModelAPIError) and failure.provider_error_code in _FILTERS:
        return "content_filter"
    for category, kind in _KINDS:
        if isinstance(failure, category):
            return kind
    if isinstance(failure, theirs.ModelHTTPError):
        return "server_error" if status in _MAY_PASS else "bad_request"
    if isinstance(failure, theirs.ModelAPIError):
        return "server_error" if failure.in_stream else "network"
    return "bad_request"


def _message(failure: Exception) -> str:
    """Return what the provider said, without the wrapping; a body that says nothing is told whole."""
    body: Any = failure.body if isinstance(failure, theirs.ModelAPIError) else None
    while isinstance(body, dict) and "error" in body:
        body = body["error"]
    said = body.get("message") if isinstance(body, dict) else None
    return str(said or str(failure) or type(failure).__name__)[:_LONGEST_MESSAGE]
