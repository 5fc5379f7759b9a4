"""What callers get back: chats as they stand, receipts, and the results of turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict

from turnwise.states.calls import ToolCall
from turnwise.states.events import ErrorInfo
from turnwise.states.facts import Facts
from turnwise.states.messages import Message
from turnwise.states.names import ChatState, StopReason
from turnwise.states.usage import Usage

Item = TypeVar("Item")


class Chat(BaseModel):
    """A chat as it stood at `version`."""

    model_config = ConfigDict(frozen=True)

    id: str
    state: ChatState
    version: int
    history_version: int
    """The version that last changed messages."""
    turn: int
    step: int
    attempt: int
    owner: str | None
    title: str | None
    metadata: dict[str, Any]
    archived: bool
    last_error: ErrorInfo | None
    stop_reason: StopReason | None
    """Why the last turn ended; `None` while one is under way."""
    usage: Usage
    open_calls: list[ToolCall]
    queued: int
    """Messages that wait in the queue."""
    settled: bool
    parent: str | None
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class SendReceipt:
    """Proof that a message was accepted."""

    chat: Chat
    message_id: str
    queued: bool
    """Whether it waits in the queue instead of being answered next."""
    replayed: bool


@dataclass(frozen=True, slots=True)
class SubmissionReceipt:
    """Proof that tool results were accepted. A replay has the first submission's `receipt_id`."""

    chat: Chat
    receipt_id: str
    replayed: bool


@dataclass(frozen=True, slots=True)
class TurnResult:
    """What came of a message once the chat rests."""

    chat: Chat
    text: str
    """The text of the last answer; empty if there is none."""
    stop_reason: StopReason | None
    usage: Usage
    """What the chat's last turn used."""
    messages: list[Message]
    """What was added to the history since the message, the message included."""
    open_calls: list[ToolCall]


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    """A part of a long list. `next` goes into `after` to get the following part; `None` ends it."""

    items: Sequence[Item]
    next: str | None


def chat_of(facts: Facts) -> Chat:
    """Return the public view of a chat."""
    profile = facts.profile
    return Chat.model_construct(
        id=facts.chat_id,
        state=facts.state,
        version=facts.version,
        history_version=facts.history_version,
        turn=facts.turn.number,
        step=facts.step.number,
        attempt=facts.step.attempt,
        owner=profile.owner,
        title=profile.title,
        metadata=dict(profile.metadata),
        archived=facts.archived,
        last_error=facts.last_error,
        stop_reason=facts.stop_reason,
        usage=facts.usage,
        open_calls=list(facts.open_calls),
        queued=len(facts.queue),
        settled=facts.settled,
        parent=profile.parent,
        created_at=profile.created_at,
        updated_at=facts.updated_at or profile.created_at,
    )
