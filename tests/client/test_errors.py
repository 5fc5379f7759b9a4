"""What the client's own errors say, word by word, and the facts that they carry."""

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
    ServiceUnreachable,
)

WRONG = [{"field": f"f{number}", "problem": f"p{number}"} for number in range(1, 7)]


@pytest.mark.parametrize(
    ("error", "facts", "text"),
    [
        (
            NotAuthenticated(),
            {},
            (
                "the service knows nobody with this token: give Client(url, token=...) one that it was started with, "
                "and that has not expired; nothing was written"
            ),
        ),
        (
            NotAllowed("auditor", "operator"),
            {"role": "auditor", "needed": "operator"},
            "the token's role 'auditor' may not do this: it needs operator; nothing was written",
        ),
        (
            RateLimited("3 streams", 1.23456),
            {"limit": "3 streams", "retry_after": 1.23456},
            "too many: at most 3 streams; try again in 1.23 s; nothing was written",
        ),
        (
            BodyTooLarge(1000),
            {"limit": 1000},
            (
                "the request is longer than the 1,000 bytes that the service takes; send files with put_file; "
                "nothing was written"
            ),
        ),
        (
            InvalidRequest(WRONG),
            {"problems": tuple(WRONG)},
            "the service does not understand the request: f1: p1; f2: p2; f3: p3; f4: p4; f5: p5; nothing was written",
        ),
        (
            ServiceFailed(502, "bad gateway"),
            {"status": 502, "detail": "bad gateway"},
            "the service failed with status 502: bad gateway",
        ),
        (
            ServiceUnreachable("http://a", "refused", sent=False),
            {"url": "http://a", "problem": "refused", "sent": False},
            "no answer from http://a: refused; is the address right, and the service running? nothing was written",
        ),
        (
            ServiceUnreachable("http://a", "cut", sent=True),
            {"url": "http://a", "problem": "cut", "sent": True},
            (
                "no answer from http://a: cut; is the address right, and the service running? "
                "it may have been done: look at the chat before you ask again"
            ),
        ),
        (
            BadAnswer("http://a", "a page"),
            {"url": "http://a", "problem": "a page"},
            (
                "http://a does not answer as a turnwise service does: a page; is it the address of one, of this "
                "version? What it did is unknown"
            ),
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_an_error_carries_its_facts_and_says_them(error: TurnwiseError, facts: dict[str, Any], text: str) -> None:
    assert (vars(error), str(error)) == (facts, text)
