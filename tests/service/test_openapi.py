"""What OpenAPI says of each route is what the table of routes says of it."""

from __future__ import annotations

from typing import Any

import pytest

from support.served import TOKENS
from turnwise import Engine
from turnwise.service import create_app
from turnwise.service.routes import reports
from turnwise.service.routes.table import OPEN_ROUTES, ROUTES, Row

STREAM = "text/event-stream"
ALWAYS = {"400", "401", "403", "429", "503"}


@pytest.fixture(scope="module")
def paths() -> dict[str, Any]:
    return dict(create_app(Engine("sqlite://", model="demo"), auth=TOKENS).openapi()["paths"])


@pytest.mark.parametrize("row", [*ROUTES, *OPEN_ROUTES], ids=lambda row: f"{row.method} {row.path}")
def test_a_route_is_described_as_it_is(row: Row, paths: dict[str, Any]) -> None:
    told = paths[row.path][row.method.lower()]
    answers = told["responses"]
    problems = {status for status, answer in answers.items() if "application/problem+json" in answer.get("content", {})}
    expected = {str(status) for status in row.problems} | (set() if row in OPEN_ROUTES else ALWAYS)
    assert problems == expected
    assert bool(told.get("security")) is (row not in OPEN_ROUTES)
    content = answers[str(row.status)]["content"]
    if row.media_type is None:
        assert "application/json" in content
    else:
        assert list(content) == [row.media_type]
    for media_type, described in content.items():
        assert ("itemSchema" in described) is (media_type == STREAM), "a stream is told item by item"
        assert ("schema" in described) is (media_type != STREAM)
    if row.endpoint is reports.stream_events:
        assert content[STREAM]["itemSchema"]["properties"]["data"]["contentSchema"]


@pytest.mark.parametrize("path", ["/chats", "/chat-ids"])
def test_a_page_of_a_list_has_fifty_entries_unless_it_is_said(path: str, paths: dict[str, Any]) -> None:
    limit = next(one for one in paths[path]["get"]["parameters"] if one["name"] == "limit")
    assert limit["schema"] == {"type": "integer", "minimum": 1, "maximum": 1000, "default": 50, "title": "Limit"}
