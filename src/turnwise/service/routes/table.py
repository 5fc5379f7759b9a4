"""The routes of the service: one line for each that is not a declared command alone."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, get_args, get_type_hints

from pydantic import BaseModel

from turnwise.engine.chats.chats import COMMANDS
from turnwise.engine.chats.declaration import UNCHANGED, Command
from turnwise.engine.config.results import Chat
from turnwise.service.bodies import AuditEntry
from turnwise.service.policy import Field, Operation
from turnwise.service.protocols.new_input import UIMessage
from turnwise.service.routes import chats, files, front_ends, health, reports, turns
from turnwise.service.routes.declared import build_endpoint
from turnwise.service.routes.streamed import JSON_LINES
from turnwise.states.transcript import Transcript


class RouteSpec(NamedTuple):
    """A route."""

    method: str
    path: str
    endpoint: Callable[..., Any]
    status: int = 200
    problems: tuple[int, ...] = ()
    """Statuses of problems, beside those of every route."""
    answer: Any = None
    """The type of the answer, if it is not the endpoint's annotation."""
    media_type: str | None = None
    """The media type of the answer, if it is no JSON."""
    is_open: bool = False
    """Whether it needs no token: it reveals nothing of any chat."""
    declared: tuple[str, ...] | None = None
    """Fields of its request that the policy knows by names of their own, if they are not the optional ones of the
    body: what else a front end's page sends stands for other operations."""
    command: Command | None = None
    """The declared command that it takes."""

    @classmethod
    def of(cls, name: str) -> RouteSpec:
        """Return the route of a declared command."""
        command = COMMANDS[name]
        problems: tuple[int, ...] = _AT_VERSION if "if_version" in command.parameters else _CHANGE
        if command.is_read:
            problems = _ABOUT if command.path_parameters or "chat_id" in command.parameters else ()
        verb = command.verb or "GET"
        return cls(verb, command.path, build_endpoint(name), command.status, problems, command=command)

    @property
    def name(self) -> str:
        """The name of the operation: that of its function."""
        return self.endpoint.__name__

    @property
    def operation(self) -> Operation:
        """The operation, as the policy knows it."""
        if self.command is not None:
            return Operation(self.name, self.command.is_read, dict(_optional_arguments(self.command)))
        hint = get_type_hints(self.endpoint).get("body")
        bodies = [one for one in get_args(hint) or (hint,) if hasattr(one, "model_fields")]
        fields = {name: field for body in bodies for name, field in _optional_fields(body)}
        if self.declared is not None:
            fields = {name: Field([]) for name in self.declared}  # pages send an empty list as well
        return Operation(self.name, self.method == "GET", fields)

    @property
    def parameters(self) -> frozenset[str]:
        """The ids that it takes: those of the path, and the chat of a file."""
        in_path = _IN_PATH.findall(self.path)
        return frozenset(in_path) | ({"chat"} if self.path.startswith("/files") else frozenset())

    @property
    def is_tagged(self) -> bool:
        """Whether it answers with a chat, and with the chat's version as `ETag`."""
        if self.command is not None:
            return self.command.result is Chat
        return self.answer is Chat or self.endpoint.__annotations__["return"] == Chat.__name__

    @property
    def tag(self) -> str:
        """The part of the API that it belongs to."""
        if self.command is None:
            return self.endpoint.__module__.rpartition(".")[2]
        group = self.command.function.__qualname__.partition(".")[0]
        return "chats" if group == "ChatManagement" else group.lower()

    @property
    def meaning(self) -> str:
        """What a good answer is."""
        return _MEANINGS[self.status]


def _optional_arguments(command: Command) -> Iterator[tuple[str, Field]]:
    for name in command.fields if command.has_body else ():
        default = command.parameters[name].default
        if default is not inspect.Parameter.empty:
            usual = list(default) if isinstance(default, tuple) else default  # as JSON has it
            yield name, Field(usual, is_change=default is UNCHANGED)


def _optional_fields(body: type[BaseModel]) -> Iterator[tuple[str, Field]]:
    for name, field in body.model_fields.items():
        if not field.is_required():
            key = field.alias or name
            yield key, Field(field.default, other_key=None if key == name else name)


_IN_PATH: Final = re.compile(r"{(\w+)}")
_MEANINGS: Final = {
    200: "Done.",
    201: "Created.",
    202: "Accepted and stored; the work goes on after the answer.",
    204: "Done; the answer has no body.",
}
CHAT: Final = "/chats/{chat_id}"
_ABOUT: Final = (404, 500)
_CHANGE: Final = (404, 409, 413, 415, 500)
_AT_VERSION: Final = (404, 409, 412, 413, 415, 500)

_OWN_ROUTES: Final = (
    RouteSpec("POST", "/chats/import", chats.import_chat, 201, (404, 409, 413, 415)),
    RouteSpec("GET", CHAT, chats.get_chat, 200, _ABOUT, Chat),
    RouteSpec("GET", f"{CHAT}/export", chats.export_chat, 200, _ABOUT, None, JSON_LINES),
    RouteSpec("POST", f"{CHAT}/ask", turns.ask, 200, _CHANGE),
    RouteSpec("GET", f"{CHAT}/messages", turns.list_messages, 200, _ABOUT, declared=("view",)),
    RouteSpec("GET", f"{CHAT}/transcript", turns.read_transcript, 200, _ABOUT, Transcript),
    RouteSpec("GET", f"{CHAT}/events", reports.stream_events, 200, _ABOUT, None, "text/event-stream"),
    RouteSpec("GET", "/events", reports.watch_chats, 200, (), None, "text/event-stream"),
    RouteSpec("GET", f"{CHAT}/audit", reports.read_audit, 200, _ABOUT, list[AuditEntry]),
    RouteSpec("GET", f"{CHAT}/diagram.svg", reports.draw, 200, _ABOUT, None, "image/svg+xml"),
    RouteSpec("POST", "/agui", front_ends.run_agui, 200, _CHANGE, None, "text/event-stream", declared=("tools",)),
    RouteSpec(
        "POST",
        "/ai-sdk/chat",
        front_ends.chat_ai_sdk,
        200,
        _CHANGE,
        None,
        "text/event-stream",
        declared=("client_tools",),
    ),
    RouteSpec("GET", "/ai-sdk/chat/{thread_id}/messages", front_ends.list_ui_messages, 200, _ABOUT, list[UIMessage]),
    RouteSpec(
        "GET", "/ai-sdk/chat/{thread_id}/stream", front_ends.resume_ai_sdk, 200, _ABOUT, None, "text/event-stream"
    ),
    RouteSpec("GET", "/agents", chats.list_agents),
    RouteSpec("GET", "/principal", chats.read_principal),
    RouteSpec("POST", "/files", files.put_file, 201, _CHANGE),
    RouteSpec("GET", "/files/{digest}", files.get_file, 200, _ABOUT, None, "application/octet-stream"),
)
_OWN: Final = {route.name for route in _OWN_ROUTES}
ROUTES: Final = (
    *_OWN_ROUTES,
    *(RouteSpec.of(name) for name, one in COMMANDS.items() if one.verb is not None and one.operation not in _OWN),
)
METRICS: Final = RouteSpec("GET", "/metrics", health.metrics, 200, (400,), None, "text/plain")
OPEN_ROUTES: Final = (
    RouteSpec("GET", "/healthz", health.is_alive, is_open=True),
    RouteSpec("GET", "/readyz", health.is_ready, 200, (503,), dict[str, str], is_open=True),
    METRICS._replace(is_open=True),
)
"""Routes of an application of the service's own that need no token."""
MOUNTED: Final = (*ROUTES, *OPEN_ROUTES[:2], METRICS)
"""The routes for an application of yours: what it measures is not for its customers."""
UPLOADS: Final = frozenset({"/files", "/chats/import"})
"""Routes whose bodies may be long."""
HISTORIES: Final = frozenset({"/agui", "/ai-sdk/chat"})
"""Routes whose bodies may hold a whole conversation."""
OPERATIONS: Final = {route.name: route.operation for route in (*ROUTES, METRICS)}
"""The operations that need a token, as the policy knows them."""
