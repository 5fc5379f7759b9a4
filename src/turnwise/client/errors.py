"""The errors of the client, and problems of a service (RFC 9457) as the errors that they were there.

TurnwiseError
|-- NotAuthenticated        no token, or one that the service does not know
|-- NotAllowed              the token's role does not allow it
|-- RateLimited             too many requests or streams
|-- BodyTooLarge            the request is longer than the service takes
|-- InvalidRequest          the request does not fit the service's description
|-- ServiceFailed           the service could not do it, and its log says why
|-- ServiceUnreachable      no answer within `ClientSettings.retry_timeout`
`-- BadAnswer               an answer that is none of a turnwise service
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from turnwise import http_problems
from turnwise.http_problems import MEDIA_TYPE, TYPE, name_of
from turnwise.states import errors, model_errors
from turnwise.states.errors import TurnwiseError

BUSY: Final = frozenset({502, 503, 504})
"""Statuses of a service, or of a proxy before it, that is temporarily unavailable."""
_ERRORS: Final = {
    name_of(kind): kind
    for module in (errors, http_problems, model_errors)
    for kind in vars(module).values()
    if inspect.isclass(kind) and issubclass(kind, TurnwiseError) and kind is not TurnwiseError
}
_OF_THE_PROBLEM: Final = frozenset({"type", "title", "status", "detail"})


class ServiceFailed(TurnwiseError):
    """The service could not do it: `status` is HTTP's, `detail` what it says. Its log says more."""

    def __init__(self, status: int, detail: str) -> None:
        self.status = status
        self.detail = detail
        super().__init__(f"the service failed with status {status}: {detail}")


_UNSENT: Final = "nothing was written"
_SENT: Final = "it may have been done: look at the chat before you ask again"


class ServiceUnreachable(TurnwiseError):
    """No answer came. `sent` says whether the service may have done what it was asked."""

    def __init__(self, url: str, problem: str, *, sent: bool) -> None:
        self.url = url
        self.problem = problem
        self.sent = sent
        super().__init__(
            f"no answer from {url}: {problem}; is the address right, and the service running? "
            f"{_SENT if sent else _UNSENT}"
        )


class BadAnswer(TurnwiseError):
    """What answers at `url` is no turnwise service, or one of another version. What it did is unknown."""

    def __init__(self, url: str, problem: str) -> None:
        self.url = url
        self.problem = problem
        super().__init__(
            f"{url} does not answer as a turnwise service does: {problem}; is it the address of one, of this version? "
            "What it did is unknown"
        )


def parse_error(url: str, status: int, media_type: str, body: bytes) -> TurnwiseError:
    """Convert an error response to the error that the service raised."""
    problem = _parse_json(body) if media_type.partition(";")[0].strip() == MEDIA_TYPE else None
    if problem is not None and str(problem.get("type")).startswith(TYPE):
        return parse_problem(url, problem)
    text = problem.get("detail") if problem is not None else f"{body[:100].decode(errors='replace')!r}"
    if status >= 500:  # noqa: PLR2004 - where HTTP's errors of servers begin
        return ServiceFailed(status, str(text))
    return BadAnswer(url, f"status {status}, {text}")


def parse_problem(url: str, problem: Mapping[str, Any]) -> TurnwiseError:
    """Convert a problem to the error that it describes: of the same class, with the same fields and text."""
    name = str(problem.get("type")).removeprefix(TYPE)
    kind, detail = _ERRORS.get(name), problem.get("detail")
    if not isinstance(detail, str):
        return BadAnswer(url, f"a problem {name!r} without a detail")
    if kind is None:
        status = problem.get("status")
        return ServiceFailed(status if isinstance(status, int) else 500, detail)
    try:
        fields = {key: _restore_field(key, value) for key, value in problem.items() if key not in _OF_THE_PROBLEM}
        error = _build_error(kind, {"problem": detail} | fields)
    except (KeyError, TypeError, ValueError, AttributeError):
        return BadAnswer(url, f"a problem {name!r} without the fields of one")
    error.args = (detail,)
    vars(error).update({key: value for key, value in fields.items() if key in vars(error)})
    return error


def _build_error(kind: Callable[..., TurnwiseError], fields: Mapping[str, Any]) -> TurnwiseError:
    """Return an error of that class, constructed from its required fields."""
    needed = [one for one in inspect.signature(kind).parameters.values() if one.default is one.empty]
    placed = [fields[one.name] for one in needed if one.kind is not one.KEYWORD_ONLY]
    return kind(*placed, **{one.name: fields[one.name] for one in needed if one.kind is one.KEYWORD_ONLY})


def _restore_field(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    return datetime.fromisoformat(value) if name in ("deleted_at", "until") and value is not None else value


def _parse_json(body: bytes) -> dict[str, Any] | None:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
