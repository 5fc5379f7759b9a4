"""A chat's history as the messages of an AI SDK page: what a page would have put together of the streams."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from msgspec.structs import replace

from turnwise.service.protocols.ai_sdk import AISDKEncoder, address_of, message_id_of, stored_file
from turnwise.states.calls import ToolCall
from turnwise.states.events import ActionRequiredEvent, MessageEvent
from turnwise.states.messages import FilePart, Message, Part, TextPart


def ui_messages_of(
    chat_id: str, said: Iterable[Message], open_calls: tuple[ToolCall, ...] = (), *, for_owner: bool = False
) -> list[dict[str, Any]]:
    """Return the messages of a page: the user's with the ids of the store, answers with those that streams give them.

    The open calls are those of the last turn.

    The reply under way is left out, as resuming yields it; so are messages that wait in the queue.
    """
    messages: list[dict[str, Any]] = []
    said = [message for message in said if message.role != "system"]  # a marker has no author
    for (is_users, turn), group in groupby(said, lambda one: (one.role == "user", one.turn)):
        if is_users:
            messages += [{"id": one.id, "role": "user", "parts": _user_parts(one.parts)} for one in group]
        else:
            asked = open_calls if turn == said[-1].turn else ()
            parts = _joined(_chunks_of(group, asked, for_owner=for_owner))
            messages.append({"id": message_id_of(chat_id, turn), "role": "assistant", "parts": parts})
    return messages


def _user_parts(parts: Sequence[Part]) -> list[dict[str, Any]]:
    own_parts: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, TextPart):
            own_parts.append({"type": "text", "text": part.text})
        elif isinstance(part, FilePart) and (address := address_of(part)) is not None:
            named = {} if part.name is None else {"filename": part.name}
            own_parts.append({"type": "file", "mediaType": part.media_type, "url": address, **named})
        elif isinstance(part, FilePart):
            own_parts.append({"type": "data-file", "data": stored_file(part)})
    return own_parts


def _chunks_of(answer: Iterable[Message], asked: tuple[ToolCall, ...], *, for_owner: bool) -> Iterator[dict[str, Any]]:
    encoder = AISDKEncoder(for_owner=for_owner)
    for message in answer:
        yield from encoder.encode(MessageEvent(message=replace(message, imported=False, erased=False)))
    yield from encoder.encode(ActionRequiredEvent(calls=asked))


def _joined(chunks: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the parts that chunks of whole replies and results make, as `processUIMessageStream` of `ai` does."""
    parts: list[dict[str, Any]] = []
    words: dict[str, dict[str, Any]] = {}
    calls: dict[str, dict[str, Any]] = {}
    for chunk in chunks:
        fields = {name: value for name, value in chunk.items() if name not in ("type", "toolName", "approvalId")}
        match chunk["type"]:
            case "start-step":
                parts.append({"type": "step-start"})
            case "text-start" | "reasoning-start" as kind:
                words[chunk["id"]] = {"type": kind.removesuffix("-start"), "text": "", "state": "done"}
                parts.append(words[chunk["id"]])
            case "text-delta" | "reasoning-delta":
                words[chunk["id"]]["text"] += chunk["delta"]
            case "tool-input-available":
                calls[chunk["toolCallId"]] = {"type": f"tool-{chunk['toolName']}", "state": "input-available", **fields}
                parts.append(calls[chunk["toolCallId"]])
            case "tool-approval-request":
                approval = {"id": chunk["approvalId"]}
                calls[chunk["toolCallId"]] |= {"state": "approval-requested", "approval": approval}
            case "tool-output-denied":
                approval = {"id": chunk["toolCallId"], "approved": False}
                calls[chunk["toolCallId"]] |= {"state": "output-denied", "approval": approval}
            case "tool-output-available" | "tool-output-error" as kind:
                calls[chunk["toolCallId"]] |= {"state": kind.removeprefix("tool-"), **fields}
            case "file" | "data-file" | "data-awaiting-operator" | "source-url":
                parts.append(chunk)
    return parts
