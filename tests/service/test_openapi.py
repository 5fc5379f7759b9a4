"""What OpenAPI says of each route is what the table of routes says of it."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI

from support.served import TOKENS, referred_to
from turnwise import Engine
from turnwise.service import describe, router
from turnwise.service.routes import reports
from turnwise.service.routes.table import OPEN_ROUTES, ROUTES, Row

STREAM = "text/event-stream"
ALWAYS = {"400", "401", "403", "429", "503"}


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


def test_problems_and_events_have_schemas_and_every_schema_that_is_referred_to_is_there(
    document: dict[str, Any],
) -> None:
    schemas = document["components"]["schemas"]
    assert set(referred_to(document)) <= schemas.keys()
    assert {"status", "detail", "type"} <= schemas["Problem"]["properties"].keys()
    assert len(set(referred_to(schemas["Event"]))) > 10, "every kind of event is told"
    answers = [
        answer["content"]["application/problem+json"]["schema"]
        for one in document["paths"].values()
        for way in one.values()
        for answer in way["responses"].values()
        if "application/problem+json" in answer.get("content", {})
    ]
    assert answers
    assert all(schema == {"$ref": "#/components/schemas/Problem"} for schema in answers)


def test_no_route_is_said_to_answer_as_fastapi_does_to_what_does_not_fit(document: dict[str, Any]) -> None:
    assert not {"HTTPValidationError", "ValidationError"} & document["components"]["schemas"].keys()


def test_an_application_keeps_what_its_own_routes_answer() -> None:
    app = FastAPI()

    @app.get("/mine")
    def mine(count: int) -> int:
        return count

    problem = {"content": {"application/problem+json": {"schema": {"type": "object"}}}}
    app.add_api_route("/mine/too", mine, responses={422: problem})
    app.include_router(router(Engine("sqlite://", model="demo"), auth=TOKENS), prefix="/api")
    describe(app)
    document = app.openapi()
    for path in ("/mine", "/mine/too"):
        assert "422" in document["paths"][path]["get"]["responses"], path
    schemas = document["components"]["schemas"]
    assert {"HTTPValidationError", "ValidationError", "Problem", "Event"} <= schemas.keys()
    assert set(referred_to(document)) <= schemas.keys()
    created = document["paths"]["/api/chats"]["post"]["responses"]
    assert list(created.get("422", {}).get("content", ["application/problem+json"])) == ["application/problem+json"]
    assert app.openapi() == document, "it is made once"


def test_an_application_with_several_engines_has_operations_of_each() -> None:
    """Two of one id make the document invalid, and FastAPI warns of each."""
    app = FastAPI()
    for name, operation_prefix in (("one", ""), ("two", "two_")):
        routes = router(Engine("sqlite://", model="demo"), auth=TOKENS, operation_prefix=operation_prefix)
        app.include_router(routes, prefix=f"/{name}")
    describe(app)
    paths = app.openapi()["paths"]
    ids = {path: [way["operationId"] for way in ways.values()] for path, ways in paths.items()}
    assert {path: [f"two_{one}" for one in names] for path, names in ids.items() if path.startswith("/one")} == {
        path.replace("/two", "/one"): names for path, names in ids.items() if path.startswith("/two")
    }
    links = paths["/two/chats"]["post"]["responses"]["201"]["links"]
    assert {link["operationId"] for link in links.values()} == {f"two_{name}" for name in links}
