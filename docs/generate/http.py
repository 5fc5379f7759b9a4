"""The routes of the service, read off its OpenAPI document, and who may use them, off its policy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

from generate.schemas import default_of, section, spelled
from generate.tables import code, table
from turnwise import Engine
from turnwise.http_problems import MEDIA_TYPE, ON_BEHALF_OF
from turnwise.service import OWNERS_MAY, Principal, StaticTokens, create_app
from turnwise.service.policy import Policy
from turnwise.service.routes.table import OPERATIONS

POLICY: Final = Policy(OPERATIONS, OWNERS_MAY)
Operation = Mapping[str, Any]


@cache
def document() -> dict[str, Any]:
    """Return the OpenAPI document that an operator gets."""
    auth = StaticTokens({"token": Principal("operator", "operator")})
    return create_app(Engine("sqlite://", model="demo"), auth=auth).openapi()


def routes() -> str:
    """Return a section for each part of the API, with each of its routes."""
    tags: dict[str, list[str]] = {}
    for path, ways in document()["paths"].items():
        for method, operation in ways.items():
            heading = f"### `{method.upper()} {path}` {{#{operation['operationId']}}}"
            tags.setdefault(operation["tags"][0], []).append("\n\n".join([heading, *_paragraphs(operation)]))
    parts = [f"## {tag.replace('_', ' ').capitalize()}\n\n" + "\n\n".join(found) for tag, found in tags.items()]
    return "\n\n".join(parts) + "\n"


def _paragraphs(operation: Operation) -> Iterator[str]:
    yield operation.get("description", "")
    yield f"`{operation['operationId']}`. {who_may(operation)}"
    parameters = [one for one in operation.get("parameters", ()) if one["name"] != ON_BEHALF_OF]
    if parameters:
        yield table(("parameter", "in", "type", "default", "meaning"), map(_parameter, parameters)).rstrip()
    if "requestBody" in operation:
        content = operation["requestBody"]["content"]
        yield "Body: " + ", ".join(f"{spelled(one['schema'])} as `{media}`" for media, one in content.items())
    yield table(("status", "answer"), _answers(operation)).rstrip()
    own = [status for status in _problems(operation) if status not in common_problems()]
    if own:
        yield "Problems: " + ", ".join(map(code, own)) + "."


def who_may(operation: Operation) -> str:
    """Return who may use an operation, as a sentence."""
    name = operation["operationId"]
    if "security" not in operation:
        return "Open: it needs no token."
    auditors = "auditors and operators" if OPERATIONS[name].is_read else "operators"
    if not POLICY.allows("owner", name):
        return f"For {auditors}."
    refused = [code(one) for one in POLICY.refused_fields("owner", name) if one != ON_BEHALF_OF]
    without = f" (without {', '.join(refused)})" if refused else ""
    return f"For owners{without}{',' if ' ' in auditors else ' and'} {auditors}."


def _parameter(parameter: Mapping[str, Any]) -> list[str]:
    schema = parameter["schema"]
    default = default_of(schema, required=parameter["required"])
    return [code(parameter["name"]), parameter["in"], spelled(schema), default, parameter.get("description", "")]


def _answers(operation: Operation) -> Iterator[list[str]]:
    for status, answer in sorted(operation["responses"].items()):
        content = answer.get("content", {})
        if MEDIA_TYPE in content:
            continue
        said = [answer["description"]]
        for media, one in content.items():
            schema = one.get("schema") or one["itemSchema"]
            typed = spelled(schema) if "schema" in one else "a stream of events"
            said.append(typed if media == "application/json" else f"{typed} as `{media}`")
        headers = ", ".join(map(code, answer.get("headers", ())))
        yield [code(status), " ".join(said) + (f" Headers: {headers}." if headers else "")]


def _problems(operation: Operation) -> list[str]:
    return sorted(one for one, answer in operation["responses"].items() if MEDIA_TYPE in answer.get("content", {}))


@cache
def common_problems() -> frozenset[str]:
    """Return the statuses of problems that every route with a token may answer with."""
    operations = [way for path in document()["paths"].values() for way in path.values() if "security" in way]
    return frozenset.intersection(*(frozenset(_problems(one)) for one in operations))


def problems() -> str:
    """Return a table of all statuses of problems."""
    found: dict[str, str] = {}
    for path in document()["paths"].values():
        for operation in path.values():
            found |= {status: operation["responses"][status]["description"] for status in _problems(operation)}
    rows = ([code(one), found[one], "any" if one in common_problems() else "where named"] for one in sorted(found))
    return table(("status", "meaning", "routes"), rows)


def schemas() -> str:
    """Return a section for each type of the document."""
    found = document()["components"]["schemas"]
    return "\n\n".join(section(name, found[name]) for name in sorted(found, key=str.lower)) + "\n"
