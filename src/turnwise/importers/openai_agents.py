"""Items of the OpenAI Agents SDK and of OpenAI's Responses API: what a session, or `to_input_list`, holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
from turnwise.states.messages import ToolCallPart


def from_openai_agents(items: Iterable[Mapping[str, Any]]) -> ImportedChat:
    """Convert items of the OpenAI Agents SDK. Reasoning, which only OpenAI can read, is left out.

    Raises:
        InvalidArgument: one is of a type, or has a block of a type, that is not known, or is no item.
    """
    return import_each("items", items, _add)


def _add(history: HistoryBuilder, place: str, item: Mapping[str, Any]) -> None:
    match field_of(item, "type", "message"):
        case "message":
            _add_message(history, place, item)
        case "function_call":
            arguments = arguments_of(field_of(item, "arguments"))
            call_id, name = str(field_of(item, "call_id")), str(field_of(item, "name"))
            history.reply([ToolCallPart(call_id=call_id, name=name, arguments=arguments)])
        case "function_call_output":
            history.result(str(field_of(item, "call_id")), field_of(item, "output", ""))
        case "reasoning":
            pass
        case other:
            raise InvalidArgument(place, f"is an item of the type {other!r:.60}, which is not imported; leave it out")


def _add_message(history: HistoryBuilder, place: str, item: Mapping[str, Any]) -> None:
    parts = parts_of_content(place, field_of(item, "content"))
    match field_of(item, "role"):
        case "user":
            history.user(parts)
        case "assistant":
            history.reply(parts)
        case "system" | "developer":
            history.system("".join(part.text for part in parts if part.type == "text"))
        case other:
            raise InvalidArgument(place, f"must have a role of OpenAI's; it was {other!r:.60}")
