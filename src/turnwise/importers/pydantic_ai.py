"""Histories of pydantic-ai: what `all_messages()` returns, or `all_messages_json()` holds."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from turnwise.importers.history import HistoryBuilder, ImportedChat, arguments_of, field_of, file_at, import_each
from turnwise.states.errors import InvalidArgument
from turnwise.states.messages import FilePart, Part, ReasoningPart, TextPart, ToolCallPart

_LEFT_OUT = ("builtin-tool-call", "builtin-tool-return", "compaction", "file", "speech")
"""Parts that only the provider can read, or that do not belong to the conversation."""


def from_pydantic_ai(messages: Iterable[Any] | str | bytes) -> ImportedChat:
    """Convert a history of pydantic-ai, or its JSON. What only its provider can read is left out.

    Raises:
        InvalidArgument: a message, or a part of one, is of a kind that is not known, or the JSON holds no messages.
    """
    given: Any = messages
    if isinstance(messages, str | bytes):
        try:
            given = json.loads(messages)
        except (ValueError, RecursionError) as error:
            raise InvalidArgument("messages", f"must be JSON: {error!s:.200}") from None
    return import_each("messages", given, _add)


def _add(history: HistoryBuilder, place: str, message: Any) -> None:
    match field_of(message, "kind"):
        case "request":
            for part in field_of(message, "parts", ()):
                _add_request(history, place, part)
        case "response":
            parts = [one for part in field_of(message, "parts", ()) for one in _reply_parts(place, part)]
            origin = (field_of(message, "model_name"), field_of(message, "provider_name"))
            history.reply(parts, _time_of(message), origin)
        case other:
            raise InvalidArgument(place, f"must be a request or a response of pydantic-ai; it was {other!r:.60}")


def _add_request(history: HistoryBuilder, place: str, part: Any) -> None:
    content, at = field_of(part, "content", ""), _time_of(part)
    match field_of(part, "part_kind"):
        case "system-prompt":
            history.system(content)
        case "user-prompt":
            contents = [content] if isinstance(content, str) else content
            history.user([_content_part(place, one) for one in contents], at)
        case "tool-return":
            failed = field_of(part, "outcome", "success") != "success"
            history.result(field_of(part, "tool_call_id"), content, at, is_error=failed)
        case "retry-prompt" if field_of(part, "tool_name") is not None:
            history.result(field_of(part, "tool_call_id"), content, at, is_error=True)
        case "retry-prompt" | "retry-feedback":
            history.user([TextPart(text=content if isinstance(content, str) else json.dumps(content))], at)
        case other:
            raise InvalidArgument(place, f"has a part of the kind {other!r:.60}, which is not imported; leave it out")


def _content_part(place: str, content: Any) -> Part:
    if isinstance(content, str):
        return TextPart(text=content)
    url, data, media_type = (field_of(content, name) for name in ("url", "data", "media_type"))
    if isinstance(url, str):
        return file_at(url, media_type or "application/octet-stream")
    if isinstance(data, bytes):
        return FilePart.from_bytes(data, media_type)
    if isinstance(data, str):
        return FilePart(media_type=media_type, data=data)
    if field_of(content, "kind") == "text-content":
        return TextPart(text=content.content)
    raise InvalidArgument(place, f"has content of the kind {field_of(content, 'kind')!r:.60}, which is not imported")


def _reply_parts(place: str, part: Any) -> list[Part]:
    kind = field_of(part, "part_kind")
    match kind:
        case "text":
            return [TextPart(text=field_of(part, "content", ""))]
        case "thinking":
            return [ReasoningPart(text=field_of(part, "content", ""))]
        case "tool-call":
            arguments = arguments_of(field_of(part, "args", {}))
            name, call_id = field_of(part, "tool_name"), field_of(part, "tool_call_id")
            return [ToolCallPart(call_id=call_id, name=name, arguments=arguments)]
        case _ if kind in _LEFT_OUT:
            return []
    raise InvalidArgument(place, f"has a part of the kind {kind!r:.60}, which is not imported; leave it out")


def _time_of(value: Any) -> datetime | None:
    at = field_of(value, "timestamp")
    at = datetime.fromisoformat(at) if isinstance(at, str) else at
    return at if at is not None and at.tzinfo is not None else None
