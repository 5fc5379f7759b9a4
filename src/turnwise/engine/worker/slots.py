"""The slots of a worker: for the chats that it runs, and for those that commits in flight may bring."""

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
"""The version of a chat that another process may have changed."""


class Reservation:
    """Slots for the chats that a commit in flight may bring: the chat of that id, or, without one, any.

    Changes of such a chat are remembered until it has a runner.
    """

    def __init__(self, number: int, chat_id: str | None) -> None:
        self.number = number
        """The number of slots."""
        self.chat_id = chat_id
        self._newest: dict[str | None, float] = {}
        """The newest known version of each chat."""

    def note_change(self, chat_id: str | None, version: float) -> None:
        """Note a new version of a chat, or of any chat."""
        self._newest[chat_id] = max(version, self._newest.get(chat_id, 0))

    def has_newer(self, facts: Facts) -> bool:
        """Whether the chat may have changed since."""
        return facts.version < max(self._newest.get(facts.chat_id, 0), self._newest.get(None, 0))


class Slots:
    """The slots of a worker, which may run `number` chats at once."""

    def __init__(self, number: int) -> None:
        self._number = number
        self.runners: dict[str, Runner] = {}
        """The chats that run."""
        self._reservations: defaultdict[str | None, set[Reservation]] = defaultdict(set)
        """By chat; `None` for any chat."""
        self._reserved = 0
        """The number of reserved slots."""
        self._left = asyncio.Event()

    @property
    def free(self) -> int:
        """How many more chats may run."""
        return self._number - len(self.runners) - self._reserved

    @property
    def in_use(self) -> bool:
        """Whether a chat runs, or a commit in flight may bring one."""
        return bool(self.runners or self._reserved)

    @contextmanager
    def reserve(self, number: int, chat_id: str | None = None) -> Iterator[Reservation]:
        """Reserve slots for a commit in flight that may bring this chat, or any, to this worker."""
        reservation = Reservation(number, chat_id)
        if number > 0:
            self._reservations[chat_id].add(reservation)
            self._reserved += number
        try:
            yield reservation
        finally:
            if number > 0:
                self._release(reservation)
            self._wake_waiters()

    def awaits(self, chat_id: str) -> bool:
        """Whether a commit in flight may bring the chat."""
        return chat_id in self._reservations

    def runs(self, chat_id: str, token: int) -> bool:
        """Whether the chat runs here under that token."""
        runner = self.runners.get(chat_id)
        return runner is not None and runner.leased.token == token

    def note_change(self, chat_id: str | None, version: float = _ANY_LATER) -> None:
        """Note a change for the reservations that it concerns."""
        concerned = [*self._reservations] if chat_id is None else [chat_id, None]
        for reservation in chain.from_iterable(self._reservations.get(each, ()) for each in concerned):
            reservation.note_change(chat_id, version)

    def leave(self, runner: Runner) -> bool:
        """Free a runner's slot; return whether it still had one."""
        chat_id = runner.leased.chat_id
        had_one = self.runners.get(chat_id) is runner
        if had_one:
            del self.runners[chat_id]
            self._wake_waiters()
        return had_one

    async def one_left(self) -> None:
        """Wait until a runner has left, or a commit in flight has ended."""
        await self._left.wait()

    def _release(self, reservation: Reservation) -> None:
        of_its_chat = self._reservations[reservation.chat_id]
        of_its_chat.discard(reservation)
        if not of_its_chat:
            del self._reservations[reservation.chat_id]
        self._reserved -= reservation.number

    def _wake_waiters(self) -> None:
        self._left.set()
        self._left = asyncio.Event()
