"""The routes of the service: one line for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from turnwise.engine.results import Chat
from turnwise.service.bodies import AuditEntry
from turnwise.service.routes import chats, files, health, reports, turns


class Row(NamedTuple):
    """A route."""

    method: str
    path: str
    endpoint: Callable[..., Any]
    status: int = 200
    problems: tuple[int, ...] = ()
    """Statuses of problems, beside those of every route."""
    answer: Any = None
    """The type of the answer, if the endpoint's annotation does not tell it."""


_CHAT: Final = "/chats/{chat_id}"
_ABOUT: Final = (404, 500)
_CHANGE: Final = (404, 409, 413, 500)
_AT_VERSION: Final = (404, 409, 412, 413, 500)

ROUTES: Final = (
    Row("POST", "/chats", chats.create_chat, 201, (404, 409, 413)),
    Row("GET", "/chats", chats.list_chats),
    Row("POST", "/chats/import", chats.import_chat, 201, (404, 409, 413)),
    Row("GET", _CHAT, chats.get_chat, 200, _ABOUT, Chat),
    Row("PATCH", _CHAT, chats.update_chat, 200, _AT_VERSION),
    Row("DELETE", _CHAT, chats.delete_chat, 200, _AT_VERSION),
    Row("POST", f"{_CHAT}/configure", chats.configure, 202, _AT_VERSION),
    Row("POST", f"{_CHAT}/fork", chats.fork, 201, _CHANGE),
    Row("POST", f"{_CHAT}/erase", chats.erase, 200, _CHANGE),
    Row("GET", f"{_CHAT}/helpers", chats.list_helpers, 200, _ABOUT),
    Row("GET", f"{_CHAT}/export", chats.export_chat, 200, _ABOUT),
    Row("POST", f"{_CHAT}/messages", turns.send_message, 202, _CHANGE),
    Row("GET", f"{_CHAT}/messages", turns.list_messages, 200, _ABOUT),
    Row("PATCH", f"{_CHAT}/messages/{{message_id}}", turns.edit_message, 202, _AT_VERSION),
    Row("GET", f"{_CHAT}/transcript", turns.read_transcript, 200, _ABOUT),
    Row("POST", f"{_CHAT}/tool-results", turns.submit_tool_results, 202, _CHANGE),
    Row("POST", f"{_CHAT}/interrupt", turns.interrupt, 202, _CHANGE),
    Row("POST", f"{_CHAT}/resume", turns.resume, 202, _CHANGE),
    Row("POST", f"{_CHAT}/compact", turns.compact, 202, _CHANGE),
    Row("POST", f"{_CHAT}/clear", turns.clear, 202, _CHANGE),
    Row("GET", f"{_CHAT}/queue", turns.list_queue, 200, _ABOUT),
    Row("PATCH", f"{_CHAT}/queue/{{queued_id}}", turns.edit_queued, 202, _CHANGE),
    Row("DELETE", f"{_CHAT}/queue/{{queued_id}}", turns.delete_queued, 202, _CHANGE),
    Row("POST", f"{_CHAT}/queue/{{queued_id}}/promote", turns.promote_queued, 202, _CHANGE),
    Row("GET", f"{_CHAT}/events", reports.stream_events, 200, _ABOUT),
    Row("GET", f"{_CHAT}/audit", reports.read_audit, 200, _ABOUT, list[AuditEntry]),
    Row("GET", f"{_CHAT}/verify", reports.verify, 200, _ABOUT),
    Row("GET", f"{_CHAT}/usage", reports.read_usage, 200, _ABOUT),
    Row("GET", f"{_CHAT}/explain", reports.explain, 200, _ABOUT),
    Row("GET", f"{_CHAT}/diagram.svg", reports.draw, 200, _ABOUT),
    Row("GET", "/agents", chats.list_agents),
    Row("POST", "/files", files.put_file, 201, (404, 409, 413)),
    Row("GET", "/files/{digest}", files.get_file, 200, _ABOUT),
)
OPEN_ROUTES: Final = (
    Row("GET", "/healthz", health.is_alive),
    Row("GET", "/readyz", health.is_ready),
    Row("GET", "/metrics", health.metrics),
)
"""Routes that need no token: they tell nothing of any chat."""
UPLOADS: Final = frozenset({"/files", "/chats/import"})
"""Routes whose bodies may be long."""
