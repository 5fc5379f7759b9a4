"""Views of the history for users, models and auditors."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator, Sequence
from typing import Literal

from msgspec.structs import replace

from turnwise.engine.config.results import Compaction
from turnwise.engine.prompt.history import SUMMARY_PREFIX
from turnwise.persistence.protocol import ChatStore
from turnwise.persistence.reading import PAGE_BYTES, Snapshot
from turnwise.states.message_order import in_transcript_order
from turnwise.states.messages import (
    FilePart,
    Message,
    Part,
    ReasoningPart,
    SourcePart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    marker_in,
    without_secrets,
)
from turnwise.states.names import Audience, ChatState
from turnwise.states.transcript import Transcript, fold
from turnwise.states.usage import NO_USAGE, Usage
from turnwise.states.writes import ERASED, RecordUsage

HistoryView = Literal["user", "model", "raw"]


def user_view(messages: Sequence[Message]) -> list[Message]:
    """Return the parts for a client: nothing meant for the model alone, no provider's secrets."""
    seen = [without_secrets(message) for message in messages if message.audience is not Audience.model]
    return in_transcript_order(seen)


def raw_view(messages: Sequence[Message]) -> list[Message]:
    """Return the messages of users, models and tools, without those that turnwise wrote."""
    return in_transcript_order([without_secrets(message) for message in messages if not message.synthetic])


async def transcript_pages(store: ChatStore, chat_id: str) -> AsyncGenerator[Transcript, None]:
    """Yield the transcript of a chat, all of one moment, in pages of about `PAGE_BYTES` of messages.

    The results of a step stand in one page. All but `messages` is the same in each page.
    """
    snapshot = await store.snapshot(chat_id, size=PAGE_BYTES)
    whole, version = transcript_of(snapshot), snapshot.facts.version
    page, waiting = list(snapshot.history), list[Message]()
    while True:
        after = page[-1].position if page else 0
        following = await store.history(chat_id, at_version=version, after=after, size=PAGE_BYTES) if page else []
        waiting += page
        end = _start_of_last_step(waiting) if following else len(waiting)
        if end or not following:
            yield dataclasses.replace(whole, messages=user_view(waiting[:end]))
        if not following:
            return
        page, waiting = following, waiting[end:]


def _start_of_last_step(messages: Sequence[Message]) -> int:
    start = len(messages)
    while start and messages[start - 1].role != "user" and messages[start - 1].step == messages[-1].step:
        start -= 1
    return start


def transcript_of(snapshot: Snapshot) -> Transcript:
    """Return the transcript that the events up to a snapshot would fold to."""
    facts = snapshot.facts
    transcript = fold(snapshot.shown)
    transcript.state = facts.state
    transcript.messages = user_view(snapshot.history)
    transcript.queue = facts.queue
    if facts.state is ChatState.requires_action:
        transcript.open_calls = facts.calls.asked_of_client
    transcript.stop_reason = snapshot.stop_reason
    transcript.error = facts.last_error.public if facts.last_error and facts.state is ChatState.error else None
    transcript.last_seq = facts.last_seq
    return transcript


def compactions_of(history: Sequence[Message], ledger: Sequence[RecordUsage]) -> list[Compaction]:
    costs: dict[int, Usage] = {}
    for entry in ledger:
        if entry.purpose == "summary" and entry.usage != NO_USAGE:
            costs[entry.step] = costs[entry.step] + entry.usage if entry.step in costs else entry.usage
    by_position = {message.position: message for message in history}
    compactions: list[Compaction] = []
    for marker in history:
        part = marker_in(marker)
        if part is None or part.reason != "compaction":
            continue
        after = [position for position in part.carried if position > marker.position] or [marker.position + 1]
        messages = [by_position[position] for position in after if position in by_position]
        new = [without_secrets(message) for message in messages if message.audience is Audience.model]
        texts = [message.text for message in new if message.text]
        compactions.append(
            Compaction(
                step=marker.step,
                at=marker.created_at,
                summary="\n\n".join(texts),
                raw="\n\n".join(text.removeprefix(SUMMARY_PREFIX) for text in texts),
                messages=new,
                carried=sum(position < marker.position for position in part.carried),
                usage=costs.get(marker.step),
            )
        )
    return compactions


def erased(message: Message) -> Message:
    """Return the message with its content blanked; calls and results stay paired."""
    parts = tuple(blank for part in message.parts if (blank := _blank(part)) is not None)
    return replace(message, parts=parts or (TextPart(text=ERASED),), erased=True)


def without_edits(message: Message) -> Message:
    """Return the message without the arguments with which a client replaced the model's."""
    parts = tuple(
        replace(part, edited_arguments=None) if isinstance(part, ToolResultPart) else part for part in message.parts
    )
    return replace(message, parts=parts, erased=True)


def _blank(part: Part) -> Part | None:
    match part:
        case TextPart():
            return TextPart(text=ERASED)
        case ToolCallPart():
            return replace(part, arguments={}, metadata=None)
        case ToolResultPart():
            return replace(part, output=ERASED, attachments=(), metadata=None, edited_arguments=None)
        case ReasoningPart() | FilePart() | SourcePart():
            return None
        case _:
            return replace(part, metadata=None)
