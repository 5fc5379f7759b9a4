"""Checks that front ends make of a stream, and the messages that they build from it."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from ag_ui.core import events as agui
from pydantic import TypeAdapter

_AGUI: Final = TypeAdapter[Any](agui.Event)
_TEXT, _ANY, _BOOL = (str,), (object,), (bool,)
_PROVIDED: Final = {"providerExecuted": _BOOL, "providerMetadata": (dict,)}
_NAMED: Final = {"toolCallId": _TEXT, "toolName": _TEXT}
_TOOL: Final = {**_PROVIDED, "dynamic": _BOOL, "title": _TEXT, "toolMetadata": (dict,)}
_REASONS: Final = {"stop", "length", "content-filter", "tool-calls", "error", "other"}
CHUNKS: Final[Mapping[str, tuple[Mapping[str, tuple[type, ...]], Mapping[str, tuple[type, ...]]]]] = {
    "text-start": ({"id": _TEXT}, {}),
    "text-delta": ({"id": _TEXT, "delta": _TEXT}, {}),
    "text-end": ({"id": _TEXT}, {}),
    "reasoning-start": ({"id": _TEXT}, {}),
    "reasoning-delta": ({"id": _TEXT, "delta": _TEXT}, {}),
    "reasoning-end": ({"id": _TEXT}, {}),
    "error": ({"errorText": _TEXT}, {}),
    "tool-input-start": (_NAMED, _TOOL),
    "tool-input-delta": ({"toolCallId": _TEXT, "inputTextDelta": _TEXT}, {}),
    "tool-input-available": ({**_NAMED, "input": _ANY}, _TOOL),
    "tool-input-error": ({**_NAMED, "input": _ANY, "errorText": _TEXT}, _TOOL),
    "tool-approval-request": ({"approvalId": _TEXT, "toolCallId": _TEXT}, {"signature": _TEXT}),
    "tool-output-available": ({"toolCallId": _TEXT, "output": _ANY}, {**_PROVIDED, "preliminary": _BOOL}),
    "tool-output-error": ({"toolCallId": _TEXT, "errorText": _TEXT}, _PROVIDED),
    "tool-output-denied": ({"toolCallId": _TEXT}, {}),
    "source-url": ({"sourceId": _TEXT, "url": _TEXT}, {"title": _TEXT}),
    "file": ({"url": _TEXT, "mediaType": _TEXT}, {}),
    "data-discarded": ({"data": _ANY}, {"id": _TEXT, "transient": _BOOL}),
    "start-step": ({}, {}),
    "finish-step": ({}, {}),
    "reset-step": ({}, {}),
    "start": ({}, {"messageId": _TEXT}),
    "finish": ({}, {"finishReason": _TEXT}),
    "abort": ({}, {"reason": _TEXT}),
}
"""The chunks of `uiMessageChunkSchema` that turnwise sends: by type, the required and the optional fields."""


def ui_message(chunks: Iterable[dict[str, Any]], *, version: int) -> list[dict[str, Any]]:  # noqa: C901, PLR0912, PLR0915
    """Return the parts that an AI SDK client builds; assert its own checks, and those it lacks."""
    parts: list[dict[str, Any]] = []
    words: dict[str, dict[str, Any]] = {}
    calls: dict[str, dict[str, Any]] = {}
    started = stepping = ended = False
    for chunk in chunks:
        kind = chunk["type"]
        needed, optional = CHUNKS[kind]
        fields = {name: value for name, value in chunk.items() if name != "type"}
        assert needed.keys() <= fields.keys() <= needed.keys() | optional.keys(), chunk
        assert all(isinstance(fields[name], {**needed, **optional}[name]) for name in fields), chunk
        assert json.loads(json.dumps(chunk)) == chunk
        assert started != (kind == "start"), f"{chunk} comes too early or twice"
        assert not ended, f"{chunk} comes after the end"
        started = True
        match kind.rsplit("-", 1):
            case ["text" | "reasoning" as what, "start"]:
                assert stepping, chunk
                assert chunk["id"] not in words, chunk
                words[chunk["id"]] = {"type": what, "text": ""}
                parts.append(words[chunk["id"]])
            case ["text" | "reasoning", "delta"]:
                words[chunk["id"]]["text"] += chunk["delta"]
            case ["text" | "reasoning", "end"]:
                del words[chunk["id"]]
            case ["tool-input", "start"]:
                known = calls.get(chunk["toolCallId"])
                assert known is None or (version == 6 and known["state"] == "output-error"), chunk
                part = {"type": "tool", "id": chunk["toolCallId"], "state": "input-streaming", "raw": ""}
                calls[chunk["toolCallId"]] = part
                parts.append(part)
            case ["tool-input", "delta"]:
                assert calls[chunk["toolCallId"]]["state"] == "input-streaming", chunk
                calls[chunk["toolCallId"]]["raw"] += chunk["inputTextDelta"]
            case ["tool-input", "available" | "error" as how]:
                assert calls[chunk["toolCallId"]]["state"] == "input-streaming", chunk
                state = "input-available" if how == "available" else "output-error"
                calls[chunk["toolCallId"]] |= {"state": state, "input": chunk["input"]}
            case ["tool-approval", "request"]:
                assert calls[chunk["toolCallId"]]["state"] == "input-available", chunk
                calls[chunk["toolCallId"]]["state"] = "approval-requested"
            case ["tool-output", how]:
                assert not calls[chunk["toolCallId"]]["state"].startswith("output"), chunk
                calls[chunk["toolCallId"]] |= {"state": f"output-{how}", "output": chunk.get("output")}
            case ["start", "step"]:
                assert not stepping
                assert not words
                stepping = True
                parts.append({"type": "step-start"})
            case ["finish", "step"]:
                assert stepping
                assert not words
                stepping = False
            case ["reset", "step"]:
                assert version == 7
                words.clear()
                while parts[-1]["type"] != "step-start":
                    calls.pop(parts.pop().get("id", ""), None)
            case ["source", "url"] | ["file"] | ["data", "discarded"]:
                parts.append(chunk)
            case ["finish"] | ["abort"] | ["error"]:
                assert not stepping
                assert not words
                assert chunk.get("finishReason", "stop") in _REASONS
                ended = True
    assert ended
    assert not [call for call in calls.values() if call["state"] == "input-streaming"]
    return parts


def agui_messages(  # noqa: C901, PLR0912, PLR0915
    events: Iterable[dict[str, Any]], had: Iterable[dict[str, Any]] = ()
) -> list[dict[str, Any]]:
    """Return the messages that a client of AG-UI puts together; assert what it asserts, and what it should.

    Args:
        events: of one run.
        had: the messages that it had before the run.
    """
    messages: list[dict[str, Any]] = json.loads(json.dumps(list(had)))
    texts: set[str] = set()
    thoughts: set[str] = set()
    spans: set[str] = set()
    calls: set[str] = set()
    ended = False
    for number, sent in enumerate(events):
        event = _AGUI.validate_json(json.dumps(sent), strict=False)
        assert not event.model_extra, sent
        assert json.loads(event.model_dump_json(by_alias=True)) == sent, "an optional field was null"
        kind = sent["type"]
        assert (number == 0) == (kind == "RUN_STARTED"), sent
        assert not ended, f"{sent} comes after the end"
        by_id = {message["id"]: message for message in messages}
        calls_by_id = {call["id"]: call for message in messages for call in message.get("toolCalls", ())}
        match kind:
            case "TEXT_MESSAGE_START":
                assert sent["messageId"] not in texts, sent
                texts.add(sent["messageId"])
                if sent["messageId"] not in by_id:
                    messages.append({"id": sent["messageId"], "role": "assistant", "content": ""})
            case "TEXT_MESSAGE_CONTENT":
                assert sent["messageId"] in texts, sent
                by_id[sent["messageId"]]["content"] += sent["delta"]
            case "TEXT_MESSAGE_END":
                texts.remove(sent["messageId"])
            case "REASONING_START":
                assert sent["messageId"] not in spans, sent
                spans.add(sent["messageId"])
            case "REASONING_MESSAGE_START":
                assert sent["messageId"] in spans, sent
                thoughts.add(sent["messageId"])
                if sent["messageId"] not in by_id:
                    messages.append({"id": sent["messageId"], "role": "reasoning", "content": ""})
            case "REASONING_MESSAGE_CONTENT":
                assert sent["messageId"] in thoughts, sent
                by_id[sent["messageId"]]["content"] += sent["delta"]
            case "REASONING_MESSAGE_END":
                thoughts.remove(sent["messageId"])
            case "REASONING_END":
                assert sent["messageId"] not in thoughts, sent
                spans.remove(sent["messageId"])
            case "TOOL_CALL_START":
                call_id = sent["toolCallId"]
                assert call_id not in calls | calls_by_id.keys(), sent
                calls.add(call_id)
                parent = sent["parentMessageId"]
                if parent not in by_id:
                    messages.append({"id": parent, "role": "assistant", "content": ""})
                function = {"name": sent["toolCallName"], "arguments": ""}
                holder = next(message for message in messages if message["id"] == parent)
                holder.setdefault("toolCalls", []).append({"id": call_id, "type": "function", "function": function})
            case "TOOL_CALL_ARGS":
                assert sent["toolCallId"] in calls, sent
                calls_by_id[sent["toolCallId"]]["function"]["arguments"] += sent["delta"]
            case "TOOL_CALL_END":
                calls.remove(sent["toolCallId"])
            case "TOOL_CALL_RESULT":
                assert sent["toolCallId"] in calls_by_id, sent
                assert sent["messageId"] not in by_id, sent
                messages.append({"id": sent["messageId"], "role": "tool", "content": sent["content"]})
            case "MESSAGES_SNAPSHOT":
                messages = _reconciled(messages, json.loads(json.dumps(sent["messages"])))
            case "RUN_FINISHED" | "RUN_ERROR":
                assert not texts | thoughts | spans | calls
                ended = True
            case _:
                assert kind in ("RUN_STARTED", "CUSTOM"), kind
    assert ended
    return messages


def _reconciled(had: list[dict[str, Any]], snapshot: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages after a snapshot: existing ones stay in place, and retain reasoning that it lacks."""
    declared = {message["id"]: message for message in snapshot}
    assert len(declared) == len(snapshot), "a message is told twice"
    is_silent = all(message["role"] != "reasoning" for message in snapshot)
    existing = {one["id"]: one for one in had if one["id"] in declared or (is_silent and one["role"] == "reasoning")}
    return list((existing | declared).values())
