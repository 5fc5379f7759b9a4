"""The order of messages: as the model sees them, and as people do."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from turnwise.states.messages import Message


def in_prompt_order(messages: Sequence[Message], carried: Sequence[int]) -> list[Message]:
    """Return what the model sees: the messages that the boundary lists, in its order, then those after it."""
    places = {position: place for place, position in enumerate(carried)}

    def place_of(message: Message) -> tuple[int, int]:
        listed = places.get(message.position)
        return (1, message.position) if listed is None else (0, listed)

    return in_call_order(sorted(messages, key=place_of))


def in_call_order(messages: Sequence[Message]) -> list[Message]:
    """Return the messages in their order, but adjacent results of one step in the order of their calls.

    Results are stored as they finish; every view and every request shows them in the order of their calls. Those that a
    strategy has put apart stay apart.
    """
    ordered: list[Message] = []
    for _, run in itertools.groupby(messages, key=lambda message: (message.step, message.role == "tool")):
        ordered.extend(sorted(run, key=_place_among_calls))
    return ordered


def in_transcript_order(messages: Sequence[Message]) -> list[Message]:
    """Return the messages in their order, but all results of one step, on their places, in the order of their calls.

    A compaction may come between the results of a step: what a person sees of it is a marker among them.
    """
    results: dict[int, list[Message]] = {}
    for message in messages:
        if message.role == "tool":
            results.setdefault(message.step, []).append(message)
    next_of = {step: iter(sorted(of_step, key=_place_among_calls)) for step, of_step in results.items()}
    return [next(next_of[message.step]) if message.role == "tool" else message for message in messages]


def _place_among_calls(message: Message) -> int:
    """Return where a result stands. A summary that was made of one stands where its strategy put it."""
    return (message.call_index or 0) if message.role == "tool" else 0
