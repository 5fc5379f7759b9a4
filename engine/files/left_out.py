"""Leaves out of a prompt what the provider of its model has refused, so that one bad part does not end a chat."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from turnwise.engine.files.files import noted
from turnwise.providers.protocol import Model
from turnwise.states.errors import ModelError
from turnwise.states.facts import Facts
from turnwise.states.left_out import MOST_LEFT_OUT, REFUSED, LeftOut, note_of_file
from turnwise.states.messages import FilePart, Message, Part, ReasoningPart, TextPart, ToolCallPart, ToolResultPart
from turnwise.states.names import Executor

_NOTHING = ReasoningPart()
"""A part that no adapter sends; it keeps the places of those behind it."""


def model_key(model: Model) -> str:
    """Return how a chat notes which model's provider has refused something."""
    return f"{model.provider}:{model.name}"


def newly_refused(error: ModelError, model: Model, messages: Iterable[Message], facts: Facts) -> list[LeftOut]:
    """Return what an error says of parts of these messages, beyond what is left out already."""
    if error.kind != "bad_request":
        return []
    ids, key, step = {message.id for message in messages if message.position}, model_key(model), facts.step.number
    known = {one.place for one in facts.left_out}
    named = [LeftOut(message_id=one, model=key, part=part, file=file, step=step) for one, part, file in error.refused]
    new = [one for one in dict.fromkeys(named) if one.message_id in ids and one.place not in known]
    return new if len(known) + len(new) <= MOST_LEFT_OUT else []


def message_refused(error: ModelError, facts: Facts) -> str | None:
    """Return the message that a request was refused for, of what an error names or what was left out of it before."""
    named = [one.message_id for one in error.refused]
    before = [one.message_id for one in reversed(facts.left_out) if one.step == facts.step.number]
    return next(iter([*named, *before]), None) if error.kind == "bad_request" else None


def without_refused(messages: Sequence[Message], left_out: Iterable[LeftOut], model: Model) -> list[Message]:
    """Return the messages with notes in place of what the provider of the model has refused.

    A refused call, and its result, is told in words: the two stand together or not at all. Reasoning is left out.
    """
    key, refused = model_key(model), dict[str, list[LeftOut]]()
    for one in left_out:
        if one.model == key:
            refused.setdefault(one.message_id, []).append(one)
    told: set[str] = set()
    sent: list[Message] = []
    for message in messages:
        left = _without(message, refused[message.id], told) if message.id in refused else message
        is_told = left.result is not None and left.result.call_id in told
        sent.append(replace(left, role="user", parts=_told(left.parts)) if is_told else left)
    return sent


def _without(message: Message, refused: Sequence[LeftOut], told: set[str]) -> Message:
    parts = list(message.parts)
    for place, part in enumerate(message.parts):
        files = [one.file for one in refused if one.part in (None, place)]
        if isinstance(part, ToolResultPart) and files and None not in files:
            parts[place] = _without_files(part, files)
        elif files:
            parts[place] = _NOTHING if message.role == "assistant" and isinstance(part, ToolResultPart) else _note(part)
            if isinstance(part, ToolCallPart):
                told.add(part.call_id)
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
            return _NOTHING
        case ToolCallPart():
            return TextPart(text=f"[{part.name} was called with {json.dumps(part.arguments, ensure_ascii=False)}]")
        case ToolResultPart():
            return replace(part, output=f"[The result is left out here: {REFUSED}.]", attachments=())
        case _:
            return _NOTHING


def _told(parts: Sequence[Part]) -> tuple[Part, ...]:
    """Return the result of a call that is told in words, with its files."""
    told: list[Part] = []
    for part in parts:
        if isinstance(part, ToolResultPart):
            output = part.output if isinstance(part.output, str) else json.dumps(part.output, ensure_ascii=False)
            told += [TextPart(text=f"[{part.name} returned: {output}]"), *part.attachments]
    return tuple(told)
