"""The OpenAPI document: recorded, complete, and beside an application's own routes."""

import json
import os
from pathlib import Path
from typing import Any, Final

import pydantic
import pytest
from fastapi import FastAPI

from support.served import TOKENS, referred_to
from turnwise import Engine
from turnwise.service import describe, router

SNAPSHOT: Final = Path(__file__).with_name("openapi.json")
WORDS: Final = ("title", "description", "summary")
"""Texts of the document for people, which may change at any time."""


@pytest.mark.skipif(pydantic.VERSION < "2.14", reason="older pydantic names and spells some schemas otherwise")
def test_openapi_document_is_as_recorded(document: dict[str, Any]) -> None:
    """A changed status, field or link breaks clients. `RECORD=1` writes the file again."""
    schemas = document["components"]["schemas"]
    paths = without_words(document["paths"])
    recorded = {"paths": paths, "schemas": without_words({name: schemas[name] for name in own_schemas(document)})}
    if os.environ.get("RECORD"):
        SNAPSHOT.write_text(f"{spelled(recorded)}\n", encoding="utf-8")
    assert json.loads(SNAPSHOT.read_text(encoding="utf-8")) == recorded


def without_words(value: Any) -> Any:
    """Remove texts for people; fields of these names that are no texts stay."""
    match value:
        case dict():
            rest = {name: one for name, one in value.items() if name not in WORDS or not isinstance(one, str)}
            return {name: without_words(one) for name, one in rest.items()}
        case list():
            return [without_words(one) for one in value]
    return value


def own_schemas(document: dict[str, Any]) -> set[str]:
    """Return the names of turnwise's schemas; those of front ends change with their libraries."""
    ways = [way for path in document["paths"].values() for way in path.values() if "front_ends" not in way["tags"]]
    found, waiting = set[str](), set(referred_to(ways))
    while waiting:
        found |= waiting
        waiting = set(referred_to([document["components"]["schemas"][name] for name in waiting])) - found
    return found


def spelled(value: Any, indent: str = "") -> str:
    """Format JSON with short values on one line."""
    line = json.dumps(value, sort_keys=True)
    if not isinstance(value, dict | list) or len(indent + line) <= 118:
        return line
    inner = f"{indent} "
    if isinstance(value, list):
        entries, first, last = [spelled(one, inner) for one in value], "[", "]"
    else:
        entries = [f"{json.dumps(name)}: {spelled(one, inner)}" for name, one in sorted(value.items())]
        first, last = "{", "}"
    between = f",\n{inner}"
    return f"{first}\n{inner}{between.join(entries)}\n{indent}{last}"


def test_every_schema_is_there_and_every_problem_has_one(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    assert set(referred_to(document)) <= schemas.keys()
    assert not {"HTTPValidationError", "ValidationError"} & schemas.keys()
    assert len(set(referred_to(schemas["Event"]))) > 10, "every kind of event"
    operations = [way for ways in document["paths"].values() for way in ways.values()]
    answers = [answer for way in operations for answer in way["responses"].values()]
    problems = [answer["content"]["application/problem+json"] for answer in answers if is_problem(answer)]
    assert problems
    assert all(problem == {"schema": {"$ref": "#/components/schemas/Problem"}} for problem in problems)
    assert all(way["description"] for way in operations)


def is_problem(answer: dict[str, Any]) -> bool:
    return "application/problem+json" in answer.get("content", {})


def test_application_keeps_the_answers_of_its_own_routes() -> None:
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


def test_operation_prefix_separates_several_engines() -> None:
    """Two operations with one id make the document invalid, and FastAPI warns of each."""
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


def test_schedule_ids_have_their_pattern(document: dict[str, Any]) -> None:
    pattern = "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
    body = document["components"]["schemas"]["ScheduleBody"]["properties"]["id"]
    path = document["paths"]["/chats/{chat_id}/schedules/{id}"]["delete"]["parameters"]
    assert body["anyOf"][0]["pattern"] == pattern
    assert [one["schema"]["pattern"] for one in path if one["name"] == "id"] == [pattern]
