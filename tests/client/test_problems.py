"""Which error the client makes of what a service answers: its class, its facts and its text."""

from __future__ import annotations

from typing import Any

import pytest

from turnwise import TurnwiseError
from turnwise.client import (
    BadAnswer,
    BodyTooLarge,
    InvalidRequest,
    NotAllowed,
    NotAuthenticated,
    RateLimited,
    ServiceFailed,
)
from turnwise.client.problems import error_in, error_of

URL = "http://a/chats"
PROBLEM = "application/problem+json"


def problem(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": f"urn:turnwise:problem:{name}", "title": "T", "status": 418, "detail": "as it was said", **fields}


@pytest.mark.parametrize(
    ("told", "kind", "facts"),
    [
        (problem("not-authenticated"), NotAuthenticated, {}),
        (problem("not-allowed", role="a", needed="b"), NotAllowed, {"role": "a", "needed": "b"}),
        (problem("rate-limited", limit="3", retry_after=2), RateLimited, {"limit": "3", "retry_after": 2}),
        (problem("body-too-large", limit=1000), BodyTooLarge, {"limit": 1000}),
        (problem("invalid-request", problems=[{"field": "a"}]), InvalidRequest, {"problems": ({"field": "a"},)}),
        (problem("of-the-future", limit=1), ServiceFailed, {"status": 418, "detail": "as it was said"}),
        (problem("of-the-future", status="?"), ServiceFailed, {"status": 500, "detail": "as it was said"}),
    ],
)
def test_service_error_is_the_clients_own(
    told: dict[str, Any], kind: type[TurnwiseError], facts: dict[str, Any]
) -> None:
    error = error_in(URL, told)
    assert (type(error), vars(error)) == (kind, facts)
    assert str(error) != "as it was said"


@pytest.mark.parametrize(
    ("told", "wrong"),
    [
        ({}, "a problem 'None' without a detail"),
        (problem("queue-full", detail=7), "a problem 'queue-full' without a detail"),
        (problem("queue-full"), "a problem 'queue-full' without the fields of one"),
        (problem("file-not-found", digest=7, chat_id=1), "a problem 'file-not-found' without the fields of one"),
        (problem("rate-limited", limit=1, retry_after="x"), "a problem 'rate-limited' without the fields of one"),
        (problem("chat-deleted", chat_id="c1", deleted_at="x"), "a problem 'chat-deleted' without the fields of one"),
        (problem("tool-failed"), "a problem 'tool-failed' without the fields of one"),
    ],
)
def test_malformed_problem_is_a_bad_answer(told: dict[str, Any], wrong: str) -> None:
    error = error_in(URL, told)
    assert (type(error), vars(error)) == (BadAnswer, {"url": URL, "problem": wrong})


@pytest.mark.parametrize(
    ("status", "media_type", "body", "kind", "facts"),
    [
        (404, "text/plain", b"not here", BadAnswer, {"url": URL, "problem": "status 404, 'not here'"}),
        (500, "text/plain", b"x" * 101, ServiceFailed, {"status": 500, "detail": repr("x" * 100)}),
        (502, "text/html", b"\xff", ServiceFailed, {"status": 502, "detail": "'\ufffd'"}),
        (500, PROBLEM, b'{"detail": "see"}', ServiceFailed, {"status": 500, "detail": "see"}),
        (404, PROBLEM, b'{"detail": "see"}', BadAnswer, {"url": URL, "problem": "status 404, see"}),
        (404, PROBLEM, b'{"\xff": 1}', BadAnswer, {"url": URL, "problem": "status 404, '{\"\ufffd\": 1}'"}),
    ],
)
def test_foreign_answer_is_quoted(
    status: int, media_type: str, body: bytes, kind: type[TurnwiseError], facts: dict[str, Any]
) -> None:
    error = error_of(URL, status, media_type, body)
    assert (type(error), vars(error)) == (kind, facts)
