"""The places of a worker: for the chats that it runs, and for those that a commit under way may bring."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Final

from turnwise.engine.worker.runner import Runner
from turnwise.states.facts import Facts

_ANY_LATER: Final = float("inf")
"""Stands for the version of a chat of which it is only known that another process may have changed it."""


class Reserved:
    """Slots for what a commit under way may bring: the chat of that id, or, without one, any.

    What is heard of such a chat before it has a runner is kept for that runner.
    """

    def __init__(self, places: int, chat_id: str | None) -> None:
        self.places = places
        """How many."""
        self.chat_id = chat_id
        self._heard: dict[str | None, float] = {}
        """The newest version of each chat that was heard of meanwhile."""

    def hear(self, chat_id: str | None, version: float) -> None:
        """Note that a chat, or some chat, has come to a version."""
        self._heard[chat_id] = max(version, self._heard.get(chat_id, 0))

    def has_heard_more(self, facts: Facts) -> bool:
        """Return whether the chat may have changed since."""
        return facts.version < max(self._heard.get(facts.chat_id, 0), self._heard.get(None, 0))


class Slots:
    """The places of a worker.

    Args:
        number: how many chats may run at once.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self.runners: dict[str, Runner] = {}
        """The chats that run."""
        self._reserved: defaultdict[str | None, set[Reserved]] = defaultdict(set)
        """Who keeps places, by the chat; under `None` those for any chat."""
        self._kept = 0
        """How many places they keep."""
        self._left = asyncio.Event()

    @property
    def free(self) -> int:
        """How many more chats may run."""
        return self._number - len(self.runners) - self._kept

    @property
    def taken(self) -> bool:
        """Whether a chat runs, or may be brought by a commit under way."""
        return bool(self.runners or self._kept)

    @contextmanager
    def reserve(self, places: int, chat_id: str | None = None) -> Iterator[Reserved]:
        """Keep places while a commit is under way that may bring this chat, or any, to this worker."""
        reserved = Reserved(places, chat_id)
        if places > 0:
            self._reserved[chat_id].add(reserved)
            self._kept += places
        try:
            yield reserved
        finally:
            if places > 0:
                self._give_back(reserved)
            self._tell()

    def awaits(self, chat_id: str) -> bool:
        """Return whether a change of the chat is under way that may bring it."""
        return chat_id in self._reserved

    def hear(self, chat_id: str | None, version: float = _ANY_LATER) -> None:
        """Note for those that are not here yet that a chat, or some chat, has come to a version, or has changed."""
        concerned = [*self._reserved] if chat_id is None else [chat_id, None]
        for reserved in chain.from_iterable(self._reserved.get(each, ()) for each in concerned):
            reserved.hear(chat_id, version)

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

    def _give_back(self, reserved: Reserved) -> None:
        of_its_chat = self._reserved[reserved.chat_id]
        of_its_chat.discard(reserved)
        if not of_its_chat:
            del self._reserved[reserved.chat_id]
        self._kept -= reserved.places

    def _tell(self) -> None:
        self._left.set()
        self._left = asyncio.Event()
