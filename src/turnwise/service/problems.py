"""Problems: every error as `application/problem+json` (RFC 9457), with its status and the error's own fields."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from http.client import responses
from typing import Any, ClassVar, Final

from fastapi import FastAPI
from fastapi.encoders import jsonable_encoder
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from fastapi.utils import is_body_allowed_for_status_code
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from turnwise import http_problems
from turnwise.foreign import described
from turnwise.http_problems import MEDIA_TYPE, TYPE, InvalidRequest, NotAuthenticated, RateLimited, name_of, words_of
from turnwise.logger import logger
from turnwise.states import errors
from turnwise.states.errors import TurnwiseError
from turnwise.states.values.checked import checked
from turnwise.states.values.plain import DEEPEST, LONGEST_NUMBER

_STATUS: Final[Mapping[type[TurnwiseError], int]] = {
    errors.ChatNotFound: 404,
    errors.MessageNotFound: 404,
    errors.FileNotFound: 404,
    errors.IllegalTransition: 409,
    errors.ToolResultMismatch: 400,
    errors.ConflictingReplay: 409,
    errors.DeadlineExpired: 409,
    errors.ChatBusy: 409,
    errors.QueueFull: 429,
    errors.BudgetSpent: 429,
    errors.VersionMismatch: 412,
    errors.ChatArchived: 409,
    errors.NothingToCompact: 409,
    errors.StaleLease: 409,
    errors.SettingsError: 400,
    errors.ChatExists: 409,
    errors.ImportRefused: 400,
    errors.ChatUnreadable: 500,
    errors.StoreError: 503,
    errors.EngineClosed: 503,
    http_problems.NotAuthenticated: 401,
    http_problems.NotAllowed: 403,
    http_problems.RateLimited: 429,
    http_problems.BodyTooLarge: 413,
    http_problems.EncodedBody: 415,
    http_problems.InvalidRequest: 400,
}
_MAX_MISTAKES: Final = 20
"""The most mistakes of a body that an answer lists, so that it is not longer than the body."""
_LONGEST: Final = 500
"""The most characters of each."""
_HIDDEN: Final = 500
"""From this status on the detail is for the log alone."""
_CANNOT: Final = "the service cannot do this now; its log says why"
_SAYS_ITSELF: Final = (errors.ChatUnreadable, errors.EngineClosed)
_PUBLIC: Final = (errors.__name__, http_problems.__name__)
"""The modules whose errors clients know by name."""
_READABLE: Final = (
    f"must be JSON in UTF-8, nested {DEEPEST} levels deep at most, "
    f"with whole numbers of {LONGEST_NUMBER:,} digits at most"
)
_NOTHING: Final = re.compile(r"[;,] nothing was written\b")


REFUSED: Final = Counter[tuple[int, str]]()
"""How many requests this process has refused, by status and kind of problem, for `/metrics`."""


class Problem(BaseModel):
    """An error in the format of RFC 9457, with the fields of the error of turnwise."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "examples": [
                {
                    "type": "urn:turnwise:problem:queue-full",
                    "title": "Queue full",
                    "status": 429,
                    "detail": "the queue is full: it holds at most 20 messages; nothing was written",
                    "limit": 20,
                    "unit": "messages",
                }
            ]
        },
    )

    type: str = Field(description="Names the error: `urn:turnwise:problem:` and its name.")
    title: str
    """The kind of problem, in words."""
    status: int
    """The HTTP status."""
    detail: str
    """What was wrong, and what would be right."""


def http_status(error: TurnwiseError) -> int:
    """Return the HTTP status of an error."""
    return next((_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS), 500)


def build_problem(error: TurnwiseError) -> dict[str, Any]:
    """Convert an error to a problem. From status 500 on, it has only the text for clients."""
    status = http_status(error)
    kind = _public_kind(error)
    problem: dict[str, Any] = {
        "type": TYPE + name_of(kind),
        "title": " ".join(words_of(kind)).capitalize(),
        "status": status,
    }
    if status >= _HIDDEN and not isinstance(error, _SAYS_ITSELF):
        return {**problem, **_client_text(error)}
    fields = {name: value for name, value in vars(error).items() if not name.startswith("_")}
    return {**jsonable_encoder(fields), **problem, "detail": str(error)}


def _public_kind(error: TurnwiseError) -> type:
    """Return the class that clients know: a store's own error is a `StoreError`."""
    kinds = (kind for kind in type(error).__mro__ if kind.__module__ in _PUBLIC and kind is not TurnwiseError)
    return next(kinds, type(error))


def _client_text(error: TurnwiseError) -> dict[str, str]:
    """Return the text for clients of an error whose own text is only logged."""
    if not isinstance(error, errors.StoreError):
        return {"detail": f"{_CANNOT}; nothing was written"}
    outcome = "nothing was written" if error.written == "no" else "it is not known whether anything was written"
    return {"detail": f"{_CANNOT}; {outcome}", "written": error.written}


@contextmanager
def rest_of_request(*, has_begun: bool = True) -> Iterator[None]:
    """Correct the text of an error after a part of the request has been accepted."""
    try:
        yield
    except TurnwiseError as error:
        if has_begun:
            error.args = (_NOTHING.sub("; what came before it in the request was taken", str(error)),)
            if isinstance(error, errors.StoreError):
                error.written = "unknown"
        raise


@checked
def problem_response(error: TurnwiseError) -> Response:
    """Return the response for an error."""
    status = http_status(error)
    REFUSED[status, name_of(_public_kind(error))] += 1
    if status >= _HIDDEN:
        _log_failure(error)
    headers: dict[str, str] = {}
    if isinstance(error, NotAuthenticated) and error.by_token:
        headers["WWW-Authenticate"] = 'Bearer realm="turnwise"'
    if isinstance(error, RateLimited | errors.BudgetSpent) and error.retry_after is not None:
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after)))
    if isinstance(error, errors.EngineClosed):
        headers["Retry-After"] = "1"
    return JSONResponse(build_problem(error), status, headers, media_type=MEDIA_TYPE)


def _log_failure(error: Exception) -> None:
    logger.error("request_failed", error=described(error))


def other_problem(
    status: int, title: str, detail: str, headers: Mapping[str, str] | None = None, **fields: object
) -> Response:
    """Return the response for what is no error of turnwise, such as an unknown path."""
    problem = {"type": "about:blank", "title": title, "status": status, "detail": detail, **fields}
    return JSONResponse(problem, status, dict(headers or {}), media_type=MEDIA_TYPE)


class ProblemRoute(APIRoute):
    """A route whose errors are problems, in whatever application it is mounted."""

    outcome: ClassVar[str] = ""
    """What is known to have been written if an error of HTTP is raised: of an application's route, nothing is known."""

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        """Return the handler, with its errors answered."""
        handle, outcome = super().get_route_handler(), self.outcome

        async def handle_problems(request: Request) -> Response:
            try:
                return await handle(request)
            except TurnwiseError as error:
                return problem_response(error)
            except RequestValidationError as error:
                return problem_response(_invalid(error))
            except HTTPException as error:
                # FastAPI hides behind its own error what was wrong as the body was read.
                if isinstance(error.__cause__, TurnwiseError):
                    return problem_response(error.__cause__)
                if outcome and isinstance(error.__cause__, ValueError | RecursionError):
                    return problem_response(InvalidRequest([{"field": "body", "problem": _READABLE}]))
                return _http_problem(error, outcome)

        return handle_problems


@checked
def add_problem_handlers(app: FastAPI) -> None:
    """Answer every error of an application as a problem: errors of turnwise, of FastAPI, and unexpected ones."""

    async def handle(_request: Request, error: Exception) -> Response:
        if isinstance(error, TurnwiseError):
            return problem_response(error)
        if isinstance(error, RequestValidationError):
            return problem_response(_invalid(error))
        if isinstance(error, HTTPException):
            return _http_problem(error)
        _log_failure(error)
        return other_problem(500, "Internal error", "the service's log says what happened")

    for kind in (TurnwiseError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, handle)


def _http_problem(error: HTTPException, outcome: str = "") -> Response:
    """Return the response for an error of HTTP, in its own words.

    Of RFC 9457 `detail` is text. What an application gives that is none stands beside it, as `details`.
    """
    status, given = error.status_code, error.detail
    if not is_body_allowed_for_status_code(status):
        return Response(status_code=status, headers=error.headers)
    phrase = responses.get(status, "Error")
    if isinstance(given, str):
        return other_problem(status, phrase, given + outcome, error.headers)
    return other_problem(status, phrase, phrase + outcome, error.headers, details=given)


def _invalid(error: RequestValidationError) -> InvalidRequest:
    """Return the problems of a request, without the values: they may be private."""
    return InvalidRequest(
        [
            {"field": ".".join(str(place) for place in one["loc"])[:_LONGEST], "problem": _problem_of(one)[:_LONGEST]}
            for one in error.errors()[:_MAX_MISTAKES]
        ]
    )


def _problem_of(error: Mapping[str, Any]) -> str:
    # FastAPI reads only what is said to be JSON; `curl --data` says that it is a form.
    is_unread = error["loc"] == ("body",) and isinstance(error.get("input"), bytes)
    return "must be JSON; send it with the header Content-Type: application/json" if is_unread else str(error["msg"])
