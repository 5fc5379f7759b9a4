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
        self._known: dict[int, tuple[ref[Message], Worked]] = {}

    def __len__(self) -> int:
        """Return how many messages are known."""
        return len(self._known)

    def __call__(self, message: Message) -> Worked:
        """Return what was worked out of the message, now or before."""
        address, known = id(message), self._known
        found = known.get(address)
        if found is not None:
            return found[1]
        worked = self._work(message)
        known[address] = (ref(message, lambda _: known.pop(address, None)), worked)
        return worked
