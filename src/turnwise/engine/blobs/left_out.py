"""Leaves refused parts out of prompts: when a provider refuses a part of a message, the chat goes on without it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from turnwise.engine.blobs.files import noted
from turnwise.providers.protocol import Model
from turnwise.states.facts import Facts
from turnwise.states.left_out import MOST_LEFT_OUT, REFUSED, LeftOut, note_of_file
from turnwise.states.messages import FilePart, Message, Part, ReasoningPart, TextPart, ToolCallPart, ToolResultPart
from turnwise.states.model_errors import ModelError
from turnwise.states.names import Executor

_EMPTY: Final = ReasoningPart()
"""No adapter sends this part. It keeps the positions of the parts after it."""


def model_key(model: Model) -> str:
    """Return the key of `LeftOut.model`."""
    return f"{model.provider}:{model.name}"


def newly_refused(error: ModelError, model: Model, messages: Iterable[Message], facts: Facts) -> list[LeftOut]:
    """Return the parts of these messages that the error names and that are not left out yet."""
    if error.kind != "bad_request":
        return []
    ids, key, step = {message.id for message in messages if message.position}, model_key(model), facts.step.number
    known = {one.place for one in facts.left_out}
    named = [LeftOut(message_id=one, model=key, part=part, file=file, step=step) for one, part, file in error.refused]
    new = [one for one in dict.fromkeys(named) if one.message_id in ids and one.place not in known]
    return new if len(known) + len(new) <= MOST_LEFT_OUT else []


def message_refused(error: ModelError, facts: Facts) -> str | None:
    """Return the id of the refused message: the one that the error names, or one with parts left out in this step."""
    named = [one.message_id for one in error.refused]
    before = [one.message_id for one in reversed(facts.left_out) if one.step == facts.step.number]
    return next(iter([*named, *before]), None) if error.kind == "bad_request" else None


def without_refused(messages: Sequence[Message], left_out: Iterable[LeftOut], model: Model) -> list[Message]:
    """Return the messages with notes in place of the parts that the model's provider has refused.

    A refused call and its result both become text, because a request may not have one without the other. Reasoning is
    left out.
    """
    key, refused = model_key(model), dict[str, list[LeftOut]]()
    for one in left_out:
        if one.model == key:
            refused.setdefault(one.message_id, []).append(one)
    calls_as_text: set[str] = set()
    sent: list[Message] = []
    for message in messages:
        left = _without(message, refused[message.id], calls_as_text) if message.id in refused else message
        is_text = left.result is not None and left.result.call_id in calls_as_text
        sent.append(replace(left, role="user", parts=_result_as_text(left.parts)) if is_text else left)
    return sent


def _without(message: Message, refused: Sequence[LeftOut], calls_as_text: set[str]) -> Message:
    parts = list(message.parts)
    for place, part in enumerate(message.parts):
        files = [one.file for one in refused if one.part in (None, place)]
        if isinstance(part, ToolResultPart) and files and None not in files:
            parts[place] = _without_files(part, files)
        elif files:
            parts[place] = _EMPTY if message.role == "assistant" and isinstance(part, ToolResultPart) else _note(part)
            if isinstance(part, ToolCallPart):
                calls_as_text.add(part.call_id)
    return replace(message, parts=tuple(parts))


def _without_files(result: ToolResultPart, places: Sequence[int | None]) -> ToolResultPart:
    files = [*enumerate(result.attachments)]
    notes = [note_of_file(file.name, file.media_type, REFUSED) for place, file in files if place in places]
    kept = tuple(file for place, file in files if place not in places)
    return replace(result, output=noted(result.output, notes), attachments=kept)


def _note(part: Part) -> Part:
    match part:
        case FilePart():
            return TextPart(text=note_of_file(part.name, part.media_type, REFUSED))
        case TextPart():
            return TextPart(text=f"[A text is left out here: {REFUSED}.]")
        case ToolCallPart(executor=Executor.provider):
            return _EMPTY
        case ToolCallPart():
            return TextPart(text=f"[{part.name} was called with {json.dumps(part.arguments, ensure_ascii=False)}]")
        case ToolResultPart():
            return replace(part, output=f"[The result is left out here: {REFUSED}.]", attachments=())
        case _:
            return _EMPTY


def _result_as_text(parts: Sequence[Part]) -> tuple[Part, ...]:
    texts: list[Part] = []
    for part in parts:
        if isinstance(part, ToolResultPart):
            output = part.output if isinstance(part.output, str) else json.dumps(part.output, ensure_ascii=False)
            texts += [TextPart(text=f"[{part.name} returned: {output}]"), *part.attachments]
    return tuple(texts)
