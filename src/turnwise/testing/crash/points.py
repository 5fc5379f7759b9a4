"""The points at which a process can be killed, by names that are the same in every run of a scenario."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from turnwise.states.decide import Decision

Moment = Literal["before", "after"]


class Points:
    """Counts the points that a life passes, and says when the one has come at which it has to end.

    Args:
        target: the name of that point; `None` lets the life go on to its end.
    """

    def __init__(self, target: str | None = None) -> None:
        self.target = target
        self.passed: list[str] = []
        """The names of the points, in order."""
        self.closed = False
        """Whether no further point counts: what follows only looks at what came of the scenario."""
        self._counts: Counter[str] = Counter()
        self._chats: dict[str, int] = {}

    def reach(self, name: str) -> bool:
        """Note that a point is passed; return whether it is the one."""
        if self.closed:
            return False
        self._counts[name] += 1
        self.passed.append(_numbered(name, self._counts[name]))
        return self.passed[-1] == self.target

    def is_next(self, name: str) -> bool:
        """Return whether the next point of a name is the one. Safe in any thread, any number of times."""
        return not self.closed and _numbered(name, self._counts[name] + 1) == self.target

    def chat(self, chat_id: str) -> str:
        """Return a name for a chat that is the same in every run, unlike its id: the number of its first point."""
        return f"chat {self._chats.setdefault(chat_id, len(self._chats) + 1)}"

    def commit(self, moment: Moment, chat_id: str, decisions: Sequence[Decision]) -> str:
        """Return the name of the point before or after a commit."""
        triggers = ", ".join(decision.trigger.name for decision in decisions)
        return f"{moment} the commit of {triggers} in {self.chat(chat_id)}"


def _numbered(name: str, number: int) -> str:
    return name if number == 1 else f"{name}, time {number}"
