"""Convert stored messages to messages of AG-UI and the AI SDK."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final

from msgspec.structs import replace

from turnwise.service.protocols.ai_sdk import AISDKEncoder, ai_sdk_message_id, as_text, file_address, stored_file
from turnwise.service.protocols.pieces import has_failed
from turnwise.states.calls import ToolCall
from turnwise.states.events import ActionRequiredEvent, MessageEvent
from turnwise.states.files import kind_of
from turnwise.states.messages import FilePart, Message, Part, ReasoningPart, TextPart, ToolResultPart

_MEDIA: Final = ("image", "audio", "video")


def to_agui_messages(chat_id: str, messages: Iterable[Message]) -> Iterator[dict[str, Any]]:
    """Yield AG-UI messages: the user's with their stored ids, the others with the ids that runs generate."""
    for message in messages:
        if message.role == "user":
            yield {"id": message.id, "role": "user", "content": _agui_user_content(message)}
        elif message.result is not None:
            yield agui_tool_result(message.id, message.result)
        elif message.role == "assistant":
            reply_id = agui_reply_id(chat_id, message.step)
            for place, text in enumerate(reasoning_texts(message)):
                yield {"id": agui_reasoning_id(reply_id, place), "role": "reasoning", "content": text}
            yield agui_reply(reply_id, message)
            for part in message.parts:
                if isinstance(part, ToolResultPart):
                    yield agui_tool_result(f"{chat_id}-{part.call_id}", part)


def agui_reply_id(chat_id: str, step: int) -> str:
    """Return the id of the AG-UI message for a reply."""
    return f"{chat_id}-s{step}"


def agui_reasoning_id(reply_id: str, index: int) -> str:
    """Return the id of the AG-UI message for a reasoning part of a reply."""
    return f"{reply_id}-r{index}"


def reasoning_texts(message: Message) -> list[str]:
    """Return the non-empty reasoning texts of a reply."""
    return [part.text for part in message.parts if isinstance(part, ReasoningPart) and part.text]


def agui_reply(reply_id: str, message: Message) -> dict[str, Any]:
    """Convert a reply, without its reasoning."""
    reply: dict[str, Any] = {"id": reply_id, "role": "assistant", "content": message.text}
    if message.calls:
        reply["toolCalls"] = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
            }
            for call in message.calls
        ]
    return reply


def agui_tool_result(message_id: str, result: ToolResultPart) -> dict[str, Any]:
    """Convert the result of a call."""
    error = {"error": as_text(result.output)} if has_failed(result) else {}
    return {"id": message_id, "role": "tool", "toolCallId": result.call_id, "content": agui_content(result), **error}


def agui_content(result: ToolResultPart) -> str | list[dict[str, Any]]:
    """Return the text of a result, with the files that clients can download."""
    text = as_text(result.output)
    files = [media for file in result.attachments if (media := agui_media(file)) is not None]
    return [{"type": "text", "text": text}, *files] if files else text


def agui_media(file: FilePart) -> dict[str, Any] | None:
    """Convert a file; `None` if clients cannot download it."""
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


def _agui_user_content(message: Message) -> str | list[dict[str, Any]]:
    if all(isinstance(part, TextPart) for part in message.parts):
        return message.text
    parts = [
        {"type": "text", "text": part.text} if isinstance(part, TextPart) else agui_media(part)
        for part in message.parts
        if isinstance(part, TextPart | FilePart)
    ]
    return [part for part in parts if part is not None]


def to_ai_sdk_messages(
    chat_id: str, messages: Iterable[Message], open_calls: tuple[ToolCall, ...] = (), *, for_owner: bool = False
) -> list[dict[str, Any]]:
    """Return AI SDK UI messages of whole turns: the user's with stored ids, answers with the ids of streams.

    Excludes the in-progress reply: stream resumption sends it. Excludes queued messages, too. With `for_owner`, calls
    that only an operator may answer are `data-awaiting-operator`.
    """
    ui_messages: list[dict[str, Any]] = []
    steered_by: str | None = None
    messages = [message for message in messages if message.role != "system"]  # skip system markers
    for (is_users, turn), group in groupby(messages, lambda one: (one.role == "user", one.turn)):
        if is_users:
            sent = [*group]
            steered_by = sent[-1].id if sent[-1].steered else None
            ui_messages += [{"id": one.id, "role": "user", "parts": _ai_sdk_user_parts(one.parts)} for one in sent]
        else:
            answer = [*group]
            asked = open_calls if answer[-1] is messages[-1] else ()
            parts = _fold_chunks(_encode_answer(answer, asked, for_owner=for_owner))
            ui_messages.append(
                {"id": ai_sdk_message_id(chat_id, turn, behind=steered_by), "role": "assistant", "parts": parts}
            )
    return ui_messages


def _ai_sdk_user_parts(parts: Sequence[Part]) -> list[dict[str, Any]]:
    own_parts: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, TextPart):
            own_parts.append({"type": "text", "text": part.text})
        elif isinstance(part, FilePart) and (address := file_address(part)) is not None:
            named = {} if part.name is None else {"filename": part.name}
            own_parts.append({"type": "file", "mediaType": part.media_type, "url": address, **named})
        elif isinstance(part, FilePart):
            own_parts.append({"type": "data-file", "data": stored_file(part)})
    return own_parts


def _encode_answer(
    answer: Iterable[Message], asked: tuple[ToolCall, ...], *, for_owner: bool
) -> Iterator[dict[str, Any]]:
    encoder = AISDKEncoder(for_owner=for_owner)
    for message in answer:
        yield from encoder.encode(MessageEvent(message=replace(message, imported=False, erased=False)))
    yield from encoder.encode(ActionRequiredEvent(calls=asked))


def _fold_chunks(chunks: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Fold chunks of complete replies and results into parts, like `processUIMessageStream` of `ai`."""
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
