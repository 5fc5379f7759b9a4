"""What clients of the service are told: every route, answer, link, field and problem is the one it was."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from support.recorded import recorded
from support.served import referred_to

FACE = Path(__file__).with_name("public_face.txt")


def test_everything_that_clients_are_told_is_as_it_was(document: dict[str, Any]) -> None:
    """A status, a field or a link that changes, changes what clients meet. `RECORD=1` writes the list anew."""
    schemas = document["components"]["schemas"]
    face = [
        *_routes(document["paths"]),
        "",
        *_parameters(document["paths"]),
        "",
        *_schemas({name: schemas[name] for name in _ours(document)}),
    ]
    assert face == recorded(FACE, face)


def _ours(document: Mapping[str, Any]) -> list[str]:
    """Return the names of the schemas that are ours to change: those of front ends come from their libraries."""
    schemas = document["components"]["schemas"]
    ways = [way for told in document["paths"].values() for way in told.values() if "front_ends" not in way["tags"]]
    found: set[str] = set()
    waiting = set(referred_to(ways))
    while waiting:
        found |= waiting
        waiting = set(referred_to([schemas[name] for name in waiting])) - found
    return sorted(found)


def _routes(paths: Mapping[str, Any]) -> Iterator[str]:
    for path, ways in paths.items():
        for method, told in ways.items():
            taken = [f"{one['name']}{'' if one['required'] else '?'}" for one in told.get("parameters", ())]
            bodies = [f"{media}: {_kind(kind)}" for media, kind in _content(told.get("requestBody", {}))]
            whose = "" if told.get("security") else ", open to all"
            yield f"{method.upper()} {path} = {told['operationId']}({', '.join([*taken, *bodies])}){whose}"
            for status, answer in told["responses"].items():
                yield f"    {status} {'; '.join(_answer(answer))}"


def _parameters(paths: Mapping[str, Any]) -> list[str]:
    """Return what each argument is, once for all routes that explain it alike."""
    told = [one for ways in paths.values() for way in ways.values() for one in way.get("parameters", ())]
    return sorted({f"{one['in']} {one['name']}: {one.get('description')} {_kind(one['schema'])}" for one in told})


def _answer(answer: Mapping[str, Any]) -> Iterator[str]:
    yield answer["description"]
    for media, kind in _content(answer):
        if media != "application/problem+json":
            yield f"{media}: {_kind(kind)}"
    for name, header in answer.get("headers", {}).items():
        yield f"{name}: {_kind(header['schema'])}"
    for name, link in answer.get("links", {}).items():
        yield f"link {name} to {link['operationId']} {json.dumps(link['parameters'])}"


def _content(told: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for media, kind in told.get("content", {}).items():
        yield media, kind.get("schema") or kind["itemSchema"]


def _schemas(schemas: Mapping[str, Any]) -> Iterator[str]:
    for name, schema in schemas.items():
        required = schema.get("required", ())
        fields = schema.get("properties", {})
        others = {True: " and others", False: " and no others"}.get(schema.get("additionalProperties"), "")
        yield f"{name}: its fields{others}" if fields else f"{name}: {_kind(schema)}"
        yield from (f"    {field}{'' if field in required else '?'}: {_kind(kind)}" for field, kind in fields.items())
        yield from (f"    for example {json.dumps(example)}" for example in schema.get("examples", ()))


def _kind(schema: Any) -> str:
    """Return a schema in a line, without what is there for people."""
    match schema:
        case {"$ref": str(name)}:
            return name.rpartition("/")[2]
        case {"anyOf": kinds} | {"oneOf": kinds}:
            return " | ".join(map(_kind, kinds))
        case {"type": "array", "items": kind}:
            return f"[{_kind(kind)}]"
        case dict():
            told = {key: kind for key, kind in schema.items() if key not in ("title", "description")}
            return json.dumps(told, sort_keys=True)
        case _:
            return json.dumps(schema)
