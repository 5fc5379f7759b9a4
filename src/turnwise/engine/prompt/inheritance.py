"""Works out what a fork takes over from its parent, as it stood at a version."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from turnwise.states.arguments import Inheritance
from turnwise.states.facts import Facts
from turnwise.states.message_order import in_prompt_order
from turnwise.states.messages import Message, ToolResultPart, marker_in, tokens_in
from turnwise.states.names import Audience, CallStatus, Executor, Tail

FORKED_TEXT = "Not run here: the chat was forked before a result was there."


def inheritance_of(facts: Facts, history: Sequence[Message], now: datetime) -> Inheritance:
    """Return what a fork begins with. Open calls get a synthetic result, so that every call has one."""
    messages = [*history, *_missing_results(history, now)]
    boundaries = [(message.position, marker) for message in history if (marker := marker_in(message)) is not None]
    start, carried = (boundaries[-1][0], boundaries[-1][1].carried) if boundaries else (0, ())
    seen = in_prompt_order(
        [
            message
            for message in messages
            if message.audience is not Audience.user and (message.position > start or message.position in carried)
        ],
        carried,
    )
    summaries = sum(message.audience is Audience.model and message.position > start for message in seen)
    return Inheritance(
        messages=tuple(messages),
        boundary=start,
        foldable=len(seen) - summaries,
        serial=facts.serial + len(messages) - len(history),
        tail=tail_of(seen),
        compactions=sum(marker.reason == "compaction" for _, marker in boundaries),
        tokens=sum(tokens_in(message.parts) for message in seen),
    )


def _missing_results(history: Sequence[Message], now: datetime) -> list[Message]:
    answered = {message.result.call_id for message in history if message.result is not None}
    open_calls = [
        (message, index, call)
        for message in history
        if message.audience is not Audience.model  # a copy that a strategy has changed asks for the same calls
        for index, call in enumerate(call for call in message.calls if call.executor is not Executor.provider)
        if call.call_id not in answered
    ]
    last = history[-1].position if history else 0
    return [
        Message(
            id=f"{call.call_id}-forked",
            role="tool",
            parts=(
                ToolResultPart(call_id=call.call_id, name=call.name, output=FORKED_TEXT, outcome=CallStatus.cancelled),
            ),
            turn=message.turn,
            step=message.step,
            created_at=now,
            position=last + place,
            call_index=index,
            synthetic=True,
        )
        for place, (message, index, call) in enumerate(open_calls, start=1)
    ]


def tail_of(seen: Sequence[Message]) -> Tail:
    """Return how messages end that the model sees."""
    if not seen:
        return Tail.empty
    last = seen[-1]
    if last.role == "user" and last.audience is Audience.model and last.step:
        return Tail.answered  # only a summary is left: a message without an answer would have been carried past it
    if last.role != "assistant":
        return Tail.awaits_answer
    return Tail.partial if last.partial else Tail.answered
