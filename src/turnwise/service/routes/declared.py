"""The routes of declared commands: their parameters, bodies and answers follow from the signatures."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import NoneType
from typing import Annotated, Any, Final, get_type_hints

import msgspec
from fastapi import Path, Query
from pydantic import BaseModel, WithJsonSchema
from pydantic.fields import FieldInfo
from starlette.responses import Response

from turnwise.engine.chats.chats import COMMANDS
from turnwise.engine.chats.declaration import Command
from turnwise.engine.config.results import Chat
from turnwise.http_problems import InvalidRequest
from turnwise.service.bodies import ClientToolBody, ToolResultBody, build_body_model
from turnwise.service.caller import ChatId, Sender
from turnwise.service.caller_chats import CallerChats
from turnwise.service.pages import Paging
from turnwise.service.routes.preconditions import IdempotencyKey, IfMatch, build_location, parse_version, with_etag
from turnwise.states.values.limits import JsonObject

_MessageId = Annotated[str, Path(description="The message's id.", examples=["m1"])]
_ConsumerName = Annotated[str, Path(description="The consumer's name.", examples=["webhook:crm"])]
_SCHEDULE_ID: Final = Path(description="The schedule's id.", examples=["daily"])
_CREATED: Final = 201
_QUERY: Final[Mapping[str, str]] = {
    "owner": "Only chats of this owner. Owners see only their own.",
    "chat_id": "The budgets that this chat spends: its own and its owner's.",
    "metadata": "Entries that the chats have: a JSON object.",
    "title": "What the title contains.",
    "agent": "Who answers.",
    "created_after": "The earliest time of creation.",
    "created_before": "A time after the latest.",
    "archived": "Only archived chats, or only others.",
    "awaiting": "Only chats that wait for the client (a person, too), or for subagents.",
    "state": "Only chats in this state.",
    "limit": "The most items of a page.",
    "after": "`next` of the previous page, or the id of a chat.",
    "prefix": "Only ids that begin with this.",
    "family": "Also the chat's subagents, and theirs.",
    "by": "What to sum up by; all in one sum by default.",
    "since": "The time of the earliest model calls.",
    "until": "A time after the latest.",
    "timezone": "The time zone of days.",
    "files": "Also every file of the chat, byte for byte.",
}
_JSON: Final = JsonObject | None
_JSON_TEXT: Final = str | None
"""The type of JSON in a query."""
_CHECKED_BY_CLIENTS: Final = frozenset({"checkpoints", "public_key"})
"""Arguments that a client keeps: it checks the answer itself."""


def build_endpoint(name: str) -> Callable[..., Any]:
    """Return the FastAPI endpoint of a declared command."""
    command = COMMANDS[name]
    body = build_body_model(command)

    async def endpoint(caller: Any, response: Response, **given: Any) -> Any:
        method = getattr(CallerChats(caller), command.name)
        paging = given.pop("paging", None)
        result = await method(**_arguments(given))
        if paging is not None:
            return paging.page(result)
        if command.result is NoneType:
            return Response(status_code=command.status)
        if isinstance(result, Chat):
            if command.status == _CREATED:
                response.headers["Location"] = build_location(command.path, result)
            with_etag(response, result)
        return result

    endpoint.__name__ = command.operation
    endpoint.__doc__ = inspect.getdoc(vars(CallerChats).get(command.name)) or command.doc
    endpoint.__signature__ = _signature(command, body)  # type: ignore[attr-defined]
    return endpoint


def _arguments(given: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a request. What its body leaves out has the default of the command."""
    body = given.pop("body", None)
    if "if_version" in given:
        given["if_version"] = parse_version(given["if_version"])
    fields = () if body is None else body.model_fields_set
    if isinstance(given.get("metadata"), str):
        try:
            given["metadata"] = msgspec.json.decode(given["metadata"], type=dict[str, Any])
        except (ValueError, RecursionError):
            raise InvalidRequest([{"field": "query.metadata", "problem": "must be a JSON object"}]) from None
    return given | {name: _value(getattr(body, name)) for name in fields}


def _value(field: Any) -> Any:
    if isinstance(field, list):
        return [_value(one) for one in field]
    return field.value() if isinstance(field, ClientToolBody | ToolResultBody) else field


def _signature(command: Command, body: type[BaseModel] | None) -> inspect.Signature:
    parameters = [_parameter("caller", Sender), _parameter("response", Response)]
    hints = {"client_id": IdempotencyKey, "if_version": IfMatch}
    for name in command.parameters:
        if name in command.path_parameters:
            parameters.append(_parameter(name, ChatId if name == "chat_id" else _path_type(command, name)))
        elif name in hints:
            parameters.append(_parameter(name, hints[name], None))
    for name in command.fields if command.is_read else ():
        if name not in _CHECKED_BY_CLIENTS:
            bounds = [one for one in getattr(command.hints[name], "__metadata__", ()) if isinstance(one, FieldInfo)]
            described = Query(description=_QUERY[name])
            own: Any = _JSON_TEXT if command.hints[name] == _JSON else get_type_hints(command.function)[name]
            query: Any = Annotated[own, *bounds, described]
            parameters.append(_parameter(name, query, command.parameters[name].default))
    if body is not None:
        only, *others = body.model_fields.values()
        is_optional = not (others or only.is_required())  # a body of one field, such as a reason, may be left out
        hint: Any = body | None if is_optional else body
        parameters.append(_parameter("body", hint, None if is_optional else inspect.Parameter.empty))
    if command.is_paged:
        parameters.append(_parameter("paging", Paging))
    return inspect.Signature(parameters, return_annotation=Response if command.result is NoneType else command.result)


def _parameter(name: str, hint: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=hint, default=default)


def _path_type(command: Command, name: str) -> Any:
    if name == "name":
        return _ConsumerName
    pattern = [one for one in getattr(command.hints[name], "__metadata__", ()) if isinstance(one, WithJsonSchema)]
    return Annotated[str, *pattern, _SCHEDULE_ID] if pattern else _MessageId
