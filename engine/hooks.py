"""Hooks: what an embedding service may add to each request. The stored history is never touched by them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from turnwise.states.facts import Facts
from turnwise.states.messages import Message, ToolCallPart

WINDOW = 5
"""How many of the last calls a reminder producer sees."""


@dataclass(frozen=True, slots=True)
class PastCall:
    """A call that has its result."""

    name: str
    succeeded: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopState:
    """Where the turn's loop stands, for reminder producers."""

    chat_id: str
    step: int
    """The step of the turn that is about to be asked, from 1."""
    call_count: int
    """Calls answered in this turn, as far as the model still sees them."""
    last_call: PastCall | None
    last_calls: tuple[PastCall, ...]
    """The last calls, at most five, oldest first."""
    compactions: int
    """Compactions committed in this chat so far."""


Reminder = Callable[[LoopState], Sequence[str]]
"""Produces reminders for one request; each becomes a system message of that request only."""

PrepareMessages = Callable[[list[Message]], list[Message] | Awaitable[list[Message]]]
"""Replaces the messages of one request."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """What was handed to the engine."""

    reminders: tuple[Reminder, ...] = ()
    prepare_messages: PrepareMessages | None = None


def history_was_compacted(state: LoopState) -> Sequence[str]:
    """Remind the model that its history was compacted. Put it first among the reminders."""
    if not state.compactions:
        return ()
    return (
        f"The conversation so far was compacted {state.compactions} time(s); the summary stands for what is not shown.",
    )


def loop_state(facts: Facts, messages: Sequence[Message]) -> LoopState:
    """Return the loop state for a request made of `messages`."""
    turn = [message for message in messages if message.turn == facts.turn.number]
    results = {message.result.call_id: message.result for message in turn if message.result is not None}
    past = [
        PastCall(part.name, succeeded=not results[part.call_id].is_error)
        for message in turn
        for part in message.parts
        if isinstance(part, ToolCallPart) and part.call_id in results
    ]
    return LoopState(
        chat_id=facts.chat_id,
        step=facts.turn.steps,
        call_count=len(past),
        last_call=past[-1] if past else None,
        last_calls=tuple(past[-WINDOW:]),
        compactions=facts.compaction.count,
    )
