"""Caches a value per message, so that a request costs only as much as its new messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar
from weakref import ref

from turnwise.states.messages import Message

Worked = TypeVar("Worked")


class PerMessage(Generic[Worked]):
    """Works something out once for each message, and forgets it together with the message.

    The key is the message object, not its id: an edited or erased message is read anew and is another object.

    Args:
        work: what to work out. Its value must not hold the message, which would then live for ever.
    """

    def __init__(self, work: Callable[[Message], Worked]) -> None:
        self._work = work
        self._results: dict[int, tuple[ref[Message], Worked]] = {}

    def __len__(self) -> int:
        """Return how many messages are known."""
        return len(self._results)

    def __call__(self, message: Message) -> Worked:
        """Return what was worked out of the message, now or before."""
        address, results = id(message), self._results
        entry = results.get(address)
        if entry is not None:
            return entry[1]
        worked = self._work(message)
        results[address] = (ref(message, lambda _: results.pop(address, None)), worked)
        return worked
