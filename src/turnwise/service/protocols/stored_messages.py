"""What is stored of a chat as messages of AG-UI and of an AI SDK page."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final

from msgspec.structs import replace

from turnwise.service.protocols.ai_sdk import AISDKEncoder, address_of, as_text, message_id_of, stored_file
from turnwise.service.protocols.pieces import has_failed
from turnwise.states.calls import ToolCall
from turnwise.states.events import ActionRequiredEvent, MessageEvent
from turnwise.states.files import kind_of
from turnwise.states.messages import FilePart, Message, Part, ReasoningPart, TextPart, ToolResultPart

_MEDIA: Final = ("image", "audio", "video")


def agui_messages_of(chat_id: str, messages: Iterable[Message]) -> Iterator[dict[str, Any]]:
    """Yield a chat's history: the user's messages with the ids of the store, others with those that runs give them."""
    for message in messages:
        if message.role == "user":
            yield {"id": message.id, "role": "user", "content": _said_in(message)}
        elif message.result is not None:
            yield result_message(message.id, message.result)
        elif message.role == "assistant":
            reply_id = reply_id_of(chat_id, message.step)
            for place, text in enumerate(thoughts_in(message)):
                yield {"id": thought_id_of(reply_id, place), "role": "reasoning", "content": text}
            yield reply_message(reply_id, message)
            for part in message.parts:
                if isinstance(part, ToolResultPart):
                    yield result_message(f"{chat_id}-{part.call_id}", part)


def reply_id_of(chat_id: str, step: int) -> str:
    """Return the id of the message that holds a reply."""
    return f"{chat_id}-s{step}"


def thought_id_of(reply_id: str, index: int) -> str:
    """Return the id of a message that holds reasoning of a reply."""
    return f"{reply_id}-r{index}"


def thoughts_in(message: Message) -> list[str]:
    """Return the reasoning of a reply that says something."""
    return [part.text for part in message.parts if isinstance(part, ReasoningPart) and part.text]


def reply_message(reply_id: str, message: Message) -> dict[str, Any]:
    """Return a reply without its reasoning."""
    reply: dict[str, Any] = {"id": reply_id, "role": "assistant", "content": message.text}
    if message.calls:
        reply["toolCalls"] = [
            _call(call.call_id, call.name, json.dumps(call.arguments, ensure_ascii=False)) for call in message.calls
        ]
    return reply


def result_message(message_id: str, result: ToolResultPart) -> dict[str, Any]:
    """Return the result of a call."""
    error = {"error": as_text(result.output)} if has_failed(result) else {}
    return {"id": message_id, "role": "tool", "toolCallId": result.call_id, "content": content_of(result), **error}


def content_of(result: ToolResultPart) -> str | list[dict[str, Any]]:
    """Return what a result holds: its text, and the files of it that clients can get."""
    text = as_text(result.output)
    files = [media for file in result.attachments if (media := media_of(file)) is not None]
    return [{"type": "text", "text": text}, *files] if files else text


def media_of(file: FilePart) -> dict[str, Any] | None:
    """Return a file, by its kind; `None` for one that clients cannot get."""
    family = kind_of(file.media_type).partition("/")[0]
    source: dict[str, Any]
    if file.data is not None:
        source = {"type": "data", "value": file.data, "mimeType": file.media_type}
    elif file.url is not None:
        source = {"type": "url", "value": file.url, "mimeType": file.media_type}
    elif file.blob is not None:
        source = {"type": "file", "value": file.blob, "provider": "turnwise", "mimeType": file.media_type}
    else:
        return None
    return {"type": family if family in _MEDIA else "document", "source": source}


def _said_in(message: Message) -> str | list[dict[str, Any]]:
    if all(isinstance(part, TextPart) for part in message.parts):
        return message.text
    parts = (media_of(part) if isinstance(part, FilePart) else _text(part) for part in message.parts)
    return [part for part in parts if part is not None]


def _text(part: Any) -> dict[str, Any]:
    return {"type": "text", "text": part.text}


def _call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


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
