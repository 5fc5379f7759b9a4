"""The places of a worker: for the chats that it runs, and for those that a commit under way may bring."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from turnwise.engine.worker.runner import Runner


class Reserved:
    """Places for what a commit under way may bring: the chat of that id, or, without one, any."""

    def __init__(self, places: int, chat_id: str | None) -> None:
        self.places = places
        """How many."""
        self.chat_id = chat_id


class Places:
    """The places of a worker.

    Args:
        number: how many chats may run at once.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self.runners: dict[str, Runner] = {}
        """The chats that run."""
        self._reserved: set[Reserved] = set()
        self._left = anyio.Event()

    @property
    def free(self) -> int:
        """How many more chats may run."""
        return self._number - len(self.runners) - sum(reserved.places for reserved in self._reserved)

    @property
    def taken(self) -> bool:
        """Whether a chat runs, or may be brought by a commit under way."""
        return bool(self.runners or self._reserved)

    @contextmanager
    def reserve(self, places: int, chat_id: str | None = None) -> Iterator[Reserved]:
        """Keep places while a commit is under way that may bring this chat, or any, to this worker."""
        reserved = Reserved(places, chat_id)
        if places > 0:
            self._reserved.add(reserved)
        try:
            yield reserved
        finally:
            self._reserved.discard(reserved)
            self._tell()

    def awaits(self, chat_id: str) -> bool:
        """Return whether a change of the chat is under way that may bring it."""
        return any(reserved.chat_id == chat_id for reserved in self._reserved)

    def leave(self, runner: Runner) -> bool:
        """Take a runner's place back; return whether it had one still."""
        chat_id = runner.leased.chat_id
        had_one = self.runners.get(chat_id) is runner
        if had_one:
            del self.runners[chat_id]
            self._tell()
        return had_one

    async def one_left(self) -> None:
        """Wait until a runner has left, or a commit under way is over."""
        await self._left.wait()

    def _tell(self) -> None:
        self._left.set()
        self._left = anyio.Event()
