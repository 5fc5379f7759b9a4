"""Messages of LangChain, as LangGraph's threads hold them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from turnwise.importers.history import (
    HistoryBuilder,
    ImportedChat,
    arguments_of,
    field_of,
    import_each,
    parts_of_content,
)
from turnwise.states.errors import InvalidArgument
from turnwise.states.messages import Part, ToolCallPart

_IN_CALLS = ("tool_use", "tool_call", "function_call")
"""Blocks of a reply's content that repeat its `tool_calls`."""


def from_langchain(messages: Iterable[Any]) -> ImportedChat:
    """Convert messages of LangChain, or what `messages_to_dict` returns of them.

    Raises:
        InvalidArgument: one is of a type, or has a block of a type, that is not known, or is no message.
    """
    return import_each("messages", messages, _add)


def _add(history: HistoryBuilder, place: str, given: Any) -> None:
    message = field_of(given, "data", given)
    match field_of(message, "type", field_of(given, "type")):
        case "system":
            history.system("".join(part.text for part in _parts(place, message) if part.type == "text"))
        case "human":
            history.user(_parts(place, message))
        case "ai":
            history.reply([*_parts(place, message), *_calls(message)])
        case "tool":
            output = field_of(message, "content", "")
            failed = field_of(message, "status") == "error"
            history.result(str(field_of(message, "tool_call_id")), output, is_error=failed)
        case other:
            raise InvalidArgument(place, f"must be a system, human, ai or tool message; it was {other!r:.60}")


def _parts(place: str, message: Any) -> list[Part]:
    content = field_of(message, "content")
    if isinstance(content, list):
        content = [block for block in content if field_of(block, "type") not in _IN_CALLS]
    return parts_of_content(place, content)


def _calls(message: Any) -> list[Part]:
    return [
        ToolCallPart(call_id=str(call["id"]), name=str(call["name"]), arguments=arguments_of(call["args"]))
        for call in field_of(message, "tool_calls", ())
    ]
