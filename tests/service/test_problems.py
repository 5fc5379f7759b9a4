"""Every error as the service reports it: its status, its fields, and nothing that is for the log alone."""

import inspect
from datetime import UTC, datetime
from typing import Final

import httpx
import structlog
from fastapi import APIRouter, FastAPI, HTTPException

from support.served import listening
from turnwise import http_problems as own
from turnwise.client.errors import parse_error
from turnwise.service import ProblemRoute, add_problem_handlers, problem_response
from turnwise.service.problems import build_problem, http_status
from turnwise.service.routes.table import ROUTES
from turnwise.states import errors, model_errors
from turnwise.states.errors import TurnwiseError

SECRET: Final = "postgresql://jane:hunter2@db"  # noqa: S105 - of the tests
TOLD: Final[list[tuple[int, TurnwiseError]]] = [
    (404, errors.ChatNotFound("c1")),
    (404, errors.ChatDeleted("c1", datetime(2026, 1, 1, tzinfo=UTC))),
    (404, errors.MessageNotFound("c1", "m1", expected="a user message")),
    (404, errors.FileNotFound("c1", "0" * 64)),
    (409, errors.IllegalTransition("waiting", "resume", ["send_message"])),
    (400, errors.ToolResultMismatch(["k1"], ["k2"], [])),
    (409, errors.ConflictingReplay(client_id="tab-1")),
    (409, errors.DeadlineExpired(["k1"])),
    (409, errors.ChatBusy("streaming")),
    (409, errors.NotResting("c1", "streaming")),
    (429, errors.QueueFull(20)),
    (429, errors.BudgetSpent(datetime(2026, 1, 1, tzinfo=UTC), retry_after=60)),
    (409, errors.ChatArchived("c1")),
    (412, errors.VersionMismatch("c1", 3, 4)),
    (409, errors.NothingToCompact("c1")),
    (409, errors.StaleLease("c1", 1, 2)),
    (400, errors.SettingsError("agent", "there is none")),
    (400, errors.InvalidArgument("limit", "must be positive")),
    (400, errors.InvalidContent("must be text")),
    (400, errors.WrongCall("limit", "is missing")),
    (409, errors.ChatExists("c1")),
    (400, errors.ImportRefused(3, "its hash is another")),
    (500, errors.ChatUnreadable("chats.facts", "is no JSON", chat_id="c1")),
    (503, errors.EngineClosed("the engine was closed")),
]
"""Errors that callers get, with their statuses."""
HIDDEN: Final[list[tuple[int, TurnwiseError]]] = [
    (503, errors.StoreError(f"cannot connect to {SECRET}")),
    (503, errors.StoreError(f"lost the connection to {SECRET}", written="unknown")),
    (500, errors.BrokenInvariant("c1", SECRET, [SECRET])),
    (500, errors.EngineInUse()),
    (500, model_errors.ModelError("auth", message=SECRET)),
    (500, errors.ToolFailed(SECRET)),
    (500, errors.FatalToolError(SECRET)),
    (500, errors.ToolOutcomeUnknown(SECRET)),
]
"""Errors of the service itself; routes show the first only."""
OWN: Final[list[tuple[int, TurnwiseError]]] = [
    (401, own.NotAuthenticated()),
    (403, own.NotAllowed("auditor", "'operator'")),
    (429, own.RateLimited("50 requests a second", 3)),
    (413, own.BodyTooLarge(1000)),
    (415, own.EncodedBody("gzip")),
    (400, own.InvalidRequest([{"field": "title", "problem": "must be text"}])),
]


def kinds_in(module: object) -> set[type[TurnwiseError]]:
    found = (kind for _, kind in inspect.getmembers(module, inspect.isclass))
    return {kind for kind in found if issubclass(kind, TurnwiseError) and kind.__module__ == module.__name__}  # type: ignore[attr-defined]


def test_every_error_has_a_status() -> None:
    known = (kinds_in(errors) | kinds_in(model_errors)) - {TurnwiseError}
    assert {type(error) for _, error in (*TOLD, *HIDDEN)} == known
    assert {type(error) for _, error in OWN} == kinds_in(own)
    assert {http_status(error) for _, error in (*TOLD, *OWN)} <= {401, 403, 429, 503} | {
        status for row in ROUTES for status in (400, *row.problems)
    }, "each is one that OpenAPI describes"


def test_notes_of_an_error_stay_in_the_log() -> None:
    error = errors.QueueFull(20)
    error.add_note(SECRET)
    assert build_problem(error) == {
        "type": "urn:turnwise:problem:queue-full",
        "title": "Queue full",
        "status": 429,
        "detail": str(error),
        "limit": 20,
        "unit": "messages",
    }


async def test_problem_has_fields_but_no_secrets() -> None:
    every = [*TOLD, *HIDDEN, *OWN]

    async def fail(place: int) -> None:
        raise every[place][1]

    routes = APIRouter(route_class=ProblemRoute)
    routes.add_api_route("/guarded/{place}", fail)
    app = FastAPI()
    add_problem_handlers(app)
    app.include_router(routes)
    app.add_api_route("/plain/{place}", fail)
    async with listening(app) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
        answers = [await client.get(f"/guarded/{place}") for place in range(len(every))]
        without_the_class = [await client.get(f"/plain/{place}") for place in range(len(every))]

    assert [answer.content for answer in without_the_class] == [answer.content for answer in answers]
    for (status, error), answer in zip(every, answers, strict=True):
        problem = answer.json()
        assert (answer.status_code, problem["status"]) == (status, status), error
        assert answer.headers["content-type"] == "application/problem+json"
        assert problem["type"].removeprefix("urn:turnwise:problem:").replace("-", "") == type(error).__name__.lower()
        assert "hunter2" not in answer.text
        if (status, error) in HIDDEN:
            assert problem.keys() - {"written"} == {"type", "title", "status", "detail"}, error
        else:
            assert problem.keys() >= vars(error).keys()
        if (status, error) in TOLD:
            known = parse_error(url, answer.status_code, answer.headers["content-type"], answer.content)
            assert (type(known), str(known), vars(known)) == (type(error), str(error), vars(error))


def test_problem_headers() -> None:
    cases = {
        own.NotAuthenticated(): {"www-authenticate": 'Bearer realm="turnwise"'},
        own.RateLimited("5 open streams", 0.2): {"retry-after": "1"},
        own.RateLimited("5 open streams", 1.2): {"retry-after": "2"},
        own.RateLimited("5 open streams", 3): {"retry-after": "3"},
        own.RateLimited("5 open streams", 60): {"retry-after": "60"},
        errors.EngineClosed("the engine was closed"): {"retry-after": "1"},
        own.NotAllowed("auditor", "'operator'"): {},
        errors.QueueFull(20): {},
        errors.StoreError("cannot connect"): {},
    }
    for error, headers in cases.items():
        sent = problem_response(error).headers
        known = {name: value for name, value in sent.items() if name not in ("content-type", "content-length")}
        assert known == headers, error


def test_internal_errors_are_logged() -> None:
    with structlog.testing.capture_logs() as logs:
        for _, error in (*TOLD, *OWN, *HIDDEN):
            problem_response(error)
    failed = [error for status, error in (*TOLD, *OWN, *HIDDEN) if status in (500, 503)]
    assert len(failed) == 10
    assert logs == [
        {"event": "request_failed", "error": f"{type(error).__name__}: {error}", "log_level": "error"}
        for error in failed
    ]


def test_store_error_says_whether_it_wrote() -> None:
    for written, words in (("no", "nothing was written"), ("unknown", "it is not known whether anything was written")):
        error = errors.StoreError(SECRET, written=written)  # type: ignore[arg-type] - one of the two
        assert build_problem(error) == {
            "type": "urn:turnwise:problem:store-error",
            "title": "Store error",
            "status": 503,
            "detail": f"the service cannot do this now; its log says why; {words}",
            "written": written,
        }


def test_unlisted_error_is_internal() -> None:
    class Unheard(TurnwiseError):
        """It is in no table."""

    assert build_problem(Unheard(SECRET)) == {
        "type": "urn:turnwise:problem:unheard",
        "title": "Unheard",
        "status": 500,
        "detail": "the service cannot do this now; its log says why; nothing was written",
    }


async def test_every_failure_becomes_a_problem() -> None:
    async def fail(kind: str) -> None:
        if kind == "http":
            raise HTTPException(418, "short and stout", {"X-Pot": "tea"})
        if kind == "behind":
            raise HTTPException(400, "There was an error parsing the body") from own.BodyTooLarge(7)
        raise RuntimeError(SECRET)

    async def count(count: int) -> int:
        return count

    routes = APIRouter(route_class=ProblemRoute)
    routes.add_api_route("/fail/{kind}", fail)
    routes.add_api_route("/count/{count}", count)
    without, beside = FastAPI(), FastAPI()
    without.include_router(routes)
    add_problem_handlers(beside)
    beside.add_api_route("/fail/{kind}", fail)
    beside.add_api_route("/count/{count}", count)
    for app in (without, beside):
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            teapot = await client.get("/fail/http")
            assert (teapot.status_code, teapot.headers["x-pot"]) == (418, "tea")
            expected = {"type": "about:blank", "title": "I'm a Teapot", "status": 418, "detail": "short and stout"}
            assert teapot.json() == expected
            invalid = await client.get("/count/x")
            assert (invalid.status_code, invalid.json()["problems"][0]["field"]) == (400, "path.count")
            assert (await client.get("/count/7")).json() == 7
            responses = [teapot, invalid]
            if app is without:
                behind = await client.get("/fail/behind")
                assert (behind.status_code, behind.json()["limit"]) == (413, 7)
                responses.append(behind)
            else:
                with structlog.testing.capture_logs() as logs:
                    broken = await client.get("/fail/broken")
                assert broken.json() == {
                    "type": "about:blank",
                    "title": "Internal error",
                    "status": 500,
                    "detail": "the service's log says what happened",
                }
                assert broken.status_code == 500
                assert [log["error"] for log in logs if log["event"] == "request_failed"] == [f"RuntimeError: {SECRET}"]
                responses.append(broken)
            assert {answer.headers["content-type"] for answer in responses} == {"application/problem+json"}
