"""The parts of the OpenAPI document that FastAPI cannot derive from the functions of the routes."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final

from fastapi import FastAPI
from pydantic import TypeAdapter

from turnwise.engine.config.results import SendReceipt
from turnwise.http_problems import MEDIA_TYPE
from turnwise.service.auth import Role
from turnwise.service.policy import Policy
from turnwise.service.problems import Problem
from turnwise.service.routes import chats, files, front_ends, reports, turns
from turnwise.service.routes.streamed import JSON_LINES
from turnwise.service.routes.table import RouteSpec
from turnwise.states.events import Event
from turnwise.states.values.checked import checked

_REF: Final = "#/components/schemas/"
_ALWAYS: Final = (400, 401, 403, 429, 503)
"""Statuses of problems that every route but the open ones may answer with."""
_MEANINGS: Final = {
    400: "The request makes no sense.",
    401: "No valid token.",
    403: "The role does not allow it.",
    404: "There is no such chat, message or file, or it is another owner's.",
    409: "The chat's state does not allow it.",
    412: "The chat has changed since.",
    413: "The body is too long.",
    415: "The body has an encoding; it must be sent as it is.",
    429: "Too many requests, streams, or queued messages.",
    500: "The chat cannot be read: `turnwise doctor` says why.",
    503: "The service stops, or its store cannot be reached.",
}
_ETAG: Final = {"ETag": {"description": "The chat's version.", "schema": {"type": "string", "pattern": '^W/"[0-9]+"$'}}}
_LOCATION: Final = {"Location": {"description": "The new chat, relative to the request.", "schema": {"type": "string"}}}
_RETRY: Final = {
    "Retry-After": {"description": "Seconds after which it may be tried again.", "schema": {"type": "integer"}}
}
_CHALLENGE: Final = {"WWW-Authenticate": {"description": "The scheme: Bearer.", "schema": {"type": "string"}}}
_PROBLEM_HEADERS: Final = {401: _CHALLENGE, 429: _RETRY, 503: _RETRY}
_BODIES: Final[dict[Any, dict[str, Any]]] = {
    files.put_file: {"*/*": {"schema": {"type": "string", "format": "binary"}}},
    chats.import_chat: {JSON_LINES: {"schema": {"type": "string", "description": "A chat that was exported."}}},
}
"""Bodies that are read piece by piece, of which FastAPI knows nothing."""
_NEW_CHATS: Final = ("create_chat", "fork", "import_chat")
"""Operations that answer with a new chat."""
_LINES: Final = {JSON_LINES: {"schema": {"type": "string"}}}
_HIDDEN: Final = "x-turnwise-hidden"
"""Where an operation names the fields that `describe` leaves out."""
STREAM: Final = "text/event-stream"
_JSON_IN_STREAM: Final = {"type": "string", "contentMediaType": "application/json"}
_STREAMED: Final = {"itemSchema": {"type": "object", "properties": {"data": _JSON_IN_STREAM}, "required": ["data"]}}
"""A stream in a front end's own protocol."""
_EVENTS: Final = {
    "itemSchema": {
        "type": "object",
        "properties": {
            "data": _JSON_IN_STREAM | {"contentSchema": {"$ref": f"{_REF}Event"}},
            "event": {"type": "string"},
            "id": {"type": "string"},
            "retry": {"type": "integer", "minimum": 0},
        },
    }
}
"""A stream of a chat's events."""


def described(
    route: RouteSpec, routes: Sequence[RouteSpec], *, operation_prefix: str = "", hidden: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the options of a route for FastAPI: its responses, and a body that is read in pieces.

    Answers link to `routes`; the document leaves out the fields `hidden`.
    """
    extra: dict[str, Any] = {"responses": {route.status: _answer(route, routes, operation_prefix)}}
    statuses = {*route.problems} if route.is_open else {*_ALWAYS, *route.problems}
    extra["responses"] |= {status: _problem(status) for status in sorted(statuses)}
    if route.endpoint is chats.get_chat:
        extra["responses"][304] = {"description": "The chat is still at that version.", "headers": _ETAG}
    if route.endpoint is turns.ask:
        extra["responses"][202] = {
            "description": "It takes longer: ask again with the same key.",
            "model": SendReceipt,
        }
    if route.endpoint is front_ends.resume_ai_sdk:
        extra["responses"][204] = {"description": "No turn is under way."}
    if route.endpoint in _BODIES:
        extra["openapi_extra"] = {"requestBody": {"required": True, "content": _BODIES[route.endpoint]}}
    if hidden:
        extra["openapi_extra"] = extra.get("openapi_extra", {}) | {_HIDDEN: hidden}
    return extra


def _answer(route: RouteSpec, routes: Sequence[RouteSpec], operation_prefix: str) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": route.meaning}
    if route.media_type is not None:
        answer["content"] = {
            route.media_type: _STREAMED if route.media_type == STREAM else {"schema": {"type": "string"}}
        }
    if route.endpoint is reports.read_audit:
        answer["content"] = _LINES
    if route.endpoint is reports.stream_events:
        answer["content"] = {STREAM: _EVENTS}
    headers = (_ETAG if route.is_tagged else {}) | (_LOCATION if route.name in _NEW_CHATS else {})
    links = dict(_links(route, routes, operation_prefix))
    return answer | ({"headers": headers} if headers else {}) | ({"links": links} if links else {})


def _problem(status: int) -> dict[str, Any]:
    """Describe a problem. Its schema is inline, so that the document is complete in any application."""
    problem: dict[str, Any] = {
        "description": _MEANINGS[status],
        "content": {MEDIA_TYPE: {"schema": _problem_schema()}},
    }
    return problem | ({"headers": _PROBLEM_HEADERS[status]} if status in _PROBLEM_HEADERS else {})


@cache
def _problem_schema() -> dict[str, Any]:
    return Problem.model_json_schema()


def _links(
    route: RouteSpec, routes: Sequence[RouteSpec], operation_prefix: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield links from an answer to the routes that take its ids."""
    if route.name in _NEW_CHATS:
        values = {"chat_id": "$response.body#/id", "chat": "$response.body#/id"}
    elif route.name == "list_chats":
        values = {"chat_id": "$response.body#/items/0/id"}
    elif route.name == "send_message":
        message = "$response.body#/message_id"
        values = {"chat_id": "$request.path.chat_id", "message_id": message, "queued_id": message}
    elif route.endpoint is files.put_file:
        values = {"chat": "$request.query.chat", "digest": "$response.body#/blob"}
    else:
        return
    for other in routes:
        wanted = other.parameters
        if wanted and wanted <= values.keys() and other is not route:
            parameters = {name: values[name] for name in sorted(wanted)}
            yield other.name, {"operationId": operation_prefix + other.name, "parameters": parameters}


@checked
def describe(app: FastAPI) -> None:
    """Complete an application's OpenAPI document, once the routes of the service are among its own.

    Problems and events get schemas of their own, routes of the service are not said to answer 422, which they never do,
    and fields that the `router` hides are left out.
    """
    read = app.openapi

    def complete_document() -> dict[str, Any]:
        if app.openapi_schema is not None:
            return app.openapi_schema
        document = read()
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        operations = [operation for path in document["paths"].values() for operation in path.values()]
        for operation in operations:
            _complete(operation)
            _hide(operation, operation.pop(_HIDDEN, ()), schemas)
        events = TypeAdapter[Any](Event).json_schema(ref_template=_REF + "{model}")
        schemas |= events.pop("$defs") | {Problem.__name__: Problem.model_json_schema()}
        schemas["Event"] = {"description": "One event of a chat; fields with defaults may be left out.", **events}
        if not any("422" in operation["responses"] for operation in operations):
            schemas.pop("HTTPValidationError", None)
            schemas.pop("ValidationError", None)
        return document

    app.openapi = complete_document  # type: ignore[method-assign] # as FastAPI has it done


def _complete(operation: dict[str, Any]) -> None:
    answers = operation["responses"]
    of_problems = [answer["content"] for answer in answers.values() if MEDIA_TYPE in answer.get("content", {})]
    if not of_problems:
        return
    for content in of_problems:
        content[MEDIA_TYPE]["schema"] = {"$ref": f"{_REF}{Problem.__name__}"}
    if "422" in answers and MEDIA_TYPE not in answers["422"]["content"]:
        del answers["422"]


def shown_to(role: Role, policy: Policy, document: Mapping[str, Any]) -> dict[str, Any]:
    """Reduce the OpenAPI document of the service's own application to the operations of a role."""
    shown = copy.deepcopy(dict(document))
    schemas = shown["components"]["schemas"]
    for path, ways in [*shown["paths"].items()]:
        for method, operation in [*ways.items()]:
            if "security" not in operation:  # it is open to everybody
                continue
            if not policy.allows(role, name := operation["operationId"]):
                del ways[method]
                continue
            _hide(operation, policy.refused_fields(role, name), schemas)
            for answer in operation["responses"].values():
                links = answer.get("links", {})
                for other in [one for one in links if not policy.allows(role, one)]:
                    del links[other]
        if not ways:
            del shown["paths"][path]
    needed = _find_needed({"Event"} | set(_find_references(shown["paths"])), schemas)
    shown["components"]["schemas"] = {name: schema for name, schema in schemas.items() if name in needed}
    return shown


def _hide(operation: dict[str, Any], fields: Collection[str], schemas: Mapping[str, Any]) -> None:
    """Leave fields out of an operation's parameters, and out of the schema of its body."""
    parameters = [one for one in operation.pop("parameters", ()) if one["name"] not in fields]
    operation |= {"parameters": parameters} if parameters else {}
    for name in _find_references(operation.get("requestBody", {})):
        properties = schemas[name].get("properties", {})
        schemas[name]["properties"] = {key: one for key, one in properties.items() if key not in fields}
        for example in schemas[name].get("examples", ()):
            for field in fields:
                example.pop(field, None)


def _find_references(value: Any) -> Iterator[str]:
    """Yield the names of schemas that a part of the document references."""
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"].removeprefix(_REF)
        value = list(value.values())
    for one in value if isinstance(value, list) else ():
        yield from _find_references(one)


def _find_needed(names: set[str], schemas: Mapping[str, Any]) -> set[str]:
    """Return the names with those of all schemas that they reference."""
    found, waiting = set[str](), names & schemas.keys()
    while waiting:
        found |= waiting
        waiting = {name for one in waiting for name in _find_references(schemas[one])} - found
    return found
